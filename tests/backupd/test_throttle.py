"""Real transfers through the relay: how fast they are, measured from outside (the clock, /proc), and how they end."""

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backupd.rsync import throttle
from backupd.rsync.bandwidth import Bucket, relay_command
from tests.backupd.transfers import (
    FAKESSH,
    HUGE,
    MB,
    PATIENCE,
    PROJECT,
    Bed,
    bytes_read,
    command_line,
    family,
    gone,
    keeps_to,
    parents,
    receivers,
    relay,
    seconds_to_end,
    speeds,
    under_way,
    wait_until,
)
from tests.beds import session
from tests.beds.ssh import Sshd


@pytest.fixture
def bed() -> Iterator[Bed]:
    folder = Path(tempfile.mkdtemp(prefix="throttle-", dir=session.folder()))
    bed = Bed(folder)
    try:
        yield bed
    finally:
        bed.end()
        subprocess.run(["rm", "-rf", "--", folder], check=True)


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# How fast


@pytest.mark.alone
@pytest.mark.parametrize("shell", [(), (str(FAKESSH), "-p", "22")], ids=["this machine", "through a remote shell"])
def test_one_transfer_takes_its_bytes_divided_by_the_rate(bed: Bed, shell: tuple[str, ...]) -> None:
    source = bed.source(12 * MB)
    [took] = seconds_to_end([bed.pull(source, "copy", [bed.bucket(4 * MB)], shell)])
    assert keeps_to(12 * MB / took, 4 * MB)
    assert (bed.folder / "copy").read_bytes() == source.read_bytes()


@pytest.mark.alone
def test_ssh_itself_keeps_to_the_rate_and_ends_with_its_rsync(bed: Bed, sshd: Sshd) -> None:
    """ssh reads ahead (its window of 2 MiB and the pipe) only at the start: afterwards the rate holds."""
    pull = bed.pull(bed.source(40 * MB), "copy", [bed.bucket(4 * MB)], sshd.ssh(), sshd.address)
    _, below = family(pull)
    [speed] = speeds([pull], 1.5)
    assert keeps_to(speed, 4 * MB)
    pull.kill()
    wait_until(lambda: not set(below) & set(parents()), 7)


@pytest.mark.alone
def test_four_at_once_take_as_long_as_their_sum_and_share_evenly(bed: Bed) -> None:
    source, bucket = bed.source(3 * MB), bed.bucket(4 * MB)
    took = seconds_to_end([bed.pull(source, f"copy{index}", [bucket]) for index in range(4)])
    assert keeps_to(4 * 3 * MB / max(took), 4 * MB)
    assert min(took) > 0.6 * max(took)


@pytest.mark.alone
def test_when_two_of_four_end_the_others_take_their_share_and_the_total_stays_at_the_budget(bed: Bed) -> None:
    """From the first byte to the last: in less than a second, data that waits in sockets would count as much."""
    sizes = [2 * MB, 2 * MB, 6 * MB, 6 * MB]
    bucket = bed.bucket(40_000)  # until the slowest has started
    pulls = [bed.pull(bed.source(size), f"copy{index}", [bucket]) for index, size in enumerate(sizes)]
    wait_until(lambda: all(len(receivers(pull.pid)) == 2 for pull in pulls), PATIENCE)  # before, it has read its own libraries
    sides = [receivers(pull.pid) for pull in pulls]
    bed.bucket(4 * MB)
    start, before = time.monotonic(), list(map(bytes_read, sides))
    shares = [before]

    def has_one_ended() -> bool:
        counts = list(map(bytes_read, sides))
        if min(counts[:2]) > 0 and max(counts[:2]) < sizes[0]:
            shares.append(counts)
        return pulls[0].poll() == 0 or pulls[1].poll() == 0

    wait_until(has_one_ended, PATIENCE)
    seconds_to_end(pulls)
    assert keeps_to((sum(sizes) - sum(before)) / (time.monotonic() - start), 4 * MB)
    last = shares[-1]  # before one has ended: from then on the others have more
    assert min(last) > 200_000
    assert last == pytest.approx([sum(last) / 4] * 4, rel=0.4)


@pytest.mark.alone
def test_two_processes_that_each_prepare_the_bucket_share_one_budget(bed: Bed) -> None:
    """The night and a `run HOST` beside it, which starts half a second later."""
    source = bed.source(4 * MB)
    code = (
        "import sys, subprocess; from pathlib import Path\n"
        "from backupd.rsync.bandwidth import prepare, relay_command, shell_words\n"
        "shell = shell_words(relay_command([prepare(Path(sys.argv[1]), 'pool', 4_000_000)], []))\n"
        "sys.exit(subprocess.run(['rsync', '-a', '-e', shell, 'peer:' + sys.argv[2], sys.argv[3]]).returncode)"
    )
    arguments: list[str | Path] = [sys.executable, "-c", code, bed.folder / "bandwidth", source]
    start = time.monotonic()
    for name in ("night", "host"):
        bed.running.append(subprocess.Popen([*arguments, bed.folder / name], cwd=PROJECT, process_group=0))
        time.sleep(0.5)
    seconds_to_end(bed.running)
    assert keeps_to(8 * MB / (time.monotonic() - start), 4 * MB)


@pytest.mark.alone
def test_a_transfer_follows_a_changed_rate_at_once(bed: Bed) -> None:
    pull = bed.pull(bed.source(40 * MB), "copy", [bed.bucket(2 * MB)])
    wait_until(lambda: under_way(pull), PATIENCE)
    for rate in (2 * MB, 10 * MB, 4 * MB):
        bed.bucket(rate)
        time.sleep(0.2)
        [speed] = speeds([pull], 0.8)
        assert keeps_to(speed, rate), rate


@pytest.mark.alone
def test_a_host_keeps_to_its_own_bucket_too_and_leaves_the_rest_of_the_pools_to_others(bed: Bed) -> None:
    pool, host, source = bed.bucket(8 * MB), bed.bucket(2 * MB, "host"), bed.source(30 * MB)
    pulls = [bed.pull(source, "slow", [pool, host]), bed.pull(source, "fast", [pool])]
    wait_until(lambda: all(map(under_way, pulls)), PATIENCE)
    slow, fast = speeds(pulls, 1.5)
    assert keeps_to(slow, 2 * MB)
    assert keeps_to(fast, 6 * MB)


@pytest.mark.alone
def test_a_slow_link_is_shared_evenly_too(bed: Bed) -> None:
    """At 40 kB/s a whole pipe would be seconds long: chunks must be small."""
    source, bucket = bed.source(30_000), bed.bucket(40_000)
    took = seconds_to_end([bed.pull(source, f"copy{index}", [bucket]) for index in range(3)])
    assert keeps_to(90_000 / max(took), 40_000)
    assert min(took) > 0.6 * max(took)


@pytest.mark.alone
def test_a_rate_that_nothing_reaches_costs_little(bed: Bed) -> None:
    source, before = bed.source(300 * MB), _seconds_of_children()
    seconds_to_end([bed.pull(source, "copy", [bed.bucket(HUGE)])])
    assert _seconds_of_children() - before < 4  # of the processor, mostly rsync's; other people's tests run here too


# What passes through


def test_every_byte_passes_in_both_directions(bed: Bed) -> None:
    sent = bytes(range(256)) * 20_000
    with relay([bed.bucket(HUGE)], "sh", "-c", "cat; printf end") as peer:
        feeder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=peer.into.fileno())
        assert feeder.stdin
        peer.into.close()
        os.set_blocking(feeder.stdin.fileno(), False)
        answer = echo(feeder, sent, peer.out)
        assert answer == sent + b"end"
        assert (feeder.wait(PATIENCE), peer.process.wait(PATIENCE)) == (0, 0)


def echo(feeder: subprocess.Popen[bytes], data: bytes, out: socket.socket) -> bytes:
    """Feeds all of `data` without ever waiting for space, and reads all output."""
    answer, rest = bytearray(), memoryview(data)
    assert feeder.stdin
    while rest:
        try:
            rest = rest[os.write(feeder.stdin.fileno(), rest) :]
        except BlockingIOError:
            answer += out.recv(1 << 20)
    feeder.stdin.close()
    while piece := out.recv(1 << 20):
        answer += piece
    return bytes(answer)


def test_a_reader_that_is_slower_than_the_bucket_loses_nothing(bed: Bed) -> None:
    data = bed.source(3 * MB)
    with relay([bed.bucket(HUGE)], "cat", str(data)) as peer:
        answer = bytearray()
        while piece := peer.out.recv(50_000):
            answer += piece
            time.sleep(0.005)
        assert answer == data.read_bytes()


def test_an_output_that_splice_cannot_serve_gets_every_byte_too(bed: Bed) -> None:
    data, copy = bed.source(2 * MB), bed.folder / "appended"
    with copy.open("ab") as out:
        command = relay_command([bed.bucket(HUGE)], ["cat", str(data)])
        assert subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, check=False).returncode == 0
    assert copy.read_bytes() == data.read_bytes()


def test_descriptors_that_rsync_inherited_reach_the_remote_shell_so_that_a_hosts_lock_holds(bed: Bed) -> None:
    with (bed.folder / "lock").open("w") as lock:
        number = lock.fileno()
        with relay([bed.bucket(HUGE)], "readlink", f"/proc/self/fd/{number}", pass_fds=(number,)) as peer:
            assert peer.read() == str(bed.folder / "lock").encode() + b"\n"


# How it ends


@pytest.mark.parametrize(
    ("shell", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "echo text; exit 12"], 12),
        (["/nonexistent/ssh"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", "kill -9 $$"], 137),
    ],
    ids=["success", "ssh's own failure", "after output", "not found", "not to be run", "killed"],
)
def test_the_remote_shells_exit_status_is_the_relays(bed: Bed, shell: list[str], status: int) -> None:
    with relay([bed.bucket(HUGE)], *shell) as peer:
        peer.read()
        assert peer.process.wait(PATIENCE) == status


@pytest.mark.slow
@pytest.mark.parametrize("status", [255, 127, 42])
def test_rsync_ends_with_the_remote_shells_status_every_time(bed: Bed, status: int) -> None:
    """Without the relay, it is rsync's own 12 whenever rsync sees the end of the output before the status is available."""
    shell, bucket, source = ["sh", "-c", f"exit {status}"], bed.bucket(HUGE), bed.source(10)
    assert [bed.pull(source, "copy", [bucket], shell).wait(PATIENCE) for _ in range(15)] == [status] * 15


def test_the_remote_shells_complaints_reach_rsyncs_error_output(bed: Bed) -> None:
    pull = bed.pull(bed.source(10), "copy", [bed.bucket(HUGE)], ["sh", "-c", "echo Permission denied >&2; exit 255"])
    assert b"Permission denied" in pull.communicate(timeout=PATIENCE)[1]


@pytest.mark.parametrize("content", [None, b"", b"x" * 64], ids=["missing", "empty", "foreign"])
def test_what_is_no_bucket_stops_the_transfer_before_the_remote_shell_starts(bed: Bed, content: bytes | None) -> None:
    path = bed.folder / "odd"
    if content is not None:
        path.write_bytes(content)
    with relay([Bucket(path, 1)], "touch", str(bed.folder / "started")) as peer:
        assert peer.process.wait(PATIENCE) == 126
        assert str(path).encode() in peer.complaints().read()
    assert not (bed.folder / "started").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shell", [(), (str(FAKESSH),)], ids=["this machine", "through a remote shell"])
def test_kill_9_of_rsync_leaves_neither_receiver_nor_relay_nor_remote_shell(bed: Bed, shell: tuple[str, ...]) -> None:
    pull = bed.pull(bed.source(20 * MB), "copy", [bed.bucket(MB // 4)], shell)  # would take 80 seconds
    _, below = family(pull)
    pull.kill()
    wait_until(lambda: not set(below) & set(parents()), PATIENCE)


@pytest.mark.slow
def test_kill_9_of_a_relay_fails_its_rsync_ends_its_remote_shell_and_blocks_no_other(bed: Bed) -> None:
    bucket, source = bed.bucket(4 * MB), bed.source(6 * MB)
    victim, other = bed.pull(source, "victim", [bucket]), bed.pull(source, "other", [bucket])
    through, below = family(victim)
    os.kill(through, signal.SIGKILL)
    assert victim.wait(PATIENCE) == 12
    wait_until(lambda: not set(below) & set(parents()), PATIENCE)
    seconds_to_end([other])


STUBBORN = ("sh", "-c", "trap '' TERM HUP INT PIPE; exec sleep 600")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_relay_that_a_signal_ends_takes_even_a_stubborn_remote_shell_along(bed: Bed, number: signal.Signals) -> None:
    with relay([bed.bucket(HUGE)], *STUBBORN) as peer:
        child = peer.child()
        wait_until(lambda: "sleep" in command_line(child), PATIENCE)
        peer.process.send_signal(number)
        assert peer.process.wait(PATIENCE) in (-number, 128 + number)
        wait_until(lambda: gone(child), PATIENCE)


@pytest.mark.slow
def test_when_rsync_has_closed_both_ends_a_hanging_remote_shell_is_ended(bed: Bed) -> None:
    with relay([bed.bucket(HUGE)], *STUBBORN) as peer:
        child = peer.child()
        wait_until(lambda: "sleep" in command_line(child), PATIENCE)
        peer.out.close()
        peer.into.close()
        assert peer.process.wait(PATIENCE) == 137
        assert gone(child)


@pytest.mark.slow
def test_a_remote_shell_that_ends_by_itself_after_rsync_closed_its_output_keeps_its_status(bed: Bed) -> None:
    """As at the end of every transfer: the receiver has ended, ssh is still closing, and rsync waits for its status."""
    with relay([bed.bucket(HUGE)], "sh", "-c", "sleep 1.5; exit 7") as peer:
        peer.child()
        peer.out.close()
        assert peer.process.wait(PATIENCE) == 7


def test_a_relay_that_waits_for_its_turn_notices_that_rsync_is_gone(bed: Bed) -> None:
    bucket = bed.bucket(1 * MB)
    in_some_minutes = time.monotonic_ns() + 300 * throttle.SECOND
    bucket.path.write_bytes(bucket.path.read_bytes()[: throttle.ARRIVAL_AT] + throttle.ARRIVAL.pack(in_some_minutes))
    with relay([bucket], "cat", "/dev/zero") as peer:
        child = peer.child()
        peer.out.close()
        peer.into.close()
        wait_until(lambda: peer.process.poll() is not None, PATIENCE)
        assert gone(child)


def test_a_stopped_holder_of_the_lock_stops_no_other_relay(bed: Bed) -> None:
    bucket = bed.bucket(4 * MB)
    with bucket.path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        seconds_to_end([bed.pull(bed.source(500_000), "copy", [bucket])])


@pytest.mark.slow
def test_a_bucket_that_can_no_longer_be_written_leaves_each_relay_at_the_rate(bed: Bed) -> None:
    """Like a full or read-only pool, simulated by a limit of file sizes: every write of the bucket fails with EFBIG."""
    bucket, data = bed.bucket(1 * MB), bed.source(1_500_000)

    def no_file_may_grow() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    before = bucket.path.read_bytes()
    with relay([bucket], "cat", str(data), preexec_fn=no_file_may_grow) as peer:
        first, start = peer.out.recv(1 << 20), time.monotonic()  # the relay's own start is not limited
        assert first + peer.read() == data.read_bytes()
    assert 1.2 < time.monotonic() - start < PATIENCE  # at no rate it takes no time
    assert bucket.path.read_bytes() == before


@pytest.mark.alone
def test_the_relay_is_small_and_starts_at_once(bed: Bed) -> None:
    command = relay_command([bed.bucket(HUGE)], ["true"])
    took: list[float] = []
    while not took or min(took) >= 0.05:  # 15 ms on a quiet machine; processor time, because other processes run too
        assert len(took) < 30, took
        start = _seconds_of_children()
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        took.append(_seconds_of_children() - start)
    with relay([bed.bucket(HUGE)], "cat") as peer:
        peer.child()
        [peak] = [line for line in Path(f"/proc/{peer.process.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
        assert int(peak.split()[1]) < 16_000  # kB; 9,800 with Python 3.11
