"""Which backups of a host are kept, and why. Pure: plain data, an explicit `now`, reasons with every answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.config import Retention


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold; `until` None is without end."""

    until: datetime | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A final backup. `state`: complete, suspect or failed, without regard to expiry; `expired`: when it was marked, or None.

    `in_use`: it is the base of the run in progress, or of one that will be continued.
    """

    name: str
    started: datetime
    state: str
    expired: datetime | None = None
    hold: Hold | None = None
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one backup. `reasons`: every rule and floor that keeps it, else why it goes.

    `expires`: when it may be deleted (the mark, or now, plus the grace); None when it is kept.
    """

    name: str
    keep: bool
    reasons: tuple[str, ...]
    expires: datetime | None


def decide(
    candidates: Sequence[Candidate], policy: Retention, zone: ZoneInfo, now: datetime, *, forgotten: datetime | None = None
) -> list[Decision]:
    """One decision for each candidate, oldest first."""
    raise NotImplementedError
