"""Answers of the root service that take seconds: requested by a viewer, and cached until the next request for them."""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import current_app

from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import RequestRefused
from web.result_cache import ResultCache
from web.service_client import agent

_FRESH = timedelta(seconds=20)  # since it came: one that took longer is new all the same
_NAME = "btrkeep-answers"
_AT_ONCE = 3  # requests that wait, each of which keeps a thread
_OF_WHO_ASKS = ("refused", "busy", "usage")  # kinds of failures that say something about who asks, and nothing about the pool


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """An answer and its time. `problem` and `hint`: why the question failed; `said` is None then."""

    at: datetime
    said: Any
    problem: str = ""
    hint: str = ""


class Answers:
    """The last answer to each verb, for all requests."""

    def __init__(self) -> None:
        self._results = ResultCache()
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def last(self, verb: str) -> ServiceAnswer | None:
        """Returns the last answer; None if there has been no question since the dashboard was started."""
        found: ServiceAnswer | None = self._results.last(verb)
        return found

    def ask(self, verb: str) -> None:
        """Asks again, unless the last answer is fresh. Other requests meanwhile wait for the same answer.

        Raises RequestRefused if many wait already, or if this viewer may not ask, or not now. This concerns only that viewer: it is
        not cached, and the requests that waited ask again.
        """
        if not self._places.acquire(blocking=False):
            raise RequestRefused(
                "that is being looked for already", "load the page in a moment: it is there then", "busy", own=True
            )
        try:
            last = self.last(verb)
            is_fresh = last is not None and not last.problem and datetime.now(UTC) - last.at <= _FRESH
            asked_here = False

            def answer() -> ServiceAnswer:
                nonlocal asked_here
                asked_here = True
                return _answer(verb)

            try:
                self._results.get(verb, answer, renew=not is_fresh)
            except RequestRefused:
                if asked_here:
                    raise
                self._results.get(verb, answer, renew=True)
        finally:
            self._places.release()


def answers() -> Answers:
    """Returns the answers of this application."""
    found: Answers = current_app.extensions.setdefault(_NAME, Answers())
    return found


def _answer(verb: str) -> ServiceAnswer:
    try:
        said = agent().ask(verb)
    except OperatorError as error:
        if isinstance(error, RequestRefused) and error.kind in _OF_WHO_ASKS:
            raise
        return ServiceAnswer(datetime.now(UTC), None, error.message, error.hint)
    return ServiceAnswer(datetime.now(UTC), said)
