"""The pool from which backups are fetched: a connection to the program that sends them."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from backupd.replicate.wire import (
    KEEPALIVE_TIMEOUT,
    OBJECT,
    PIECE,
    PROTOCOL,
    AnswerReader,
    ConnectionBroken,
    OtherAsks,
    RemoteHost,
    RemoteRefused,
    StreamInfo,
    host_in,
    parse_object,
    parse_stream_info,
    size_in,
    time_in,
    words_of,
    write_watched,
)
from backupd.rsync.bandwidth import Bucket, prepare, relay_command
from backupd.rsync.command import ssh_command
from btrkeep.config import Config, HostConfig
from btrkeep.config.config_model import PushSettings, ReplicaSettings
from btrkeep.config.keys import DEFAULTS
from btrkeep.config.problems import page
from btrkeep.decisions.replication import Fetch
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.errors import ERROR_MARK, OperatorError, last_remote_error
from btrkeep.pool.marker import Pool
from btrkeep.process.programs import PipedProgram, ProgramFailed, piped
from btrkeep.units import format_duration, format_time, printable

_MOST_HOSTS = 200_000
_MOST_LISTED = 2_000_000  # backups of all hosts
_MOST_WORDS = 16 << 20  # characters of all former names, holds and pool ids
_A_WORD = 64  # characters: memory overhead of each
_LONGEST_REASON = 1000
_WAITS_EVERY = 1.0  # seconds
_LONGEST_WAIT = 86400.0  # seconds: a night or an expiry of the other pool
_MOST_LEFT = 64 << 20  # bytes of an answer that is no longer needed
_MOST_COPIED = 250_000  # names of backups
_NOT_OURS = 'check that `backupd send-only` answers on the other server: command="..." before the key in its authorized_keys'
_RECEIVES = (
    'the key needs command="backupd send-only ..." on the other server; sshd uses the first of several lines with the same key, '
    "so use two keys for the two directions, or change the line"
)
_HINTS = {
    ExitCause.HOST_KEY: "add the host key of the other server to known_hosts with ssh-keyscan, and compare it with the key on "
    "that server; "
    f"{page('second-copy')} has the lines",
    ExitCause.KEY_REFUSED: f"add this server's public key to authorized_keys on the other server; {page('second-copy')} has the "
    "line",
    ExitCause.NO_RSYNC: "install btrkeep on the other server, or correct the path in its authorized_keys",
    ExitCause.NO_SUCH_NAME: "correct the address, or /etc/hosts",
    ExitCause.REFUSED: "start sshd on that server, or correct the port",
    ExitCause.NO_ROUTE: "check that it is on, and the network",
    ExitCause.SILENT: "check that it is on, and its firewall",
    ExitCause.NO_ANSWER_CONNECTING: "check that it is on, and its firewall",
}


class RemotePoolMissing(OperatorError):
    """The other pool does not answer, or is not available now."""


def unreached_hint(lines: Sequence[str]) -> str:
    """Returns the hint for these last lines of a failed connection; "" if unknown."""
    return "" if any(line.startswith(ERROR_MARK) for line in lines) else _HINTS.get(meaning(255, lines).cause, "")


class Answering(Protocol):
    """The answering program: our descriptors, and its other output."""

    @property
    def input(self) -> int: ...
    @property
    def output(self) -> int: ...
    def error_lines(self) -> list[str]:
        """The lines of its messages so far."""

    def end(self) -> None:
        """Ends the program."""


@dataclass(frozen=True, slots=True)
class OwnStreams:
    """The other server, which opened the connection, answers at the other end of this program's standard input and output."""

    input: int
    output: int

    def error_lines(self) -> list[str]:
        return []

    def end(self) -> None:
        """Does nothing, because the other server opened the connection."""


class RemotePool:
    """One connection to the answering program. `poll` is called from time to time, and may raise."""

    def __init__(
        self,
        program: Answering,
        poll: Callable[[], None],
        says: Mapping[str, Any] | None = None,
        patience: float = DEFAULTS["stall"],
    ) -> None:
        """`says`: the facts about this server that are sent to the other server. `patience`: the seconds within which it has
        to answer, because its kernel may search long for changes. Raises RemotePoolMissing.
        """
        self._program, self.poll = program, poll
        self._is_pushed = says is not None
        os.set_blocking(program.input, False)
        self.pace: Callable[[int], None] = lambda _: None
        """Called with the number of bytes received; while it waits, the other server waits too."""
        self._frames = AnswerReader(program.output, self._count, why_ended=self._remote_error)
        self.bytes = 0
        try:
            answer = self._ask_for_object({**(says or {}), "verb": "hello"})
        except OtherAsks as error:  # an error message about our request
            raise RemotePoolMissing(error.message, _RECEIVES) from None
        except OperatorError as error:
            words = self._remote_error()
            raise RemotePoolMissing(
                words or error.message, unreached_hint(self._program.error_lines()) if words else _NOT_OURS
            ) from None
        if answer.get("protocol") != PROTOCOL or not isinstance(answer.get("pool"), str):
            raise RemotePoolMissing(
                f"it has another protocol ({answer.get('protocol')!r})", "use the same version of btrkeep on both servers"
            )
        self.id, self.version = answer["pool"], printable(str(answer.get("version")))[:40]
        self.stream = answer["stream"] if answer.get("stream") in (1, 2) else 1
        self.now = time_in(answer)
        """The time that its clock just showed; None: it did not send a time."""
        self.waits: Callable[[str], None] = lambda _: None
        """Called with the reason why the other server sends nothing yet."""
        self.free, self.used = size_in(answer, "free"), size_in(answer, "used")
        """Bytes of data that fit there, and that are used there; None: unknown there."""
        self._frames.patience = patience
        self._pulse = KEEPALIVE_TIMEOUT if self._is_pushed else None
        """The other server sends a sign of life within this many seconds while it sends, if nothing detects a dead connection."""

    def _count(self, size: int) -> None:
        self.bytes += size
        self.pace(size)
        self.poll()

    def hosts(self) -> Iterator[RemoteHost]:
        """Yields the hosts of the other pool that have something to fetch. Raises ConnectionBroken, RemoteRefused."""
        self._ask({"verb": "list"})
        backups = words = 0
        for number, host_object in enumerate(self._frames.objects()):
            host = host_in(host_object)
            backups += len(host.backups)
            words += sum(len(word) + _A_WORD for word in words_of(host))
            if number >= _MOST_HOSTS or backups > _MOST_LISTED or words > _MOST_WORDS:  # limits, because all of it is in memory
                raise ConnectionBroken("the other server sent an endless list of hosts")
            yield host

    def fetch(self, host: str, fetch: Fetch, version: int) -> tuple[StreamInfo, Iterator[bytes]]:
        """Requests a stream: returns its announcement, and its pieces. Raises ConnectionBroken, RemoteRefused."""
        parent = fetch.parent
        asked = {"verb": "send", "stream": version, "host": host, "name": fetch.backup.name, "uuid": fetch.backup.uuid}
        self._ask(asked | ({"parent": parent.name, "parent_uuid": parent.uuid} if parent else {}))
        answer, end = self._frames.answer(), time.monotonic() + _LONGEST_WAIT
        next_told = 0.0
        while True:
            kind, content = next(answer, (b"", b""))
            if kind != OBJECT:
                raise ConnectionBroken("the other server did not announce its stream")
            first_frame = parse_object(content)
            if "waits" not in first_frame:
                return parse_stream_info(first_frame, version), self._pieces(answer)
            if (now := time.monotonic()) > end:
                raise ConnectionBroken(f"the other server has waited for more than {format_duration(_LONGEST_WAIT)}")
            if now >= next_told:  # it could send a million different messages a second
                self.waits(printable(str(first_frame["waits"]))[:_LONGEST_REASON])
                next_told = now + _WAITS_EVERY
            self._frames.begin_span()
            self._frames.pulse = self._pulse

    def _pieces(self, answer: Iterator[tuple[bytes, bytes]]) -> Iterator[bytes]:
        self._frames.pulse = self._pulse
        for kind, content in answer:
            if kind != PIECE:
                raise ConnectionBroken("the other server sent a message in the middle of a stream")
            if content:
                yield content

    def note_common(
        self,
        replica: str,
        hosts: Mapping[str, str],
        copied: Mapping[str, list[str]] | None = None,
        fetched: datetime | None = None,
    ) -> None:
        """Makes the other pool keep these backups, by host; reports all that are `copied`, and when backups were last `fetched`
        (None: nothing was). Raises ConnectionBroken, RemoteRefused.
        """
        fetch = {"now": format_time(fetched)} if fetched else None
        asked: dict[str, Any] = {"verb": "common", "replica": replica, "hosts": hosts, "fetch": fetch}
        if copied is not None and sum(map(len, copied.values())) <= _MOST_COPIED:  # the other server limits the length of a request
            asked["copied"] = copied
        self._ask(asked)
        for _ in self._frames.answer():
            pass

    def tell_wait(self, who: str) -> None:
        """Tells the other server, which opened the connection, why this one is waiting; gives up a silent connection. Raises
        ConnectionBroken, RemoteRefused.
        """
        if not self._is_pushed:
            return
        self._ask({"verb": "waits", "who": who})
        for _ in self._frames.answer():
            pass

    def note_end(self, error: str, failed: dict[str, str]) -> None:
        """Ends the requests: what went wrong, and with which hosts. Raises ConnectionBroken, RemoteRefused."""
        self._ask({"verb": "ended", "error": error, "failed": failed})
        for _ in self._frames.answer():
            pass

    def _ask(self, asked: dict[str, Any]) -> None:
        if self._frames.is_open:
            self._settle()
        self._write(asked)

    def _settle(self) -> None:
        """Ends an answer that was not read to its end: a further request makes the other server end it, and both are read."""
        if self._frames.is_torn:
            raise ConnectionBroken("the connection ended in the middle of an answer")
        self._write({"verb": "hello"})
        left = self.bytes + _MOST_LEFT
        with suppress(RemoteRefused):
            for _ in self._frames.rest():
                if self.bytes > left:
                    raise ConnectionBroken("the other server sent a stream without an end")
        for _ in self._frames.objects():
            pass

    def _write(self, asked: dict[str, Any]) -> None:
        """Writes the common backups in a thread: those of all hosts are megabytes, more than a pipe holds without a reader."""
        patience = self._frames.patience
        end = time.monotonic() + patience

        def take() -> None:
            self.poll()
            if time.monotonic() > end:
                raise ConnectionBroken(f"the other server has received nothing for {format_duration(patience)}")

        try:
            write_watched(self._program.input, json.dumps(asked).encode() + b"\n", take)
        except OSError:
            raise ConnectionBroken(self._remote_error() or "the connection has ended") from None

    def _ask_for_object(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._ask(asked)
        answers = list(self._frames.objects())
        if len(answers) != 1:
            raise ConnectionBroken("the other server did not identify itself")
        return answers[0]

    def _remote_error(self) -> str:
        """Returns the program's last error, otherwise its last line, after giving it time to print it."""
        self._program.end()
        return printable(last_remote_error(self._program.error_lines()))[:_LONGEST_REASON]


def replica_buckets(config: Config, pool: Pool, replica: ReplicaSettings) -> list[Bucket]:
    """Returns the bandwidth budgets for the replica: its own, and over a network that of all transfers."""
    shared = None if replica.folder else config.backup.bandwidth
    rates = (("pool", shared), (f"replica-{replica.name}", replica.bandwidth))
    return [prepare(pool.bandwidth, name, rate) for name, rate in rates if rate]


def replica_command(
    config: Config, pool: Pool, replica: ReplicaSettings, *, initial_copy: Path | None = None, is_limited: bool = True
) -> tuple[str, ...]:
    """Returns the command that answers for the source of a replica: the other pool, within the budgets if it `is_limited`, or an
    initial copy.
    """
    if initial_copy:
        return initial_copy_command(initial_copy)
    return send_command(config, replica, replica_buckets(config, pool, replica) if is_limited else [])


def send_command(config: Config, replica: ReplicaSettings, buckets: Sequence[Bucket]) -> tuple[str, ...]:
    """The command that answers for the other pool, within a bandwidth budget."""
    if replica.folder:
        return relay_command(buckets, (sys.executable, "-m", "backupd", "send-only", "--path", str(replica.folder)))
    remote = f"backupd --pool {replica.pool_name} send-only"
    return (*relay_command(buckets, remote_shell(config, replica)), replica.address or "", remote)


def initial_copy_command(folder: Path) -> tuple[str, ...]:
    """The command that answers for an initial copy."""
    return (sys.executable, "-m", "backupd", "send-only", "--seed", str(folder))


def push_command(config: Config, push: PushSettings) -> tuple[str, ...]:
    """Returns the command that makes the other server send its requests. A forced command there names the replica itself."""
    remote = f"backupd --pool {push.pool_name} receive-only --replica {push.name}"
    return (*remote_shell(config, push), push.address, remote)


def remote_shell(config: Config, replica: ReplicaSettings | PushSettings) -> Sequence[str]:
    """Returns the words of ssh up to the address."""
    host = HostConfig(replica.name, address=replica.address, port=replica.port, ssh_options=replica.ssh_options)
    return ssh_command(host, config.ssh)


def own_modules() -> dict[str, str]:
    """Returns the environment in which this program's own modules are found, also in a checkout."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class Connections:
    """Opens connections to the other pool by that command. A context, in which the program for the first connection runs from the
    beginning, so that both servers prepare at the same time. Raises RemotePoolMissing.
    """

    def __init__(self, command: Sequence[str], patience: float = DEFAULTS["stall"]) -> None:
        self._command, self._patience = command, patience
        self._held = ExitStack()
        self._first: PipedProgram | None = None

    def __enter__(self) -> "Connections":
        self._first = self._begin(self._held)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @contextmanager
    def connect(self, poll: Callable[[], None]) -> Iterator[RemotePool]:
        """Opens a connection, with the functions that it calls from time to time. Raises RemotePoolMissing."""
        first, self._first = self._first, None
        with ExitStack() as held:
            yield RemotePool(first or self._begin(held), poll, patience=self._patience)

    def _begin(self, held: ExitStack) -> PipedProgram:
        try:
            return held.enter_context(piped(self._command, own_modules()))
        except ProgramFailed as error:
            raise RemotePoolMissing(error.message) from None


@contextmanager
def connected(
    command: Sequence[str], poll: Callable[[], None] = lambda: None, patience: float = DEFAULTS["stall"]
) -> Iterator[RemotePool]:
    """Opens a connection by that command. Raises RemotePoolMissing."""
    with Connections(command, patience) as made, made.connect(poll) as far:
        yield far
