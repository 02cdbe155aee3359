"""docs/second-copy.rst under real systemd: the commands for a disk at home are executed as they are printed there."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import TOP, btrfs, session, work
from tests.beds.machine import Booted, booted, why_not

INSIDE = Path(__file__).resolve().parent / "inside"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.takes(30),
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_not()), reason=f"left out: under real systemd ({why_not()})"),
    pytest.mark.timeout(600),  # the machine may have to be made first
]


def _typed() -> list[str]:
    """Returns the literal blocks of the section, in their order."""
    text = (TOP / "docs/second-copy.rst").read_text(encoding="utf-8")
    section = text.partition("\nA disk at home\n")[2].partition("\n\nThe first copies, carried on a disk\n")[0]
    matches = re.findall(r"::\n\n((?: +\S.*\n|\n)+)", section)
    return [re.sub(r"(?m)^ {3,4}", "", block).strip() + "\n" for block in matches]


@pytest.fixture(scope="module")
def disk(no_leftovers: None) -> Iterator[Booted]:
    configuration, make, mount, *_ = _typed()
    pool, away = btrfs.make(size="3G"), btrfs.make(size="1G")
    try:
        device = Path(work("findmnt", "--noheadings", "--output", "SOURCE", away).stdout.strip()).stat().st_rdev
        files = {path.name: path.read_text(encoding="utf-8") for path in INSIDE.iterdir()}
        files |= {"page-disk.toml": configuration, "page-make": make, "page-mount": mount}
        files["disk-numbers"] = f"{os.major(device)} {os.minor(device)}"
        with booted({**files, "main.sh": files["disk.sh"]}, [(pool, "/srv")]) as done:
            yield done
    finally:
        problems = [problem for point in (pool, away) for problem in session.remove(point.parent)]
    assert not problems, "\n".join(problems)


def test_a_disk_that_is_mounted_by_hand_fetches_by_itself(disk: Booted) -> None:
    assert disk.read("by-hand") == "two\n"


def test_so_does_one_that_systemd_mounts(disk: Booted) -> None:
    assert disk.read("by-systemd") == "three\n"
    assert disk.fields("unit")["Result"] == "success"


def test_the_pool_that_it_fetches_from_calls_the_copy_as_the_page_says(disk: Booted) -> None:
    assert "common with replica disk" in disk.read("explained")
