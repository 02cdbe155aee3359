"""Requests to the root service (`backupd serve`), with the session or token of the viewer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import current_app, g

from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient, Stream
from btrkeep.serving.places import NoPlace, Places
from btrkeep.serving.protocol import RequestRefused
from web import redaction as telling
from web.access import viewer

AT_ONCE = 8
"""Questions under way. Some take a minute, and each keeps one of the server's threads: beside these and the downloads there must be
threads left for the login and for the pages of the catalogue.
"""
OF_ONE = 5
"""The limit for one viewer, and for all who are limited to the same hosts together: a page asks one or two."""
_PLACES = Places(AT_ONCE, OF_ONE)


class BoundedServiceClient(RootServiceClient):
    """A client that limits concurrent requests: raises RequestRefused of kind busy at once, and what RootServiceClient raises.

    Answers and errors are redacted for the viewer: see redaction.
    """

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Asks like RootServiceClient."""
        with _place():
            return telling.answer(verb, super().ask(verb, **arguments))

    def stream(self, verb: str, **arguments: Any) -> Stream:
        """Streams like RootServiceClient; the reader has to limit the stream."""
        with _place():
            return super().stream(verb, **arguments)


@contextmanager
def _place() -> Iterator[None]:
    who = viewer()
    try:
        _PLACES.take(who)
    except NoPlace as error:
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
    """Returns the root service for this request. It connects at the first question, and then raises Absent if the service does
    not listen.
    """
    return BoundedServiceClient(current_app.extensions["btrkeep"].socket, viewer().name, session=g.word)
