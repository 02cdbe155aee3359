"""Measures the use of space: reads the catalogue's list, the trees and the extents, within the time that there is.

Sampling asks for random addresses: each belongs to a host or a backup as often as that has bytes there. The place is drawn evenly
from all data block groups, free space included, so no list of extents is needed, and the size of the pool does not matter: only
how many draws there were. The kernel answers with all subvolumes that refer to the extent.
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
    """A measured size: with 95% certainty it is between `low` and `high`; both are `bytes` where it is exact."""

    bytes: int
    low: int
    high: int

    @property
    def exact(self) -> bool:
        """True if nothing of it is estimated."""
        return self.low == self.high


def exactly(size: int) -> Amount:
    """Returns a counted size."""
    return Amount(size, size, size)


def estimated(hits: int, draws: int, space: int) -> Amount:
    """The size of what `hits` of `draws` random places in `space` bytes fell upon. Wilson's interval (JASA 22, 1927).

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
    """`exclusive`: what would be free if it were gone. `referenced`: all that it refers to, that which others do too included."""

    exclusive: Amount
    referenced: Amount

    @property
    def shared(self) -> int:
        """Returns the bytes that others refer to as well."""
        return max(0, self.referenced.bytes - self.exclusive.bytes)


@dataclass(frozen=True, slots=True)
class BackupUse:
    """One backup."""

    host: str
    """The host's name."""
    name: str | None
    """The backup's name; None: it is not final."""
    state: str
    """Its state."""
    started: datetime
    """When its run began."""
    subvolume_id: int | None
    """The number of its subvolume; None: not known."""
    path: str
    """Relative to the pool."""
    size: int | None
    """The size of its files on the host; None: not known."""
    written: int | None
    """Bytes that rsync wrote for it; None: not known."""
    measured: MeasuredUsage | None = None
    """None: not requested, not reached in time, or not readable."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """All backups of a host together."""

    host: str
    """The host's name."""
    backups: int
    """Number of backups."""
    size: int | None
    """The size of the files of the newest backup whose size is known; None: of none."""
    written: int | None
    """Bytes that rsync wrote for them; None: not known."""
    measured: MeasuredUsage | None = None
    """Its `exclusive` is data that no other host and nothing else refers to; None: not measured."""


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
    """Data that no backup refers to; None: not measured."""
    draws: int = 0
    """Number of random places that were checked."""
    seconds: float = 0.0
    """How long it took."""
    complete: bool = True
    """False if the time limit left something out."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why a backup could not be read, by path."""


ENOUGH = 20_000
"""Draws that met data, after which more time is not spent: the error is 0.7% of the data at the most."""

Owner = tuple[str, str | None]
"""(host, name of the backup)."""


@dataclass(slots=True)
class DrawTally:
    """How often each set of owners was drawn."""

    space: int
    """Bytes that were drawn from."""
    draws: int = 0
    """Number of draws."""
    met: int = 0
    """Number of draws that hit data."""
    by_host: Counter[str] = field(default_factory=Counter)
    """Draws of data that the host refers to."""
    only_host: Counter[str] = field(default_factory=Counter)
    """Draws of data that only this host refers to."""
    by_backup: Counter[Owner] = field(default_factory=Counter)
    """Draws of data that the backup refers to."""
    only_backup: Counter[Owner] = field(default_factory=Counter)
    """Draws of data that only this backup refers to."""
    others: int = 0
    """Draws of data that no backup refers to."""

    def add(self, roots: frozenset[int] | None, owners: Mapping[int, Owner]) -> None:
        """Adds one draw. `roots` None: free space, or data to which nothing refers any more."""
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
    """Addresses without end, evenly from these (vaddr, length)."""
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
    """Draws until so many seconds have passed, or enough data was met. `ask` is `Owners.of`."""
    tally, until = DrawTally(sum(length for _, length in pieces)), time.monotonic() + seconds
    for place in places(pieces, chance):
        tally.add(ask(place), owners)
        if tally.met >= enough or time.monotonic() >= until:
            break
    return tally


_DATA = 1  # BTRFS_BLOCK_GROUP_DATA


def listed(catalogue: Catalogue, host: str | None = None) -> list[BackupUse]:
    """Returns the backups that the catalogue knows, by host and start."""
    return [
        BackupUse(
            backup.host, backup.name, backup.state, backup.started, backup.subvolume_id, backup.path, backup.bytes, backup.new_bytes
        )
        for backup in catalogue.backups(host)
    ]


def summed(backups: Iterable[BackupUse]) -> list[HostUse]:
    """A row for each host; `size` is that of the newest backup whose size is known."""
    rows = []
    for host, group in groupby(backups, key=lambda backup: backup.host):
        backup_uses = list(group)
        sizes = [backup_use.size for backup_use in backup_uses if backup_use.size is not None]
        written = [backup_use.written for backup_use in backup_uses if backup_use.written is not None]
        rows.append(HostUse(host, len(backup_uses), sizes[-1] if sizes else None, sum(written) if written else None))
    return rows


def by_writing(backups: Sequence[BackupUse]) -> PoolUse:
    """Measures nothing: uses what rsync wrote."""
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
    """Measures some hosts, one after the other until the time is over: each host completely or not at all. Raises OperatorError."""
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
    """(the host, each backup, what could not be read); without an answer when the time is over before the last one was read."""
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
