"""The commands of README.rst and of the tour, executed in turn in a fresh folder, on a real pool.

A new user tries these first.
"""

import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from btrkeep.trusted_path import untrusted_step
from tests.beds import TOP, work
from tests.beds.nights import Nights

PAGES = [(TOP / name).read_text(encoding="utf-8") for name in ("README.rst", "docs/tour.rst")]
BLOCK = re.compile(r"::\n\n((?: {4,}\S.*\n)+)")
PROGRAMS = {"backupd": "backupd", "btrfs-heatmap": "heatmap", "btrfs-balancer": "balancer"}
FIRST = "2026-11-19"
"""The day of a backup that the tour names."""

NOT_TYPED = {
    "sudo ./demo.sh": "it has a run of its own",
    "sudo ./test.sh": "it would run this test",
    "sudo ./install.sh": "tests/install",
    "sudo ./install.sh --enable main": "tests/install",
    "sudo backupd setup": "it asks; tests/backupd/test_cli_setup.py",
    "sudo ./install.sh --web main": "tests/install",
    "sudo btrkeep-web user add alice --role operator": "it asks for a password; tests/web",
    "xdg-open http://127.0.0.1:8765": "it needs a screen",
    "backupd restore web1 /srv/shop --to-host --dry-run": "it needs a real host; tests/btrfs/test_restore_to_host.py",
    "backupd notify --test": "it needs somebody to send to; tests/backupd/test_alarms_send.py",
    "backupd replicate office --dry-run": "it needs another server; tests/btrfs/test_replicate.py",
    "backupd replicate office": "it needs another server; tests/btrfs/test_replicate.py",
    "backupd promote '*' --dry-run": "it needs another server; tests/btrfs/test_promote.py",
    "backupd offsite run": "it needs a repository; tests/btrfs/test_offsite.py",
    "backupd drill web1 --boot": "it boots a machine; tests/btrfs/test_boot_drill.py",
    "backupd import rsnapshot /etc/rsnapshot.conf --dry-run": "it needs rsnapshot's history; tests/btrfs/test_import.py",
    "backupd rehearse --question balance": "it takes minutes; tests/btrfs/test_rehearse.py",
}
"""Lines that this test cannot type, and why."""
MAY_ATTEND = {"backupd check", "backupd check --connect", "backupd doctor"}
"""They report what a throwaway pool lacks."""


DESTINATION = re.compile(r"backupd (?:--\S+ \S+ )?restore [^`\n]*--to (/[\w/.-]*)")


def test_no_page_restores_to_a_folder_that_restore_refuses() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (TOP / "README.rst", *(TOP / "docs").glob("*.rst"))}
    folders = {(name, folder) for name, text in pages.items() for folder in DESTINATION.findall(text)}
    assert len(folders) > 5
    assert {place for place in folders if untrusted_step(Path(place[1]))} == set()


def lines() -> list[str]:
    return [line.strip() for page in PAGES for block in BLOCK.findall(page) for line in block.splitlines()]


def test_the_lines_that_are_not_typed_are_lines_of_it() -> None:
    assert len(lines()) > 40
    assert set(NOT_TYPED) - set(lines()) == set()
    assert len(set(lines()) - set(NOT_TYPED)) > 25


@pytest.mark.takes(40)
def test_each_line_works_in_a_fresh_folder(shared_btrfs: Path, tmp_path: Path) -> None:
    site, folder, programs = Nights(shared_btrfs), tmp_path / "fresh", tmp_path / "bin"
    etc = site.source / "etc"
    etc.mkdir()
    (etc / "fstab").write_text("nothing\n")
    site.host("web1", etc)
    site.host("here", etc, address=None)
    site.settings("pool", zone="UTC")
    folder.mkdir()
    programs.mkdir()
    for name, package in PROGRAMS.items():
        config = f" --config {site.config}" if name == "backupd" else ""
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {package}{config} "$@"\n')
        (programs / name).chmod(0o755)
    first = datetime.now(UTC) - timedelta(days=1)
    site.night("web1", now=first)
    (etc / "fstab").write_text("changed\n")
    site.run("web1")
    places = {
        "/srv/backup": str(site.pool),
        "/etc": str(etc),
        "/root/restored": str(tmp_path / "restored"),
        "/root/web1": str(tmp_path / "latest"),
        FIRST: f"{first:%Y-%m-%d}",
    }
    path = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    for line in lines():
        if line in NOT_TYPED:
            continue
        typed = line
        for name, place in places.items():
            typed = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", place, typed)
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=folder,
            env={"PATH": path, "PYTHONPATH": str(TOP), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        text = f"{line}\n{shlex.quote(typed)}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in text
        assert done.returncode == 0 or (done.returncode == 1 and line in MAY_ATTEND), text
    assert (tmp_path / "restored" / "fstab").read_text() == "nothing\n"
    assert (tmp_path / "latest" / "fstab").read_text() == "changed\n"
    assert "fstab" in work("tar", "tf", folder / "etc.tar").stdout
    assert list((folder / "pictures").glob("*.png"))
    assert (folder / "year.gif").stat().st_size
