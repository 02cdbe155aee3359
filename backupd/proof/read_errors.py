"""Read errors of a scrub and of any other reader of the pool, resolved to files and to all backups that share them.

A reader (a restore, a drill, `btrfs send`, a backup from its base) got EIO; btrfs counted the error, and wrote subvolume, inode and
offset into the kernel's log. So errors are found for every reader, without a hook in each.

For errors that a scrub could not correct, the kernel logs an address, and since Linux 6.4 only the 64 KiB that contain it. Each
block there is resolved to its references, and one of those is read: if that succeeds, the block is not damaged, whatever the log
shows.

An address leads to every file in every backup that has the data there without walking the pool: references lead to inodes, these to
names, both by searches in trees. Neighbouring unreadable blocks become one row.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from backupd.files.tree import Tree
from backupd.repo.backup_json import DATA
from backupd.repo.pool_context import PoolContext
from backupd.repo.pool_files import hosts_of
from backupd.repo.verification_files import enter_damages
from btrkeep.catalogue import Damage
from btrkeep.decisions.scrub import SeenErrors, forget_own, forget_unnamed, new_errors, note_seen, read_seen, seen_now
from btrkeep.decisions.verification import FinishedScrub, note_scrub, read_begin
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.file_data import address
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.kernel_log import SPAN, KernelLog, ReadFailure, TreeBlock, filesystem_devices, read_failures
from btrkeep.pool.space_by_profile import DEVICE_ERRORS
from btrkeep.pool.subvolume import opened
from btrkeep.procfs import boot_id
from btrkeep.treescan.links import InodeNames, Owners, Reference

if TYPE_CHECKING:
    from backupd.proof.scrub import ScrubResult
    from btrkeep.pool.marker import Pool


_PREFIX = os.fsencode(DATA) + b"/"
_MOST_ADDRESSES, _MOST_REFERENCES = 1024, 200_000  # addresses whose names are searched together
Backups = Mapping[int, tuple[str, str]]
"""Host and name of a backup by the id of its subvolume."""
_Referred = tuple[int, list[Reference] | None]
_Paths = dict[int, list[bytes]]


class FilePlace(NamedTuple):
    """A byte of one file of one backup. `path` is absolute, as on the host."""

    host: str
    name: str
    path: bytes
    start: int


class Resolver:
    """Resolves addresses of one filesystem; `fd` is any folder of it."""

    def __init__(self, fd: int, backups: Backups) -> None:
        self._owners, self._names, self._backups = Owners(fd), InodeNames(fd), backups
        self.lost = 0
        """Number of addresses or backups for which names may be missing, because metadata on the way to them cannot be read."""

    def places(self, vaddr: int) -> list[FilePlace] | None:
        """Returns every name, in every backup, of the files that contain the byte at `vaddr`. None: no file refers to it."""
        return next(self.resolve((vaddr,)))[1]

    def resolve(self, vaddrs: Iterable[int]) -> Iterator[tuple[int, list[FilePlace] | None]]:
        """Yields each address with its places, in order. Resolves the names of many together, which is faster."""
        batch, count = list[_Referred](), 0
        for vaddr in vaddrs:
            references = self._references(vaddr)
            batch.append((vaddr, references))
            count += len(references or ())
            if len(batch) >= _MOST_ADDRESSES or count >= _MOST_REFERENCES:
                yield from self._named(batch)
                batch, count = [], 0
        yield from self._named(batch)

    def sharing(self, fault: "ReadFailure", pool: "Pool") -> list[FilePlace]:
        """Returns the places of a block of a file that could not be read; none if no backup has it any longer."""
        for _, file_places in self._named([(0, [(fault.inode, fault.offset, fault.subvolume)])]):
            for file_place in file_places or ():
                try:
                    vaddr = _address(pool, file_place)
                except OSError as error:
                    if error.errno in DAMAGED:  # the path to it cannot be read either
                        return [file_place]
                    continue  # missing or not a file: the line is about an earlier filesystem on the device
                return (self.places(vaddr) if vaddr is not None else None) or [file_place]
        return []

    def _references(self, vaddr: int) -> list[Reference] | None:
        try:
            return self._owners.references(vaddr)
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            self.lost += 1
            return None

    def _named(self, batch: list[_Referred]) -> Iterator[tuple[int, list[FilePlace] | None]]:
        paths = self._paths_of(batch)
        for vaddr, references in batch:
            yield vaddr, list(self._places(references, paths)) if references else None

    def _places(self, references: list[Reference], paths: Mapping[int, _Paths]) -> Iterator[FilePlace]:
        for inode, offset, subvolume in references:
            if (subvolume_paths := paths.get(subvolume)) and (here := subvolume_paths.get(inode)):
                host, name = self._backups[subvolume]
                for path in here:
                    yield FilePlace(host, name, path, offset)

    def _paths_of(self, batch: list[_Referred]) -> dict[int, _Paths]:
        """Returns the paths as on the host, by subvolume and inode; only those of backups."""
        wanted: dict[int, set[int]] = {}
        for _, references in batch:
            for inode, _, subvolume in references or ():
                if subvolume in self._backups:
                    wanted.setdefault(subvolume, set()).add(inode)
        paths_by_subvolume, before, paths = dict[int, _Paths](), None, _Paths()
        for subvolume, inodes in wanted.items():
            try:
                names = self._names.of_many(subvolume, inodes)
            except OSError as error:
                if error.errno not in DAMAGED:
                    raise
                self.lost += 1
                continue
            if names is not before:
                before, paths = names, {inode: _as_on_host(inode_paths) for inode, inode_paths in names.items()}
            paths_by_subvolume[subvolume] = paths
        return paths_by_subvolume


def _as_on_host(paths: Iterable[bytes]) -> list[bytes]:
    return [path[len(_PREFIX) - 1 :] for path in paths if path.startswith(_PREFIX)]


def _address(pool: "Pool", place: FilePlace) -> int | None:
    with Tree(pool.host(place.host) / place.name) as tree, ClosingFd(tree.open_file(place.path)) as fd:
        return address(fd, place.start)


BLOCK = 4096  # the smallest sector size, so that no block is missed with larger ones


def backups_by_id(context: PoolContext) -> Backups:
    """Returns all final backups by subvolume id, which is never reused."""
    return {
        state.subvolume_id: (state.host, state.name) for state in context.catalogue.states() if state.subvolume_id and state.name
    }


def is_bad(context: PoolContext, places: list[FilePlace]) -> bool:
    """Returns whether the block cannot be read, tested by the first of its names that still exists."""
    for place in places:
        try:
            with Tree(context.pool.host(place.host) / place.name) as tree:
                fd = tree.open_file(place.path)
        except OSError:  # just deleted, or its path cannot be read
            continue
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(fd, BLOCK, place.start)
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            return True
        finally:
            os.close(fd)
        return False
    return True


def merged(places: Iterable[FilePlace], found_by: str, now: datetime) -> Iterator[Damage]:
    """Returns one row for neighbouring blocks of a file."""
    ordered = sorted(places, key=lambda place: (place.host, place.name, place.path, place.start))
    for (host, name, path), file_places in groupby(
        ordered, key=lambda file_place: (file_place.host, file_place.name, file_place.path)
    ):
        row: Damage | None = None
        for file_place in file_places:
            if row and file_place.start == row.start + row.length:
                row = replace(row, length=row.length + BLOCK)
                continue
            if row:
                yield row
            row = Damage(host, name, os.fsdecode(path), file_place.start, BLOCK, found_by, now)
        if row:
            yield row


_OF_READING = ("read", "corruption", "generation")


@dataclass(frozen=True, slots=True)
class ReadErrors:
    """The result of checking the devices' error counters."""

    rows: tuple[Damage, ...] = ()
    """Newly found damage."""
    lines: int = 0
    """Number of lines of the kernel's log that name an error."""
    seen: SeenErrors = field(default_factory=SeenErrors)
    """Errors that were counted but not logged."""
    why: str = ""
    """Why the log could not be read; "": it could."""


def check_read_errors(context: PoolContext, now: datetime, *, were_met: bool = False) -> ReadErrors:
    """If the devices have counted errors since the last call, finds the damage and records it. Raises OSError.

    `were_met`: the caller met the errors that were counted since its own call a moment before, and has named the files, which the
    log may lack. If the log cannot be read, nothing is recorded: the next call may succeed.
    """
    seen = read_seen(context.catalogue)
    if not new_errors(seen, counters := read_counters(context)):
        return ReadErrors(seen=seen)
    boot, devices = boot_id(), filesystem_devices(context.pool.path)
    with KernelLog(after=seen.message if seen.boot == boot else 0) as log:
        failures = read_failures(log.read(), devices)
        bad = _bad(context, set(failures))
        bad |= _bad(context, set(read_failures(log.read(), devices)) - set(failures))  # errors of these reads, and of others since
        log.read()
    named = new_errors(seen, counters) if were_met else len(failures)
    after = replace(seen_now(seen, counters, named, boot, log.last, now), counters=read_counters(context))
    if log.why:
        return ReadErrors((), len(failures), after, log.why)
    recorded, every = (
        {(damage.host, damage.name, damage.path) for damage in context.catalogue.damages()},
        list(merged(bad, "device", now)),
    )
    damages = [damage for damage in every if (damage.host, damage.name, damage.path) not in recorded]
    enter_damages(context.pool, context.catalogue, (damage.host for damage in every), damages)
    note_seen(context.catalogue, after)
    return ReadErrors(tuple(damages), len(failures), after)


def read_counters(context: PoolContext) -> dict[int, int]:
    """Returns the number of read errors that each device has counted, by its id. Raises OSError."""
    counters = {}
    for device in read_allocation(context.pool.path).devices:
        pairs = zip(DEVICE_ERRORS, device.errors or (), strict=False)
        counters[device.devid] = sum(count for name, count in pairs if name in _OF_READING)
    return counters


def _bad(context: PoolContext, failures: set[ReadFailure]) -> set[FilePlace]:
    """Returns the blocks that still cannot be read: another copy may have repaired one, or a line is about another filesystem."""
    bad = set[FilePlace]()
    with opened(context.pool.path.resolve()) as fd:
        resolver = Resolver(fd, backups_by_id(context))
        for failure in sorted(failures):
            places = resolver.sharing(failure, context.pool)
            if places and not bad.issuperset(places) and is_bad(context, places):
                bad.update(places)
    return bad


class OwnReads:
    """The reads of one command, from `moment` on."""

    def __init__(self, context: PoolContext, moment: datetime) -> None:
        """Checks first, because the errors counted until now belong to other readers. Raises OSError."""
        self._site, self._moment, self._errors = context, moment, 0
        check_read_errors(context, moment)

    @contextmanager
    def counting(self, met: Callable[[], int] | None = None) -> Iterator[None]:
        """Counts the read errors of the devices during the block; with `met`, only if `met()` is larger at its end."""
        before, met_before = read_counters(self._site), met() if met else 0
        try:
            yield
        finally:
            if met is None or met() > met_before:
                self._errors += new_errors(SeenErrors(before), read_counters(self._site))

    def forget(self) -> None:
        """Checks again, and subtracts the errors that these reads met from those without a name. Raises OSError.

        If the log cannot be read, nothing is recorded, so that the next call can read it.
        """
        read_errors = check_read_errors(self._site, self._site.clock.now())
        if not read_errors.why:
            forget_own(self._site.catalogue, read_errors.seen, self._moment, max(0, self._errors - read_errors.lines))


_COUNTED = ("read", "csum", "verify")
"""Errors of a scrub that a device counts as read errors."""


@dataclass(frozen=True, slots=True)
class ScrubDamage:
    """The damage found by a scrub. `rows` are its present rows in the catalogue."""

    rows: tuple[Damage, ...] = ()
    trees: tuple[TreeBlock, ...] = ()
    """Damaged metadata, which has no file name."""
    elsewhere: tuple[int, ...] = ()
    """Addresses of data that no backup has: of an unfinished one, or of a foreign subvolume."""
    unnamed: int = 0
    """Errors that could not be corrected, and that the kernel did not name, or whose files cannot be determined."""
    why: str = ""
    """The reason why the kernel's log could not be read."""


def record_scrub_damage(context: PoolContext, done: "ScrubResult", now: datetime) -> ScrubDamage:
    """Resolves the errors that a scrub could not correct, and records them.

    A complete scrub that compared everything and whose errors all have a name replaces the results of earlier scrubs; any other
    adds to them. Results of another reader that came after its start stay, because the scrub may have read that place before.
    Raises OSError and OperatorError.
    """
    begin = read_begin(context.catalogue)
    begun = begin.at if begin.at and begin.at <= now else None  # otherwise the clock was set back since
    check_read_errors(context, now)  # errors counted by the scrub, and by others while it ran
    bad = done.errors.get("uncorrectable", 0)
    unnamed = max(0, bad - done.faults.lines)
    unread = done.errors.get("unverified", 0) + done.errors.get("malloc", 0)
    with opened(context.pool.path.resolve()) as fd:
        resolver = Resolver(fd, backups_by_id(context))
        rows, elsewhere = _read_all(context, resolver, done.faults.vaddrs, {tree.vaddr for tree in done.faults.trees}, now)
    unnamed += resolver.lost
    in_pool = set(backups_by_id(context).values())  # some may have been deleted since
    rows = [row for row in rows if (row.host, row.name) in in_pool]
    has_named_all = done.outcome == "finished" and not (unnamed or unread)
    hosts = {*hosts_of(context.pool), *(damage.host for damage in context.catalogue.damages())}
    enter_damages(context.pool, context.catalogue, hosts, rows, lambda damage: has_named_all and _is_outdated(damage, begun))
    if done.outcome == "finished" and done.begun:
        is_whole = not (unnamed or unread or done.faults.trees)
        note_scrub(context.catalogue, FinishedScrub(done.begun, now, is_whole, begin.newest))
    errors = check_read_errors(context, now, were_met=bool(done.faults.vaddrs))  # only if this scrub had read errors
    if has_named_all:
        forget_unnamed(context.catalogue, errors.seen, begun, sum(done.errors.get(kind, 0) for kind in _COUNTED))
    return ScrubDamage(tuple(rows), done.faults.trees, tuple(elsewhere), unnamed, done.log_problem)


def _is_outdated(damage: Damage, begun: datetime | None) -> bool:
    """Returns whether a scrub that started then, and named all errors, has read that place since."""
    return damage.found_by == "scrub" or (damage.found_by == "device" and begun is not None and damage.found_at <= begun)


def _read_all(
    context: PoolContext, resolver: Resolver, vaddrs: Iterable[int], trees: set[int], now: datetime
) -> tuple[list[Damage], list[int]]:
    """Returns the damages, and the addresses of damaged data that no backup has."""
    file_places, elsewhere, checked = set[FilePlace](), list[int](), dict[tuple[FilePlace, ...], bool]()
    asked = [vaddr for vaddr in vaddrs if vaddr not in trees]
    answers = resolver.resolve(block for vaddr in asked for block in _blocks(vaddr))
    for vaddr in asked:
        has_no_backup = is_found = False
        for _, places in islice(answers, len(_blocks(vaddr))):
            if places is None:
                continue
            has_no_backup = has_no_backup or not places
            key = tuple(places)  # all blocks of a compressed extent have the same places
            if places and key not in checked:
                checked[key] = is_bad(context, places)
                file_places |= set(places) if checked[key] else set()
            is_found = is_found or checked.get(key, False)
        if has_no_backup and not is_found:
            elsewhere.append(vaddr)
    return list(merged(file_places, "scrub", now)), elsewhere


def _blocks(vaddr: int) -> range:
    """Returns the blocks that may have the error that the kernel reports at this address."""
    return range(vaddr, vaddr - vaddr % SPAN + SPAN, BLOCK)
