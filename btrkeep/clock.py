"""What time it is: the machine's clock, or on a rehearsal pool any other that goes on from a given moment."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True)
class Clock:
    """`start` None is the real time."""

    start: datetime | None = None
    _begun: float = field(default_factory=time.monotonic)

    def tells_nights(self, *, rehearsal: bool) -> bool:
        """Whether it is the clock by which nights are: the real time says nothing of those of a rehearsal."""
        return self.start is not None or not rehearsal

    def now(self) -> datetime:
        """Aware UTC."""
        if self.start is None:
            return datetime.now(UTC)
        return self.start + timedelta(seconds=time.monotonic() - self._begun)
