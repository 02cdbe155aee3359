"""Stops rsync while a new sparse file arrives as zeros, so that the remaining zeros need not be transferred. rsync sends the holes
of a file as zeros, unless the receiver already has zeros in the same place: then it sends only a checksum of each block.

So if the data of a large file is all zeros so far, one `--list-only` asks for its full length, rsync is stopped, the received part
becomes a hole, the file is extended to its full length, and rsync is started again: see docs/decisions/0074.

The only thing that the host influences is the length of its own file, which rsync corrects: everything that is not zero is
transferred as usual.
"""

import asyncio
import logging
import os
import re
import signal
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backupd.repo.hardlinks import DATA
from backupd.repo.holes import punch, punch_written
from backupd.rsync.process import RunCancellation
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import FILE, FOLDER, open_folder
from btrkeep.pool.subvolume import commit
from btrkeep.process.group import PATIENCE, Group
from btrkeep.process.proc import GroupMember, members
from btrkeep.treescan import FolderPaths
from btrkeep.units import printable

log = logging.getLogger(__name__)

LOOK_AFTER = 256 << 20
"""Received bytes before the arriving files are examined the first time, and between examinations."""
WORTH_A_STOP = 1 << 30
"""Minimum number of bytes of a file that have not arrived: a stop costs another list of the source path."""
_MOST_STOPS = 8  # in one run: further files are transferred with their zeros
_LONGEST = 1 << 44  # bytes; reading the zeros of a longer file to compare them takes hours
_PAUSE = 0.5
_SAMPLES = 16
_MOST_SAMPLES_WITH_DATA = 2
_SAMPLE = 64 << 10
_ZEROS = bytes(_SAMPLE)
_TEMPORARY = re.compile(rb"\.(.+)\.[A-Za-z0-9]{6}", re.DOTALL)  # the name that rsync gives a file while it writes it

AskSize = Callable[[str], Awaitable[int | None]]
"""Returns the length of a regular file on the host, by its absolute path; None if it is not known."""


@dataclass(frozen=True, slots=True)
class ZerosStop:
    """Why an rsync was stopped because of zeros."""

    path: bytes | None
    """The file in `data` that arrives as zeros; None: unknown."""
    size: int | None = None
    """Its length on the host; None: unknown."""
    recount: bool = False
    """True if a limit is exceeded, perhaps because of zeros in some file."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that rsync writes."""

    inode: int
    """Its inode number."""
    received: int
    """Bytes that have arrived."""
    link: Path
    """A path by which it can be read."""


class ArrivingZeros:
    """Watches the transfers of one run. `sparse`: rsync makes holes itself, in a temporary file.

    `stopped`: why the last rsync was stopped. `has_holes`: holes were made in this run. `lengthened`: the files, by their paths in
    `data`, that were extended to their full length.
    """

    def __init__(self, working: Path, cancellation: RunCancellation, *, sparse: bool) -> None:
        self.stopped: ZerosStop | None = None
        self.has_holes = False
        self.lengthened: list[bytes] = []
        self._working, self._cancellation, self._sparse = working, cancellation, sparse
        self._stops = 0
        self._seen = set[bytes]()

    def begin(self) -> None:
        """Removes the reason for which the previous rsync was stopped."""
        self.stopped = None

    async def watch(self, received: Callable[[], int], ask: AskSize) -> None:
        """Examines the files regularly until it has stopped rsync, or is cancelled. `received`: bytes of files so far."""
        next_look, written_before, pace = LOOK_AFTER, 0, ArrivalRate(time.monotonic())
        while self._stops < _MOST_STOPS:
            await asyncio.sleep(_PAUSE)
            now, group = received(), self._cancellation.group
            pace.note_first(now, time.monotonic())
            if now < next_look - LOOK_AFTER:  # from the rsync before
                next_look = LOOK_AFTER
            if now < next_look or not group or self.stopped:
                continue
            next_look = now + LOOK_AFTER
            pace.measure(now, time.monotonic())
            processes = _rsync_processes(group)
            written = sum(member.written for member in processes)
            if not self._sparse and written - written_before < LOOK_AFTER // 2:
                continue  # most of it was already here
            written_before = written
            file = await asyncio.to_thread(self._find, [member.pid for member in processes], LOOK_AFTER // 2, committed=False)
            if file and await self._stop_for(*file, pace, ask):
                return

    async def _stop_for(self, path: bytes, received: int, pace: "ArrivalRate", ask: AskSize) -> bool:
        self._seen.add(path)
        size = await self._ask(path, ask)
        if not is_worth_a_stop(size, received, pace) or self.stopped or self._cancellation:
            return False
        return self._stop(ZerosStop(path, size))

    def _stop(self, why: ZerosStop) -> bool:
        """Sends SIGTERM to rsync, which keeps its partial data, and kills it if that takes too long."""
        group = self._cancellation.group
        if group is None:
            return False

        def kill() -> None:
            if self._cancellation.group is group:
                group.signal(signal.SIGKILL)

        self.stopped, self._stops = why, self._stops + 1
        group.signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(PATIENCE, kill)
        return True

    async def stop_to_recount(self) -> bool:
        """Stops rsync because it has written more than a limit allows, perhaps zeros. Returns False if rsync has been stopped too
        often.
        """
        group = self._cancellation.group
        if self.stopped or group is None:  # it has ended or is ending: its data is counted then
            return True
        if self._sparse or self._stops >= _MOST_STOPS:
            return False
        pids = [member.pid for member in _rsync_processes(group)]
        file = await asyncio.to_thread(self._find, pids, _SAMPLE, committed=True)
        return self._stop(ZerosStop(file[0] if file else None, recount=True))

    async def _ask(self, path: bytes, ask: AskSize) -> int | None:
        try:
            return await ask("/" + os.fsdecode(path))
        except OperatorError as error:  # such as a key that permits one command only
            log.info("%s: the length of %s is unknown: %s", self._working, printable(os.fsdecode(path)), error.message)
            return None

    def _find(self, pids: Sequence[int], least: int, *, committed: bool) -> tuple[bytes, int] | None:
        """Returns the path in `data` of a new file of which at least `least` bytes, all zeros, have arrived, and the number of
        these bytes. `committed`: the filesystem was committed a moment ago; only committed names can be searched.
        """
        try:
            for file in open_files(pids, self._working.stat().st_dev):
                if file.received >= least and _is_zeros(file):
                    if not committed:
                        commit(self._working)
                    with ClosingFd(os.open(self._working, FOLDER)) as root:
                        top, *path = FolderPaths(root).of(file.inode)
                        if top == DATA and path and (name := _final_path(root, path)) and name not in self._seen:
                            return name, file.received
        except OSError as error:  # rsync has ended, or started another file
            log.debug("%s: %s", self._working, error)
        return None

    async def make_holes(self, ask: AskSize) -> None:
        """Extends the file for which rsync was stopped to its full length, and replaces its zeros by holes. Raises
        OperatorError.
        """
        if (stop := self.stopped) is None:
            return
        size = stop.size
        if stop.path and size is None and not self._cancellation:
            size = await self._ask(stop.path, ask)
        if stop.path and size is not None and size <= _LONGEST:
            await asyncio.to_thread(self._lengthen, stop.path, size)
        if stop.recount:
            await asyncio.to_thread(punch_written, self._working, self._cancellation)
        elif stop.path and not self._sparse:
            await asyncio.to_thread(punch, self._working, [stop.path], cancelled=self._cancellation)
        self.has_holes = True

    def finish(self) -> None:
        """Replaces the zeros beside the data of the lengthened files by holes; rsync wrote them because it compares larger blocks.
        Raises OperatorError.
        """
        if not self._sparse:
            punch(self._working, self.lengthened, cancelled=self._cancellation, shortest=1)

    def _lengthen(self, path: bytes, size: int) -> None:
        *folders, name = path.split(b"/")
        try:
            with ClosingFd(os.open(self._working, FOLDER)) as root, ClosingFd(open_folder(root, [DATA, *folders])) as folder:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_size < size:
                    with ClosingFd(os.open(name, os.O_RDWR | FILE, dir_fd=folder)) as fd:
                        os.ftruncate(fd, size)
                        self.lengthened.append(path)
        except OSError as error:  # rsync kept nothing of it, or it cannot be that long: it is transferred with its zeros
            log.info("%s: %s", self._working, error.strerror)


def _rsync_processes(group: Group) -> list[GroupMember]:
    return [member for member in members(group.pid) if member.name == "rsync"]


@dataclass(slots=True)
class ArrivalRate:
    """How fast the files of one rsync arrive."""

    begun: float
    """When rsync was started, by a clock that is never changed."""
    rate: float = 0.0
    """Bytes per second between the last two measurements."""
    other_seconds: float = 0.0
    """Duration of everything but the transfer, mostly of making the list."""
    _last: tuple[int, float] | None = None

    def note_first(self, received: int, now: float) -> None:
        """Starts to measure when the first bytes arrive: before that, rsync makes its list."""
        if self._last is None and received:
            self._last = received, now

    def measure(self, received: int, now: float) -> None:
        """Updates the rate; called at each examination of the files."""
        before, since = self._last or (0, self.begun)
        if now > since and received > before:
            self.rate = (received - before) / (now - since)
            self.other_seconds = now - self.begun - received / self.rate
        self._last = received, now


def is_worth_a_stop(size: int | None, received: int, pace: ArrivalRate) -> bool:
    """Returns True if transferring the rest of a file of zeros would take longer than making the list of its source path again.

    A list of ten million files takes longer than the transfer of 1 GiB.
    """
    if size is None or size > _LONGEST or size - received < WORTH_A_STOP:
        return False
    return size - received >= pace.rate * pace.other_seconds


def open_files(pids: Sequence[int], device: int) -> list[OpenFile]:
    """Returns the regular files of the filesystem `device` that these processes have open for writing. Raises OSError."""
    files = []
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                status = link.stat()
                if stat.S_ISREG(status.st_mode) and status.st_dev == device:
                    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/fdinfo/{link.name}").read_text().splitlines())
                    if int(fields["flags"], 8) & os.O_ACCMODE != os.O_RDONLY:
                        files.append(OpenFile(status.st_ino, int(fields["pos"]), link))
    return files


def _is_zeros(file: OpenFile) -> bool:
    """Returns True if samples show that the last received part of a file is nearly all zeros."""
    begin = max(0, file.received - LOOK_AFTER)
    step = (file.received - begin) // _SAMPLES
    with ClosingFd(os.open(file.link, os.O_RDONLY | os.O_NONBLOCK | os.O_NOATIME | os.O_CLOEXEC)) as fd:
        samples = [os.pread(fd, _SAMPLE, begin + number * step) for number in range(_SAMPLES)]
    return sum(sample != _ZEROS[: len(sample)] for sample in samples) <= _MOST_SAMPLES_WITH_DATA


def _final_path(root: int, path: Sequence[bytes]) -> bytes | None:
    """Returns the final path of a file in `data`; None if rsync writes a new version of an existing file."""
    *folders, name = path
    if match := _TEMPORARY.fullmatch(name):
        name = match[1]
        with ClosingFd(open_folder(root, [DATA, *folders])) as folder:
            try:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return b"/".join((*folders, name))
        return None
    return b"/".join(path)
