"""The unfinished backups of a pool, and giving up one that keeps the room which the others need.

A host that has more than the pool has room for is stopped, and its `.working` would keep the room for ever: no later run could
begin anything. It is no backup, so it goes before anybody else's night does. What was stopped for another reason is left alone.
"""

import asyncio
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backupd import record as records
from backupd import working
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import left_behind, read_holder
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.orphans import wait_for
from btrkeep.pool.subvolume import Subvolume, commit, opened
from btrkeep.treescan import written_bytes
from btrkeep.units import format_size

log = logging.getLogger(__name__)

_LONGEST = 600.0  # seconds for the kernel's cleaner
_LOOK = 0.5


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A `.working` of ours. `size`: bytes that were written to it; `for_room`: it was stopped for want of room."""

    host: str
    path: Path
    subvolume: Subvolume
    size: int
    for_room: bool


def all_unfinished(pool: Pool) -> list[Unfinished]:
    """Those that nobody works on, also of a host that is not configured any more, the largest first.

    What cannot be read is passed over.
    """
    return sorted(_each(pool), key=lambda one: (-one.size, one.host))


def _each(pool: Pool) -> Iterator[Unfinished]:
    for path in sorted(pool.hosts.glob(f"*/{WORKING}")):
        try:
            if not _is_busy(pool, path.parent.name) and (one := _look(path, path.parent.name)):
                yield one
        except (OSError, OperatorError) as error:
            log.warning("%s is passed over: %s", path, error)


def _is_busy(pool: Pool, host: str) -> bool:
    path = pool.locks / f"host-{host}"
    holder = read_holder(path)
    return holder is not None and (holder.alive or bool(left_behind(path, holder)))


def _look(path: Path, host: str) -> Unfinished | None:
    subvolume = working.unfinished(path, host)
    if subvolume is None or subvolume.read_only:
        return None
    with opened(path) as fd:  # what grew from a backup shares what is older than itself
        size = written_bytes(fd, subvolume.created - 1)
    return Unfinished(host, path, subvolume, size, _is_for_room(path, subvolume))


def _is_for_room(path: Path, subvolume: Subvolume) -> bool:
    try:
        record = records.read(path)
    except records.UnreadableRecord:
        return False
    return record is not None and (record.uuid, record.state, record.stopped_for) == (subvolume.uuid, records.PARTIAL, records.ROOM)


def more_room(found: Sequence[Unfinished]) -> str:
    """The hint for a pool with too little room; `found` are the unfinished backups, the largest first."""
    hint = "expire backups, or give the pool more room"
    if not found:
        return hint
    size, path = format_size(found[0].size), shlex.quote(str(found[0].path))
    return f"{hint}; what {found[0].host} has unfinished takes {size}: `btrfs subvolume delete {path}` gives it up"


def give_up(one: Unfinished) -> bool:
    """Deletes it, if it is still what was found, and was stopped for want of room. Whoever calls has the host's lock."""
    try:
        found = working.unfinished(one.path, one.host)
        if found != one.subvolume or not _is_for_room(one.path, found):
            return False
        working.discard(one.path, found.uuid)
    except (OSError, OperatorError) as error:  # such as a subvolume of somebody's in it
        log.warning("%s cannot be discarded: %s", one.path, error)
        return False
    return True


async def room_came_back(pool: Pool, one: Unfinished, enough: Callable[[], bool], stopped: Callable[[], bool]) -> bool:
    """Waits until there is `enough` room, or the kernel has dropped what was given up; False when `stopped`, or after long."""
    await asyncio.to_thread(commit, pool.path)  # which wakes the cleaner
    gone, end = False, asyncio.get_running_loop().time() + _LONGEST
    while not gone and not enough():
        if stopped() or asyncio.get_running_loop().time() > end:
            return False
        gone = await asyncio.to_thread(wait_for, pool.path, one.subvolume.id, _LOOK)
        await asyncio.to_thread(commit, pool.path)  # only then what was freed can be used again
    return True
