"""Answers one connection: who asks for what, whether it is allowed, and how it ended."""

import logging
import os
import socket
import time

from backupd.serve.arguments import checked
from backupd.serve.call import Call, ClientGone, Wire, in_words
from backupd.serve.context import ServiceContext
from backupd.serve.peer import Peer, peer_of
from backupd.serve.verbs import VERBS, Verb
from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import Request, RequestRefused, answer_line
from btrkeep.units import printable

log = logging.getLogger("backupd.serve")

_LONGEST_WHO = 100
_OFTEN = ("job", "jobs")  # a page that waits for a job asks every two seconds; that it went well is no news
_JOURNAL = "its journal says more: journalctl -u 'btrkeep-serve@*'"
_BROKEN = RequestRefused("something is wrong inside the service", _JOURNAL)


def answer(service: ServiceContext, connection: socket.socket, allowed: frozenset[int]) -> None:
    """Answers the request and closes the connection. A fault of ours is raised once the client has been told of it."""
    wire = Wire(connection)
    with connection:
        try:
            peer = peer_of(connection)
            if peer.uid not in allowed:
                log.warning("refused: process %d of user %d may not ask", peer.pid, peer.uid)
                wire.fail(
                    RequestRefused(
                        f"user {peer.uid} may not ask this service", "it is for the dashboard's user and root", "refused"
                    )
                )
                return
            _serve(service, wire, peer)
        except ClientGone:
            wire.answered, wire.streaming = True, False  # as far as it can be
        except OperatorError as error:  # of the request's form
            log.warning("refused: %s", printable(error.message))
            _last_words(wire, error)
        finally:  # of an exception that nobody foresaw
            if not wire.answered or wire.streaming:
                _last_words(wire, _BROKEN)


def _last_words(wire: Wire, error: OperatorError) -> None:
    try:
        wire.fail(error)
    except ClientGone:
        return


def _serve(service: ServiceContext, wire: Wire, peer: Peer) -> None:
    request = wire.request()
    began, said = time.monotonic(), f"{in_words(request)} for {printable(request.who[:_LONGEST_WHO]) or '-'} (user {peer.uid})"
    try:
        _do(service, wire, peer, request)
    except ClientGone:
        log.info("%s: the asker left after %.1f s and %d bytes", said, time.monotonic() - began, wire.sent)
    except OperatorError as error:
        log.warning("%s: %s", said, printable(error.message))
        _last_words(wire, error)
    except OSError as error:
        log.warning("%s: %s", said, printable(str(error)))
        _last_words(wire, RequestRefused(f"the machine says: {os.strerror(error.errno or 0)}", _JOURNAL))
    else:
        level = logging.DEBUG if request.verb in _OFTEN else logging.INFO
        log.log(level, "%s: %d bytes in %.2f s", said, wire.sent, time.monotonic() - began)


def _do(service: ServiceContext, wire: Wire, peer: Peer, request: Request) -> None:
    verb = VERBS.get(request.verb)
    if not verb:
        raise RequestRefused(f"there is no verb {printable(request.verb[:40])}", f"there are: {', '.join(VERBS)}", "usage")
    if not request.who.strip() or len(request.who) > _LONGEST_WHO:
        raise RequestRefused(f"who must be a name, of {_LONGEST_WHO} characters at most", kind="usage")
    call = Call(service, wire, peer, printable(request.who), checked(request.arguments, verb.arguments))
    with verb.place(call.who):
        _carry_out(verb, request.verb, call)


def _carry_out(verb: Verb, name: str, call: Call) -> None:
    answer = verb.function(name)(call)
    if call.frames:
        call.frames.end()
    else:
        call.wire.answer(answer_line(answer))
