"""The state of the dashboard's sources: whether the catalogue can be read, whether it is fresh, and the faults of the pool."""

from dataclasses import dataclass

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
