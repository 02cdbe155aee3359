"""The commands of docs/offsite.rst for an empty machine are executed with the repository and its password, without btrkeep.

It is the last way back, without the server: a line that does not work then costs all backups.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.docs.pages import Page

pytestmark = [
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("restic"), reason="restic is not installed"),
]
ADDRESS, PASSWORD_FILE, FOLDER, TARGET = (
    "rest:https://copies.example.org/main",
    "/root/offsite.password",
    "/btrkeep/data/etc",
    "/mnt/restored",
)


def typed(way: Page, places: dict[str, str]) -> str:
    """Returns the section's lines, with the places of this test in place of the page's."""
    text = "\n".join(way.blocks())
    for shown, here in places.items():
        assert text.count(shown) == 1, shown
        text = text.replace(shown, here)
    return text


def test_from_an_empty_machine_a_host_comes_back_with_restic_alone(
    shared_btrfs: Path, tmp_path: Path, page: Callable[[str], Page]
) -> None:
    nights = Nights(shared_btrfs)
    (nights.source / "passwd").write_text("root:x:0:0\n")
    (nights.source / "hard").hardlink_to(nights.source / "passwd")
    password, repository, target = tmp_path / "password", tmp_path / "repository", tmp_path / "restored"
    password.write_text("a long word 1\n")
    password.chmod(0o600)
    nights.tables["offsite.far"] = {"repository": str(repository), "password_file": str(password)}
    nights.host("web1", nights.source)
    nights.run("web1")
    nights.backupd("offsite", "init", "far")
    nights.backupd("offsite", "run", "far")
    name = nights.names("web1")[0]
    kept = tmp_path / "kept"
    work("cp", "-a", nights.source, kept)
    work("mv", nights.pool, nights.pool.with_name("gone"))
    places = {
        ADDRESS: str(repository),
        PASSWORD_FILE: str(password),
        FOLDER: f"/btrkeep/data{nights.source}",
        TARGET: str(target),
    }
    lines = typed(page("offsite").section("Restoring on an empty machine"), places)
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    done = subprocess.run(["bash", "-euc", lines], env=bare, capture_output=True, text=True, check=True)
    assert f"backup:{name}" in done.stdout
    back = f"{target}/btrkeep/data{nights.source}/"
    assert work("rsync", "-n", "-aHAXci", "--delete", f"{kept}/", back).stdout == ""
    assert Path(back, "hard").stat().st_ino == Path(back, "passwd").stat().st_ino
