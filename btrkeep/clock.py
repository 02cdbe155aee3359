"""What time it is: the machine's clock, or on a rehearsal pool any other that goes on from a given moment."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


def elapsed() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the machine is asleep: for how long ago something was.

    How long somebody has worked, or may, is measured by time.monotonic(), which stands still meanwhile.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clock:
    """`start` None is the real time."""

    start: datetime | None = None
    _begun: float = field(default_factory=elapsed)

    def tells_nights(self, *, rehearsal: bool) -> bool:
        """Whether it is the clock by which nights are: the real time says nothing of those of a rehearsal."""
        return self.start is not None or not rehearsal

    def now(self) -> datetime:
        """Aware UTC."""
        if self.start is None:
            return datetime.now(UTC)
        return self.start + timedelta(seconds=elapsed() - self._begun)
