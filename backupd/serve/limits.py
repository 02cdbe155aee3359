"""Keeps the service from doing too much at once: limits on concurrency and on requests per minute and caller, and a cache.

The cache keeps answers that took seconds for a minute. Of each kind of work one is computed at a time.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from btrkeep.serving.protocol import RequestRefused
from btrkeep.serving.viewer import NoPlace, Places, Viewer

_MINUTE = 60.0
_NO_LIMIT = 1 << 20
_MOST = 10_000
"""Askers and verbs that are remembered; one that has asked for nothing for a minute is as one who never did."""


class ConcurrencyLimit(Places):
    """A limit on concurrency."""

    @contextmanager
    def taken(self, viewer: Viewer) -> Iterator[None]:
        """A place. Raises RequestRefused, of kind busy."""
        try:
            self.take(viewer)
        except NoPlace as error:
            of = "of that is under way for you" if error.own else "of that is under way"
            raise RequestRefused(f"too much {of}", "try again in a moment", "busy", own=True) from None
        try:
            yield
        finally:
            self.leave(viewer)


class VerbLimits:
    """The limits that the configuration sets for single verbs, in addition to the shared ones."""

    def __init__(self) -> None:
        self._lock, self._limits = threading.Lock(), dict[str, ConcurrencyLimit]()

    def of(self, verb: str, at_once: int | None) -> ConcurrencyLimit:
        """Returns the limit of the verb, half of which one caller may use; None: it has no limit of its own."""
        most = at_once or _NO_LIMIT
        with self._lock:
            limit = self._limits.setdefault(verb, ConcurrencyLimit(most, most))
        limit.at_once, limit.of_one = most, (most + 1) // 2
        return limit


class RateLimit:
    """Shared by all threads: a token bucket for each asker and verb, which holds what may be asked for in a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._left: dict[tuple[str, str], tuple[float, float]] = {}

    def take(self, who: str, verb: str, per_minute: int) -> None:
        """Counts a request. Raises RequestRefused, of kind busy, for one too many, which is not counted."""
        with self._lock:
            now = self._clock()
            left, then = self._left.get((who, verb), (float(per_minute), now))
            left = min(float(per_minute), left + (now - then) * per_minute / _MINUTE)
            if left < 1:
                raise RequestRefused(
                    f"you have asked for {verb} too often: {per_minute} times a minute are allowed",
                    f"try again in {max(1, round((1 - left) * _MINUTE / per_minute))} s",
                    "busy",
                    own=True,
                )
            self._left[who, verb] = left - 1, now
            if len(self._left) > _MOST:
                self._left = {key: value for key, value in self._left.items() if now - value[1] < _MINUTE}


_KEPT = 60.0
_MOST_ANSWERS = 24
_LOOK = 0.2


class AnswerCache:
    """Shared by all threads. Nobody changes an answer that is kept."""

    def __init__(self, kept: float = _KEPT) -> None:
        self._kept = kept
        self._guard = threading.Lock()
        self._kinds: dict[str, threading.Lock] = {}
        self._answers: dict[Hashable, tuple[float, Any]] = {}

    def get(self, kind: str, key: Hashable, compute: Callable[[], Any], gone: Callable[[], bool], patience: float = 60) -> Any:
        """Returns the answer of `compute`, cached or new. Others wait for it meanwhile, `patience` seconds at the most.

        Raises RequestRefused, of kind busy, and what `compute` raises: a failure is not kept.
        """
        if (found := self._look((kind, key))) is not None:
            return found[1]
        with self._guard:
            lock = self._kinds.setdefault(kind, threading.Lock())
        end = time.monotonic() + patience
        while not lock.acquire(timeout=_LOOK):
            if time.monotonic() > end or gone():
                raise RequestRefused(f"{kind} is being computed for another request", "try again in a moment", "busy")
        try:
            if (found := self._look((kind, key))) is not None:
                return found[1]
            answer = compute()
            self._keep((kind, key), answer)
            return answer
        finally:
            lock.release()

    def _look(self, key: Hashable) -> tuple[float, Any] | None:
        with self._guard:
            found = self._answers.get(key)
        return found if found and time.monotonic() - found[0] < self._kept else None

    def _keep(self, key: Hashable, answer: Any) -> None:
        with self._guard:
            self._answers.pop(key, None)
            self._answers[key] = (time.monotonic(), answer)
            while len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
