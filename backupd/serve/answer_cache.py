"""Caches answers that took seconds for a minute. Of each kind of work one is computed at a time."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from btrkeep.serving.protocol import RequestRefused

KEPT = 60.0
_MOST = 24
_LOOK = 0.2


class AnswerCache:
    """Shared by all threads. Nobody changes an answer that is kept."""

    def __init__(self, kept: float = KEPT) -> None:
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
                raise RequestRefused(f"{kind} is being worked out for somebody else", "try again in a moment", "busy")
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
            while len(self._answers) > _MOST:
                del self._answers[next(iter(self._answers))]
