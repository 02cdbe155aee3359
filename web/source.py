"""What the pages read: the catalogue as it is now, what was published of the configuration, and the time."""

import threading
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from flask import current_app, g

from btrkeep.catalogue import Catalogue, state_mark
from btrkeep.catalogue.migrate import FILE
from btrkeep.config.published import Published, published
from web.settings import Settings

T = TypeVar("T")

KEPT = 30.0
"""Seconds that something computed is used at the most: what depends on the time gets no older than that."""
_MOST = 500  # so many results are kept
_BARELY = 50_000_000  # ns; a change within the same tick of the filesystem's clock would not be seen


class Source:
    """For one request. The catalogue is opened when it is asked for, and closed at the request's end."""

    def __init__(self, settings: Settings, kept: "Kept") -> None:
        self.settings = settings
        self._kept = kept
        self._open: Catalogue | None = None

    @cached_property
    def catalogue(self) -> Catalogue:
        """Open for reading. Raises CatalogueUnready and CatalogueBusy, as its methods do."""
        self._open = Catalogue.open_readonly(self.settings.state)
        return self._open

    @cached_property
    def site(self) -> Published:
        """The pool's configuration, as far as the dashboard may know it."""
        return published(self.catalogue, self.settings.pool)

    @cached_property
    def now(self) -> datetime:
        """Aware UTC, whole seconds. A rehearsal's clock stands where its newest event left it."""
        if self.site.rehearsal and (then := _newest(self.catalogue, self.site.filesystem)):
            return then
        return datetime.now(UTC).replace(microsecond=0)

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gave for this key a moment ago, unless the catalogue changed since; 30 s at the most.

        The key has to name everything that the result depends on besides the catalogue: whose limits of hosts, which filters.
        """
        return self._kept.get(key, compute, self.settings.state / FILE)

    def close(self) -> None:
        """Close the catalogue, if it was needed."""
        if self._open:
            self._open.close()


class Kept:
    """Results across requests and threads. Two threads may compute the same: that is cheaper than one that waits for the other."""

    def __init__(self) -> None:
        self._results: dict[Hashable, tuple[Hashable, float, Any]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], T], path: Path) -> T:
        """The result kept for `key`, or a new one."""
        mark = state_mark(path)
        with self._lock:
            known = self._results.get(key)
        if known and known[0] == mark and time.monotonic() - known[1] < KEPT:
            result: T = known[2]
            return result
        begun = time.monotonic()
        value = compute()
        newest = max((max(part[2:]) for part in mark if part), default=0)
        if time.time_ns() - newest > _BARELY:
            self._keep(key, (mark, begun, value))
        return value

    def _keep(self, key: Hashable, entry: tuple[Hashable, float, Any]) -> None:
        with self._lock:
            if len(self._results) >= _MOST:
                for old in sorted(self._results, key=lambda one: self._results[one][1])[: _MOST // 2]:
                    del self._results[old]
            self._results[key] = entry


def source() -> Source:
    """This request's."""
    if "source" not in g:
        g.source = Source(current_app.extensions["btrkeep"], current_app.extensions["btrkeep-kept"])
    found: Source = g.source
    return found


def close_source(_error: BaseException | None = None) -> None:
    """At the end of a request."""
    if found := g.pop("source", None):
        found.close()


def _newest(catalogue: Catalogue, filesystem: str | None) -> datetime | None:
    """When the last thing that the catalogue knows of happened."""
    sample = catalogue.newest_sample(filesystem) if filesystem else None
    expiry = catalogue.expiries(1)
    moments = (
        catalogue.newest_finish(),
        sample.taken if sample else None,
        expiry[0].updated if expiry else None,
        *(run.started for run in catalogue.unfinished_runs()),
    )
    return max((moment for moment in moments if moment), default=None)
