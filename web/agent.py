"""What needs root: asked of `backupd serve`, in the name of who is logged in."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import current_app

from btrkeep.serving.client import Agent, Refused, Stream
from web.access import viewer

AT_ONCE = 8
"""Questions under way. Some take a minute, and each keeps one of the server's threads: beside these and the downloads there must be
threads left for the login and for the pages of the catalogue.
"""
_PLACES = threading.BoundedSemaphore(AT_ONCE)


class Bounded(Agent):
    """An agent that does not ask while much is being asked: it raises Refused of kind busy at once, and all that Agent raises."""

    def ask(self, verb: str, **arguments: Any) -> Any:
        """As Agent does."""
        with _place():
            return super().ask(verb, **arguments)

    def stream(self, verb: str, **arguments: Any) -> Stream:
        """As Agent does; what is streamed then is the reader's to bound."""
        with _place():
            return super().stream(verb, **arguments)


@contextmanager
def _place() -> Iterator[None]:
    if not _PLACES.acquire(blocking=False):
        raise Refused(f"{AT_ONCE} questions to the root service are under way", "try again in a moment", "busy")
    try:
        yield
    finally:
        _PLACES.release()


def agent() -> Agent:
    """The root service, for this request. It connects when it is asked something, and raises Absent when nobody listens then."""
    return Bounded(current_app.extensions["btrkeep"].socket, viewer().name)
