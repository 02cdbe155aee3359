"""Results that need not follow each row that a night writes: what is told of months."""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

from web.source import RequestContext

T = TypeVar("T")

_KEPT = 600.0  # seconds
_MOST = 50


@dataclass(frozen=True, slots=True)
class _Known:
    """A result, of which hour it is, and when it was computed by the clock that never goes back."""

    hour: datetime
    at: float
    value: Any


_results: dict[Hashable, _Known] = {}
_gates: dict[Hashable, threading.Lock] = {}
_lock = threading.Lock()


def by_the_hour(source: RequestContext, key: Hashable, compute: Callable[[], T]) -> T:
    """What `compute` gave for this key in the hour of `source.now` and at most ten minutes ago, or a new one.

    One computes it; whoever comes meanwhile gets the one before, or waits where there is none. The key has to name everything that
    the result depends on, but which catalogue it is of.
    """
    where, hour = (source.settings.state, key), source.now.replace(minute=0, second=0)
    known, gate = _known(where)
    if known and _is_fresh(known, hour):
        return cast("T", known.value)
    if not gate.acquire(blocking=known is None):
        return cast("T", known.value) if known else compute()
    try:
        known, _ = _known(where)
        if known and _is_fresh(known, hour):  # computed while this one waited
            return cast("T", known.value)
        result = compute()
        _keep(where, _Known(hour, time.monotonic(), result))
        return result
    finally:
        gate.release()


def _known(where: Hashable) -> tuple[_Known | None, threading.Lock]:
    with _lock:
        return _results.get(where), _gates.setdefault(where, threading.Lock())


def _is_fresh(known: _Known, hour: datetime) -> bool:
    return known.hour == hour and time.monotonic() - known.at < _KEPT


def _keep(where: Hashable, known: _Known) -> None:
    with _lock:
        if len(_results) >= _MOST:
            _results.clear()
            _gates.clear()
        _results[where] = known
