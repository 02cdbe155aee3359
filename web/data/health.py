"""The state of the dashboard's sources: whether the catalogue can be read, whether it is fresh, and the faults of the pool."""

from dataclasses import dataclass
from datetime import datetime

from btrkeep.decisions.findings import FACT, UNKNOWN, UNUSABLE, Finding, from_text
from web.source import RequestContext, stale_after


@dataclass(frozen=True, slots=True)
class Health:
    """`catalogue`: it can be read. `sample`: the newest one is fresh; None: there has never been one, so this is unknown."""

    ok: bool
    catalogue: bool
    sample: bool | None


def health(source: RequestContext) -> Health:
    """Returns the health. Raises the catalogue's exceptions."""
    filesystem = source.site.filesystem
    sample = source.catalogue.newest_sample(filesystem) if filesystem else None
    fresh = None if sample is None else abs(source.now - sample.taken) <= stale_after(source)
    return Health(ok=fresh is True, catalogue=True, sample=fresh)


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """The faults of the pool that `backupd notify` found at its last check, and what it could not check.

    `level`: ok, unknown, warning or error. `looked`: None if it was never checked. `is_old`: the last check is too old to rely on.
    """

    level: str
    looked: datetime | None
    is_old: bool
    findings: tuple[Finding, ...] = ()
    unlooked: tuple[str, ...] = ()
    pool_looked: datetime | None = None
    """When the pool itself could be read last; None: unknown."""

    @property
    def fault(self) -> str:
        """Returns why the pool cannot be read; "" if it can."""
        return next((finding.text for finding in self.findings if finding.check == UNUSABLE), "")

    @property
    def is_known(self) -> bool:
        """Returns True if the pool was checked recently."""
        return self.looked is not None and not self.is_old


def pool_health(source: RequestContext) -> PoolHealth:
    """Returns the pool's health. Raises the catalogue's exceptions. An old result is shown, but never counts as healthy."""
    kept = from_text(source.catalogue.get_fact(FACT))
    if kept is None:
        return PoolHealth(UNKNOWN, None, is_old=False)
    verdict, is_old = kept.verdict, abs(source.now - kept.looked) > stale_after(source)
    level = verdict.level if verdict.findings or not is_old else UNKNOWN
    return PoolHealth(level, kept.looked, is_old, verdict.findings, verdict.unlooked, kept.pool_looked)
