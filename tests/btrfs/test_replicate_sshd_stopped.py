"""An ssh server that pauses in the middle of a stream: both directions end after `stall`, and the next run continues."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import TOP
from tests.beds.ssh import Sshd
from tests.beds.two_pools import NOW, TwoPools
from tests.beds.watch import wait_for
from tests.btrfs.test_push import Pushing

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]


@contextmanager
def stopped(server: Sshd) -> Iterator[None]:
    """During the block, the server's processes of connections are stopped; the listening one runs."""
    numbers = list(_sessions(server.process.pid))
    assert numbers
    for number in numbers:
        os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        for number in numbers:
            os.kill(number, signal.SIGCONT)


def _sessions(parent: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = path.read_text().rpartition(") ")
        except OSError:
            continue
        if int(after.split()[1]) == parent and "sshd" in before:
            yield int(path.parent.name)
            yield from _sessions(int(path.parent.name))


def over_ssh(config: Path, *words: str) -> str:
    """Returns the forced command of a key."""
    command = shlex.join([sys.executable, "-m", "backupd", "--config", str(config), *words])
    return f'restrict,command="cd {shlex.quote(str(TOP))} && {command}"'


def said_while_stopped(two: TwoPools, config: Path, server: Sshd) -> str:
    """Returns the output of `backupd replicate`, with status 1, when the server pauses after the first data."""
    host = two.second.pool / "hosts/web1"
    command = [sys.executable, "-m", "backupd", "--config", str(config), "replicate", "--now", NOW]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            wait_for(lambda: any(host.glob(".receiving/*/data/**/large*")), 60, "nothing has begun")
            with stopped(server):
                output = process.communicate(timeout=60)[0]
                wait_for(lambda: not (host / ".receiving").exists(), 60, "the receiving side goes on")
                assert two.names(two.second.pool) == []
        finally:
            process.kill()
    assert (process.returncode, "Traceback" in output) == (1, False), output
    return " ".join(output.split())


def test_who_fetches_gives_up(make_btrfs: Callable[..., Path], sshd: Sshd) -> None:
    two = TwoPools(make_btrfs(), make_btrfs())
    (two.source / "large").write_bytes(os.urandom(8 << 20))
    name = two.night("2026-03-01T22:00:00Z", "a")
    key = sshd.authorize(over_ssh(two.first.config, "send-only"))
    two.second.settings("ssh", command="ssh", key=str(key), known_hosts=str(sshd.known_hosts))
    address = {"from": f"ssh://{sshd.address}", "port": sshd.port}
    two.second.tables["replica.office"] = {**address, "stall": "3s", "bandwidth": "1MB"}
    two.second.write()
    assert "nothing for 3" in said_while_stopped(two, two.second.config, sshd)
    two.second.tables["replica.office"] = address
    two.second.write()
    assert [fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]] == [name]
    assert two.differences(name) == ""


def test_both_sides_of_a_push_give_up(make_btrfs: Callable[..., Path], sshd: Sshd) -> None:
    two = Pushing(make_btrfs(), make_btrfs())
    (two.source / "large").write_bytes(os.urandom(8 << 20))
    name = two.night("2026-03-01T22:00:00Z", "a")
    key = sshd.authorize(over_ssh(two.second.config, "receive-only", "--replica", "office", "--now", NOW))
    two.first.settings("ssh", command="ssh", key=str(key), known_hosts=str(sshd.known_hosts))
    address = {"to": f"ssh://{sshd.address}", "port": sshd.port}
    two.first.tables["push.backup2"] = {**address, "stall": "3s", "bandwidth": "1MB"}
    two.first.write()
    two.second.tables["replica.office"]["stall"] = "3s"
    two.second.write()
    assert "nothing for 3" in said_while_stopped(two, two.first.config, sshd)
    wait_for(lambda: two.copies()["state"] == "failing", 60, "the receiving side does not say that it has failed")
    two.first.tables["push.backup2"] = address
    two.first.write()
    assert [sent_backup["backup"] for sent_backup in two.push()["sent"]] == [name]
    assert two.differences(name) == ""
