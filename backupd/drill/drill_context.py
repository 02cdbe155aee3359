"""The environment of drills: the pool, the time limit, and the jobs that take precedence."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random

from backupd.repo.leftovers import DRILL_LOCK, clear_drills, drill_folder
from btrkeep.config import Config
from btrkeep.decisions.drills import DrillOutcome
from btrkeep.errors import OperatorError
from btrkeep.pool.allocation import read_room
from btrkeep.pool.atomic import NO_ROOM
from btrkeep.pool.locks import at_work, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.batch_workers import ProcessKilled
from btrkeep.process.group import Group
from btrkeep.process.progress import Cancellation
from btrkeep.units import format_duration, format_size, format_time, printable

_PAUSE = 0.5
_TICK, _TO_ITS_END = 0.1, 10.0  # seconds
_PART = 4  # as with transfers, a quarter of min_free stays free
_CHECK_EVERY = 1.0  # seconds between checks of running jobs and free space


class NotFinished(OperatorError):
    """The drill did not finish, which proves nothing about the backup: it ran out of time or of free space."""


def outcome_of(error: OperatorError | OSError) -> tuple[DrillOutcome, str]:
    """Returns the outcome of a drill that ended with this error, and its reason. A drill that ran out of time, space or memory, or
    was killed, proves nothing about the backup.
    """
    if isinstance(error, NotFinished | ProcessKilled):
        return DrillOutcome.UNFINISHED, f"{error.message}; {error.hint}"
    if isinstance(error, OperatorError):
        cause, text = error.__cause__, error.message
    else:
        cause, text = error, f"{error.strerror or error}" + (f": {printable(str(error.filename))}" if error.filename else "")
    is_full = isinstance(cause, OSError) and cause.errno in NO_ROOM
    return DrillOutcome.UNFINISHED if is_full else DrillOutcome.FAILED, text


@dataclass(slots=True)
class DrillContext:
    """Everything a drill needs."""

    config: Config
    """The configuration."""
    pool: Pool
    """The pool."""
    now: datetime
    """When it started."""
    seconds: float | None
    """The time limit of one drill; None: no limit."""
    chance: Random = field(default_factory=Random)
    """Chooses the names."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    """Ends the drill early."""
    waits: Callable[[str], None] = lambda _: None
    """Called with the job for which the drill waits, and with "" when it continues."""
    _end: float | None = None
    _checked_at: float = 0.0
    _who: str = ""

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yields the folder of one drill; deletes its contents before and afterwards. Raises LockHeld, OSError."""
        self._end = time.monotonic() + self.seconds if self.seconds is not None else None
        folder = drill_folder(self.pool)
        with take_lock(self.pool.locks / DRILL_LOCK, "backupd drill", format_time(self.now)):
            ensure_reserve(self.pool.path)
            folder.mkdir(mode=0o700, exist_ok=True)
            clear_drills(self.pool)
            try:
                yield folder
            finally:
                clear_drills(self.pool)

    @property
    def is_over(self) -> bool:
        """Returns True if the drill has to end: cancelled, or its time is over."""
        return bool(self.cancellation) or (self._end is not None and time.monotonic() > self._end)

    def require_going(self) -> None:
        """Raises Cancelled and NotFinished."""
        self.cancellation.raise_if_cancelled()
        if self.is_over:
            raise NotFinished(
                f"not finished within {format_duration(self.seconds)}", "give it more time (--time), or a smaller --sample"
            )

    def require_room_left(self) -> None:
        """Raises NotFinished if the pool is almost full: other jobs write too. Raises OSError."""
        room = read_room(self.pool.path)
        if room.available < self.config.pool.min_free.bytes_of(room.total) // _PART:
            raise NotFinished(
                f"the pool has too little free space: {format_size(room.available)} are left",
                "free some space; `backupd check` shows how",
            )

    def has_to_wait(self) -> bool:
        """Returns True if a night, an expiry or a balance is running, which take precedence. Checks once a second."""
        if time.monotonic() - self._checked_at > _CHECK_EVERY:
            self._checked_at = time.monotonic()
            who = at_work(self.pool.locks)
            if who != self._who:
                self._who = who
                self.waits(who)
        return bool(self._who)

    def go_on(self) -> None:
        """Waits while other jobs take precedence; call it repeatedly. Raises Cancelled, NotFinished and OSError."""
        self.require_going()
        if time.monotonic() - self._checked_at > _CHECK_EVERY:
            self.require_room_left()
        while self.has_to_wait():
            self.cancellation.sleep(_PAUSE)
            self.require_going()

    async def follow_program(
        self,
        command: Sequence[str],
        take: Callable[[bytes], None],
        timeout: float,
        *,
        env: Mapping[str, str] | None = None,
        is_done: Callable[[], bool] = lambda: False,
    ) -> int | None:
        """Runs a program, whose output goes to `take`; returns its exit status, None if the time limit was reached. After `is_done`
        has returned True, it has ten seconds to end by itself. Raises Cancelled, NotFinished, OSError.
        """
        group = Group.start(command, on_stdout=take, on_stderr=take, env=env)
        ended, begun = asyncio.create_task(group.wait()), time.monotonic()
        try:
            while not ended.done() and not is_done():
                await asyncio.wait((ended,), timeout=_TICK)
                self.require_going()
                self.require_room_left()  # often, because a program can write as fast as the disk
                if time.monotonic() - begun > timeout:
                    return None
            await asyncio.wait((ended,), timeout=_TO_ITS_END)
        finally:
            if not ended.done():
                group.signal(signal.SIGKILL)
            status = await ended
        return status

    def room(self) -> int:
        """Bytes that a drill may write without using `min_free`. Raises OSError."""
        room = read_room(self.pool.path)
        return max(0, room.available - self.config.pool.min_free.bytes_of(room.total))

    def require_room(self, needed: int) -> None:
        """Raises NotFinished if these bytes do not fit. Raises OSError."""
        if needed > (room := self.room()):
            raise NotFinished(
                f"{format_size(needed)} are needed, but the pool has only {format_size(room)} above min_free, so nothing was "
                "restored",
                "a smaller --sample needs less",
            )
