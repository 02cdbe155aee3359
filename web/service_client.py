"""Requests to the root service (`backupd serve`), with the session or token of the viewer. An answer that takes seconds is
requested by a viewer, and cached until the next request for it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import current_app, g

from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient, Stream
from btrkeep.serving.protocol import RequestRefused
from btrkeep.serving.viewer import NoSlot, RequestSlots
from web import redaction
from web.result_cache import ResultCache
from web.source import viewer

AT_ONCE = 8
"""Number of requests at the same time. Some take a minute, and each uses one of the server's threads: besides these and the
downloads there must be threads left for the login and for the pages of the catalogue.
"""
OF_ONE = 5
"""The limit for one viewer, and for all viewers with the same limit of hosts together: a page sends one or two requests."""
_PLACES = RequestSlots(AT_ONCE, OF_ONE)


class BoundedServiceClient(RootServiceClient):
    """A client that limits concurrent requests: raises RequestRefused of kind busy at once, and the exceptions of
    RootServiceClient.

    Answers and errors are redacted for the viewer: see redaction.
    """

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Asks like RootServiceClient."""
        with _place():
            return redaction.redact_answer(verb, super().ask(verb, **arguments))

    def stream(self, verb: str, **arguments: Any) -> Stream:
        """Streams like RootServiceClient; the reader has to limit the stream."""
        with _place():
            return super().stream(verb, **arguments)


@contextmanager
def _place() -> Iterator[None]:
    who = viewer()
    try:
        _PLACES.take(who)
    except NoSlot as error:
        raise RequestRefused(
            "too many requests to the root service are running", "try again in a moment", "busy", is_public=True
        ) from error
    try:
        yield
    except OperatorError as error:
        raise redaction.redact_error(error) from error
    finally:
        _PLACES.leave(who)


def root_service() -> RootServiceClient:
    """Returns the root service for this request. It connects at the first call, which raises Absent if the service does
    not listen.
    """
    return BoundedServiceClient(current_app.extensions["btrkeep"].socket, viewer().name, session=g.word)


_FRESH = timedelta(seconds=20)  # since it arrived: a slow answer is still fresh
_NAME = "btrkeep-answers"
_WAITING = 3  # requests that wait for slow answers; each of them blocks a thread
_OF_WHO_ASKS = ("refused", "busy", "usage")  # kinds of failures that are about the client, not the pool


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """An answer of the root service."""

    at: datetime
    """When it was received."""
    content: Any
    """The answer; None: the request failed."""
    problem: str = ""
    """Why the request failed; "": it did not."""
    hint: str = ""
    """What to do about it."""


class Answers:
    """The last answer of each verb, for all requests."""

    def __init__(self) -> None:
        self._results = ResultCache()
        self._places = threading.BoundedSemaphore(_WAITING)

    def last(self, verb: str) -> ServiceAnswer | None:
        """Returns the last answer; None if there was no request since the dashboard was started."""
        service_answer: ServiceAnswer | None = self._results.last(verb)
        return service_answer

    def ask(self, verb: str) -> None:
        """Requests a new answer, unless the last one is recent. Other requests wait for the same answer.

        Raises RequestRefused if many wait already, or if this viewer may not send the request, or not now: that affects only this
        viewer, is not cached, and the waiting requests are sent again.
        """
        if not self._places.acquire(blocking=False):
            raise RequestRefused("that answer is being computed already", "reload the page in a moment", "busy", is_public=True)
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
    current: Answers = current_app.extensions.setdefault(_NAME, Answers())
    return current


def _answer(verb: str) -> ServiceAnswer:
    try:
        result = root_service().ask(verb)
    except OperatorError as error:
        if isinstance(error, RequestRefused) and error.kind in _OF_WHO_ASKS:
            raise
        return ServiceAnswer(datetime.now(UTC), None, error.message, error.hint)
    return ServiceAnswer(datetime.now(UTC), result)
