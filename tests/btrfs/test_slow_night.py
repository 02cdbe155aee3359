"""Nights on a disk with slow writes: everything takes longer, and nothing else is different."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.slow_disk import slow_btrfs
from tests.beds import backupd, btrfs, nbd, session
from tests.beds.everything import write
from tests.beds.nights import Nights

pytestmark = [
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(nbd.why_not() or btrfs.why_not()), reason=f"left out: a slow disk ({nbd.why_not()})"),
]
PATIENCE = 800.0
HOSTS = ("web", "db", "mail")


@contextmanager
def on_a_slow_disk(delay: str, folder: Path) -> Iterator[Nights]:
    with slow_btrfs(folder, "1G", delay) as point:
        yield Nights(point)


@pytest.mark.parametrize("delay", ["50ms", pytest.param("1000ms", marks=pytest.mark.long)])
def test_two_nights_of_three_hosts_complete_and_expire_deletes(delay: str, tmp_path: Path) -> None:
    """The long form shows whether anything times out in the minutes that a commit takes."""
    folder = Path(session.folder(1 << 30)) / f"slow-{delay}"
    folder.mkdir()
    sources = tmp_path / "srv"
    for number in range(40):
        write(sources / f"{number}", f"{number}" * 5000)
    with on_a_slow_disk(delay, folder) as nights:
        for host in HOSTS:
            nights.host(host, sources)
        for night in range(2):
            write(sources / "changed", f"night {night}" * 5000)
            done = backupd("--config", nights.config, "run", "--all", "--json", timeout=PATIENCE)
            assert {row["host"]: row["outcome"] for row in json.loads(done.stdout)} == dict.fromkeys(HOSTS, "complete")
            assert [host for host in HOSTS if nights.differences(host, sources)] == []
        name = nights.names("web")[0]
        words = ("delete", f"web@{name}", "--reason", "test", "--now-without-grace")
        backupd("--config", nights.config, *words, timeout=PATIENCE)
        assert name not in nights.names("web")
