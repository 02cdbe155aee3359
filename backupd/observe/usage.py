"""Measures the use of space: reads the catalogue's list, the trees and the extents, within the time limit.

Sampling reads random addresses: each belongs to a host or a backup with the probability of its share of the bytes. The address is
drawn evenly from all data block groups, including free space, so no list of extents is needed, and the size of the pool does not
matter: only the number of draws. The kernel returns all subvolumes that refer to the extent.
"""

import os
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, groupby
from math import sqrt
from pathlib import Path

from btrkeep.catalogue import Catalogue
from btrkeep.errors import OperatorError, is_damage
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import describe
from btrkeep.procfs import privilege_hint

METHODS = ("written", "sampled", "extents")
_Z = 1.96  # 95 of 100 intervals hold the true value


@dataclass(frozen=True, slots=True)
class Amount:
    """A measured size: with 95% certainty it is between `low` and `high`; both equal `bytes` if it is exact."""

    bytes: int
    low: int
    high: int

    @property
    def exact(self) -> bool:
        """True if no part of it is estimated."""
        return self.low == self.high


def exactly(size: int) -> Amount:
    """Returns a counted size."""
    return Amount(size, size, size)


def estimated(hits: int, draws: int, space: int) -> Amount:
    """Estimates the size of data that was hit by `hits` of `draws` random places in `space` bytes. Wilson's interval (JASA 22,
    1927).

    Without a hit it is zero, and at most some 3.8 draws' worth.
    """
    if not draws:
        return Amount(0, 0, space)
    share, weight = hits / draws, _Z * _Z / draws
    middle = (share + weight / 2) / (1 + weight)
    half = _Z * sqrt(share * (1 - share) / draws + weight / (4 * draws)) / (1 + weight)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Amount(round(share * space), round(low * space) if hits else 0, round(high * space))


@dataclass(frozen=True, slots=True)
class MeasuredUsage:
    """`exclusive`: bytes that its deletion would free. `referenced`: all bytes to which it refers, including those to which others
    refer too.
    """

    exclusive: Amount
    referenced: Amount

    @property
    def shared(self) -> int:
        """Returns the bytes to which others refer as well."""
        return max(0, self.referenced.bytes - self.exclusive.bytes)


@dataclass(frozen=True, slots=True)
class BackupUse:
    """One backup."""

    host: str
    """The host's name."""
    name: str | None
    """The backup's name; None if it is not final."""
    state: str
    """Its state."""
    started: datetime
    """When its run started."""
    subvolume_id: int | None
    """The number of its subvolume; None: unknown."""
    path: str
    """Relative to the pool."""
    size: int | None
    """The size of its files on the host; None: unknown."""
    written: int | None
    """Bytes that rsync wrote for it; None: unknown."""
    measured: MeasuredUsage | None = None
    """The measured space; None: not requested, not reached in time, or not readable."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """All backups of a host together."""

    host: str
    """The host's name."""
    backups: int
    """Number of backups."""
    size: int | None
    """The size of the files of the newest backup whose size is known; None: unknown."""
    written: int | None
    """Bytes that rsync wrote for them; None: unknown."""
    measured: MeasuredUsage | None = None
    """The measured space. Its `exclusive` is data to which no other host and nothing else refers; None: not measured."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The answer."""

    method: str
    """How it was measured."""
    hosts: tuple[HostUse, ...]
    """Each host."""
    backups: tuple[BackupUse, ...] = ()
    """Each backup; empty: not requested."""
    others: Amount | None = None
    """Data to which no backup refers; None: not measured."""
    draws: int = 0
    """Number of random places that were checked."""
    seconds: float = 0.0
    """How long it took."""
    complete: bool = True
    """False if something is missing because of the time limit."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why a backup could not be read, by path."""


ENOUGH = 20_000
"""After this many draws that hit data, sampling stops: the error is at most 0.7% of the data."""

Owner = tuple[str, str | None]
"""(host, name of the backup)."""


@dataclass(slots=True)
class DrawTally:
    """How many times each set of owners was drawn."""

    space: int
    """Bytes of the addresses from which the sample was drawn."""
    draws: int = 0
    """Number of draws."""
    met: int = 0
    """Number of draws that hit data."""
    by_host: Counter[str] = field(default_factory=Counter)
    """Draws of data to which the host refers."""
    only_host: Counter[str] = field(default_factory=Counter)
    """Draws of data to which only this host refers."""
    by_backup: Counter[Owner] = field(default_factory=Counter)
    """Draws of data to which the backup refers."""
    only_backup: Counter[Owner] = field(default_factory=Counter)
    """Draws of data to which only this backup refers."""
    others: int = 0
    """Draws of data to which no backup refers."""

    def add(self, roots: frozenset[int] | None, owners: Mapping[int, Owner]) -> None:
        """Adds one draw. `roots` None: free space, or data that is no longer referenced."""
        self.draws += 1
        if roots is None:
            return
        self.met += 1
        known_owners = [owners[root] for root in roots if root in owners]
        hosts = {host for host, _ in known_owners}
        self.by_host.update(hosts)
        self.by_backup.update(known_owners)
        if not known_owners:
            self.others += 1
        elif len(known_owners) == len(roots):
            if len(hosts) == 1:
                self.only_host.update(hosts)
            if len(known_owners) == 1:
                self.only_backup.update(known_owners)


def places(pieces: Sequence[tuple[int, int]], chance: random.Random) -> Iterator[int]:
    """Yields random addresses without end, evenly from these (vaddr, length)."""
    ends = list(accumulate(length for _, length in pieces))
    while ends and ends[-1]:
        drawn = chance.randrange(ends[-1])
        index = bisect_right(ends, drawn)
        vaddr, length = pieces[index]
        yield vaddr + drawn - (ends[index] - length)


def sample(
    pieces: Sequence[tuple[int, int]],
    owners: Mapping[int, Owner],
    ask: Callable[[int], frozenset[int] | None],
    seconds: float,
    chance: random.Random,
    enough: int = ENOUGH,
) -> DrawTally:
    """Draws until this many seconds have passed, or enough data was hit. `ask` is `Owners.of`."""
    tally, until = DrawTally(sum(length for _, length in pieces)), time.monotonic() + seconds
    for place in places(pieces, chance):
        tally.add(ask(place), owners)
        if tally.met >= enough or time.monotonic() >= until:
            break
    return tally


_DATA = 1  # BTRFS_BLOCK_GROUP_DATA


def listed(catalogue: Catalogue, host: str | None = None) -> list[BackupUse]:
    """Returns the backups in the catalogue, by host and start."""
    return [
        BackupUse(
            backup.host, backup.name, backup.state, backup.started, backup.subvolume_id, backup.path, backup.bytes, backup.new_bytes
        )
        for backup in catalogue.backups(host)
    ]


def summed(backups: Iterable[BackupUse]) -> list[HostUse]:
    """Returns a row for each host; `size` is that of the newest backup whose size is known."""
    rows = []
    for host, group in groupby(backups, key=lambda backup: backup.host):
        backup_uses = list(group)
        sizes = [backup_use.size for backup_use in backup_uses if backup_use.size is not None]
        written = [backup_use.written for backup_use in backup_uses if backup_use.written is not None]
        rows.append(HostUse(host, len(backup_uses), sizes[-1] if sizes else None, sum(written) if written else None))
    return rows


def by_writing(backups: Sequence[BackupUse]) -> PoolUse:
    """Measures nothing: uses the bytes that rsync wrote."""
    return PoolUse("written", tuple(summed(backups)), tuple(backups))


def by_sampling(pool: Pool, everything: Sequence[BackupUse], seconds: float, chance: random.Random | None = None) -> PoolUse:
    """Samples all hosts at once; `everything` is all backups of the pool. Raises OperatorError."""
    from btrkeep.treescan.block_groups import chunks
    from btrkeep.treescan.links import Owners

    owners: dict[int, Owner] = {
        backup_use.subvolume_id: (backup_use.host, backup_use.name) for backup_use in everything if backup_use.subvolume_id
    }
    begun = time.monotonic()
    with _opened(pool.path.resolve()) as fd:
        chunk = chunks(fd)
        is_data = (chunk.type & _DATA) != 0
        pieces = list(zip(chunk.vaddr[is_data].tolist(), chunk.length[is_data].tolist(), strict=True))
        tally = sample(pieces, owners, Owners(fd).of, seconds, chance or random.Random())  # noqa: S311  a sample, no secret
    hosts = tuple(
        replace(row, measured=_measured(tally, tally.only_host[row.host], tally.by_host[row.host])) for row in summed(everything)
    )
    backups = tuple(
        replace(
            backup_use,
            measured=_measured(
                tally, tally.only_backup[backup_use.host, backup_use.name], tally.by_backup[backup_use.host, backup_use.name]
            ),
        )
        for backup_use in everything
    )
    others = estimated(tally.others, tally.draws, tally.space)
    return PoolUse("sampled", hosts, backups, others, tally.draws, time.monotonic() - begun)


def _measured(tally: DrawTally, exclusive: int, referenced: int) -> MeasuredUsage:
    return MeasuredUsage(*(estimated(hits, tally.draws, tally.space) for hits in (exclusive, referenced)))


def by_extents(pool: Pool, backups: Sequence[BackupUse], seconds: float) -> PoolUse:
    """Measures these hosts, one after the other until the time is over: each host completely or not at all. Raises
    OperatorError.
    """
    begun, until = time.monotonic(), time.monotonic() + seconds
    hosts, backup_uses, complete = [], [], True
    unread: dict[str, str] = {}
    for _, group in groupby(backups, key=lambda backup: backup.host):
        host_uses = list(group)
        (row,) = summed(host_uses)
        host, measured, problems = _compared(pool, host_uses, until)
        unread |= problems
        complete = complete and host is not None
        hosts.append(replace(row, measured=host))
        backup_uses += [replace(backup_use, measured=use) for backup_use, use in zip(host_uses, measured, strict=True)]
    return PoolUse("extents", tuple(hosts), tuple(backup_uses), None, 0, time.monotonic() - begun, complete, unread)


def _compared(
    pool: Pool, backups: Sequence[BackupUse], until: float
) -> tuple[MeasuredUsage | None, Sequence[MeasuredUsage | None], dict[str, str]]:
    """Returns the host, each backup, and read errors; no host if the time was over before the last backup was read."""
    from backupd.observe.usage_extents import ExtentOwners
    from btrkeep.treescan.extents import distinct_extents

    comparison, read = ExtentOwners(), []
    problems: dict[str, str] = {}
    nothing: list[MeasuredUsage | None] = [None] * len(backups)
    for number, backup_use in enumerate(backups):
        if time.monotonic() >= until:
            return None, nothing, problems
        path = pool.path / backup_use.path
        try:
            subvolume = describe(path)
            if subvolume is None or (backup_use.subvolume_id and subvolume.id != backup_use.subvolume_id):
                problems[backup_use.path] = "no longer exists, or was replaced"
                continue
            with _opened(path) as fd:
                comparison.add(*distinct_extents(fd))
            read.append(number)
        except FileNotFoundError:
            problems[backup_use.path] = "no longer exists"
        except OSError as error:
            if not is_damage(error):
                raise
            problems[backup_use.path] = f"cannot be read: {error.strerror}"
    uses = list(nothing)
    for number, (exclusive, referenced) in zip(read, comparison.sizes(), strict=True):
        uses[number] = MeasuredUsage(exactly(exclusive), exactly(referenced))
    total = exactly(comparison.total)
    return MeasuredUsage(total, total), uses, problems


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    except PermissionError as error:
        hint = f"{privilege_hint()}, or use --method written"
        raise OperatorError("no permission to read the trees of the filesystem", hint) from error
    finally:
        os.close(fd)
