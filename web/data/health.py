"""Whether the dashboard can tell anything, and whether what it tells is fresh."""

from dataclasses import dataclass
from datetime import timedelta

from web.source import Source

STALE = timedelta(hours=1)
"""A sample comes every five minutes; one in the future by so much is as wrong."""


@dataclass(frozen=True, slots=True)
class Health:
    """`catalogue`: it can be read. `sample`: the newest one is fresh; None: there never was one."""

    ok: bool
    catalogue: bool
    sample: bool | None


def health(source: Source) -> Health:
    """Raises what the catalogue raises."""
    filesystem = source.site.filesystem
    sample = source.catalogue.newest_sample(filesystem) if filesystem else None
    fresh = None if sample is None else abs(source.now - sample.taken) <= STALE
    return Health(ok=fresh is not False, catalogue=True, sample=fresh)
