"""Free space of the pool: for one more transfer, and while transfers run.

Free space for one more is found, or made by discarding an unfinished backup of another host. While transfers run, the fastest one
is stopped before the pool is full, and keeps its data.

A quarter of `min_free` is reserved for indispensable writes: records of the others, notes of expiry, metadata. A stop frees no
space, so after each one the others may use half of the rest before the next one is stopped.

The kernel measures how much a transfer writes (/proc/PID/io); rsync's own numbers are not used, because its host can falsify them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from backupd.actions.discard import UnfinishedBackup, all_unfinished, discard_for_room, room_hint, wait_for_room
from backupd.rsync.process import RunCancellation
from backupd.run.run_context import RunContext
from btrkeep.config import Config
from btrkeep.decisions.pool_health import for_metadata, lacks_room, least_metadata, room_advice
from btrkeep.errors import LockHeld, PoolUnusable
from btrkeep.pool.allocation import read_room
from btrkeep.pool.locks import take_lock
from btrkeep.pool.space_by_profile import Room
from btrkeep.process.proc import members
from btrkeep.units import format_size, format_time

log = logging.getLogger(__name__)

_PAUSE = 1.0  # seconds between two questions to the kernel
_PART = 4  # divisor of min_free, and of the space for metadata below which no transfer starts
_SHORTEST, _LONGEST = 0.1, 5.0  # seconds between two readings
_WHILE_TRANSFERS_RUN = 1.0  # at most: their data is checked too (limits.py)
_FASTEST = 128 << 20  # bytes per second: the assumed minimum at which a pool can be filled
_REACTION = 0.5  # seconds from a reading until a transfer has stopped
_OVER = 3.0  # seconds over which growth is measured
_KEPT = "a quarter of min_free, or half of the space left at an earlier stop"
_GOING = 15.0  # seconds for a stopped transfer to end: it is killed after ten


class NoRoom(PoolUnusable):
    """There is too little free space for another transfer; running ones may finish."""


class OthersFirst(NoRoom):
    """There is too little free space for a host that itself needed too much: all others come before it."""


class RoomMaker:
    """Makes free space for one host at a time. `last`: the examined hosts that were stopped because of too little free space, now
    or in an earlier run.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.last: set[str] = set()
        self._seen = 0.0
        self._alone = asyncio.Lock()

    def check_again(self) -> None:
        """Makes the next check measure again, because the pool may be full now."""
        self._seen = 0.0

    async def make(self, host: str, cancellation: RunCancellation, is_over: Callable[[], bool]) -> bool:
        """Returns True if the host may start, False if its run or the night is over. Raises OthersFirst, NoRoom, PoolUnusable."""
        async with self._alone:
            while why := self._lacking():
                if is_over():  # it may have ended while another host waited for free space
                    return False
                unfinisheds = await asyncio.to_thread(all_unfinished, self.context.pool)
                if host in self.last or any(unfinished.for_room and unfinished.host == host for unfinished in unfinisheds):
                    self.last.add(host)
                    raise OthersFirst(why, room_hint(unfinisheds, room_advice(self.context.config)))
                given_up = next(
                    (unfinished for unfinished in unfinisheds if unfinished.for_room and self._give_up(unfinished)), None
                )
                if given_up is None:
                    raise NoRoom(why, room_hint(unfinisheds, room_advice(self.context.config)))
                came_back = await wait_for_room(self.context.pool, given_up, lambda: not self._lacking(), cancellation)
                if not came_back and not cancellation.reason:
                    raise NoRoom(
                        why,
                        f"the unfinished backup of {given_up.host} is deleted, but its space is not free yet: wait "
                        "(`backupd progress`)",
                    )
        return True

    def _give_up(self, unfinished: UnfinishedBackup) -> bool:
        """Discards an unfinished backup. Returns False if it is in use or has changed."""
        try:
            lock = take_lock(self.context.pool.host_lock(unfinished.host), "discarding", format_time(self.context.clock.now()))
        except LockHeld:
            return False
        with lock:
            if not discard_for_room(unfinished):
                return False
            self.context.catalogue.drop_backup(unfinished.host, None)
        self.last.add(unfinished.host)
        self.context.sinks.notice(
            f"{unfinished.host} had an unfinished backup of {format_size(unfinished.size)}: discarded, to free space for other "
            "hosts"
        )
        return True

    def _lacking(self) -> str:
        """Returns why no transfer may start; None: it may. Raises PoolUnusable. Asks the kernel at most once a second."""
        if time.monotonic() - self._seen < _PAUSE:
            return ""
        try:
            room = read_room(self.context.pool.path)
        except OSError as error:
            raise PoolUnusable(f"{self.context.pool.path}: {error.strerror}", "check the kernel's messages (dmesg)") from error
        if reason := too_little_room(room, self.context.config):
            return reason
        self._seen = time.monotonic()
        return ""


@dataclass(frozen=True, slots=True)
class Level:
    """Free bytes, for data and for metadata, below which a transfer is stopped."""

    data: int
    metadata: int


def too_little_room(room: Room, config: Config) -> str:
    """Returns why no new transfer may start; None: it may."""
    return lacks_room(room, config.pool.min_free)


def first_level(room: Room, config: Config) -> Level:
    """Returns the level of a night in which nothing was stopped yet."""
    return Level(config.pool.min_free.bytes_of(room.total) // _PART, least_metadata(room.total) // _PART)


def next_level(room: Room, level: Level) -> Level:
    """Returns the next level after a transfer was stopped at `level`: the others may use half of the rest."""
    return Level(min(level.data, room.available // 2), min(level.metadata, for_metadata(room) // 2))


def running_out(room: Room, level: Level, rate: float = 0.0) -> str:
    """Returns why a transfer has to be stopped; None: it need not. `rate`: bytes per second by which the free space shrinks.

    A pool without `min_free` may be filled completely.
    """
    if level.data and room.available - rate * _REACTION < level.data:
        speed = "" if room.available < level.data else f" and shrink by {format_size(round(rate))}/s"
        kept = f"{format_size(level.data)} are reserved ({_KEPT})"
        return f"the pool has too little free space: {format_size(room.available)} are left ({room}){speed}, {kept}"
    left = for_metadata(room)
    if left < level.metadata:
        return (
            f"the pool has too little free space for metadata: {format_size(left)} are left, {format_size(level.metadata)} are "
            "reserved"
        )
    return ""


def next_look(room: Room, level: Level, rate: float) -> float:
    """Returns the seconds until the next measurement: a fraction of the time until the level is reached, at `rate` or at the speed
    of fast disks.
    """
    left = min(room.available - level.data, _PART * (for_metadata(room) - level.metadata))
    return min(_LONGEST, max(_SHORTEST, left / (_PART * max(rate, _FASTEST))))


def fastest(grown: Mapping[str, int]) -> str:
    """Returns the host whose transfer wrote most; of equal ones the first by name."""
    return min(grown, key=lambda host: (-grown[host], host))


class TransferGrowth:
    """Bytes that the transfers of each host have written, in all and recently, and their memory."""

    def __init__(self) -> None:
        self.total: dict[str, int] = {}
        self.memory: dict[str, int] = {}
        self._of_process: dict[int, int] = {}
        self._before: deque[tuple[float, dict[str, int]]] = deque()

    def measure(self, groups: Mapping[int, str], now: float) -> dict[str, int]:
        """Returns what each host wrote recently; `groups`: the hosts by the process groups of their transfers."""
        group_members = members(*groups)
        self.memory = dict.fromkeys(groups.values(), 0)
        for group_member in group_members:
            host = groups[group_member.group]
            self.memory[host] += group_member.memory
            more = max(0, group_member.written - self._of_process.get(group_member.pid, 0))
            self.total[host] = self.total.get(host, 0) + more
        self._of_process = {group_member.pid: group_member.written for group_member in group_members}
        while len(self._before) > 1 and now - self._before[1][0] >= _OVER:
            self._before.popleft()
        before = self._before[0][1] if self._before else {}
        self._before.append((now, dict(self.total)))
        return {host: self.total.get(host, 0) - before.get(host, 0) for host in groups.values()}

    def forget(self, host: str) -> None:
        """Removes the numbers of a host whose run is over, because every measurement copies all numbers."""
        self.total.pop(host, None)


class Scarcity:
    """Measures the free space of a pool as long as transfers run.

    `groups` returns the hosts by the process groups of their transfers. `stop` is called with a host, the reason to stop it, and
    what it wrote; `seen` is called at every measurement with the bytes that each host has written in all, and its memory.
    """

    def __init__(
        self,
        pool: Path,
        config: Config,
        groups: Callable[[], Mapping[int, str]],
        stop: Callable[[str, str], None],
        seen: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.pool, self.config, self.groups = pool, config, groups
        self.stop, self.seen = stop, seen
        self.level: Level | None = None
        self.growth = TransferGrowth()
        self._seen: tuple[float, int] | None = None

    async def run(self) -> None:
        """Runs until it is cancelled. A bug is logged with its traceback and does not end it, because that would not be noticed."""
        while True:
            pause = _LONGEST
            try:
                pause = await self._read_room()
            except OSError as error:  # the start of the next transfer checks too, and reports what is wrong with the pool
                log.warning("%s: its free space is unknown: %s", self.pool, error.strerror)
            except Exception:
                log.exception("%s: its free space is unknown", self.pool)
            await asyncio.sleep(pause)

    async def _read_room(self) -> float:
        room, now = read_room(self.pool), time.monotonic()
        level = self.level = self.level or first_level(room, self.config)
        groups = self.groups()
        grown, rate = self.growth.measure(groups, now), self._rate(room, now)
        if self.seen:
            for host in grown:
                self.seen(host, self.growth.total.get(host, 0), self.growth.memory[host])
        if grown and (why := running_out(room, level, rate)):
            host = fastest(grown)
            self.stop(host, f"{why}; it wrote {format_size(self.growth.total.get(host, 0))}, and grew fastest")
            await self._ended(next(group for group, name in groups.items() if name == host))
            self.level = next_level(read_room(self.pool), level)
            return _SHORTEST
        return min(next_look(room, level, rate), _WHILE_TRANSFERS_RUN if groups else _LONGEST)

    async def _ended(self, group: int) -> None:
        end = time.monotonic() + _GOING
        while group in self.groups() and time.monotonic() < end:
            await asyncio.sleep(_SHORTEST)

    def _rate(self, room: Room, now: float) -> float:
        """Bytes per second by which the free space shrank since the last measurement."""
        before, self._seen = self._seen, (now, room.available)
        return max(0.0, (before[1] - room.available) / max(0.001, now - before[0])) if before else 0.0
