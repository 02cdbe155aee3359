"""What bench.soak looks for after a night and in the end, without asking btrkeep: a line for whatever is wrong."""

import time
from collections.abc import Container, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from bench.soak_site import DAILY, MIN_KEEP, WEEKLY, Site
from tests.beds import session, work
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, is_locked, transferring

_PATIENCE = 30.0
"""Seconds in which what a killed command has left ends by itself."""


class Look:
    """Both pools of a site. Their mount options at the start are the expected ones."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen: tuple[dict[str, set[str]], dict[str, set[str]]] = ({}, {})
        self._options = tuple(mount_options(pool.top) for pool in site.pools)
        self._mounts = set(session.mounts_below(session.folder()))

    def not_complete(self, hit: Container[str], evening: datetime) -> Iterator[str]:
        """Yields the hosts without a fault that have no complete backup since `evening`."""
        complete = self._site.complete(self._site.first)
        for host in self._site.hosts.names:
            if host not in hit and not any(finished >= evening for finished in complete.get(host, {}).values()):
                yield f"{host}, which no fault has hit, has no complete backup"

    def compared(self, which: int) -> Iterator[str]:
        """Yields the new complete backups of a pool that differ from their source, and lost backups."""
        seen, complete_now = self._seen[which], self._site.complete(self._site.pools[which])
        new = {
            host: {name: at for name, at in backups.items() if name not in seen.get(host, ())}
            for host, backups in complete_now.items()
        }
        yield from self._site.unlike_their_source(self._site.pools[which], new)
        for host, backups in complete_now.items():
            seen.setdefault(host, set()).update(backups)
        yield from self._lost(which)

    def _lost(self, which: int) -> Iterator[str]:
        complete_now = self._site.complete(self._site.pools[which])
        for host, seen in self._seen[which].items():
            if lost := must_be_kept(list(seen)) - complete_now.get(host, {}).keys():
                yield f"lost in pool {which + 1}: {host} {sorted(lost)}"

    def held(self) -> int:
        """Returns the minimum bytes of the backups that the retention keeps in the first pool (soak_held.py)."""
        held = self._site.hosts.held
        return sum(held.bytes_of(host, map(moment_of, must_be_kept(list(seen)))) for host, seen in self._seen[0].items())

    def other_options(self) -> Iterator[str]:
        """Yields the pools whose mount options have changed since the start."""
        for was, pool in zip(self._options, self._site.pools, strict=True):
            if (now := mount_options(pool.top)) != was:
                yield f"mounted with {now}, which was {was}"

    def left_behind(self, faults: Container[str] = ()) -> Iterator[str]:
        """Yields remains that a night with these faults must not leave."""
        yield from self._lost(0)
        yield from (f"still running: process {pid}" for pid in self._processes())
        yield from self.other_options()
        if (mounts := set(session.mounts_below(session.folder()))) != self._mounts:
            yield f"mounts: {mounts ^ self._mounts}"
        for which, pool in enumerate(self._site.pools):
            yield from (f"locked: {path}" for path in (pool.pool / ".btrkeep" / "locks").iterdir() if is_locked(path))
            yield from (f"can be written: {path}" for path in writable(pool))
            if f"{('expire', 'replicate')[which]} killed" not in faults:  # the next one clears up after it
                yield from disagreements(pool)

    def _processes(self) -> list[int]:
        end = time.monotonic() + _PATIENCE
        while (left := [pid for pool in self._site.pools for pid in transferring(pool)]) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def in_the_end(self) -> Iterator[str]:
        """Yields the errors after all grace periods: the backups that the retention keeps have to exist, and no others."""
        complete_now = [self._site.complete(pool) for pool in self._site.pools]
        for which, pool in enumerate(self._site.pools):
            yield from self._site.unlike_their_source(pool, complete_now[which])
            for host, seen in self._seen[which].items():
                must, has = must_be_kept(list(seen)), complete_now[which].get(host, {}).keys()
                if must != has:
                    yield f"pool {which + 1}, {host}: left {sorted(has - must)}, lost {sorted(must - has)}"
            work("btrfs", "filesystem", "sync", pool.top)
            work("btrfs", "subvolume", "sync", pool.top)
            yield from (f"an orphan: {line}" for line in work("btrfs", "subvolume", "list", "-d", pool.top).stdout.splitlines())
            yield from (f"left: {path}" for name in (".working", ".receiving") for path in pool.pool.glob(f"hosts/*/{name}"))
        for host in self._site.copied:
            if max(complete_now[0].get(host, ()), default="") != max(complete_now[1].get(host, ()), default=""):
                yield f"the second pool does not have the newest backup of {host}"
        yield from self.left_behind()


def must_be_kept(complete: Sequence[str]) -> set[str]:
    """Returns the complete backups of a host that the retention keeps, calculated only from their names."""
    first_of: dict[str, dict[object, str]] = {"day": {}, "week": {}}
    for name in sorted(complete):
        moment = moment_of(name)
        first_of["day"].setdefault(moment.date(), name)
        first_of["week"].setdefault(moment.isocalendar()[:2], name)
    return {*list(first_of["day"].values())[-DAILY:], *list(first_of["week"].values())[-WEEKLY:], *sorted(complete)[-MIN_KEEP:]}


def moment_of(name: str) -> datetime:
    """Returns when a backup started, by its name."""
    return datetime.strptime(name, "%Y-%m-%dT%H%M%S%z")


def writable(pool: Nights) -> list[str]:
    """Returns writable backups with a final name: there must never be one."""
    lists = (
        [line.split(" path ", 1)[1] for line in work("btrfs", "subvolume", "list", *only, pool.pool).stdout.splitlines()]
        for only in ((), ("-r",))
    )
    every, read_only = (set(paths) for paths in lists)
    return sorted(path for path in every - read_only if path.rpartition("/")[2][:1].isdigit())


def mount_options(mount: Path) -> str:
    """Returns the options in /proc/self/mounts."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next(words[3] for words in lines if words[1] == str(mount))
