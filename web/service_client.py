"""What needs root: asked of `backupd serve`, by the session or token of who is logged in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import current_app, g

from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient, Stream
from btrkeep.serving.protocol import RequestRefused
from web import redaction as telling
from web.access import viewer
from web.download import TooMany, ViewerLimits

AT_ONCE = 8
"""Questions under way. Some take a minute, and each keeps one of the server's threads: beside these and the downloads there must be
threads left for the login and for the pages of the catalogue.
"""
OF_ONE = 5
"""Of them, those of one viewer: a page asks one or two."""
_PLACES = ViewerLimits(AT_ONCE, OF_ONE)


class BoundedServiceClient(RootServiceClient):
    """A client that limits how many requests run at once: it raises RequestRefused of kind busy beyond that, and what
    RootServiceClient raises.

    What it is told, and why it is told nothing, is as whoever is logged in may know it: see redaction.
    """

    def ask(self, verb: str, **arguments: Any) -> Any:
        """As RootServiceClient does."""
        with _place():
            return telling.answer(verb, super().ask(verb, **arguments))

    def stream(self, verb: str, **arguments: Any) -> Stream:
        """As RootServiceClient does; what is streamed then is the reader's to bound."""
        with _place():
            return super().stream(verb, **arguments)


@contextmanager
def _place() -> Iterator[None]:
    who = viewer().name
    try:
        _PLACES.take(who)
    except TooMany as error:
        raise RequestRefused(
            "many questions to the root service are under way", "try again in a moment", "busy", own=True
        ) from error
    try:
        yield
    except OperatorError as error:
        raise telling.told(error) from error
    finally:
        _PLACES.leave(who)


def agent() -> RootServiceClient:
    """The root service, for this request. It connects when it is asked something, and raises Absent when nobody listens then."""
    return BoundedServiceClient(current_app.extensions["btrkeep"].socket, viewer().name, session=g.word)
