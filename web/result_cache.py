"""Results for several requests and threads: computed once, and used until they are too old or their source has changed.

The cache is created with the maximum age of results; each request for a result passes a function that returns the version of its
source. A user sees the effect of an action at once: a submitted form (`drop`) removes all results whose computation started before
its answer.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from btrkeep.catalogue import state_mark
from btrkeep.errors import OperatorError

T = TypeVar("T")

_PATIENCE = 30.0  # seconds to wait for another thread's result; then it is computed here, in case that thread hangs
_TICK = 50_000_000  # ns; a second change within a tick of the filesystem's clock does not change a file's times


def catalogue_version(path: Path) -> Hashable | None:
    """Returns the version of the catalogue; None if it changed so recently that another change might be missed."""
    mark = state_mark(path)
    newest = max((max(part[2:]) for part in mark if part), default=0)
    return mark if time.time_ns() - newest > _TICK else None


@dataclass(frozen=True, slots=True)
class Result:
    """A stored result."""

    value: Any
    """The result."""
    begun: float
    """The time of its oldest part."""
    version: Hashable | None
    """Version of its source; None: several, or unknown."""


@dataclass(slots=True)
class _Flight:
    """A result that is being computed."""

    done: threading.Event = field(default_factory=threading.Event)
    """Set when it is finished."""
    result: Result | None = None
    """The result; None: none."""
    error: OperatorError | None = None
    """The error. Without result and error, the thread that computed it was stopped."""


class ResultCache:
    """Results by key. Old ones are removed, and so are the least recently used ones if the total of their sizes exceeds `most`.

    A result is used for `longest` seconds while the version of its source stays the same, and for `young` seconds in any case. A
    request for a result that is being computed waits for it; with `stale_meanwhile` it gets the previous result, if there is one.
    """

    def __init__(
        self,
        *,
        longest: float = inf,
        young: float = 0.0,
        stale_meanwhile: bool = False,
        most: int = 500,
        size: Callable[[Any], int] = lambda _value: 1,
    ) -> None:
        self._longest, self._young, self._stale_meanwhile = longest, young, stale_meanwhile
        self._most, self._size, self._total = most, size, 0
        self._results: OrderedDict[Hashable, Result] = OrderedDict()
        self._flights: dict[tuple[Hashable, int], _Flight] = {}
        self._generation = 0
        self._lock = threading.Lock()
        self._thread = threading.local()

    def get(
        self, key: Hashable, compute: Callable[[], T], version: Callable[[], Hashable | None] = lambda: 0, *, renew: bool = False
    ) -> T:
        """Returns the stored result for `key`, or the one that is being computed, or a new one; with `renew` never the stored one.

        `compute` may request other results. Raises the OperatorError of `compute`, also in all threads that waited for it.
        """
        with self._lock:
            generation, result = self._generation, self._results.get(key)
            if result:
                self._results.move_to_end(key)
        if result is None or renew or not self._stands(result, version):
            result = self._together(key, generation, result, lambda: self._computed(compute, version))
        if (parts := getattr(self._thread, "parts", None)) is not None:
            parts.append(result)
        value: T = result.value
        return value

    def last(self, key: Hashable) -> Any:
        """Returns the stored value for `key`, whatever its age; None without one."""
        with self._lock:
            result = self._results.get(key)
        return result.value if result else None

    def drop(self) -> None:
        """Removes all results, and those that are being computed: later requests do not get them."""
        with self._lock:
            self._generation += 1
            self._results.clear()
            self._total = 0

    def _stands(self, result: Result, version: Callable[[], Hashable | None]) -> bool:
        age = time.monotonic() - result.begun
        return age < self._young or (age < self._longest and result.version is not None and result.version == version())

    def _together(self, key: Hashable, generation: int, last: Result | None, make: Callable[[], Result]) -> Result:
        """Returns the result that another thread computes or has just computed, or a new one."""
        mine = _Flight()
        with self._lock:
            newer = self._results.get(key)
            if newer and newer is not last:
                return newer
            flight = self._flights.setdefault((key, generation), mine)
        if flight is mine:
            return self._fly(mine, key, generation, make)
        if last and self._stale_meanwhile:
            return last
        flight.done.wait(_PATIENCE)
        if flight.error:
            raise flight.error
        return flight.result or make()

    def _fly(self, flight: _Flight, key: Hashable, generation: int, make: Callable[[], Result]) -> Result:
        try:
            result = flight.result = make()
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

    def _computed(self, compute: Callable[[], Any], version: Callable[[], Hashable | None]) -> Result:
        """Returns a new result. Its age is that of its oldest part; it has no version if its parts have several."""
        around = getattr(self._thread, "parts", None)
        parts: list[Result] = []
        self._thread.parts = parts
        before, begun = version(), time.monotonic()
        try:
            value = compute()
        finally:
            self._thread.parts = around
        is_whole = all(part.version == before for part in parts)
        return Result(value, min([begun, *(part.begun for part in parts)]), before if is_whole else None)

    def _keep(self, key: Hashable, result: Result) -> None:
        if old := self._results.pop(key, None):
            self._total -= self._size(old.value)
        self._results[key] = result
        self._total += self._size(result.value)
        if not self._stale_meanwhile:
            self._drop_unusable()
        while self._total > self._most and len(self._results) > 1:
            _, oldest = self._results.popitem(last=False)
            self._total -= self._size(oldest.value)

    def _drop_unusable(self) -> None:
        """Removes old results: clients choose the keys, so the number of results would not be limited."""
        end = time.monotonic() - max(self._longest, self._young)
        for key in [key for key, result in self._results.items() if result.begun < end]:
            self._total -= self._size(self._results.pop(key).value)
