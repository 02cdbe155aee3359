"""/healthz and /metrics, for monitoring. The first is public and says nothing about the site; the second requires a token."""

import time

from flask import Blueprint, Response, current_app, g, request
from flask.blueprints import BlueprintSetupState
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from btrkeep.errors import OperatorError
from web.access import logged_in_viewer, public
from web.api.errors import MEANINGS, answer
from web.api.values import dumped
from web.data.health import Health, health
from web.data.numbers import text
from web.source import source

blueprint = Blueprint("health", __name__)
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
_OURS = "btrkeep-metrics"


class Requests:
    """The requests that this process has answered, by view: counts by status, and the time until the answer began."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.count = Counter(
            "btrkeep_web_requests_total", "Requests answered.", ("view", "method", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "btrkeep_web_request_seconds",
            "Seconds until the answer began; a download goes on after that.",
            ("view",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        ProcessCollector(namespace="btrkeep_web", registry=self.registry)


@blueprint.record_once
def _begin(state: BlueprintSetupState) -> None:
    state.app.extensions[_OURS] = Requests()


@blueprint.before_app_request
def _note_begin() -> None:
    g.begun = time.perf_counter()


@blueprint.after_app_request
def _note_end(response: Response) -> Response:
    ours: Requests = current_app.extensions[_OURS]
    view = request.endpoint or "none"
    ours.count.labels(view, _method(request.method), str(response.status_code)).inc()
    if begun := g.pop("begun", None):
        ours.seconds.labels(view).observe(time.perf_counter() - begun)
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
    site = about.cached("metrics", lambda: text(about).encode("utf-8", "replace"))
    own = generate_latest(current_app.extensions[_OURS].registry)
    return Response(site + own, content_type=CONTENT_TYPE_LATEST)
