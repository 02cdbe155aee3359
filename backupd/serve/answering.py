"""Answers one connection: identifies the caller, checks whether the request is allowed, and logs the result."""

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from backupd.serve.request_checks import ROOT, checked, require, require_switched_on, viewer_of
from backupd.serve.service_context import Call, ServiceContext, in_words
from backupd.serve.verbs import VERBS, Verb
from btrkeep.choices import SERVICE_VERBS
from btrkeep.errors import OperatorError
from btrkeep.fs.file_data import SourceUnreadable
from btrkeep.serving.protocol import Request, RequestRefused, answer_line
from btrkeep.serving.server import ClientGone, Peer, Wire, peer_of
from btrkeep.serving.viewer import NoSlot, Viewer
from btrkeep.units import format_size, printable

log = logging.getLogger("backupd.serve")

_LONGEST_NAME = 100
_OFTEN = ("job", "jobs")  # a page that waits for a job asks every two seconds; successes are not logged
_JOURNAL = "check its journal: `journalctl -u 'btrkeep-serve@*'`"
_BROKEN = RequestRefused("internal error in the service", _JOURNAL)


def answer(service: ServiceContext, connection: socket.socket, allowed: frozenset[int]) -> None:
    """Answers the request and closes the connection. A bug is raised after the client was informed."""
    wire = Wire(connection)
    with connection:
        try:
            peer = peer_of(connection)
            if peer.uid not in allowed:
                log.warning("refused: process %d of user %d may not connect", peer.pid, peer.uid)
                wire.fail(
                    RequestRefused(
                        f"user {peer.uid} may not use this service", "only the dashboard's user and root may use it", "refused"
                    )
                )
                return
            _serve(service, wire, peer)
        except ClientGone:
            wire.answered, wire.streaming = True, False  # as far as possible
        except OperatorError as error:  # the request is malformed
            log.warning("refused: %s", printable(error.message))
            _send_error(wire, error)
        finally:  # also after an unexpected exception
            if not wire.answered or wire.streaming:
                _send_error(wire, _BROKEN)


def _send_error(wire: Wire, error: OperatorError) -> None:
    try:
        wire.fail(error)
    except ClientGone:
        return


def _serve(service: ServiceContext, wire: Wire, peer: Peer) -> None:
    request = wire.request()
    began, subject = time.monotonic(), f"{in_words(request)} for"
    asker = f"{printable(request.who[:_LONGEST_NAME]) or 'nobody'} (user {peer.uid})"
    try:
        verb, call = _call(service, wire, peer, request)
        asker = _name(call.viewer, peer)
        _check_and_run(verb, request.verb, call)
    except ClientGone:
        log.info("%s %s: the client disconnected after %.1f s and %d bytes", subject, asker, time.monotonic() - began, wire.sent)
    except OperatorError as error:
        log.warning("%s %s: %s", subject, asker, printable(error.message))
        _send_error(wire, error)
    except OSError as error:
        log.warning("%s %s: %s", subject, asker, printable(str(error)))
        begin = "the server could not read the backup" if isinstance(error, SourceUnreadable) else "the server reports"
        _send_error(wire, RequestRefused(f"{begin}: {os.strerror(error.errno or 0)}", _JOURNAL))
    else:
        level = logging.DEBUG if request.verb in _OFTEN else logging.INFO
        log.log(level, "%s %s: %d bytes in %.2f s", subject, asker, wire.sent, time.monotonic() - began)


def _name(viewer: Viewer, peer: Peer) -> str:
    session = f"session {viewer.session}, " if viewer.session else ""
    return f"{printable(viewer.name)} ({session}user {peer.uid})"


def _call(service: ServiceContext, wire: Wire, peer: Peer, request: Request) -> tuple[Verb, Call]:
    """Identifies the caller before anything else of the request is read. Raises RequestRefused."""
    viewer = _viewer_of(service, request, peer)
    verb = VERBS.get(request.verb)
    if not verb:
        raise RequestRefused(f"there is no verb {printable(request.verb[:40])}", f"the verbs are: {', '.join(VERBS)}", "usage")
    arguments = checked(request.arguments, verb.arguments)

    def require_still() -> None:
        _require(service, verb, request.verb, _viewer_of(service, request, peer), arguments)

    return verb, Call(service, wire, peer, viewer, arguments, require_still, word=request.session)


def _viewer_of(service: ServiceContext, request: Request, peer: Peer) -> Viewer:
    return viewer_of(request, peer, service.login_socket)


def _require(service: ServiceContext, verb: Verb, name: str, viewer: Viewer, arguments: Mapping[str, Any]) -> None:
    """Raises RequestRefused for what the viewer may not do, and ConfigError."""
    require(verb.right, viewer, arguments)
    settings = service.config().serve
    require_switched_on(name, no_downloads=settings.no_downloads, no_restores=settings.no_restores)


def _check_and_run(verb: Verb, name: str, call: Call) -> None:
    """Runs the verb. Raises RequestRefused if the caller may not do that, or not so often."""
    _require(call.service, verb, name, call.viewer, call.arguments)
    settings = call.service.config().serve
    if call.peer.uid != ROOT or call.viewer.session:
        call.service.rates.take(call.who, name, settings.rates.get(name, SERVICE_VERBS[name]))
    with call.service.limits.of(name, settings.at_once.get(name)).taken(call.viewer), verb.place(call.viewer):
        _run_verb(verb, name, call)


def _run_verb(verb: Verb, name: str, call: Call) -> None:
    line = answer_line(verb.function(name)(call))
    if call.frames:
        call.frames.end()
        return
    if len(line) > verb.longest:
        raise RequestRefused(
            f"the answer has {format_size(len(line))}, more than the limit of {format_size(verb.longest)}",
            "request less at a time, or use backupd on the server",
            "refused",
            is_public=True,
        )
    try:
        with call.service.unread.taken(call.viewer, len(line)):
            call.wire.answer(line)
    except NoSlot as error:
        of = "your answers" if error.own else "answers"
        raise RequestRefused(
            f"too many bytes of {of} are unread", "read the answers, then send the request again", "busy", is_public=True
        ) from None
