"""When `backupd dedupe` waits: for I/O pressure, and while backups are made, expired or balanced."""

import time
from collections.abc import Callable
from pathlib import Path

from btrkeep.pool.locks import at_work
from btrkeep.process.cancellation import Cancellation
from btrkeep.procfs import IoPressure

_LOOK = 1.0  # seconds


class Pacer:
    """Is asked between small steps. `pressure`: the share of time in which processes may wait for I/O; `seconds`: for the whole."""

    def __init__(
        self,
        locks: Path,
        cancellation: Cancellation,
        *,
        seconds: float | None,
        pressure: float | None,
        tell: Callable[[str], None],
    ) -> None:
        self._locks, self._cancellation, self._tell = locks, cancellation, tell
        self._seconds, self._most = seconds, pressure
        self._begun, self._looked = time.monotonic(), 0.0
        self._pressure = IoPressure()

    @property
    def is_over(self) -> bool:
        """Returns True if no further file is begun: cancelled, or out of time."""
        return bool(self._cancellation) or (self._seconds is not None and time.monotonic() - self._begun >= self._seconds)

    @property
    def has_to_wait(self) -> bool:
        """Whether somebody makes, expires or balances backups: `goes_on` waits for that, which may take hours."""
        return bool(at_work(self._locks))

    def wait_for(self, why: str) -> bool:
        """Waits a moment, and tells why; returns False once no further file is begun."""
        self._tell(f"waits: {why}")
        self._cancellation.sleep(_LOOK)
        return not self.is_over

    def goes_on(self) -> bool:
        """Waits while others work, or the disks are busy; returns False once no further file is begun."""
        if time.monotonic() - self._looked >= _LOOK:
            while not self.is_over and (why := self._obstacle()):
                self._tell(why)
                self._pressure.restart()
                self._cancellation.sleep(_LOOK)
            self._pressure.restart()
            self._looked = time.monotonic()
        return not self.is_over

    def _obstacle(self) -> str:
        if who := at_work(self._locks):
            return f"waits for {who}"
        busy = self._most is not None and (self._pressure.share() or 0.0) > self._most
        return "waits for the disks" if busy else ""
