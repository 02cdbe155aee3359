"""/healthz and /metrics, for monitoring. The first is public and says nothing about the site; the second requires a token."""

import time
from dataclasses import dataclass

from flask import Blueprint, Response, current_app, g, request
from flask.blueprints import BlueprintSetupState

from btrkeep.errors import OperatorError
from btrkeep.metrics import CONTENT_TYPE
from web.access import logged_in_viewer, public
from web.api.answers import MEANINGS, answer, dumped
from web.metrics import RequestNumbers, text
from web.source import RequestContext, source, stale_after


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


blueprint = Blueprint("health", __name__)
_OURS = "btrkeep-metrics"


@blueprint.record_once
def _begin(state: BlueprintSetupState) -> None:
    state.app.extensions[_OURS] = RequestNumbers()


@blueprint.before_app_request
def _note_begin() -> None:
    g.begun = time.perf_counter()


@blueprint.after_app_request
def _note_end(response: Response) -> Response:
    ours: RequestNumbers = current_app.extensions[_OURS]
    begun = g.pop("begun", None)
    seconds = None if begun is None else time.perf_counter() - begun
    ours.note(request.endpoint or "none", _method(request.method), response.status_code, seconds)
    return response


def _method(name: str) -> str:
    """Returns the method as a label; unknown methods share one label, because a client may send any."""
    return name if name in ("GET", "HEAD", "POST", "OPTIONS") else "other"


@blueprint.get("/healthz")
@public
def healthz() -> Response:
    """Returns 200 if the catalogue can be read and has a recent sample, else 503."""
    try:
        found = health(source())
    except OperatorError:  # it may name places of this machine
        found = Health(ok=False, catalogue=False, sample=None)
    return Response(dumped(found), 200 if found.ok else 503, content_type="application/json")


@blueprint.get("/metrics")
@public
def metrics() -> Response:
    """Returns the site's numbers, cached as long as the catalogue is unchanged, and this process's own.

    Public only for Flask: a program without a token gets 401, where a person would be redirected to the login.
    """
    who = logged_in_viewer()
    if who is None or who.limited:
        return answer(401 if who is None else 403, MEANINGS[401 if who is None else 403], "a token: btrkeep-web token add")
    about = source()
    site = about.cached("metrics", lambda: text(about))
    ours: RequestNumbers = current_app.extensions[_OURS]
    return Response(site + ours.text(), content_type=CONTENT_TYPE)
