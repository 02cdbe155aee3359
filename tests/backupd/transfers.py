"""Transfers through the relay for test_throttle.py, and their observation from outside: in /proc and on the clock."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from backupd.rsync.bandwidth import Bucket, prepare, relay_command, shell_words

MB = 1_000_000
PROJECT = Path(__file__).parents[2]
FAKESSH = PROJECT / "tests" / "fakessh"
HUGE = 10**12
PATIENCE = 20.0  # seconds for what takes two at most on a quiet machine; shorter than the relay's LINGER


def parents() -> dict[int, int]:
    """Returns the parent of each living process (zombies have ended)."""
    by_name = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                by_name[int(entry.name)] = int(parent)
    return by_name


def descendants(root: int) -> list[int]:
    """Returns the processes below `root`, nearest first."""
    tree, numbers = parents(), [root]
    for pid in numbers:
        numbers.extend(child for child, parent in tree.items() if parent == pid)
    return numbers[1:]


def command_line(pid: int) -> list[str]:
    """Returns the arguments of a process; empty after its end."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_relay(pid: int) -> bool:
    return any(word.endswith("/throttle.py") for word in command_line(pid))


def receivers(pid: int) -> list[int]:
    """Returns the processes of this rsync on this side: one until its receiver is forked, then two."""
    return [
        each for each in (pid, *descendants(pid)) if command_line(each)[:1] == ["rsync"] and "--server" not in command_line(each)
    ]


def bytes_read(pids: Sequence[int]) -> int:
    """Returns the bytes read so far by the one of these that reads most, as the kernel counts: the receiver, from its socket."""
    counts = [0]
    for pid in pids:
        try:
            counts.append(int(Path(f"/proc/{pid}/io").read_text().split()[1]))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has just ended
    return max(counts)


def wait_until(true: Callable[[], object], seconds: float) -> float:
    """Returns how long it took until `true()`; fails after `seconds`."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - start


@dataclass
class Bed:
    """Sources and destinations in memory, and every rsync that a test started."""

    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def bucket(self, rate: int, name: str = "pool") -> Bucket:
        return prepare(self.folder / "bandwidth", name, rate)

    def source(self, size: int) -> Path:
        path = self.folder / f"source-{size}"
        path.write_bytes(os.urandom(size))
        return path

    def pull(
        self, source: Path, name: str, buckets: Sequence[Bucket], shell: Sequence[str] = (), host: str = "peer"
    ) -> subprocess.Popen[bytes]:
        """Starts to fetch `source`, as `name`, through `shell` (without it from this machine) within `buckets`."""
        options = ["-a", "--inplace", "--no-whole-file", "-e", shell_words(relay_command(buckets, shell))]
        command = ["rsync", *options, f"{host}:{source}", str(self.folder / name)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, process_group=0)
        self.running.append(process)
        return process

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
            if process.stderr:
                process.stderr.close()
        self.running.clear()

    def begin_anew(self) -> None:
        """Prepares another attempt of a measurement."""
        self.end()
        shutil.rmtree(self.folder)
        self.folder.mkdir()


def seconds_to_end(processes: Sequence[subprocess.Popen[bytes]]) -> list[float]:
    """Returns when each ended, counted from now; all of them must succeed."""
    start = time.monotonic()
    ended: dict[int, float] = {}
    while len(ended) < len(processes):
        for index, process in enumerate(processes):
            if index not in ended and process.poll() is not None:
                ended[index] = time.monotonic() - start
        time.sleep(0.005)
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [ended[index] for index in range(len(processes))]


def keeps_to(speed: float, rate: float) -> bool:
    """Returns True if that is the rate: nothing makes a transfer faster, and a busy machine makes it slower."""
    return 0.4 * rate / _slowness() < speed < 1.2 * rate


def _slowness() -> float:
    """Returns how many times longer than on a quiet machine a tenth of a second of work takes now."""
    begun, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < 0.1:
        pass
    return max(1.0, (time.monotonic() - begun) / 0.1)


def under_way(pull: subprocess.Popen[bytes]) -> bool:
    """Returns True if file data has arrived: the allowed burst and the file list are over."""
    return bytes_read(receivers(pull.pid)) > 150_000


def speeds(pulls: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[float]:
    """Returns the bytes per second that each of these receives from now on, measured for `seconds`."""
    sides = [receivers(pull.pid) for pull in pulls]
    before = [(time.monotonic(), bytes_read(pids)) for pids in sides]
    time.sleep(seconds)
    after = [(time.monotonic(), bytes_read(pids)) for pids in sides]
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(before, after, strict=True)]


def family(pull: subprocess.Popen[bytes]) -> tuple[int, list[int]]:
    """A transfer in progress: its relay, and all processes below rsync (receiver, relay, remote shell, sender)."""
    wait_until(lambda: under_way(pull), PATIENCE)
    below = descendants(pull.pid)
    [through] = [pid for pid in below if is_relay(pid)]
    assert len(below) >= 3
    return through, below


class Peer:
    """The relay by itself, between two ends such as rsync makes them: sockets, its output's without blocking."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int] = (), preexec_fn: Callable[[], None] | None = None) -> None:
        self.into, stdin = socket.socketpair()
        self.out, stdout = socket.socketpair()
        stdout.setblocking(False)
        self.out.settimeout(60)
        self.process = subprocess.Popen(
            command, stdin=stdin.fileno(), stdout=stdout.fileno(), stderr=subprocess.PIPE, pass_fds=pass_fds, preexec_fn=preexec_fn
        )
        stdin.close()
        stdout.close()

    def read(self) -> bytes:
        return b"".join(iter(lambda: self.out.recv(1 << 20), b""))

    def child(self) -> int:
        """Returns the remote shell's process id, as soon as it runs the command given to the relay."""
        numbers = list[int]()

        def is_started() -> bool:
            numbers.extend(pid for pid in descendants(self.process.pid) if not is_relay(pid))
            return bool(numbers)

        wait_until(is_started, PATIENCE)
        return numbers[0]

    def close(self) -> None:
        self.into.close()
        self.out.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self.complaints().close()

    def complaints(self) -> IO[bytes]:
        assert self.process.stderr
        return self.process.stderr


@contextmanager
def relay(
    buckets: Sequence[Bucket], *shell: str, pass_fds: Sequence[int] = (), preexec_fn: Callable[[], None] | None = None
) -> Iterator[Peer]:
    peer = Peer(relay_command(buckets, shell), pass_fds, preexec_fn)
    try:
        yield peer
    finally:
        peer.close()


def gone(pid: int) -> bool:
    return pid not in parents()
