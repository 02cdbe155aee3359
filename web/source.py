"""The sources of an answer, and its reader: the catalogue, the published configuration, the time, and the viewer.

Every view requires a login unless it is `@public`. A viewer may be limited to hosts by shell patterns: the other hosts then appear
in no count, list or answer.
"""

from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial, wraps
from typing import Any, TypeVar

from flask import Flask, abort, current_app, g, request

from btrkeep.catalogue import Catalogue
from btrkeep.catalogue.dashboard_copy import COPIED, FILE, PROBLEM, old_after, size_of
from btrkeep.config.published import Published, published
from btrkeep.errors import OperatorError
from btrkeep.serving.viewer import Viewer
from btrkeep.units import parse_time, show_times_in
from web.dashboard_settings import Settings
from web.result_cache import ResultCache, catalogue_version

T = TypeVar("T")

_READING = ("GET", "HEAD", "OPTIONS", "TRACE")


class Caches:
    """The results of an application that come from the catalogue.

    `current` follows the catalogue, which changes all the time while a night writes its progress, and there may be 20 viewers: so a
    result less than a second old is used in any case, and none is older than half a minute, because some depend on the time.
    `months` has results that do not depend on each row that a night writes: they are used for ten minutes, or until the end of the
    hour.
    """

    def __init__(self) -> None:
        self.current = ResultCache(longest=30.0, young=1.0)
        self.months = ResultCache(longest=600.0, stale_meanwhile=True, most=50)


class RequestContext:
    """The sources of one request. The copy of the catalogue is opened at its first use, and closed at the request's end."""

    def __init__(self, settings: Settings, caches: Caches) -> None:
        self.settings = settings
        self._caches = caches
        self._open: Catalogue | None = None

    @cached_property
    def catalogue(self) -> Catalogue:
        """The copy of the catalogue, one for the whole request. Raises CatalogueUnready, like its methods."""
        self._open = Catalogue.open_copy(self.settings.state)
        return self._open

    @cached_property
    def config(self) -> Published:
        """The pool's configuration, as far as the dashboard may read it."""
        config = published(self.catalogue, self.settings.pool)
        show_times_in(config.zone)
        return config

    @cached_property
    def copied(self) -> datetime | None:
        """When the copy of the catalogue was made; None: unknown."""
        try:
            return parse_time(self.catalogue.get_fact(COPIED) or "")
        except OperatorError:
            return None

    @cached_property
    def problem(self) -> tuple[datetime, str] | None:
        """Since when the catalogue itself cannot be used, and why; None: no such problem is known."""
        since, _, reason = (self.catalogue.get_fact(PROBLEM) or "").partition(" ")
        return (parse_time(since), reason) if reason else None

    @cached_property
    def now(self) -> datetime:
        """The present time, UTC, whole seconds. The clock of a rehearsal is the time of its newest event."""
        if self.config.rehearsal and (then := _newest(self.catalogue, self.config.filesystem)):
            return then
        return datetime.now(UTC).replace(microsecond=0)

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Returns the result of `compute` for this key: less than a second old, or at most 30 s if the catalogue is unchanged.

        The key must name everything in addition to the catalogue on which the result depends: the viewer's limits of hosts, the
        filters.
        """
        return self._caches.current.get(key, compute, partial(catalogue_version, self.settings.state / FILE))

    def cached_for_the_hour(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Returns the result of `compute` for this key in the hour of `now`, at most ten minutes old. While it is computed again,
        other requests get the previous result.
        """
        return self._caches.months.get(key, compute, lambda: self.now.replace(minute=0, second=0))

    def close(self) -> None:
        """Closes the catalogue, if it was opened."""
        if self._open:
            self._open.close()


def context_of(app: Flask) -> RequestContext:
    """Returns a new context of the application."""
    return RequestContext(app.extensions["btrkeep"], app.extensions["btrkeep-caches"])


def source() -> RequestContext:
    """Returns the context of this request."""
    if "source" not in g:
        g.source = context_of(current_app)
    request_context: RequestContext = g.source
    return request_context


def close_source(_error: BaseException | None = None) -> None:
    """Closes the context at the end of a request, before its answer is sent. The next page must show the changes of a form."""
    if request.method not in _READING:
        caches: Caches = current_app.extensions["btrkeep-caches"]
        caches.current.drop()
    if opened := g.pop("source", None):
        opened.close()


def _newest(catalogue: Catalogue, filesystem: str | None) -> datetime | None:
    """Returns the time of the newest event in the catalogue."""
    sample = catalogue.newest_sample(filesystem) if filesystem else None
    expiry = catalogue.expiries(1)
    moments = (
        catalogue.newest_finish(),
        sample.taken if sample else None,
        expiry[0].updated if expiry else None,
        *(run.started for run in catalogue.unfinished_runs()),
    )
    return max((moment for moment in moments if moment), default=None)


STALE = timedelta(hours=1)
"""Samples are taken every five minutes; a sample that far in the future is equally wrong."""


def stale_after(source: RequestContext) -> timedelta:
    """Returns the age above which data of the copy of the catalogue is unknown: an hour, or more for a catalogue that is so large
    that it is rarely copied.
    """
    longest = timedelta(seconds=old_after(size_of(source.settings.state / FILE)))
    return max(STALE, longest) if longest > timedelta(hours=1) else STALE


def is_copy_old(source: RequestContext, now: datetime) -> bool:
    """Returns True if the copy of the catalogue is too old to rely on. `now`: the machine's time, in a rehearsal too."""
    return source.copied is None or abs(now - source.copied) > stale_after(source)


View = TypeVar("View", bound=Callable[..., Any])
_PUBLIC, _WHOLE = "btrkeep_public", "btrkeep_whole_pool"


def viewer() -> Viewer:
    """Returns the viewer. Raises Unauthorized if no user is logged in, on a public page."""
    current: Viewer | None = g.get("viewer")
    if current is None:
        abort(401)
    return current


def logged_in_viewer() -> Viewer | None:
    """Returns the viewer, None if no user is logged in."""
    current: Viewer | None = g.get("viewer")
    return current


def public(view: View) -> View:
    """Marks a view that requires no login."""
    setattr(view, _PUBLIC, True)
    return view


def operator_only(view: View) -> View:
    """Marks a view for operators: a viewer gets 403, because the existence of the page is no secret."""

    @wraps(view)
    def guarded(*words: Any, **named: Any) -> Any:
        if not viewer().operator:
            abort(403, "only operators may do this")
        return view(*words, **named)

    return guarded  # type: ignore[return-value]  # the same arguments and the same answer


def require_folder_right(folder: str | None) -> None:
    """Aborts with 403 if the viewer may not choose the folder of a restore; None is the original place, which is always allowed."""
    if folder is not None and not viewer().admin:
        abort(403, "only admins may restore into another folder of a host")


def needs_all_hosts(view: View) -> View:
    """Marks a view that names all hosts: viewers who are limited to some hosts get 403."""

    @wraps(view)
    def guarded(*words: Any, **named: Any) -> Any:
        if viewer().limited:
            abort(403, "this page is about the whole pool, but you may see only some of its hosts")
        return view(*words, **named)

    setattr(guarded, _WHOLE, True)
    return guarded  # type: ignore[return-value]  # the same arguments and the same answer


def require_visible_host(host: str) -> str:
    """Returns the host if it exists and the viewer may see it; aborts with 404 otherwise, the same in both cases."""
    here = source()
    if not viewer().may_see(host) or (host not in here.config.hosts and host not in here.catalogue.hosts()):
        abort(404, "there is no such host")
    return host


def visible_hosts() -> frozenset[str] | None:
    """Returns the hosts that the viewer sees; None: all."""
    who = viewer()
    return frozenset(who.seen({*source().catalogue.hosts(), *source().config.hosts})) if who.limited else None


def is_public(view: Callable[..., Any] | None) -> bool:
    """Returns True if the view requires no login."""
    return getattr(view, _PUBLIC, False)
