"""Errors of reading, those of a scrub and those that any reader of the pool met, resolved to files and all backups that share them.

The reader (a restore, a drill, `btrfs send`, a backup from its base) got EIO and continued or did not; btrfs counted the error,
and wrote subvolume, inode and place into the kernel's log. So it is found for every reader, without a hook in each.

Of what a scrub could not correct the kernel names an address, and since Linux 6.4 only the 64 KiB in which it lies. Each block
there is asked for its references, and one of those is read: what reads well is not damaged, whatever the log says.

An address leads to every file in every backup that has the data there without walking the pool: references lead to inodes, these to
names, both by searches in trees. Neighbouring places that cannot be read become one row.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from backupd.files.tree import Tree
from backupd.repo.backup_json import DATA
from backupd.repo.pool_context import PoolContext
from btrkeep.catalogue import Damage
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.file_data import address
from btrkeep.treescan.links import InodeNames, Owners, Reference

if TYPE_CHECKING:
    from btrkeep.pool.kernel_log import ReadFailure
    from btrkeep.pool.marker import Pool
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from backupd.repo.pool_files import hosts_of
from backupd.repo.verification_files import enter_damages
from btrkeep.decisions.scrub import SeenErrors, forget_own, forget_unnamed, grown, note_seen, read_seen, seen_now
from btrkeep.decisions.verification import FinishedScrub, note_scrub, read_begin
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.kernel_log import SPAN, KernelLog, ReadFailure, TreeBlock, filesystem_devices, read_failures
from btrkeep.pool.space_by_profile import DEVICE_ERRORS
from btrkeep.pool.subvolume import opened
from btrkeep.procfs import boot_id

if TYPE_CHECKING:
    from backupd.proof.scrub import ScrubResult


_PREFIX = os.fsencode(DATA) + b"/"
_MOST_ADDRESSES, _MOST_REFERENCES = 1024, 200_000  # of which the names are looked up together
Backups = Mapping[int, tuple[str, str]]
"""Host and name by the id of the subvolume."""
_Referred = tuple[int, list[Reference] | None]
_Paths = dict[int, list[bytes]]


class FilePlace(NamedTuple):
    """A byte of one file of one backup. `path` is absolute, as the host has it."""

    host: str
    name: str
    path: bytes
    start: int


class Resolver:
    """Asks one filesystem; `fd` is any folder of it."""

    def __init__(self, fd: int, backups: Backups) -> None:
        self._owners, self._names, self._backups = Owners(fd), InodeNames(fd), backups
        self.lost = 0
        """How many addresses or backups have not all their names, because metadata on the way to them cannot be read."""

    def places(self, vaddr: int) -> list[FilePlace] | None:
        """Returns every name, in every backup, of the files that have the byte at `vaddr`. None: no file refers to it."""
        return next(self.resolve((vaddr,)))[1]

    def resolve(self, vaddrs: Iterable[int]) -> Iterator[tuple[int, list[FilePlace] | None]]:
        """Yields each address with its places, in order. Looks up the names of many together, which is faster."""
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
        """Returns the same for a block of a file that could not be read; nothing if it is in no backup any more."""
        for _, file_places in self._named([(0, [(fault.inode, fault.offset, fault.subvolume)])]):
            for file_place in file_places or ():
                try:
                    vaddr = _address(pool, file_place)
                except OSError as error:
                    if error.errno in DAMAGED:  # what leads there cannot be read either
                        return [file_place]
                    continue  # gone, or no plain file: the line is of a filesystem that was on the device before
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
        """The paths as the host has them, by subvolume and inode; only of backups."""
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


BLOCK = 4096  # the smallest sector size, so that no block is missed where they are larger


def backups_by_id(context: PoolContext) -> Backups:
    """Returns all backups that have a name, by subvolume id, which is never given twice."""
    return {
        state.subvolume_id: (state.host, state.name) for state in context.catalogue.states() if state.subvolume_id and state.name
    }


def is_bad(context: PoolContext, places: list[FilePlace]) -> bool:
    """Whether the block cannot be read, by the first of its names that is still there."""
    for place in places:
        try:
            with Tree(context.pool.host(place.host) / place.name) as tree:
                fd = tree.open_file(place.path)
        except OSError:  # deleted meanwhile, or unreadable on the way to it
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
    """One row for neighbouring blocks of a file."""
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
    """`rows`: what became known to be damaged; `lines`: of the log, that name an error; `seen`: what is counted and not named;
    `why` the log could not be read.
    """

    rows: tuple[Damage, ...] = ()
    lines: int = 0
    seen: SeenErrors = field(default_factory=SeenErrors)
    why: str = ""


def check_read_errors(context: PoolContext, now: datetime, *, were_met: bool = False) -> ReadErrors:
    """Looks, if the devices have counted errors since the last look, and writes down what they damaged. Raises OSError.

    `were_met`: the caller has met what was counted since its own look a moment before, and has named the files, which the log may
    have left out. Where the log cannot be read nothing is written down: the next look may.
    """
    seen = read_seen(context.catalogue)
    if not grown(seen, counters := read_counters(context)):
        return ReadErrors(seen=seen)
    boot, devices = boot_id(), filesystem_devices(context.pool.path)
    with KernelLog(after=seen.message if seen.boot == boot else 0) as log:
        failures = read_failures(log.read(), devices)
        bad = _bad(context, set(failures))
        bad |= _bad(context, set(read_failures(log.read(), devices)) - set(failures))  # what these reads met, and others meanwhile
        log.read()
    named = grown(seen, counters) if were_met else len(failures)
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
    """Returns how many errors of reading each device has counted, by its id. Raises OSError."""
    counters = {}
    for device in read_allocation(context.pool.path).devices:
        pairs = zip(DEVICE_ERRORS, device.errors or (), strict=False)
        counters[device.devid] = sum(count for name, count in pairs if name in _OF_READING)
    return counters


def _bad(context: PoolContext, failures: set[ReadFailure]) -> set[FilePlace]:
    """Returns the blocks that still cannot be read: another copy may have repaired one, or a line is of another filesystem."""
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
        """Looks first, because the errors counted until now belong to other readers. Raises OSError."""
        self._site, self._moment, self._errors = context, moment, 0
        check_read_errors(context, moment)

    @contextmanager
    def counting(self, met: Callable[[], int] | None = None) -> Iterator[None]:
        """Counts what is read in the block: files known to be damaged. Or, with `met`, the number of what was found damaged
        and has a name, if that is larger at the end.
        """
        before, met_before = read_counters(self._site), met() if met else 0
        try:
            yield
        finally:
            if met is None or met() > met_before:
                self._errors += grown(SeenErrors(before), read_counters(self._site))

    def forget(self) -> None:
        """Looks again, and forgets as many of the errors without a name as these reads met. Raises OSError.

        If the log cannot be read nothing is written down, so that the next look reads what this one could not.
        """
        read_errors = check_read_errors(self._site, self._site.clock.now())
        if not read_errors.why:
            forget_own(self._site.catalogue, read_errors.seen, self._moment, max(0, self._errors - read_errors.lines))


_COUNTED = ("read", "csum", "verify")
"""Errors of a scrub that a device counts as errors of reading."""


@dataclass(frozen=True, slots=True)
class ScrubDamage:
    """What became known by a scrub. `rows` are what the catalogue has now of it."""

    rows: tuple[Damage, ...] = ()
    trees: tuple[TreeBlock, ...] = ()
    """Metadata: no file's name leads there."""
    elsewhere: tuple[int, ...] = ()
    """Addresses of data that no backup has: of an unfinished one, or of a foreign subvolume."""
    unnamed: int = 0
    """Errors that could not be put right, and that the kernel did not name, or whose files cannot be known."""
    why: str = ""
    """Why the kernel's log could not be read."""


def record_scrub_damage(context: PoolContext, done: "ScrubResult", now: datetime) -> ScrubDamage:
    """Resolves what a scrub left unrepaired, and writes it down.

    One that was done as a whole, that compared everything, and whose errors all have a name, replaces what scrubs found before; any
    other adds to it. What another reader met after it began stays: it may have read that place before. Raises OSError and
    OperatorError.
    """
    begin = read_begin(context.catalogue)
    begun = begin.at if begin.at and begin.at <= now else None  # or the clock was put back since
    check_read_errors(context, now)  # what the scrub counted, and what others met while it ran
    bad = done.errors.get("uncorrectable", 0)
    unnamed = max(0, bad - done.faults.lines)
    unread = done.errors.get("unverified", 0) + done.errors.get("malloc", 0)
    with opened(context.pool.path.resolve()) as fd:
        resolver = Resolver(fd, backups_by_id(context))
        rows, elsewhere = _read_all(context, resolver, done.faults.vaddrs, {tree.vaddr for tree in done.faults.trees}, now)
    unnamed += resolver.lost
    in_pool = set(backups_by_id(context).values())  # one may have been deleted meanwhile
    rows = [row for row in rows if (row.host, row.name) in in_pool]
    has_named_all = done.outcome == "finished" and not (unnamed or unread)
    hosts = {*hosts_of(context.pool), *(damage.host for damage in context.catalogue.damages())}
    enter_damages(context.pool, context.catalogue, hosts, rows, lambda damage: has_named_all and _is_outdated(damage, begun))
    if done.outcome == "finished" and done.begun:
        is_whole = not (unnamed or unread or done.faults.trees)
        note_scrub(context.catalogue, FinishedScrub(done.begun, now, is_whole, begin.newest))
    errors = check_read_errors(context, now, were_met=bool(done.faults.vaddrs))  # what was read here
    if has_named_all:
        forget_unnamed(context.catalogue, errors.seen, begun, sum(done.errors.get(kind, 0) for kind in _COUNTED))
    return ScrubDamage(tuple(rows), done.faults.trees, tuple(elsewhere), unnamed, done.log_problem)


def _is_outdated(damage: Damage, begun: datetime | None) -> bool:
    """Whether a scrub that began then, and has named everything, has looked at that place since."""
    return damage.found_by == "scrub" or (damage.found_by == "device" and begun is not None and damage.found_at <= begun)


def _read_all(
    context: PoolContext, resolver: Resolver, vaddrs: Iterable[int], trees: set[int], now: datetime
) -> tuple[list[Damage], list[int]]:
    """Returns the damages, and the addresses of damaged data that no backup has."""
    file_places, elsewhere, checked = set[FilePlace](), list[int](), dict[tuple[FilePlace, ...], bool]()
    asked = [vaddr for vaddr in vaddrs if vaddr not in trees]
    answers = resolver.resolve(block for vaddr in asked for block in _blocks(vaddr))
    for vaddr in asked:
        nobodys = is_found = False
        for _, places in islice(answers, len(_blocks(vaddr))):
            if places is None:
                continue
            nobodys = nobodys or not places
            key = tuple(places)  # each block of a compressed extent has the same
            if places and key not in checked:
                checked[key] = is_bad(context, places)
                file_places |= set(places) if checked[key] else set()
            is_found = is_found or checked.get(key, False)
        if nobodys and not is_found:
            elsewhere.append(vaddr)
    return list(merged(file_places, "scrub", now)), elsewhere


def _blocks(vaddr: int) -> range:
    """The blocks in which an error may lie that the kernel names by this address."""
    return range(vaddr, vaddr - vaddr % SPAN + SPAN, BLOCK)
