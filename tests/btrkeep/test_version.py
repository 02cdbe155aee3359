"""The version names the commit: in a checkout the commit of git, in an installation the commit that install.sh recorded."""

import shutil
import sys
from pathlib import Path

import pytest

from btrkeep import __version__
from tests.beds import TOP, work

SHOW = "import sys; sys.path.insert(0, '.'); from btrkeep.cli import version_words; print(version_words())"


def shown(place: Path) -> str:
    return work(sys.executable, "-P", "-c", SHOW, cwd=place).stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copytree(TOP / "btrkeep", tmp_path / "btrkeep", ignore=shutil.ignore_patterns("__pycache__", "*.txt"))
    return tmp_path


def test_without_a_commit_it_is_the_version_alone(place: Path) -> None:
    assert shown(place) == __version__
    (place / "btrkeep/commit.txt").write_text("no commit\n")
    assert shown(place) == __version__


def test_in_a_checkout_it_is_that_of_git_on_a_branch_packed_or_detached(place: Path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", place)
    for step in ("init -q", "add .", "commit -qm first"):
        work(*git, *step.split())
    commit = work(*git, "rev-parse", "HEAD").stdout.strip()
    for step in ("status", "pack-refs --all", "checkout -q --detach"):
        work(*git, *step.split())
        assert shown(place) == f"{__version__} (commit {commit[:12]})", step


def test_where_it_was_installed_it_is_the_recorded_one(place: Path) -> None:
    (place / "btrkeep/commit.txt").write_text("0123456789ab\n")
    assert shown(place) == f"{__version__} (commit 0123456789ab)"


def test_in_an_archive_it_is_that_of_the_archive(place: Path) -> None:
    shutil.copy(TOP / ".gitattributes", place)
    shutil.copy(TOP / "btrkeep/archived.txt", place / "btrkeep")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", place)
    for step in ("init -q", "add .", "commit -qm first", "archive -o archive.tar HEAD"):
        work(*git, *step.split())
    unpacked = place / "unpacked"
    unpacked.mkdir()
    work("tar", "-C", unpacked, "-xf", place / "archive.tar")
    commit = work(*git, "rev-parse", "HEAD").stdout.strip()
    assert shown(unpacked) == shown(place) == f"{__version__} (commit {commit[:12]})"
