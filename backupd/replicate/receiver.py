"""Receives backups: runs `btrfs receive` in a cell, and checks the result before that gets its name.

An incomplete backup is in `.receiving` in the host's folder, and everything there is deleted when a replication starts: it may be
interrupted at any moment, because nothing else ever has that name. It gets the backup's name (naming.py) when four conditions are
met: the stream has ended without an error; the subvolume has the mark of its original, which `btrfs receive` sets last; its own
record has the same origin; and all of it is on the disk. Then a read-only snapshot of it gets the name.

The cell has programs and libraries, read-only, no process but its own, only system calls that it needs (no socket, no mount), and
below /pool only the folder of this host, in which nothing can be written or renamed except in `.receiving`: a stream may contain
"../", or make a symlink and then write through it, and `btrfs receive` follows. In the cell nothing is made read-only: in
`.receiving` that is not necessary, and each would cost one more commit of the filesystem.

One cell receives several backups of a host, one stream after the other, followed by one sync for all (docs/decisions/0055). They
are checked only after the cell has ended, because a program in it could change them later.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EIO
from functools import cache, partial
from pathlib import Path
from uuid import uuid4

from backupd.files.sameness import Pulse
from backupd.replicate.naming import ExpectedBackup, NotReceived, named, require_alone, require_whole
from backupd.replicate.stream_guard import StreamGuard
from backupd.replicate.wire import ConnectionBroken, is_unread, write_watched
from backupd.repo.backup_json import Record
from backupd.repo.leftovers import RECEIVING, discard_received
from backupd.rsync.cell import PROGRAM, filter_file, shown_programs
from btrkeep.checkpoints import Checkpoint
from btrkeep.clock import moment, wait_for_tick
from btrkeep.config.keys import DEFAULTS
from btrkeep.decisions.replication import HINTS, RemoteBackup, receive_cause
from btrkeep.descriptors import ClosingFd, widen_pipe
from btrkeep.pool.allocation import may_have_lost_data, read_allocation
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.subvolume import (
    NEWEST,
    ROOT_FOLDER,
    Subvolume,
    describe,
    marked_copies,
    opened,
    set_read_only,
    set_received,
    snapshot,
)
from btrkeep.pool.syncfs import syncing
from btrkeep.process.programs import piped, run
from btrkeep.units import format_duration, printable

_TOP = "/pool"
_CAPABILITIES = ("SYS_ADMIN", "CHOWN", "FOWNER", "FSETID", "DAC_OVERRIDE", "SETFCAP", "MKNOD")
_KNOWS_NEWEST = 6  # btrfs-progs 6.0 and later


@cache
def newest_received() -> int:
    """The newest version of the stream that the program `btrfs` here can receive, whatever the kernel sends."""
    version = re.search(r" v(\d+)\.", run(("btrfs", "--version"), check=False).stdout)
    return NEWEST if version and int(version[1]) >= _KNOWS_NEWEST else 1


def receive_command(pool: Pool, host: str, calls: int | None) -> tuple[str, ...]:
    """Returns the command: `btrfs receive` into the host's `.receiving`, in a cell if `calls` is the descriptor of the list of its
    system calls.
    """
    top = _subvolume_of(pool.path)
    receiving = pool.host(host) / RECEIVING
    if calls is None:
        return ("btrfs", "receive", "-m", str(top), str(receiving))
    within = pool.host(host).relative_to(top)
    skeleton = pool.path / MARKER / "cell"
    (skeleton / within).mkdir(mode=0o700, parents=True, exist_ok=True)
    inside = f"{_TOP}/{within}"
    return (
        PROGRAM,
        *("--unshare-pid", "--die-with-parent", "--as-pid-1"),
        *shown_programs(),
        *("--ro-bind", str(skeleton), _TOP),
        *("--ro-bind", str(pool.host(host)), inside),
        *("--bind", str(receiving), f"{inside}/{RECEIVING}"),
        *("--remount-ro", "/"),
        *("--cap-drop", "ALL"),
        *(word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")),
        *("--seccomp", str(calls)),
        "--",
        *("btrfs", "receive", "-m", _TOP, f"{inside}/{RECEIVING}"),
    )


def _subvolume_of(path: Path) -> Path:
    """Returns the root of the subvolume that contains a folder, or the mounted part of it."""
    top = path
    while True:
        with opened(top) as fd:
            if os.fstat(fd).st_ino == ROOT_FOLDER or top.is_mount():
                return top
        top = top.parent


_SUBVOLUME, _PARENT = "backup", "parent"
_LOOK = 0.0005  # seconds
_LONGEST_REASON = 1000
_GRACE = 5.0  # seconds that it may take to end when the replication is cancelled


class Receiving:
    """Receives streams of one host's backups with a single `btrfs receive`, one after the other. A context; needs the host's lock.

    `publish` renames the received backups. At the end `.receiving` is empty. `patience`: the seconds within which `btrfs receive`
    has to read something, or to end.
    """

    def __init__(self, pool: Pool, host: str, *, confined: bool, patience: float = DEFAULTS["stall"]) -> None:
        self._pool, self._host, self._confined, self._patience = pool, host, confined, patience
        self._held = ExitStack()
        self._names = list[str]()
        self._came = list[_Come]()
        self._stand_ins = list[str]()
        self._is_cut = False
        """True if a stream was started that did not complete."""

    def __enter__(self) -> "Receiving":
        with ExitStack() as held:
            self._disk = held.enter_context(syncing(self._pool.path))  # before the first byte
            self._allocation = read_allocation(self._pool.path)
            held.callback(self._discard)
            (self._pool.host(self._host) / RECEIVING).mkdir(mode=0o700)
            self._running = held.enter_context(ExitStack())
            calls = self._running.enter_context(ClosingFd(filter_file(receives=True))) if self._confined else None
            command = receive_command(self._pool, self._host, calls)
            self._program = self._running.enter_context(piped(command, keep_open=() if calls is None else (calls,)))
            widen_pipe(self._program.input)  # the next backup can arrive while the one before is being sealed
            os.set_blocking(self._program.input, False)  # a stopped program would block our exit
            self._held = held.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            discard_received(self._pool, self._host)

    def take(
        self, expected: ExpectedBackup, pieces: Iterator[bytes], *, version: int, poll: Callable[[], None] = lambda: None
    ) -> None:
        """Passes on the stream of `pieces`. `poll` is called from time to time, and may raise.

        Raises NotReceived, and what `pieces` raises; then no further stream can be received.
        """
        name = f"{_SUBVOLUME}{len(self._names) + 1}" if self._names else _SUBVOLUME
        self._names.append(name)
        patient = partial(_within, self._patience, poll)
        self._is_cut = True
        parent, mark = self._parent(expected.parent)
        parent_uuid = expected.parent.uuid if expected.parent else None
        guard = StreamGuard(expected.uuid, parent_uuid, name.encode(), version, mark)
        try:
            last = self._last_change(patient())
            for piece in pieces:
                for passed in guard.filter(piece):
                    write_watched(self._program.input, passed, patient())
                    wait_for_tick(last)  # the first command creates the subvolume, later ones change it
                poll()
        except BrokenPipeError:  # its error message has the reason
            raise self._fault(patient()) or NotReceived("btrfs receive ended too early") from None
        if not guard.whole:
            raise self._fault(patient()) or ConnectionBroken("the stream is incomplete")
        with Checkpoint("stream received"):
            self._is_cut = False
            self._came.append(_Come(expected, self._folder / name, parent))

    def _last_change(self, poll: Callable[[], None]) -> int:
        """Waits until the program has read everything that was passed on; returns the latest time of its changes.

        Changes of the next stream must be later (btrkeep/clock.py). `poll` may raise; raises BrokenPipeError.
        """
        while is_unread(self._program.input):
            poll()
            time.sleep(_LOOK)
        return moment()

    @property
    def ends(self) -> bool:
        """Returns True if the last received backup cannot be a parent in this cell: another copy of it exists elsewhere, as when
        two pools of this filesystem fetch the same host, or when it replaces a damaged one.
        """
        last = self._came[-1]
        copies = marked_copies(self._pool.path, last.expected.uuid)
        own = describe(last.path)
        return any(own is None or subvolid != own.id for subvolid in copies)

    def _parent(self, parent: RemoteBackup | None) -> tuple[Path | None, str | None]:
        """Returns the location of a difference's parent, and the UUID by which `btrfs receive` finds it if not by its own."""
        if parent is None:
            return None, None
        if before := next((come.path for come in self._came if come.expected.name == parent.name), None):
            return before, None
        path = self._pool.host(self._host) / parent.name
        subvolume = describe(path)
        if subvolume is None or marked_copies(self._pool.path, parent.uuid) == [subvolume.id]:
            return path, None
        return self._stand_in(path)

    def _stand_in(self, path: Path) -> tuple[Path, str]:
        """Makes a snapshot of the subvolume at `path`, marked as the copy of a UUID that nothing else has.

        `btrfs receive` searches for the mark of a copy, and of several subvolumes with the same mark it takes the first: another
        pool's, or an operator's copy of a damaged one. For clones it uses only that mark before btrfs-progs 6.14, so it does not
        find subvolumes that were created here.
        """
        place, mark = self._folder / f"{_PARENT}{len(self._stand_ins) + 1}", str(uuid4())
        self._stand_ins.append(place.name)
        snapshot(path, place)
        set_received(place, mark)
        set_read_only(place)
        return place, mark

    @property
    def _folder(self) -> Path:
        return self._pool.host(self._host) / RECEIVING

    def end_input(self) -> None:
        """Lets the cell end: no further stream follows."""
        self._program.end_input()

    def publish(self, is_stopped: Callable[[], bool]) -> Iterator[tuple[ExpectedBackup, Subvolume, Record]]:
        """Ends the cell, and renames each received backup if it is complete; yields the result. All of them are on the disk.

        If it `is_stopped`, the program has a few seconds left to end. Raises NotReceived at the first incomplete one, OSError.
        """
        fault = None if self._is_cut else self._fault(_until(is_stopped, self._patience))
        self._running.close()  # no process in the cell can change anything after this
        whole = list[tuple[_Come, Record]]()
        problem = fault
        try:
            require_alone(self._folder, (*self._names, *self._stand_ins), self._host)
            for come in self._came:
                record = require_whole(come.path, come.expected)
                _require_parent(come)
                whole.append((come, record))
        except NotReceived as error:
            problem = fault or error
        else:
            del whole[len(whole) - bool(fault) :]  # after any error, the last one is in doubt
        if whole:
            self._disk.sync()
            if may_have_lost_data(self._allocation, read_allocation(self._pool.path)):
                raise OSError(EIO, os.strerror(EIO), str(self._pool.path))
        for come, record in whole:
            yield come.expected, named(self._pool, come.expected, come.path, _unless(is_stopped)), record
        if problem:
            raise problem

    def _fault(self, poll: Callable[[], None]) -> NotReceived | None:
        """Waits for the end of the program; returns its error message. Raises what `poll` raises, except NotReceived."""
        try:
            status = self._program.wait(poll)
        except NotReceived as error:
            self._program.kill()  # at once, because the cell already exists
            return error
        heard = self._program.error_lines()
        errors = [line for line in heard if line.startswith(("ERROR", PROGRAM))]
        if not status:
            return None
        why = printable(errors[0].removeprefix("ERROR: "))[:_LONGEST_REASON] if errors else f"exit status {status}"
        return NotReceived(f"btrfs receive: {why}", HINTS[receive_cause(heard, is_read_only=self._disk.is_read_only)])


def _within(seconds: float, poll: Callable[[], None]) -> Callable[[], None]:
    """Returns a version of `poll` that raises NotReceived if it is called for longer: `btrfs receive` makes no progress."""
    end = time.monotonic() + seconds

    def limited() -> None:
        poll()
        if time.monotonic() > end:
            why = f"btrfs receive made no progress: it read nothing, or did not end, for {format_duration(seconds)}"
            raise NotReceived(why, "check the kernel's messages (dmesg): the pool or one of its disks may hang")

    return limited


def _unless(is_stopped: Callable[[], bool]) -> Pulse:
    """Returns a function that raises NotReceived when the replication is stopped."""

    def poll() -> None:
        if is_stopped():
            raise NotReceived("it was stopped while the existing copy was compared with the received copy", "fetch it again")

    return poll


def _until(is_stopped: Callable[[], bool], patience: float) -> Callable[[], None]:
    """Returns a `poll` for the end of the program, which has `patience` seconds, and less once the replication is stopped."""
    hurry: Callable[[], None] | None = None

    def poll() -> None:
        nonlocal hurry
        if is_stopped():
            hurry = hurry or _within(_GRACE, lambda: None)
            hurry()

    return _within(patience, poll)


@dataclass(frozen=True, slots=True)
class _Come:
    """A received backup."""

    expected: ExpectedBackup
    """The announced backup."""
    path: Path
    """The received subvolume."""
    parent: Path | None
    """The subvolume to which it was sent as a difference; None: it was sent completely."""


def _require_parent(come: _Come) -> None:
    """Raises NotReceived if `btrfs receive` has applied the difference to another subvolume."""
    if come.parent is None:
        return
    subvolume, parent = describe(come.path), describe(come.parent)
    if not subvolume or not parent or subvolume.parent_uuid != parent.uuid:
        raise NotReceived(
            f"{come.expected.host}@{come.expected.name}: the received copy is based on another subvolume than its parent"
        )
