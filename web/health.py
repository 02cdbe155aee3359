"""/healthz and /metrics, for monitoring. The first is public, and without a token it shows only the level of the verdict; the
second requires a token. The families of `backupd metrics` that depend only on the catalogue have the same names here; in addition
there are numbers of this process and its requests. Metrics that need access to the pool itself (whether it is mounted, how much
still fits, missing devices) are left out: the dashboard does not have the rights for that, and an unreliable number is worse than
none. The state of the pool and the open alarms are those that `backupd notify` found; they are left out if they are more than an
hour old.
"""

import resource
import threading
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, current_app, g, request
from flask.blueprints import BlueprintSetupState

from btrkeep import __version__
from btrkeep import metrics as table
from btrkeep.backup_states import BACKUP_STATES
from btrkeep.decisions import metric_samples
from btrkeep.decisions.alarm_advice import AlarmPatience
from btrkeep.decisions.findings import FACT, from_text
from btrkeep.decisions.host_state import STATES
from btrkeep.decisions.overall import overall_as_json
from btrkeep.decisions.trend import numbers_of_sample
from btrkeep.errors import OperatorError
from btrkeep.metrics import CONTENT_TYPE, Metric, MetricSamples
from btrkeep.serving.viewer import Viewer
from web.api.answers import MEANINGS, answer, dumped
from web.hosts.data import NOT_OURS, HostRow, every_row
from web.page_verdict import EVERYTHING, overall
from web.source import RequestContext, logged_in_viewer, public, source, stale_after


def metrics_text(source: RequestContext) -> bytes:
    """Returns all metrics in the order of the table, in Prometheus's text format."""
    samples = MetricSamples(source.config.name)
    for collect in (_itself, _hosts, _backups, _filesystem, _expiries, _alarms, _verdict):
        collect(samples, source)
    return samples.text()


def _itself(samples: MetricSamples, source: RequestContext) -> None:
    samples.add(table.INFO, 1, __version__)
    samples.add(table.LOOKED, source.now.timestamp())


def _hosts(samples: MetricSamples, source: RequestContext) -> None:
    rows = [row for row in every_row(source) if row.state not in NOT_OURS]
    for row in rows:
        _host(samples, row)
    metric_samples.add_counts(samples.add, table.HOSTS, STATES, Counter(row.state for row in rows if row.enabled))


def _host(samples: MetricSamples, row: HostRow) -> None:
    samples.add(table.HOST_INFO, 1, row.host, row.group or "", str(row.enabled).lower(), str(row.optional).lower())
    metric_samples.add_state(samples.add, table.HOST_STATE, STATES, row.state, row.host)
    samples.add(table.HOST_SUCCESS, row.last_complete.timestamp() if row.last_complete else None, row.host)
    samples.add(table.HOST_AGE, row.age, row.host)
    samples.add(table.HOST_SIZE, row.size, row.host)
    samples.add(table.HOST_NEW, row.new_bytes, row.host)
    samples.add(table.HOST_FILES, row.files, row.host)
    samples.add(table.HOST_LIVE, row.live_paths, row.host)


def _backups(samples: MetricSamples, source: RequestContext) -> None:
    metric_samples.add_counts(samples.add, table.BACKUPS, BACKUP_STATES, source.catalogue.state_counts())
    samples.add(table.RUNNING, len(source.catalogue.progress()))


def _filesystem(samples: MetricSamples, source: RequestContext) -> None:
    if not (filesystem := source.config.filesystem):
        return
    if sample := source.catalogue.newest_sample(filesystem):
        metric_samples.add_numbers(samples.add, numbers_of_sample(sample))
    if score := source.catalogue.newest_score(filesystem):
        metric_samples.add_score(samples.add, score)
    metric_samples.add_balance_totals(samples.add, source.catalogue.balance_totals(filesystem))


def _expiries(samples: MetricSamples, source: RequestContext) -> None:
    metric_samples.add_expiry_totals(samples.add, source.catalogue.expiry_totals())


def _alarms(samples: MetricSamples, source: RequestContext) -> None:
    kept = from_text(source.catalogue.get_fact(FACT))
    if kept is None:
        return
    samples.add(table.ALARMS_LOOKED, kept.looked.timestamp())
    if abs(source.now - kept.looked) > stale_after(source):
        return
    metric_samples.add_health(samples.add, kept.verdict)
    metric_samples.add_alarms(samples.add, source.catalogue.alarms(), source.now, AlarmPatience.of_published(source.config))


def _verdict(samples: MetricSamples, source: RequestContext) -> None:
    metric_samples.add_verdict(samples.add, overall(source, EVERYTHING))


_REQUESTS = Metric("btrkeep_web_requests_total", "counter", "Requests answered.", ("view", "method", "status"))
_SECONDS = Metric(
    "btrkeep_web_request_seconds", "histogram", "Seconds until the answer began; a download continues after that.", ("view",)
)
_CPU = Metric("btrkeep_web_process_cpu_seconds_total", "counter", "CPU time of this process.")
_RESIDENT = Metric("btrkeep_web_process_resident_memory_bytes", "gauge", "Memory of this process that is in RAM.")
_VIRTUAL = Metric("btrkeep_web_process_virtual_memory_bytes", "gauge", "Address space of this process.")
_BEGAN = Metric("btrkeep_web_process_start_time_seconds", "gauge", "Start time of this process.")
_OPEN = Metric("btrkeep_web_process_open_fds", "gauge", "Open file descriptors of this process.")
_MOST_OPEN = Metric("btrkeep_web_process_max_fds", "gauge", "Maximum number of open file descriptors of this process.")
_METRICS = (_REQUESTS, _SECONDS, _CPU, _RESIDENT, _VIRTUAL, _BEGAN, _OPEN, _MOST_OPEN)
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)


class RequestNumbers:
    """The requests that this process has answered, by view: counts by status, and the time until the start of the answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.time()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._slots: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def note(self, view: str, method: str, status: int, seconds: float | None) -> None:
        """Counts one answer; `seconds` None: unknown."""
        with self._lock:
            self._requests[view, method, str(status)] += 1
            if seconds is not None:
                self._slots.setdefault(view, [0] * (len(_BOUNDS) + 1))[bisect_left(_BOUNDS, seconds)] += 1
                self._sums[view] = self._sums.get(view, 0.0) + seconds

    def text(self) -> bytes:
        """Returns the numbers in Prometheus's text format."""
        samples = MetricSamples(None, _METRICS)
        with self._lock:
            for labels, count in self._requests.items():
                samples.add(_REQUESTS, count, *labels)
            for view, counts in self._slots.items():
                samples.add_histogram(_SECONDS, _BOUNDS, counts, self._sums[view], view)
        _add_process(samples)
        samples.add(_BEGAN, self._began)
        return samples.text()


def _add_process(samples: MetricSamples) -> None:
    """Adds the numbers of this process. Without /proc there are fewer."""
    samples.add(_CPU, time.process_time())
    samples.add(_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        virtual, resident, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
        samples.add(_OPEN, len(list(Path("/proc/self/fd").iterdir())) - 1)  # without the descriptor of this listing
    except OSError:
        return
    samples.add(_VIRTUAL, int(virtual) * resource.getpagesize())
    samples.add(_RESIDENT, int(resident) * resource.getpagesize())


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the dashboard."""

    ok: bool
    """Whether all of the following is fine."""
    catalogue: bool
    """Whether the catalogue can be read."""
    sample: bool | None
    """Whether the newest sample of the pool is fresh; null: there is no sample yet."""
    level: str | None = None
    """That of the verdict: ok, unknown, warning or error; null: the catalogue cannot be read."""
    verdict: dict[str, Any] | None = None
    """The verdict, as in `backupd status --json`; null: without a login or a token."""


def health(source: RequestContext, viewer: Viewer | None = None) -> Health:
    """Returns the health; only for a viewer who is logged in with the verdict's words. Raises the catalogue's exceptions."""
    filesystem = source.config.filesystem
    sample = source.catalogue.newest_sample(filesystem) if filesystem else None
    fresh = None if sample is None else abs(source.now - sample.taken) <= stale_after(source)
    verdict = overall(source, viewer or EVERYTHING)
    return Health(
        fresh is True, catalogue=True, sample=fresh, level=verdict.level, verdict=overall_as_json(verdict) if viewer else None
    )


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
    """Returns the method as a label; unknown methods share one label, because a client may send any method."""
    return name if name in ("GET", "HEAD", "POST", "OPTIONS") else "other"


@blueprint.get("/healthz")
@public
def healthz() -> Response:
    """Returns 200 if the catalogue can be read and has a recent sample, else 503; the verdict does not change the status."""
    try:
        current = health(source(), logged_in_viewer())
    except OperatorError:  # the message may contain paths of this machine
        current = Health(ok=False, catalogue=False, sample=None)
    return Response(dumped(current), 200 if current.ok else 503, content_type="application/json")


@blueprint.get("/metrics")
@public
def metrics() -> Response:
    """Returns the pool's numbers, cached as long as the catalogue is unchanged, and this process's own.

    Public only for Flask: a program without a token gets 401, where a person would be redirected to the login.
    """
    who = logged_in_viewer()
    if who is None or who.limited:
        return answer(401 if who is None else 403, MEANINGS[401 if who is None else 403], "create a token: btrkeep-web token add")
    about = source()
    pool_metrics = about.cached("metrics", lambda: metrics_text(about))
    ours: RequestNumbers = current_app.extensions[_OURS]
    return Response(pool_metrics + ours.text(), content_type=CONTENT_TYPE)
