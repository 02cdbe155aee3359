"""Backups received: `btrfs receive` in a cell, and the look at what it made before that gets its name.

What is not whole lies in `.receiving` in the host's folder, and whatever lies there when a replication begins is deleted: it takes
a cut at any moment, for nothing else ever has that name. It gets the backup's name when the stream has ended
well, the subvolume says whose copy it is, which is what `btrfs receive` does last, its own record says the same, and all of it is
on the disk: a read-only snapshot of it gets the name. In the cell nothing is made read-only: what lies in `.receiving` need not be,
and each would be one more commit of the filesystem.

One cell takes several backups of a host, one stream after the other, and one sync is for all of them (docs/decisions/0055). None
of them is looked at before the cell has ended, for what runs in it could change them afterwards.

The cell has programs and libraries, read-only, no process but its own, only system calls that it needs (no socket, no mount), and
below /pool nothing but the folder of this
host, in which nothing can be written or renamed but in `.receiving`: a stream may say "../", or make a symlink and then write
through it, and `btrfs receive` follows.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from uuid import uuid4

from backupd.files.sameness import Pulse, steady
from backupd.replicate.same_copy import changed_since
from backupd.replicate.stream_guard import StreamGuard
from backupd.replicate.wire import ConnectionBroken, is_unread, widen, write_watched
from backupd.repo.backup_json import DATA, RECORD, Record, UnreadableRecord
from backupd.repo.backup_json import read as read_record
from backupd.repo.final_backups import is_named
from backupd.repo.hardlinks import STAGING
from backupd.repo.read_lock import unread
from backupd.repo.received import RECEIVING, REPLACED, discard_received, discard_replaced
from backupd.repo.sums import SUMS
from backupd.rsync.confined import PROGRAM, filter_file, shown_programs
from btrkeep.backup_states import FINAL
from btrkeep.checkpoints import Checkpoint
from btrkeep.config.keys import DEFAULTS
from btrkeep.decisions.receive_meaning import HINTS, receive_cause
from btrkeep.decisions.replication import FarBackup, Fetch
from btrkeep.errors import OperatorError
from btrkeep.fs.exchange import exchange
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.send import NEWEST
from btrkeep.pool.subvolume import (
    ROOT_FOLDER,
    Subvolume,
    delete,
    describe,
    marked_copies,
    opened,
    set_read_only,
    set_received,
    snapshot,
)
from btrkeep.pool.syncfs import Syncfs, syncing
from btrkeep.process.piped import piped
from btrkeep.process.programs import run
from btrkeep.ticks import moment, wait_for_tick
from btrkeep.treescan import has_readable_tree
from btrkeep.units import format_duration, printable

_SUBVOLUME, _PARENT = "backup", "parent"
_TOP = "/pool"
_CAPABILITIES = ("SYS_ADMIN", "CHOWN", "FOWNER", "FSETID", "DAC_OVERRIDE", "SETFCAP", "MKNOD")
_LOOK = 0.0005  # seconds
_LONGEST_REASON = 1000
_GRACE = 5.0  # seconds that it has for its end when somebody stops the replication
_KNOWS_NEWEST = 6  # btrfs-progs 6.0 and later


class NotReceived(OperatorError):
    """A backup that did not come, or that is not what it should be; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A backup that is to come, and the one here that it is a difference to.

    `again`: it takes the place of the copy that is here.
    """

    host: str
    name: str
    uuid: str
    parent: FarBackup | None = None
    again: bool = False

    @classmethod
    def of(cls, host: str, fetch: Fetch) -> "Expected":
        """Returns what comes of a host by that fetch."""
        return cls(host, fetch.backup.name, fetch.backup.uuid, fetch.parent, fetch.again)


@cache
def newest_received() -> int:
    """The newest version of the stream that the program `btrfs` receives here, whatever the kernel sends."""
    said = re.search(r" v(\d+)\.", run(("btrfs", "--version"), check=False).stdout)
    return NEWEST if said and int(said[1]) >= _KNOWS_NEWEST else 1


class Receiving:
    """Streams of one host's backups, which a single `btrfs receive` takes one after the other. A context; needs the host's lock.

    What has come gets its name by `publish`. At the end nothing is left in `.receiving`. `patience`: the seconds in which `btrfs
    receive` has to take something, or to end.
    """

    def __init__(self, pool: Pool, host: str, *, confined: bool, patience: float = DEFAULTS["stall"]) -> None:
        self._pool, self._host, self._confined, self._patience = pool, host, confined, patience
        self._held = ExitStack()
        self._names = list[str]()
        self._came = list[_Come]()
        self._stand_ins = list[str]()
        self._is_cut = False
        """Whether a stream was begun that did not come to its end."""

    def __enter__(self) -> "Receiving":
        with ExitStack() as held:
            self._disk = held.enter_context(syncing(self._pool.path))  # before the first byte
            held.callback(self._discard)
            (self._pool.host(self._host) / RECEIVING).mkdir(mode=0o700)
            self._running = held.enter_context(ExitStack())
            calls = self._running.enter_context(_calls(self._confined))
            command = _command(self._pool, self._host, calls)
            self._program = self._running.enter_context(piped(command, keep_open=() if calls is None else (calls,)))
            widen(self._program.input)  # what follows can come while a backup before it is being sealed
            os.set_blocking(self._program.input, False)  # one that is stopped would keep us from our end
            self._held = held.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            discard_received(self._pool, self._host)

    def take(self, expected: Expected, pieces: Iterator[bytes], *, version: int, look: Callable[[], None] = lambda: None) -> None:
        """Passes on the stream of `pieces`. `look` is called now and then, and may raise.

        Raises NotReceived, and what `pieces` raises; then no further stream can be taken.
        """
        name = f"{_SUBVOLUME}{len(self._names) + 1}" if self._names else _SUBVOLUME
        self._names.append(name)
        patient = partial(_within, self._patience, look)
        self._is_cut = True
        parent, mark = self._parent(expected.parent)
        parent_uuid = expected.parent.uuid if expected.parent else None
        guard = StreamGuard(expected.uuid, parent_uuid, name.encode(), version, mark)
        try:
            last = self._last_change(patient())
            for piece in pieces:
                for passed in guard.pass_on(piece):
                    write_watched(self._program.input, passed, patient())
                    wait_for_tick(last)  # the first command makes the subvolume, those after it change it
                look()
        except BrokenPipeError:  # it says why
            raise self._fault(patient()) or NotReceived("btrfs receive has ended too early") from None
        if not guard.whole:
            raise self._fault(patient()) or ConnectionBroken("the stream has no end")
        with Checkpoint("stream received"):
            self._is_cut = False
            self._came.append(_Come(expected, self._folder / name, parent))

    def _last_change(self, look: Callable[[], None]) -> int:
        """Waits until the program has read all that was passed on to it; until when it may have changed something.

        What the next stream changes must be dated later (btrkeep/ticks.py). `look` may raise; raises BrokenPipeError.
        """
        while is_unread(self._program.input):
            look()
            time.sleep(_LOOK)
        return moment()

    @property
    def ends(self) -> bool:
        """Returns True if the backup that came last cannot be the parent of one in this cell: another copy of it lies elsewhere, as
        when two pools of this filesystem fetch the same host, or when it replaces a damaged one.
        """
        last = self._came[-1]
        known = marked_copies(self._pool.path, last.expected.uuid)
        own = describe(last.path)
        return any(own is None or id_ != own.id for id_ in known)

    def _parent(self, parent: FarBackup | None) -> tuple[Path | None, str | None]:
        """Returns where the parent of a difference lies, and the UUID by which `btrfs receive` finds it if not by its own."""
        if parent is None:
            return None, None
        if before := next((one.path for one in self._came if one.expected.name == parent.name), None):
            return before, None
        path = self._pool.host(self._host) / parent.name
        found = describe(path)
        if found is None or marked_copies(self._pool.path, parent.uuid) == [found.id]:
            return path, None
        return self._stand_in(path)

    def _stand_in(self, path: Path) -> tuple[Path, str]:
        """A snapshot of what lies at `path`, marked as the copy of a UUID that nothing else has.

        `btrfs receive` looks for the mark of a copy, and of several subvolumes with the same mark it takes the first: another
        pool's, or what somebody keeps of a damaged copy. For clones it looks for nothing but that before btrfs-progs 6.14, so it
        does not find what was made here.
        """
        place, mark = self._folder / f"{_PARENT}{len(self._stand_ins) + 1}", str(uuid4())
        self._stand_ins.append(place.name)
        snapshot(path, place)
        set_received(place, mark, 0)
        set_read_only(place)
        return place, mark

    @property
    def _folder(self) -> Path:
        return self._pool.host(self._host) / RECEIVING

    def end_input(self) -> None:
        """Has the cell end by itself: no further stream comes."""
        self._program.end_input()

    def publish(self, is_stopped: Callable[[], bool]) -> Iterator[tuple[Expected, Subvolume, Record]]:
        """Ends the cell, and gives each backup that has come its name, if it is whole; yields what it is. All of it is on the disk.

        When it `is_stopped` the program has a few seconds left for its end. Raises NotReceived at the first one that is not whole,
        OSError.
        """
        fault = None if self._is_cut else self._fault(_until(is_stopped, self._patience))
        self._running.close()  # nothing in the cell can change anything from here on
        whole = list[tuple[_Come, Record]]()
        trouble = fault
        try:
            _require_alone(self._folder, (*self._names, *self._stand_ins), self._host)
            for come in self._came:
                record = _require_whole(come.path, come.expected)
                _require_parent(come)
                whole.append((come, record))
        except NotReceived as error:
            trouble = fault or error
        else:
            del whole[len(whole) - bool(fault) :]  # whatever it complains of, the last one is in doubt
        if whole:
            self._disk.sync()
        for come, record in whole:
            yield come.expected, _named(self._pool, come.expected, come.path, _unless(is_stopped)), record
        if trouble:
            raise trouble

    def _fault(self, look: Callable[[], None]) -> NotReceived | None:
        """Waits for the end of the program; what it complains of. Raises what `look` raises, but for NotReceived."""
        try:
            status = self._program.wait(look)
        except NotReceived as error:
            self._program.kill()  # at once: the cell was made long ago
            return error
        heard = self._program.said()
        said = [line for line in heard if line.startswith(("ERROR", PROGRAM))]
        if not status:
            return None
        why = printable(said[0].removeprefix("ERROR: "))[:_LONGEST_REASON] if said else f"exit status {status}"
        return NotReceived(f"btrfs receive: {why}", HINTS[receive_cause(heard, is_read_only=self._disk.is_read_only)])


def _within(seconds: float, look: Callable[[], None]) -> Callable[[], None]:
    """Returns the same look, which raises NotReceived if it is called for longer: `btrfs receive` stands still."""
    end = time.monotonic() + seconds

    def limited() -> None:
        look()
        if time.monotonic() > end:
            why = f"btrfs receive does not go on: it took nothing, or did not end, for {format_duration(seconds)}"
            raise NotReceived(why, "see the kernel's messages (dmesg): is the pool frozen, or a disk of it?")

    return limited


def _unless(is_stopped: Callable[[], bool]) -> Pulse:
    """Returns what raises NotReceived when somebody stops all of it."""

    def look() -> None:
        if is_stopped():
            raise NotReceived("it was stopped while the copy that is here was compared with what came", "fetch it again")

    return look


def _until(is_stopped: Callable[[], bool], patience: float) -> Callable[[], None]:
    """Returns a look for the end of the program, which has `patience` seconds, and less once somebody stops all of it."""
    hurry: Callable[[], None] | None = None

    def look() -> None:
        nonlocal hurry
        if is_stopped():
            hurry = hurry or _within(_GRACE, lambda: None)
            hurry()

    return _within(patience, look)


@dataclass(frozen=True, slots=True)
class _Come:
    """What has come lies at `path`, as a difference to what lies at `parent`."""

    expected: Expected
    path: Path
    parent: Path | None


def publish_copy(pool: Pool, expected: Expected, path: Path, disk: Syncfs) -> tuple[Subvolume, Record]:
    """Gives the backup's name to what lies at `path` in `.receiving`, if it is the whole backup; what it is.

    `disk` was opened before the first byte of it was written. Raises NotReceived, OSError.
    """
    _require_alone(path.parent, (path.name,), expected.host)
    record = _require_whole(path, expected)
    disk.sync()
    return _named(pool, expected, path), record


def _named(pool: Pool, expected: Expected, path: Path, pulse: Pulse = steady) -> Subvolume:
    """A read-only snapshot of `path` under the backup's name, which remembers whose copy it is: what is read-only cannot be moved
    into another folder. Raises NotReceived, OSError.
    """
    final = pool.host(expected.host) / expected.name
    if expected.again:
        return _put_in_place(pool, expected, path, final, pulse)
    if is_there(final):
        raise NotReceived(f"{final} is there already, and is no copy of it", "look at it, and move it away")
    return _snapshot(path, final, expected)


def _snapshot(path: Path, place: Path, expected: Expected) -> Subvolume:
    snapshot(path, place, read_only=True)
    found = describe(place)
    assert found is not None
    if found.received_uuid != expected.uuid:
        delete(place.parent, found.id)
        raise NotReceived(f"{expected.host}@{expected.name}: this kernel's snapshots forget whose copy they are")
    return found


def _put_in_place(pool: Pool, expected: Expected, path: Path, final: Path, pulse: Pulse) -> Subvolume:
    """The same in the place of the copy that has that name, which is deleted: the two change names, so one is always there.

    Raises NotReceived when what is there is no copy of it, is being read, or cannot be dropped by the kernel, or when what came is
    another backup than it was.
    """
    there = describe(final)
    if there is None or not there.read_only or there.received_uuid != expected.uuid:
        raise NotReceived(f"{final} is no copy of it any more", "look at it, and move it away")
    with opened(final) as fd:
        if not has_readable_tree(fd):
            raise NotReceived(
                f"{expected.host}@{expected.name} stays: the disk does not give back some of its metadata, and the kernel makes "
                "the pool read-only when such a subvolume is deleted"
            )
    if other_than := changed_since(pool, expected.host, final, path, pulse):
        raise NotReceived(
            f"{expected.host}@{expected.name} is another one there than it was: {other_than}, which is not damaged here, differs",
            "somebody may have changed it on the other server; the damaged copy stays",
        )
    with unread(final) as nobody_reads:
        if not nobody_reads:
            raise NotReceived(f"{expected.host}@{expected.name} is being read", "fetch it again when that has ended")
        discard_replaced(pool, expected.host)
        other = final.with_name(REPLACED)
        found = _snapshot(path, other, expected)
        with Checkpoint("damaged copy replaced"):
            exchange(other, final)
        discard_replaced(pool, expected.host)
    return found


@contextmanager
def _calls(confined: bool) -> Iterator[int | None]:
    """A descriptor of the list of system calls that the cell has; None without a cell."""
    if not confined:
        yield None
        return
    calls = filter_file(receives=True)
    try:
        yield calls
    finally:
        os.close(calls)


def _require_alone(folder: Path, names: Collection[str], host: str) -> None:
    """Raises NotReceived if something else than these lies there."""
    if not {path.name for path in folder.iterdir()} <= set(names):
        raise NotReceived(f"{host}: the stream has written outside of the backup")


def _require_whole(path: Path, expected: Expected) -> Record:
    """The record of what lies at `path`, if it is the backup that was to come. Raises NotReceived."""
    found = describe(path)
    if found is None or found.received_uuid != expected.uuid:
        raise NotReceived(f"{expected.host}@{expected.name}: what came is not whole")
    try:
        record = read_record(path)
    except UnreadableRecord as error:
        raise NotReceived(f"{expected.host}@{expected.name}: {error.message}") from None
    if record is None or (record.uuid, record.name) != (expected.uuid, expected.name) or record.state not in FINAL:
        raise NotReceived(f"{expected.host}@{expected.name}: its backup.json speaks of another backup")
    if not is_named(record.host, expected.host, path.parent.parent):
        raise NotReceived(f"{expected.host}@{expected.name}: its backup.json names the host {record.host!r}")
    _require_plain(path, expected)
    return record


def _require_parent(come: _Come) -> None:
    """Raises NotReceived if `btrfs receive` has put the difference upon another subvolume."""
    if come.parent is None:
        return
    found, parent = describe(come.path), describe(come.parent)
    if not found or not parent or found.parent_uuid != parent.uuid:
        raise NotReceived(f"{come.expected.host}@{come.expected.name}: what came was put upon another subvolume than its parent")


def _require_plain(path: Path, expected: Expected) -> None:
    """Raises NotReceived unless `data` is a folder, and what later nights replace beside it are plain files.

    A symlink in the place of `data` would lead a night, which removes what is no source path, out of the pool.
    """
    for name, is_right in (
        (DATA, stat.S_ISDIR),
        *((name, stat.S_ISREG) for name in (RECORD, f"{RECORD}.new", SUMS, os.fsdecode(STAGING))),
    ):
        with contextlib.suppress(FileNotFoundError):
            if not is_right((path / name).lstat().st_mode):
                raise NotReceived(f"{expected.host}@{expected.name}: its {name} is not what a backup has by that name")


def _command(pool: Pool, host: str, calls: int | None) -> tuple[str, ...]:
    """`btrfs receive`, in a cell when `calls` is the descriptor of the list of its system calls."""
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
    """The root of the subvolume that a folder lies in, or of what of it is mounted."""
    top = path
    while True:
        with opened(top) as fd:
            if os.fstat(fd).st_ino == ROOT_FOLDER or top.is_mount():
                return top
        top = top.parent
