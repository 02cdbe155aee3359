"""Copies wait for commands that make, expire or balance backups in the same pool, also between two backups of one host."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from btrkeep.pool.locks import take_lock
from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.btrfs.test_offsite import Offsite
from tests.btrfs.test_push import Pushing

pytestmark = [pytest.mark.btrfs, pytest.mark.slow]


def line(locks: Path, folder: Path, listed: Path, *names: str) -> list[str]:
    """Returns a command that holds these locks in turn; `folder` gets the flag and the log."""
    return [sys.executable, "-m", "tests.beds.holding", *map(str, (locks, folder / "held", folder / "log", listed)), *names]


def while_held(locks: Path, name: str, nights: Nights, words: tuple[str, ...], nothing_yet: Callable[[], bool]) -> None:
    """Runs the command while this process holds that lock, requires that it waits and has done nothing, and lets it continue."""
    with take_lock(locks / name, f"a {name} of a test", "2026-03-20T12:00:00Z"):
        line = [sys.executable, "-m", "backupd", "--config", str(nights.config), *words]
        process = subprocess.Popen(line, cwd=TOP, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            output = process.stderr.readline()
            assert output.startswith(f"waits: a {name} of a test"), output + process.stderr.read()
            assert nothing_yet()
        except BaseException:
            process.kill()
            raise
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "waits" not in rest


def seen(folder: Path) -> list[Any]:
    return [json.loads(text) for text in (folder / "log").read_text().splitlines()]


def test_between_two_backups_of_a_host_a_night_an_expiry_and_a_balance_go_first(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    """They begin when the first backup has just arrived; the second one arrives after them, and the host's lock is free until then.

    Copies check for waiting commands twice a second.
    """
    two = TwoPools(make_btrfs(), make_btrfs())
    first, second = two.night("2026-03-01T22:00:00Z", "a"), two.night("2026-03-02T22:00:00Z", "b")
    locks = two.second.pool / ".btrkeep/locks"
    holder = shlex.join(line(locks, tmp_path, two.second.pool / "hosts/web1", "night", "expire", "balance"))
    held = shlex.quote(str(tmp_path / "held"))
    begin = f"{holder} >/dev/null 2>&1 & for i in $(seq 200); do [ -e {held} ] || sleep 0.05; done; sleep 0.6"
    words = ("--config", str(two.second.config), "replicate", "--now", "2026-03-20T12:00:00Z")
    done = work(sys.executable, "-m", "tests.beds.kill_at", f"does:{begin}", "after", "stream received", "1", *words, cwd=TOP)
    assert [row[0] for row in seen(tmp_path)] == ["night", "expire", "balance"]
    for name, names, is_free in seen(tmp_path):
        assert [name for name in names if name.startswith("20")] == [first], name
        assert is_free, name
    assert done.stderr.count("waits: a night of a test") == 1
    assert two.names(two.second.pool) == [first, second]
    assert two.differences(second) == ""


@pytest.mark.parametrize(
    "name", ["night", pytest.param("expire", marks=pytest.mark.long), pytest.param("balance", marks=pytest.mark.long)]
)
def test_what_is_sent_to_another_server_waits_for_what_is_done_here(make_btrfs: Callable[..., Path], name: str) -> None:
    """The other server, which would otherwise stop waiting, gets a message."""
    two = Pushing(make_btrfs(), make_btrfs())
    first = two.night("2026-03-01T22:00:00Z", "a")
    words = ("replicate", "--now", "2026-03-20T12:00:00Z")
    while_held(two.first.pool / ".btrkeep/locks", name, two.first, words, lambda: two.names(two.second.pool) == [])
    assert two.names(two.second.pool) == [first]
    assert two.differences(first) == ""


def test_what_goes_to_a_repository_waits_for_the_night(make_btrfs: Callable[..., Path]) -> None:
    site = Offsite(make_btrfs())
    site.backup("2026-03-01T22:00:00Z")
    site.offsite("init", "far")
    words = ("offsite", "run", "--now", "2026-03-20T12:00:00Z")
    while_held(site.night.pool / ".btrkeep/locks", "night", site.night, words, lambda: site.listed_by_restic() == [])
    assert [host for host, _, _ in site.listed_by_restic()] == ["web1"]
