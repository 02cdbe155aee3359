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
from itertools import accumulate, groupby
from pathlib import Path

from backupd.observe.usage_model import BackupUse, HostUse, MeasuredUsage, PoolUse, estimated, exactly
from btrkeep.catalogue import Catalogue
from btrkeep.errors import OperatorError, is_damage
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import describe
from btrkeep.procfs import privilege_hint

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
        known = [owners[root] for root in roots if root in owners]
        hosts = {host for host, _ in known}
        self.by_host.update(hosts)
        self.by_backup.update(known)
        if not known:
            self.others += 1
        elif len(known) == len(roots):
            if len(hosts) == 1:
                self.only_host.update(hosts)
            if len(known) == 1:
                self.only_backup.update(known)


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
    from btrkeep.treescan.owners import Owners

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
        some = list(group)
        (row,) = summed(some)
        host, measured, problems = _compared(pool, some, until)
        unread |= problems
        complete = complete and host is not None
        hosts.append(replace(row, measured=host))
        backup_uses += [replace(backup_use, measured=use) for backup_use, use in zip(some, measured, strict=True)]
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
                problems[backup_use.path] = "is not there any more, or is another one"
                continue
            with _opened(path) as fd:
                comparison.add(*distinct_extents(fd))
            read.append(number)
        except FileNotFoundError:
            problems[backup_use.path] = "is not there any more"
        except OSError as error:
            if not is_damage(error):
                raise
            problems[backup_use.path] = f"cannot be read: {error.strerror}"
    uses = list(nothing)
    for number, use in zip(read, comparison.measured(), strict=True):
        uses[number] = use
    total = exactly(comparison.total)
    return MeasuredUsage(total, total), uses, problems


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    except PermissionError as error:
        hint = f"{privilege_hint()}, or use --method written"
        raise OperatorError("the trees of the filesystem may not be read", hint) from error
    finally:
        os.close(fd)
