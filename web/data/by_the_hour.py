"""Results that need not follow each row that a night writes: what is told of months."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from web.source import Source

T = TypeVar("T")

_KEPT = 600.0  # seconds
_MOST = 50
_results: dict[Hashable, tuple[float, Any]] = {}
_lock = threading.Lock()


def by_the_hour(source: Source, key: Hashable, compute: Callable[[], T]) -> T:
    """What `compute` gave for this key in the hour of `source.now` and at most ten minutes ago, or a new one.

    The key has to name everything that the result depends on, but which catalogue it is of.
    """
    whole = (source.settings.state, source.now.replace(minute=0, second=0), key)
    with _lock:
        known = _results.get(whole)
    if known and time.monotonic() - known[0] < _KEPT:
        result: T = known[1]
        return result
    value = compute()
    with _lock:
        if len(_results) >= _MOST:
            _results.clear()
        _results[whole] = (time.monotonic(), value)
    return value
