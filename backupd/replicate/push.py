"""Sends this pool's backups to a server that cannot reach this one: this server opens the connection, and the other
server sends requests.

The other server gets the answers of `send-only` and nothing else, and decides what it fetches. So the owner of this server can
neither delete nor change backups there.
"""

import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from backupd.replicate.sender import BackupSender, request_lines, serve
from backupd.replicate.wire import KEEPALIVE_INTERVAL, ConnectionBroken, object_frame, write_all
from backupd.rsync.bandwidth import Bucket, BudgetPace
from btrkeep.config.keys import DEFAULTS
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import at_work
from btrkeep.process.programs import PipedProgram
from btrkeep.process.progress import Cancellation, Cancelled
from btrkeep.process.threads import start
from btrkeep.units import format_duration, printable

_MOST_HOSTS, _LONGEST_REASON = 100_000, 1000
_LOOK = 0.5  # seconds
_PAUSE, _TELL = 1.0, 60.0
_FIRST_WORD = 60.0  # seconds
_STANDS_STILL = "check backupd on that server; `stall` of the [push] section sets this time"
RECEIVES_NOT = 'that server needs restrict,command="backupd receive-only --replica NAME" before the key'


class StreamAbandoned(OperatorError):
    """The other server sent a request in the middle of a stream: it has cancelled the stream."""


@dataclass(frozen=True, slots=True)
class SentBackup:
    """A backup that was sent. Only the other server knows whether it arrived completely."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    bytes: int
    """Bytes of the stream."""
    seconds: float
    """How long it took."""


@dataclass(slots=True)
class PushSummary:
    """The result. `common`: by host, the newest common backup now; `error`: why nothing could be sent, or "".

    `failed`: hosts that could not be sent completely, with the reason in the other server's words. `is_asked`: the other server was
    reached, and sent a request; `is_ended`: it has announced its end.
    """

    sent: list[SentBackup] = field(default_factory=list)
    common: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""
    is_asked: bool = False
    is_ended: bool = False

    @property
    def bytes(self) -> int:
        """Returns the bytes of all streams."""
        return sum(sent_backup.bytes for sent_backup in self.sent)


class Push:
    """One sending, over one connection, until the other server has no more requests."""

    def __init__(
        self,
        sender: BackupSender,
        program: PipedProgram,
        buckets: Sequence[Bucket],
        cancellation: Cancellation,
        tell: Callable[[SentBackup], None],
        waits: Callable[[str], None] = lambda _: None,
        patience: float = DEFAULTS["stall"],
    ) -> None:
        """`tell` is called with each backup that was sent, `waits` with the job for which either server waits. `patience`: the
        seconds within which the other server has to read something, or to send a request.
        """
        self._patience = patience
        self.summary = PushSummary()
        self._sender = replace(sender, out=program.input, before_piece=self._before_piece, before_backup=self._before_backup)
        self._program, self._cancellation, self._tell = program, cancellation, tell
        self._wait_told, self._wait_heard = waits, -_PAUSE
        self._pace = BudgetPace(buckets, self._sleep, lambda: bool(cancellation))
        self._asks = select.poll()
        self._asks.register(program.output, select.POLLIN)
        self._bytes = 0
        self._is_met = False
        self._since, self._is_answering, self._gave_up = time.monotonic(), False, ""
        self._is_through = threading.Event()

    def run(self) -> PushSummary:
        """Answers until the other server ends, or until cancelled.

        Raises SendRefused for an invalid request, ConnectionBroken if the other server stops responding, and NoThread.
        """
        verbs = {
            **self._sender.verbs,
            "hello": self._hello,
            "list": self._list,
            "send": self._send,
            "common": self._common,
            "waits": self._waits,
            "ended": self._ended,
        }
        watch = threading.Thread(target=self._watch, daemon=True)
        start(watch)
        try:
            with suppress(Cancelled, BrokenPipeError):  # cancelled, or disconnected: its last message gives the reason
                serve(self._requests(), verbs, self._program.input)
        finally:
            self._is_through.set()
            watch.join()
        if self._gave_up and not self.summary.is_ended:
            raise ConnectionBroken(self._gave_up, _STANDS_STILL if self._is_met else RECEIVES_NOT)
        return self.summary

    def _requests(self) -> Iterator[bytes]:
        """Yields the requests, and records when one arrives and when it is answered."""
        for line in request_lines(self._program.output, self._is_over):
            self._since, self._is_answering = time.monotonic(), True
            yield line
            self._since, self._is_answering = time.monotonic(), False

    def _is_over(self) -> bool:
        return bool(self._cancellation) or self.summary.is_ended or bool(self._gave_up)

    def _watch(self) -> None:
        """Ends the connection if this was stopped, or the other server no longer reads or sends requests.

        Otherwise a write or a read would wait for ever: ssh only notices if the whole other machine fails.
        """
        while not self._is_through.wait(_LOOK):
            verb = "received" if self._is_answering else "requested"
            patience = self._limit()
            if time.monotonic() - self._since > patience and not self.summary.is_ended:
                self._gave_up = f"the other server has {verb} nothing for {format_duration(patience)}"
            if self._cancellation or self._gave_up:
                self._program.kill()
                return

    def _list(self, asked: Mapping[str, Any]) -> None:
        self.summary.is_asked = True
        self._sender.verbs["list"](asked)

    def _limit(self) -> float:
        """Returns the seconds within which data must be received or sent."""
        return self._patience if self._is_met else min(self._patience, _FIRST_WORD)

    def _send(self, asked: Mapping[str, Any]) -> None:
        begun, self._bytes = time.monotonic(), 0
        self._sender.verbs["send"](asked)
        done = SentBackup(str(asked["host"]), str(asked["name"]), self._bytes, time.monotonic() - begun)
        self.summary.sent.append(done)
        self._tell(done)

    def _before_backup(self) -> None:
        """Waits for a night, an expiry and a balance of this pool, and notifies the other server, which would otherwise give up."""
        last_told = 0.0
        while not self._cancellation and (who := at_work(self._sender.pool.locks)):
            if time.monotonic() - last_told >= _TELL:
                last_told = time.monotonic()
                self._wait_told(who)
                write_all(self._sender.out, object_frame({"waits": who}))
            if self._asks.poll(0):
                raise StreamAbandoned("the other server cancelled the stream")
            self._cancellation.sleep(_PAUSE)
            self._since = time.monotonic()

    def _hello(self, asked: Mapping[str, Any]) -> None:
        self._is_met = True
        self._sender.verbs["hello"](asked)

    def _before_piece(self, size: int) -> None:
        self._cancellation.raise_if_cancelled()
        if self._asks.poll(0):
            raise StreamAbandoned("the other server cancelled the stream")
        self._bytes += size
        self._since = time.monotonic()
        self._pace(size)

    def _sleep(self, seconds: float) -> None:
        """Sleeps for a while before a piece, after notifying the other server."""
        self._cancellation.sleep(min(seconds, KEEPALIVE_INTERVAL))
        if seconds > KEEPALIVE_INTERVAL:
            self._sender.beat()
            self._since = time.monotonic()

    def _common(self, asked: Mapping[str, Any]) -> None:
        self._sender.verbs["common"](asked)
        self.summary.common = dict(asked["hosts"])

    def _waits(self, asked: Mapping[str, Any]) -> None:
        """Handles that the other server sends no request yet, because another job uses its pool."""
        if time.monotonic() - self._wait_heard >= _PAUSE:  # it could send a million different messages a second
            self._wait_heard = time.monotonic()
            self._wait_told(f"{_reason(asked['who'])}, on the other server")

    def _ended(self, asked: Mapping[str, Any]) -> None:
        failed = asked["failed"]
        if not isinstance(failed, dict) or len(failed) > _MOST_HOSTS:
            raise ValueError(f"failed: not an object of at most {_MOST_HOSTS:,} hosts")
        self.summary.failed = {str(host): _reason(why) for host, why in failed.items()}
        self.summary.error, self.summary.is_ended = _reason(asked["error"]), True


def _reason(text: Any) -> str:
    return printable(str(text))[:_LONGEST_REASON]
