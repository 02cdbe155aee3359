"""The places of transfers in a pool: `concurrency` of them, and separate ones for a group, for all programs that start transfers.

A place is a lock, so a run that is killed frees it. rsync does not inherit it: the next run of the host ends the processes that a
killed run left, and they must not keep a place until then. Waiting runs take turns by one more lock, so that a night with its next
host ready does not always win.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backupd.rsync.process import RunCancellation
from btrkeep.config import Config, HostConfig
from btrkeep.errors import LockHeld
from btrkeep.pool.locks import Lock, take_lock

_LOOK = 0.5  # seconds
_PATIENCE = 120  # looks; then it is looked without a turn: whoever has it may be stopped (Ctrl-Z)


@dataclass(frozen=True, slots=True)
class Slots:
    """A number of places; `name` begins the names of their locks, `whose` says to whom they belong."""

    name: str
    count: int
    whose: str

    def take(self, locks: Path, what: str, since: str) -> Lock | None:
        """Takes a free place; returns None if there is none. Raises PoolUnusable."""
        for number in range(self.count):
            if lock := _tried(locks / f"{self.name}-{number}", what, since):
                return lock
        return None


def slots_of(config: Config, host: HostConfig) -> tuple[Slots, ...]:
    """Returns the slots that a transfer of the host needs, in the fixed order in which all runs take them: this avoids
    deadlocks.
    """
    group = config.groups.get(host.group or "")
    own = (Slots(f"slot-of-{host.group}", group.concurrency, f" of {host.group}"),) if group and group.concurrency else ()
    return (*own, Slots("slot", config.backup.concurrency, ""))


class HeldSlots:
    """One place of each kind, for a host's run. `release`, or the end of the context, frees them."""

    def __init__(self, locks: Path, what: str, since: str) -> None:
        self._locks, self._what, self._since = locks, what, since
        self._held: list[Lock] = []

    def take(self, wanted: Sequence[Slots]) -> Slots | None:
        """Takes free places; returns the first kind of which none was free. Raises PoolUnusable."""
        missing = [slots for slots in wanted if not self._take(slots)]
        return missing[0] if missing else None

    async def wait(
        self, wanted: Sequence[Slots], cancellation: RunCancellation, given_up: Callable[[], bool], say: Callable[[Slots], None]
    ) -> bool:
        """Waits until it has one of each; returns False if stopped or given up. Calls `say` once with what it waits for.

        Raises PoolUnusable.
        """
        for slots in wanted:
            turn, looks = self._turn(slots), 0
            try:
                while (turn is None and looks < _PATIENCE) or not self._take(slots):
                    if not looks:
                        say(slots)
                    looks += 1
                    await cancellation.wait(_LOOK)
                    if cancellation.reason or given_up():
                        return False
                    turn = turn or self._turn(slots)
            finally:
                if turn is not None:
                    turn.release()
        return True

    def _turn(self, slots: Slots) -> Lock | None:
        return _tried(self._locks / f"{slots.name}-turn", self._what, self._since)

    def _take(self, slots: Slots) -> bool:
        if lock := slots.take(self._locks, self._what, self._since):
            self._held.append(lock)
        return lock is not None

    def release(self) -> None:
        """Gives all of them back."""
        while self._held:
            self._held.pop().release()

    def __enter__(self) -> "HeldSlots":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _tried(path: Path, what: str, since: str) -> Lock | None:
    try:
        return take_lock(path, what, since)
    except LockHeld:
        return None
