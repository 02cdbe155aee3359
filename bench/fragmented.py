"""A pool whose free space is that of a backup server after some months: hosts, daily snapshots, changes, expiry, hosts that are
removed.

Each day the newest snapshot of every host is snapshotted, some of its files are written again and renamed into place, and snapshots
older than ten days are deleted, except one a week for four weeks. Hosts may be alike, or have mail (small files), documents
(middling ones) and dumps (large ones); some of those leave in the last third of the time, with all of their snapshots.

A share of the files is written, with zeros, so that copies of the image are sparse; the kernel does not read the data
that it moves. The other files are only allocated. They move in the same way, byte for byte, but without checksums.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from btrkeep.pool.orphans import dead_roots, wait_for
from btrkeep.pool.subvolume import commit, create, delete, describe, snapshot

DAILY, WEEKS = 10, 4
KIB, MIB = 1 << 10, 1 << 20
_LONG = 1800.0
_BLOCK = bytes(4 * MIB)


@dataclass(frozen=True, slots=True)
class Kind:
    """The files of hosts of a kind: their number, log-uniform sizes in bytes, and the share that changes each day (`changed`).

    `hosts`: their number at the start; `leaving`: the share of them that is removed in the last third of the time.
    """

    name: str
    hosts: int
    leaving: float
    files: int
    smallest: int
    largest: int
    changed: float


CHURN = (Kind("all", 75, 0, 300, 4 * KIB, 3 * MIB, 0.06),)
"""Hosts that are all alike and stay: nothing but daily changes and expiry."""
MIXED = (
    Kind("mail", 12, 0.2, 6000, 4 * KIB, 64 * KIB, 0.04),
    Kind("documents", 20, 0.4, 1000, 32 * KIB, 2 * MIB, 0.05),
    Kind("dumps", 10, 0.4, 8, 16 * MIB, 96 * MIB, 0.12),
)
LEAVING = (Kind("all", 75, 0.5, 300, 4 * KIB, 3 * MIB, 0.06),)
"""The same, and half of them leave."""
MAIL = (Kind("mail", 30, 0.5, 6000, 4 * KIB, 64 * KIB, 0.04),)
"""Small files and no others, and half of the hosts leave."""
MAIL_AND_DUMPS = (replace(MAIL[0], hosts=60), Kind("dumps", 10, 0.5, 8, 16 * MIB, 96 * MIB, 0.12))
"""Small files and large ones, and half of the hosts leave."""
POOLS = {"mixed": MIXED, "alike": CHURN, "leaving": LEAVING, "mail": MAIL, "mail-and-dumps": MAIL_AND_DUMPS}


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the pool. `written`: the share of files whose data is written; `scale`: the share of the hosts that exist."""

    kinds: tuple[Kind, ...] = MIXED
    days: int = 70
    written: float = 0.1
    scale: float = 0.4
    seed: int = 1


@dataclass(slots=True)
class _Host:
    home: Path
    kind: Kind
    last: int  # the day on which it leaves
    backups: dict[int, int] = field(default_factory=dict)  # subvolume id by day


class Builder:
    """Makes one pool. `each_day` is called with the day's number after each day; files are the same for the same seed."""

    def __init__(self, mount: Path, shape: Shape, each_day: Callable[[int], None] = lambda _: None) -> None:
        self._mount, self._shape, self._each_day = mount, shape, each_day
        self._random = random.Random(shape.seed)
        self._hosts = hosts(mount, shape, self._random)

    def build(self) -> None:
        """Runs all days. At the end the cleaner has finished, and everything is on the disk."""
        for day in range(self._shape.days):
            for host in self._hosts:
                if day < host.last:
                    self._backup(host, day)
                self._expire(host, day)
            commit(self._mount)
            self._each_day(day)
        for dead in dead_roots(self._mount):
            assert wait_for(self._mount, dead.id, _LONG)
        commit(self._mount)

    def _backup(self, host: _Host, day: int) -> None:
        today = host.home / f"{day:04}"
        number = host.kind.files
        if host.backups:
            snapshot(host.home / f"{max(host.backups):04}", today)
            changed = self._random.sample(range(number), max(1, round(number * host.kind.changed)))
        else:
            host.home.mkdir()
            create(today)
            changed = list(range(number))
        subvolume = describe(today)
        assert subvolume is not None
        host.backups[day] = subvolume.id
        for file_number in changed:
            self._replace(today / f"file{file_number:05}", host.kind)

    def _replace(self, path: Path, kind: Kind) -> None:
        size = round(kind.smallest * (kind.largest / kind.smallest) ** self._random.random())
        new = path.with_suffix(".new")
        fd = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            if self._random.random() < self._shape.written:
                for start in range(0, size, len(_BLOCK)):
                    os.write(fd, _BLOCK[: size - start])
            else:
                os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)
        new.rename(path)

    def _expire(self, host: _Host, day: int) -> None:
        for old in [old for old in host.backups if day >= host.last or not kept(old, day)]:
            delete(host.home, host.backups.pop(old))


def kept(old: int, day: int) -> bool:
    """Returns True if the backup of day `old` still exists on `day`."""
    return day - old < DAILY or (old % 7 == 0 and day - old < DAILY + 7 * WEEKS)


def hosts(mount: Path, shape: Shape, rng: random.Random) -> list[_Host]:
    """Returns all hosts, in a fixed order."""
    made: list[_Host] = []
    for kind in shape.kinds:
        hosts = [_Host(mount / f"{kind.name}{number:03}", kind, shape.days) for number in range(round(kind.hosts * shape.scale))]
        for host in rng.sample(hosts, round(len(hosts) * kind.leaving)):
            host.last = rng.randrange(shape.days * 2 // 3, shape.days)
        made += hosts
    rng.shuffle(made)
    return made
