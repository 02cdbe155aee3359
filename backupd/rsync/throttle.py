"""rsync's remote shell if bandwidth is limited: runs the real one and passes on its output as fast as the buckets allow.

    throttle.py BUCKET [BUCKET ...] -- ssh -o ... HOST COMMAND ...   what rsync makes of `-e "throttle.py BUCKET -- ssh -o ..."`
    throttle.py BUCKET [BUCKET ...] -- --local HOST COMMAND ...      the source is this machine: `sh -c COMMAND`, HOST is dropped

A bucket is a small file that all relays of a budget share; bandwidth.py makes it. In addition to the rate it contains one number,
the theoretical arrival time of the generic cell rate algorithm (virtual scheduling, ITU-T I.371): the time at which everything that
was passed on so far would have been passed on at exactly the rate. A relay passes on one chunk, adds the chunk's duration to that
time and sleeps until then. All wait in the same queue with one chunk each, so transfers with data share evenly, the others use what
one leaves, and no message is needed when a transfer starts or ends.

rsync starts one throttle.py for each source path. It starts fast because it imports little: no signal (5 ms, for its enum), no
subprocess (11 ms), nothing of btrkeep. It therefore handles no signal; when it ends for any reason, the kernel also ends the remote
shell.
"""

import ctypes
import errno
import fcntl
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False  # importing it from typing takes milliseconds
if TYPE_CHECKING:
    from typing import NoReturn

MAGIC = b"btrkbw1\n"
RECORD = struct.Struct("<8s16sQq")  # magic, boot id, rate in bytes per second, theoretical arrival time in ns of CLOCK_MONOTONIC
ARRIVAL = struct.Struct("<q")
ARRIVAL_AT = RECORD.size - ARRIVAL.size

SECOND = 1_000_000_000
BURST = SECOND // 10  # how much unused budget may be used later; also compensates for late wake-ups
ABSURD = 60 * SECOND  # no queue is that long: the number is from another boot, or invalid
LONGEST_CHUNK = 65536
CHUNKS_PER_SECOND = 20  # at least, so that one chunk does not delay others at low rates
PIPE_SIZE = 262144
LOCK_PATIENCE = 20  # tries, a millisecond apart

LINGER = 30.0  # seconds for a remote shell whose rsync waits for its exit status
GRACE = 1.0  # seconds for one whose exit status is not needed
CANNOT_RUN, NOT_FOUND = 126, 127  # the shell's and rsync's own statuses (errcode.h)
_SIGKILL, _SIGTERM, _PR_SET_PDEATHSIG = 9, 15, 1


def next_arrival(arrival: int, now: int, size: int, rate: int) -> int:
    """Returns the theoretical arrival time (ns) after `size` more bytes at `rate` bytes per second: then the next bytes
    may follow.
    """
    if arrival > now + ABSURD:
        arrival = now
    return max(arrival, now - BURST) + size * SECOND // rate


def chunk_size(rate: int) -> int:
    """Returns how many bytes to pass on at a time at `rate` bytes per second."""
    return max(1, min(LONGEST_CHUNK, rate // CHUNKS_PER_SECOND))


class OpenBucket:
    """One budget: an open bucket file, and its last content. Raises OSError, or ValueError if it is invalid."""

    __slots__ = ("_arrival", "_file", "rate")

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._arrival = 0
        self.rate = 0
        self._read()
        if not self.rate:
            raise ValueError("it is not a bandwidth bucket")

    def draw(self, size: int) -> int:
        """Takes `size` bytes from the budget; returns the moment (ns, CLOCK_MONOTONIC) at which more may be taken."""
        locked = _lock(self._file)
        self._read()
        self._arrival = next_arrival(self._arrival, time.monotonic_ns(), size, self.rate)
        self._write()
        if locked:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return self._arrival

    def _read(self) -> None:
        try:
            record = os.pread(self._file, RECORD.size, 0)
        except OSError:
            return
        if len(record) == RECORD.size:
            magic, _, rate, arrival = RECORD.unpack(record)
            if magic == MAGIC and rate:
                self.rate, self._arrival = rate, max(arrival, self._arrival)

    def _write(self) -> None:
        # On a full or failed filesystem, each relay keeps to the rate alone, and rsync reports the error.
        try:  # noqa: SIM105 - contextlib would be one more import
            os.pwrite(self._file, ARRIVAL.pack(self._arrival), ARRIVAL_AT)
        except OSError:
            pass


def _lock(file: int) -> bool:
    """Locks the bucket. Continues without the lock if its holder was stopped while it held it, because that must not stop the
    others.
    """
    for _ in range(LOCK_PATIENCE):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.001)
        else:
            return True
    return False


class Outlet:
    """This process's standard output, which rsync made a socket that does not block. If the reader closes it, that shows as
    BrokenPipeError or in `gone`.
    """

    def __init__(self) -> None:
        self._hangup = select.poll()
        self._hangup.register(1, 0)
        self._room = select.poll()
        self._room.register(1, select.POLLOUT)
        self._splices = True

    def gone(self, until: int) -> bool:
        """Sleeps until that moment (ns, CLOCK_MONOTONIC); returns True early if the reader has closed."""
        remaining = until - time.monotonic_ns()
        return remaining > 0 and bool(self._hangup.poll(remaining / 1_000_000))

    def pass_on(self, source: int, limit: int) -> int:
        """Moves up to `limit` bytes from the pipe `source`, which does not block; 0 is its end."""
        while self._splices:
            try:
                return os.splice(source, 1, limit)
            except BlockingIOError:
                self._room.poll()
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._splices = False  # such as a file opened for appending
        data = os.read(source, limit)
        self._write(data)
        return len(data)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(1, data) :]
            except BlockingIOError:
                self._room.poll()


def pump(source: int, buckets: list[OpenBucket]) -> None:
    """Copies the pipe `source` to our output until it ends or the reader has closed."""
    outlet, ready = Outlet(), select.poll()
    ready.register(source, select.POLLIN)
    ready.register(1, 0)
    until = max(bucket.draw(0) for bucket in buckets)
    try:
        while not outlet.gone(until):
            if all(file == 1 for file, _ in ready.poll()):
                return
            size = outlet.pass_on(source, chunk_size(min(bucket.rate for bucket in buckets)))
            if size == 0:
                return
            until = max(bucket.draw(size) for bucket in buckets)
    except (BrokenPipeError, ConnectionResetError):
        return


def die_with_parent(signal: int) -> None:
    """Makes the kernel send this process `signal` when its parent ends for any reason (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0)


def start(command: list[str]) -> tuple[int, int]:
    """Starts the remote shell; returns its process id, and the pipe with its output. It inherits everything else."""
    source, sink = os.pipe()
    try:  # noqa: SIM105 - contextlib would be one more import
        fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        pass  # more pipe buffers than an unprivileged user may have: it works with fewer
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        die_with_parent(_SIGKILL)
        if os.getppid() != parent:
            os._exit(CANNOT_RUN)
        os.dup2(sink, 1)
        _become(command)
    os.close(sink)
    return pid, source


def _become(command: list[str]) -> None:
    if command[0] == "--local":
        command = ["/bin/sh", "-c", " ".join(command[2:])]
    try:
        os.execvp(command[0], command)  # noqa: S606  that is the purpose
    except OSError as error:
        complain(f"{command[0]}: {error.strerror}")
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN)


def finish(pid: int) -> int:
    """Waits for the remote shell, ends it if it does not end by itself, and returns its status in the form of a shell: signal N is
    128+N.
    """
    ended = select.poll()
    process = os.pidfd_open(pid)
    ended.register(process, select.POLLIN)
    ended.register(0, 0)  # rsync's end: closed when rsync has ended, open while it waits for our exit status
    events = ended.poll(LINGER * 1000)
    ended.unregister(0)
    if all(file != process for file, _ in events):
        for patience, signal in ((GRACE if events else 0, _SIGTERM), (GRACE, _SIGKILL)):
            if ended.poll(patience * 1000):
                break
            os.kill(pid, signal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


def leave(status: int) -> "NoReturn":
    """Ends with a status that rsync will see. rsync asks for it once, without waiting, as soon as the output has ended; and the
    kernel closes a process's files before its status is available.

    For this reason rsync sometimes reports 12 instead of ssh's 255. So another process keeps the output open until this one has
    ended.
    """
    own = os.getpid()
    if status and os.fork() == 0:
        for _ in range(1000):
            if os.getppid() != own:
                break
            time.sleep(0.001)
    os._exit(status)


def complain(message: str) -> None:
    """Prints one line to rsync's errors."""
    os.write(2, f"throttle: {message}\n".encode(errors="surrogateescape"))


def main(arguments: list[str]) -> int:
    """Runs the remote shell named after `--` within the budgets named before it; returns its exit status."""
    mark = arguments.index("--") if "--" in arguments else 0
    paths, command = arguments[:mark], arguments[mark + 1 :]
    if not paths or not command or (command[0] == "--local" and (len(command) < 3 or command[1].startswith("-"))):
        complain("usage: throttle.py BUCKET [BUCKET ...] -- {REMOTE SHELL ... | --local} HOST COMMAND ...")
        return CANNOT_RUN
    buckets = []
    for path in paths:
        try:
            buckets.append(OpenBucket(path))
        except (OSError, ValueError) as error:
            complain(f"{path}: {error}")
            return CANNOT_RUN
    die_with_parent(_SIGTERM)
    pid, source = start(command)
    pump(source, buckets)
    os.close(source)
    return finish(pid)


if __name__ == "__main__":
    try:
        leave(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the remote shell ends with this process, see `start`
        os._exit(130)
