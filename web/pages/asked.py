"""What was asked of the root service because somebody wanted it, and is kept until it is asked again: it takes seconds."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import current_app

from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import RequestRefused
from web.service_client import agent

_FRESH = timedelta(seconds=20)
_NAME = "btrkeep-answers"
_AT_ONCE = 3  # who wait keep a thread each


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """What was said, and when. `problem` and `hint`: why nothing was; `said` is None then."""

    at: datetime
    said: Any
    problem: str = ""
    hint: str = ""


class Answers:
    """The last answer to each verb, for all requests."""

    def __init__(self) -> None:
        self._found: dict[str, ServiceAnswer] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_AT_ONCE)

    def last(self, verb: str) -> ServiceAnswer | None:
        """None: nobody has asked since the dashboard was started."""
        return self._found.get(verb)

    def ask(self, verb: str) -> None:
        """Ask anew, unless somebody just did. Who comes while it is being asked waits for that answer, unless many do: Refused."""
        with self._guard:
            lock = self._locks.setdefault(verb, threading.Lock())
        with self._place(), lock:
            known = self._found.get(verb)
            if known is None or known.problem or datetime.now(UTC) - known.at > _FRESH:
                self._found[verb] = _asked(verb)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._waiting.acquire(blocking=False):
            raise RequestRefused(
                "that is being looked for already", "load the page in a moment: it is there then", "busy", own=True
            )
        try:
            yield
        finally:
            self._waiting.release()


def answers() -> Answers:
    """Those of this application."""
    found: Answers = current_app.extensions.setdefault(_NAME, Answers())
    return found


def _asked(verb: str) -> ServiceAnswer:
    try:
        said = agent().ask(verb)
    except OperatorError as error:
        return ServiceAnswer(datetime.now(UTC), None, error.message, error.hint)
    return ServiceAnswer(datetime.now(UTC), said)
