"""The numbers of this process for /metrics: the answered requests, and what the process takes."""

import resource
import threading
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path

from btrkeep.metrics import Metric, MetricSamples

_REQUESTS = Metric("btrkeep_web_requests_total", "counter", "Requests answered.", ("view", "method", "status"))
_SECONDS = Metric(
    "btrkeep_web_request_seconds", "histogram", "Seconds until the answer began; a download goes on after that.", ("view",)
)
_CPU = Metric("btrkeep_web_process_cpu_seconds_total", "counter", "CPU time of this process.")
_RESIDENT = Metric("btrkeep_web_process_resident_memory_bytes", "gauge", "Memory of this process that is in RAM.")
_VIRTUAL = Metric("btrkeep_web_process_virtual_memory_bytes", "gauge", "Address space of this process.")
_BEGAN = Metric("btrkeep_web_process_start_time_seconds", "gauge", "When this process began to serve.")
_OPEN = Metric("btrkeep_web_process_open_fds", "gauge", "Open file descriptors of this process.")
_MOST_OPEN = Metric("btrkeep_web_process_max_fds", "gauge", "How many file descriptors this process may have.")
_METRICS = (_REQUESTS, _SECONDS, _CPU, _RESIDENT, _VIRTUAL, _BEGAN, _OPEN, _MOST_OPEN)
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)


class RequestNumbers:
    """The requests that this process has answered, by view: counts by status, and the time until the answer began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.time()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._slots: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def note(self, view: str, method: str, status: int, seconds: float | None) -> None:
        """Counts one answer; `seconds` None: not known."""
        with self._lock:
            self._requests[view, method, str(status)] += 1
            if seconds is not None:
                self._slots.setdefault(view, [0] * (len(_BOUNDS) + 1))[bisect_left(_BOUNDS, seconds)] += 1
                self._sums[view] = self._sums.get(view, 0.0) + seconds

    def text(self) -> bytes:
        """Returns them in Prometheus' text format."""
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
    """Without /proc there are fewer."""
    samples.add(_CPU, time.process_time())
    samples.add(_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        virtual, resident, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
        samples.add(_OPEN, len(list(Path("/proc/self/fd").iterdir())) - 1)  # without that of the listing
    except OSError:
        return
    samples.add(_VIRTUAL, int(virtual) * resource.getpagesize())
    samples.add(_RESIDENT, int(resident) * resource.getpagesize())
