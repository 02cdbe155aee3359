"""The viewer of a request, and access control.

Every view requires a login unless it is `@public`. A viewer may be limited to hosts by shell patterns: the other hosts then
appear in no count, list or answer.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from flask import abort, g

from btrkeep.serving.viewer import Viewer
from web.source import source

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
    """Others get 403: they may know that there is something, and whom to ask."""

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
            abort(403, "this page is about the pool as a whole, and you see some hosts of it")
        return view(*words, **named)

    setattr(guarded, _WHOLE, True)
    return guarded  # type: ignore[return-value]  # the same arguments and the same answer


def require_visible_host(host: str) -> str:
    """Returns the host if it exists and the viewer may see it; aborts with 404 otherwise, the same in both cases."""
    here = source()
    if not viewer().may_see(host) or (host not in here.site.hosts and host not in here.catalogue.hosts()):
        abort(404, "there is no such host")
    return host


def visible_hosts() -> frozenset[str] | None:
    """Hosts that the viewer sees; None: all."""
    who = viewer()
    return frozenset(who.seen({*source().catalogue.hosts(), *source().site.hosts})) if who.limited else None


def is_public(view: Callable[..., Any] | None) -> bool:
    """Returns True if the view requires no login."""
    return getattr(view, _PUBLIC, False)
