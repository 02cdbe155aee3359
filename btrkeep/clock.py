"""The current time: the machine's clock, or in a rehearsal pool a clock that continues from a given moment."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


def elapsed() -> float:
    """Returns seconds of a clock that cannot be set and that counts while the machine sleeps (CLOCK_BOOTTIME).

    Time limits of work use time.monotonic() instead, which stops while the machine sleeps.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clock:
    """`start` None is the real time."""

    start: datetime | None = None
    _begun: float = field(default_factory=elapsed)

    def tells_nights(self, *, rehearsal: bool) -> bool:
        """Returns True for the real clock. Nights of a rehearsal do not follow it."""
        return self.start is not None or not rehearsal

    def now(self) -> datetime:
        """Aware UTC."""
        if self.start is None:
            return datetime.now(UTC)
        return self.start + timedelta(seconds=elapsed() - self._begun)
