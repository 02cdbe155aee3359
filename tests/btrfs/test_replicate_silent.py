"""A program that pauses in the middle of a copy, as if stopped by its kernel: the copy ends after `stall` seconds."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backupd.replicate import sender
from backupd.replicate.wire import PIECE
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import open_pool
from btrkeep.pool.subvolume import send
from tests.beds import TOP, work
from tests.beds.two_pools import NOW, TwoPools, shown
from tests.beds.watch import wait_for
from tests.btrfs.test_offsite import Offsite, far, fill
from tests.btrfs.test_offsite_faults import instead
from tests.btrfs.test_push import Pushing

pytestmark = [pytest.mark.btrfs, pytest.mark.slow]
__all__ = ["far"]
STALL = "3s"
SILENCE = "10s"  # within this time a further program must have sent something
LONG = "50s"  # no test waits that long: see `waited`
WAITED = (sys.executable, "-P", TOP / "tests" / "beds" / "waited.py")
_STOPS = 'echo $$ > {pid}\nexec "$@"'


def large(two: TwoPools) -> str:
    (two.source / "large").write_bytes(os.urandom(8 << 20))
    return two.night("2026-03-01T22:00:00Z", "a")


def stopped_within(config: Path, pid: Path, begun: Callable[[], bool], *words: str) -> dict[str, Any]:
    """Returns the output of `backupd replicate` when the process whose number is in the file is stopped for a long time after its
    start.
    """
    is_long = pid.with_name("long")
    command: list[str | Path] = [*WAITED, is_long, "--config", config, "replicate", "--json", "--now", NOW, *words]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: begun() and pid.exists() and bool(pid.read_text().strip()), 90, "nothing has begun")
            number = int(pid.read_text())
            os.kill(number, signal.SIGSTOP)
            assert process.poll() is None
            is_long.touch()
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
    assert "Traceback" not in err, err
    wait_for(lambda: not Path(f"/proc/{number}").exists() or stat(number) in "ZX", 60, "the stopped one is still there")
    return {"status": process.returncode, "said": " ".join((out + err).split())}


def stat(number: int) -> str:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_a_sender_that_stops_is_given_up(two: TwoPools) -> None:
    two.second.tables["replica.office"] |= {"stall": LONG, "bandwidth": "1MB"}
    name = large(two)
    pid = two.second.top / "pid"
    two.over_ssh(_STOPS.format(pid=pid))
    host = two.second.pool / "hosts/web1"
    done = stopped_within(two.second.config, pid, lambda: any(host.glob(".receiving/*/data/**/large*")))
    assert done["status"] == 1, done
    assert "nothing for 50" in done["said"], done
    assert two.names(two.second.pool) == []
    assert not (host / ".receiving").exists()
    two.over_ssh('exec "$@"')
    for key in ("bandwidth", "stall"):
        two.second.tables["replica.office"].pop(key)
    two.second.write()
    assert two.fetch()[0]["status"] == 0
    assert two.differences(name) == ""


def test_a_receive_that_stops_is_given_up(two: TwoPools) -> None:
    large(two)
    two.second.tables["replica.office"]["stall"] = LONG
    is_long = two.second.top / "long"
    stops = f"touch {shlex.quote(str(is_long))}; while [ $SECONDS -lt 200 ]; do :; done"
    with two.replicating(two.second.top / "copy", stops, (*WAITED, is_long)) as fetching:
        output = fetching.communicate(timeout=100)[1]
    assert (fetching.returncode, "for 50" in " ".join(output.split())) == (1, True), output
    assert not (two.second.pool / "hosts/web1/.receiving").exists()


def test_a_server_that_takes_no_more_of_a_push_is_given_up(make_btrfs: Callable[..., Path]) -> None:
    two = Pushing(make_btrfs(), make_btrfs())
    large(two)
    pid = two.first.top / "pid"
    two.first.tables["push.backup2"] |= {"stall": LONG, "bandwidth": "1MB"}
    two.over(_STOPS.format(pid=pid))
    two.first.write()
    host = two.second.pool / "hosts/web1"
    done = stopped_within(two.first.config, pid, lambda: any(host.glob(".receiving/*/data/**/large*")))
    assert done["status"] == 1, done
    assert two.names(two.second.pool) == []
    two.over('exec "$@"')
    two.first.tables["push.backup2"] = {"to": "ssh://root@second"}
    two.first.write()
    two.push()
    assert len(two.names(two.second.pool)) == 1


def test_a_line_that_goes_dead_in_a_stream_of_a_push_holds_the_next_one_for_a_few_minutes_only(
    make_btrfs: Callable[..., Path],
) -> None:
    """Minutes are seconds here. The line stays open for three minutes, and `stall` is half an hour."""
    two = Pushing(make_btrfs(), make_btrfs())
    large(two)
    script = (
        "import sys; from backupd.replicate import remote_pool; remote_pool.KEEPALIVE_TIMEOUT = 4.0; "
        "from backupd.cli import main; main()"
    )
    short = shlex.join([sys.executable, "-c", script, *two.forced[3:]])
    two.over(f'{shlex.quote(sys.executable)} -c "$RELAY" stop 400000 | "$@"', answers=short)
    command = [sys.executable, "-m", "backupd", "--config", str(two.first.config), "replicate", "--now", NOW]
    host = two.second.pool / "hosts/web1"
    silent = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=TOP, stdout=silent, stderr=silent, start_new_session=True) as process:
        try:
            wait_for(lambda: any(host.glob(".receiving/*/data/**/large*")), 60, "nothing came")
            time.sleep(1)  # by now the connection is dead
            process.kill()  # the first server's machine has vanished, without a message to the second one
            two.over('exec "$@"')
            sends = partial(two.first.backupd, "replicate", "--now", NOW, check=False)
            wait_for(lambda: sends().returncode == 0, 120, "the lock is still held")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert len(two.names(two.second.pool)) == 1


def test_a_stream_says_that_more_is_to_come_while_the_kernel_looks_for_it(two: TwoPools, monkeypatch: pytest.MonkeyPatch) -> None:
    name = large(two)
    pool = open_pool(two.first.pool)
    asked = {"host": "web1", "name": name, "uuid": shown(pool.host("web1") / name)["UUID"]}
    kernel = send

    def looks_for_long(*words: Any) -> None:
        time.sleep(1)
        kernel(*words)

    def stream() -> list[bytes]:
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as file, ThreadPoolExecutor(2) as threads:
            sending = threads.submit(sender.BackupSender(pool, None, writing).verbs["send"], asked)
            threads.submit(_closed_after, sending, writing)
            result = [content for kind, content in frames(file.read) if kind == PIECE]
            sending.result()
            return result

    usual = stream()
    monkeypatch.setattr(sender, "KEEPALIVE_INTERVAL", 0.1)
    monkeypatch.setattr(sender, "send", looks_for_long)
    slow = stream()
    assert (b"" in usual, slow[0]) == (False, b"")
    assert b"".join(usual) == b"".join(slow)


def _closed_after(sending: "Future[None]", fd: int) -> None:
    wait([sending])
    os.close(fd)


def frames(read: Callable[[int], bytes]) -> Iterator[tuple[bytes, bytes]]:
    while head := read(5):
        yield head[:1], read(int.from_bytes(head[1:], "big"))


_REQUESTS = """
import os, signal, subprocess, sys
pid, verb, count, number, *command = sys.argv[1:]
far = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
left = int(count)
for line in far.stdout:
    left -= f'"{verb}"'.encode() in line
    if left < 0:
        far.send_signal(int(number))
        with open(pid, "w") as file:
            file.write(str(far.pid))
        signal.pause()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""
"""Replaces ssh: after that many requests of a kind, the remote program gets a signal and stops answering."""


def before_request(two: Pushing, verb: str, count: int, number: signal.Signals = signal.SIGSTOP) -> Path:
    pid = two.first.top / "pid"
    words = [sys.executable, "-c", _REQUESTS, str(pid), verb, str(count), str(int(number))]
    two.over(f'exec {shlex.join(words)} "$@"')
    return pid


@pytest.mark.parametrize(("verb", "count"), [("hello", 0), ("list", 0), ("send", 1), ("ended", 0)])
def test_a_server_that_asks_for_nothing_more_of_a_push_is_given_up_and_the_next_one_goes_on(
    make_btrfs: Callable[..., Path], verb: str, count: int
) -> None:
    two = Pushing(make_btrfs(), make_btrfs())
    two.night("2026-03-01T22:00:00Z", "a")
    two.more_hosts("web2")
    two.first.tables["push.backup2"]["stall"] = LONG
    two.first.write()
    pid = before_request(two, verb, count)
    done = work(*WAITED, pid, "--config", two.first.config, "replicate", "--now", NOW, check=False, timeout=100)
    number = int(pid.read_text())
    try:
        assert stat(number) == "T"  # the other server's process is not a child of this one
        assert done.returncode == 1, done
        output = " ".join(done.stderr.split())
        assert "backup2: the other server has requested nothing for 50" in output, done
        assert "Traceback" not in output
    finally:
        os.kill(number, signal.SIGCONT)
    wait_for(lambda: stat(number) in "ZX", 60, "it does not end when nobody answers")
    del two.first.tables["push.backup2"]["stall"]
    two.over('exec "$@"')
    two.push()
    for host in ("web1", "web2"):
        (name,) = two.names(two.second.pool, host)
        path, other = (pool / "hosts" / host / name for pool in (two.first.pool, two.second.pool))
        assert work("rsync", "-n", "-aHAXci", "--delete", f"{path}/", f"{other}/").stdout == ""
    assert two.copies(first=True)["state"] == "ok"


def test_a_server_whose_key_sends_in_place_of_receiving_is_found_at_once(make_btrfs: Callable[..., Path]) -> None:
    two = Pushing(make_btrfs(), make_btrfs())
    two.night("2026-03-01T22:00:00Z", "a")
    two.first.tables["push.backup2"]["stall"] = LONG
    two.first.write()
    sends = [*two.forced[:5], "send-only", "--replica", "office"]
    is_long = two.first.top / "long"
    two.over(f'(sleep 1; touch {shlex.quote(str(is_long))}) & exec "$@"', answers=shlex.join(sends))
    done = work(*WAITED, is_long, "--config", two.first.config, "replicate", "--now", NOW, check=False, timeout=100)
    output = " ".join(done.stderr.split())
    assert done.returncode == 1, output
    assert "requested nothing for 50" in output
    assert "backupd receive-only --replica NAME" in output


def test_a_server_that_gives_way_to_its_night_says_so_and_is_waited_for(make_btrfs: Callable[..., Path]) -> None:
    two = Pushing(make_btrfs(), make_btrfs())
    two.night("2026-03-01T22:00:00Z", "a")
    two.first.tables["push.backup2"]["stall"] = SILENCE
    two.first.write()
    often = "import backupd.replicate.fetch_hosts as run; run._TELL_WAIT = 1.0; from backupd.cli import main; main()"
    two.over('exec "$@"', answers=shlex.join([sys.executable, "-c", often, *two.forced[3:]]))
    command = [sys.executable, "-m", "backupd", "--config", str(two.first.config), "replicate", "--now", NOW]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            with take_lock(two.second.pool / ".btrkeep/locks/night", "backupd run", NOW):
                time.sleep(14)  # longer than it would be waited for in silence
                assert process.poll() is None, process.communicate()
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
    assert (process.returncode, "waits: backupd run (process" in err, "on the other server" in err) == (0, True, True), out + err
    assert len(two.names(two.second.pool)) == 1


def test_who_asks_for_a_backup_and_reads_nothing_does_not_hold_it_for_ever(two: TwoPools) -> None:
    name = large(two)
    uuid = json.loads((two.first.pool / "hosts/web1" / name / "backup.json").read_text())["uuid"]
    short = "import backupd.replicate.wire as wire; wire._LONGEST_UNREAD = 3.0; from backupd.cli import main; main()"
    command = [sys.executable, "-c", short, "--config", str(two.first.config), "send-only"]
    with subprocess.Popen(command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"verb": "send", "host": "web1", "name": name, "uuid": uuid}).encode() + b"\n")
            process.stdin.flush()
            begun = time.monotonic()
            assert process.wait(60) == 0
            assert time.monotonic() - begun > 2  # it had started
        finally:
            process.kill()


def test_a_restic_that_stops_is_given_up(far: Offsite) -> None:
    fill(far.night.source)
    (far.night.source / "large").write_bytes(os.urandom(32 << 20))
    far.offsite("init", "far")
    far.backup("2026-03-01T22:00:00Z")
    far.night.tables["offsite.far"]["stall"] = STALL
    far.night.write()
    stops = 'test "$1" != backup && exec "$REAL" "$@"\n(sleep 3; kill -STOP $$) &\nexec "$REAL" "$@" --limit-upload 1024'
    begun = time.monotonic()
    done = far.night.backupd("offsite", "run", "--json", check=False, env=instead(far, stops))
    assert (done.returncode, "no progress for 3" in " ".join((done.stdout + done.stderr).split())) == (1, True), done
    assert time.monotonic() - begun < 120
    assert far.listed_by_restic() == []
    far.night.tables["offsite.far"].pop("stall")
    far.night.write()
    far.run()
    assert len(far.listed_by_restic()) == 1
    assert json.loads(far.offsite("list", "--json").stdout)[0]["whole"]


def test_a_sender_that_was_asleep_in_a_stream_makes_no_backup_of_what_came(two: TwoPools) -> None:
    """As after a suspend: the kernel interrupts `btrfs send` in the middle of its output."""
    two.second.tables["replica.office"]["bandwidth"] = "1MB"
    name = large(two)
    pid = two.second.top / "pid"
    two.over_ssh(_STOPS.format(pid=pid))
    host = two.second.pool / "hosts/web1"
    command = [sys.executable, "-m", "backupd", "--config", str(two.second.config), "replicate", "--json", "--now", NOW]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: any(host.glob(".receiving/*/data/**/large*")) and pid.exists(), 60, "nothing has begun")
            number = int(pid.read_text())
            for sent in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(number, sent)
                time.sleep(0.2)
            two.second.tables["replica.office"].pop("bandwidth")
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
    assert "Traceback" not in err, err
    assert process.returncode == 1, out + err
    assert "stopped or suspended" in err, err
    assert two.names(two.second.pool) == []
    assert not (host / ".receiving").exists()
    two.second.write()
    assert [fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]] == [name]
    assert two.differences(name) == ""
