"""Results across requests and threads: computed once for all who ask, for as long as the catalogue stays as it is.

While a night writes its progress the catalogue changes all the time, and 20 people look at it. So a result less than a second old
stands whatever was written since, and who asks for what is being computed waits for that. What somebody did here is seen at once:
a form that was sent (`drop`) ends all results that were begun before its answer.
"""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from btrkeep.catalogue import state_mark
from btrkeep.errors import OperatorError

T = TypeVar("T")

KEPT = 30.0
"""Seconds that something computed is used at the most: what depends on the time gets no older than that."""
YOUNG = 1.0
"""Seconds that it is used for although the catalogue has changed."""
_MOST = 500  # so many results are kept
_BARELY = 50_000_000  # ns; a change within the same tick of the filesystem's clock would not be seen


@dataclass(frozen=True, slots=True)
class Result:
    """`begun`: when the oldest part of it was asked for. `mark`: the state of the catalogue that it is of; None: of several."""

    value: Any
    begun: float
    mark: Hashable | None


@dataclass(slots=True)
class _Flight:
    """A result that is being computed. `error`: why there is none; without either, who computed it was stopped."""

    done: threading.Event = field(default_factory=threading.Event)
    result: Result | None = None
    error: OperatorError | None = None


class ResultCache:
    """All results of an application."""

    def __init__(self) -> None:
        self._results: dict[Hashable, Result] = {}
        self._flights: dict[tuple[Hashable, int], _Flight] = {}
        self._generation = 0
        self._lock = threading.Lock()
        self._thread = threading.local()

    def get(self, key: Hashable, compute: Callable[[], T], path: Path) -> T:
        """The result kept for `key`, that which is being computed, or a new one; `path` is the catalogue's.

        `compute` may ask for other results. Raises the OperatorError that it raised, to all who waited for it as well.
        """
        with self._lock:
            generation, known = self._generation, self._results.get(key)
        result = known if known and _stands(known, path) else self._together(key, generation, compute, path)
        if (parts := getattr(self._thread, "parts", None)) is not None:
            parts.append(result)
        value: T = result.value
        return value

    def drop(self) -> None:
        """Somebody changed something: no result that was begun until now is given to who asks from now on."""
        with self._lock:
            self._generation += 1
            self._results.clear()

    def _together(self, key: Hashable, generation: int, compute: Callable[[], Any], path: Path) -> Result:
        with self._lock:
            flight = self._flights.get((key, generation))
            mine = _Flight()
            if flight is None:
                self._flights[key, generation] = mine
        if flight is None:
            return self._fly(mine, key, generation, compute, path)
        flight.done.wait(KEPT)
        if flight.error:
            raise flight.error
        return self._computed(compute, path) if flight.result is None else flight.result

    def _fly(self, flight: _Flight, key: Hashable, generation: int, compute: Callable[[], Any], path: Path) -> Result:
        try:
            result = flight.result = self._computed(compute, path)
        except OperatorError as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                if flight.result is not None and generation == self._generation:
                    self._keep(key, flight.result)
                del self._flights[key, generation]
            flight.done.set()
        return result

    def _computed(self, compute: Callable[[], Any], path: Path) -> Result:
        """A new result. It is as old as the oldest that it is made of, and of no one state when they are of several."""
        around = getattr(self._thread, "parts", None)
        parts: list[Result] = []
        self._thread.parts = parts
        mark, begun = state_mark(path), time.monotonic()
        try:
            value = compute()
        finally:
            self._thread.parts = around
        newest = max((max(part[2:]) for part in mark if part), default=0)
        is_whole = time.time_ns() - newest > _BARELY and all(part.mark == mark for part in parts)
        return Result(value, min([begun, *(part.begun for part in parts)]), mark if is_whole else None)

    def _keep(self, key: Hashable, result: Result) -> None:
        if len(self._results) >= _MOST:
            for old in sorted(self._results, key=lambda one: self._results[one].begun)[: _MOST // 2]:
                del self._results[old]
        self._results[key] = result


def _stands(result: Result, path: Path) -> bool:
    age = time.monotonic() - result.begun
    return age < YOUNG or (age < KEPT and result.mark is not None and result.mark == state_mark(path))
