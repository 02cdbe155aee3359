"""Room in the pool for one more transfer: looked for, or made by discarding what another host has left unfinished."""

import asyncio
import time
from collections.abc import Callable

from backupd.actions.discard import Unfinished, all_unfinished, give_up, room_hint, wait_for_room
from backupd.rsync.process import RunCancellation
from backupd.run.context import RunContext
from backupd.run.scarcity import too_little_room
from btrkeep.errors import LockHeld, PoolUnusable
from btrkeep.pool.locks import take_lock
from btrkeep.pool.room import read_room
from btrkeep.units import format_size, format_time

_PAUSE = 1.0  # seconds between two questions to the kernel


class NoRoom(PoolUnusable):
    """There is too little room for another transfer; running ones may finish."""


class OthersFirst(NoRoom):
    """There is too little room for a host that needed too much itself: all others have their turn before it."""


class RoomMaker:
    """Makes room for one host at a time. `last`: the hosts that were stopped for want of room, now or in an earlier run, of those
    that were looked at.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.last: set[str] = set()
        self._seen = 0.0
        self._alone = asyncio.Lock()

    def look_again(self) -> None:
        """The pool may be full now, whatever the last look said."""
        self._seen = 0.0

    async def make(self, host: str, cancellation: RunCancellation, is_over: Callable[[], bool]) -> bool:
        """Returns True if the host may begin, False if its run or the night is over. Raises OthersFirst, NoRoom, PoolUnusable."""
        async with self._alone:
            while why := self._lacking():
                if is_over():  # also while another host waited for room
                    return False
                found = await asyncio.to_thread(all_unfinished, self.context.pool)
                if host in self.last or any(one.for_room and one.host == host for one in found):
                    self.last.add(host)
                    raise OthersFirst(why, room_hint(found))
                given_up = next((one for one in found if one.for_room and self._give_up(one)), None)
                if given_up is None:
                    raise NoRoom(why, room_hint(found))
                came_back = await wait_for_room(self.context.pool, given_up, lambda: not self._lacking(), cancellation)
                if not came_back and not cancellation.reason:
                    raise NoRoom(why, f"what {given_up.host} had is deleted, but not gone yet: wait (`backupd progress`)")
        return True

    def _give_up(self, one: Unfinished) -> bool:
        """Returns True if it was discarded: not if it is in use or has changed."""
        try:
            lock = take_lock(self.context.pool.host_lock(one.host), "discarding", format_time(self.context.clock.now()))
        except LockHeld:
            return False
        with lock:
            if not give_up(one):
                return False
            self.context.catalogue.drop_backup(one.host, None)
        self.last.add(one.host)
        self.context.sinks.notice(
            f"{one.host} was unfinished and took {format_size(one.size)}: discarded, so that others have room"
        )
        return True

    def _lacking(self) -> str:
        """Returns why no transfer may start, or nothing. Raises PoolUnusable. Asks the kernel at most once a second."""
        if time.monotonic() - self._seen < _PAUSE:
            return ""
        try:
            room = read_room(self.context.pool.path)
        except OSError as error:
            raise PoolUnusable(f"{self.context.pool.path}: {error.strerror}", "look at the kernel's messages (dmesg)") from error
        if reason := too_little_room(room, self.context.config):
            return reason
        self._seen = time.monotonic()
        return ""
