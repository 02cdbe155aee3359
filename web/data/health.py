"""Whether the dashboard can tell anything, whether what it tells is fresh, and what was found wrong with the pool."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from btrkeep.decisions.findings import FACT, UNKNOWN, Finding, from_text
from web.source import RequestContext

STALE = timedelta(hours=1)
"""A sample comes every five minutes; one in the future by so much is as wrong."""


@dataclass(frozen=True, slots=True)
class Health:
    """`catalogue`: it can be read. `sample`: the newest one is fresh; None: there never was one, so nobody knows."""

    ok: bool
    catalogue: bool
    sample: bool | None


def health(source: RequestContext) -> Health:
    """Raises what the catalogue raises."""
    filesystem = source.site.filesystem
    sample = source.catalogue.newest_sample(filesystem) if filesystem else None
    fresh = None if sample is None else abs(source.now - sample.taken) <= STALE
    return Health(ok=fresh is True, catalogue=True, sample=fresh)


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """What `backupd notify` found wrong with the pool when it looked for alarms last, and what it could not look at.

    `level`: ok, unknown, warning or error. `looked`: None when nobody ever did. `is_old`: so long ago that nobody knows how it is.
    """

    level: str
    looked: datetime | None
    is_old: bool
    findings: tuple[Finding, ...] = ()
    unlooked: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether somebody has looked, and lately."""
        return self.looked is not None and not self.is_old


def pool_health(source: RequestContext) -> PoolHealth:
    """Raises what the catalogue raises. What is old is shown, and is no reason to call the pool well."""
    kept = from_text(source.catalogue.get_fact(FACT))
    if kept is None:
        return PoolHealth(UNKNOWN, None, is_old=False)
    verdict, is_old = kept.verdict, abs(source.now - kept.looked) > STALE
    level = verdict.level if verdict.findings or not is_old else UNKNOWN
    return PoolHealth(level, kept.looked, is_old, verdict.findings, verdict.unlooked)
