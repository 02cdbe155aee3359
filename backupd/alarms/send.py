"""Sends messages with the library apprise, which is imported only when needed.

A URL contains secrets, and apprise and its dependencies log parts of it. So their loggers are silenced, and only reasons from our
own list are passed on.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from backupd.alarms.alarm_messages import Message
from btrkeep.config import Url

_LOGGERS = ("apprise", "requests", "urllib3", "asyncio", "oauthlib", "requests_oauthlib", "markdown", "MARKDOWN", "slixmpp", "paho")
_STATUS = re.compile(r"\berror=(\d{3})\b|\bHTTP (?:error )?(\d{3})\b|\((\d{3}), b?'", re.ASCII)
_REASONS = (
    (re.compile("Connection refused", re.IGNORECASE), "connection refused"),
    (re.compile("timed out|TimeoutError|timeout", re.IGNORECASE), "no answer in time"),
    (
        re.compile("Name or service not known|NameResolution|name resolution|getaddrinfo", re.IGNORECASE),
        "its name does not resolve",
    ),
    (re.compile("CERTIFICATE_VERIFY_FAILED|certificate verify failed", re.IGNORECASE), "its certificate is not trusted"),
    (re.compile("No route to host|Network is unreachable", re.IGNORECASE), "the network cannot reach it"),
    (re.compile("authenticat|\\b535\\b", re.IGNORECASE), "it refuses the password"),
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of sending to one URL."""

    number: int
    """The number of the URL in [notify] urls, from 1."""
    service: str
    """Its name, without secrets."""
    arrived: bool
    """True if the service accepted the message."""
    reason: str = ""
    """The reason if not; "" if it did."""

    def __str__(self) -> str:
        return f"{self.service} (number {self.number} of notify.urls)"


def send(urls: Sequence[Url], message: Message) -> list[Delivery]:
    """Sends the message to every URL, one after the other; a failure does not stop the others."""
    return [_send(number, url, message) for number, url in enumerate(urls, 1)]


def service_of(url: Url) -> str | None:
    """Returns the name of a URL's service; None if apprise does not support the service, or a part of the URL is missing."""
    with _silence():
        from apprise import Apprise  # it writes to the log as soon as it is imported

        service = Apprise.instantiate(url.text, suppress_exceptions=True)
    return str(service.service_name) if service else None


def _send(number: int, url: Url, message: Message) -> Delivery:
    with _silence() as output:
        from apprise import Apprise, NotifyFormat, NotifyType

        service = Apprise.instantiate(as_plain_text(url), suppress_exceptions=True)
        if service is None:
            return Delivery(number, url.scheme, False, "apprise does not support this URL")
        name = str(service.service_name)
        sender = Apprise()
        sender.add(service)
        arrived = sender.notify(
            title=message.title, body=message.body, notify_type=NotifyType(message.kind), body_format=NotifyFormat.TEXT
        )
    return Delivery(number, name, bool(arrived), "" if arrived else reason_of(output))


def as_plain_text(url: Url) -> str:
    """Returns the URL for apprise: mail is sent as plain text unless the URL says otherwise, because apprise's HTML of a text
    does not wrap.
    """
    if url.scheme not in ("mailto", "mailtos") or "format=" in url.text.lower():
        return url.text
    return f"{url.text}{'&' if '?' in url.text else '?'}format=text"


def reason_of(output: Sequence[str]) -> str:
    """Returns the reason why a message did not arrive, in our own words: those of the service may contain a password."""
    text = "\n".join(line for line in output if "Payload" not in line)  # those lines quote our message
    if status := _STATUS.search(text):
        return f"it answers with status {next(filter(None, status.groups()))}"
    return next((words for shape, words in _REASONS if shape.search(text)), "the reason is unknown")


@contextmanager
def _silence() -> Iterator[list[str]]:
    """Suppresses all log output of the libraries, whatever our log level; yields a list that receives apprise's messages."""
    output: list[str] = []
    catcher = _Catcher(output)
    before = []
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        before.append((logger, logger.propagate, logger.level))
        logger.propagate = False
        logger.setLevel(logging.DEBUG if name == "apprise" else logging.CRITICAL + 1)
        logger.addHandler(catcher)
    try:
        yield output
    finally:
        for logger, propagate, level in before:
            logger.propagate = propagate
            logger.setLevel(level)
            logger.removeHandler(catcher)


class _Catcher(logging.Handler):
    def __init__(self, output: list[str]) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.append(record.getMessage())
