"""The pool that backups are fetched from: a connection to the program that sends them."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from sys import intern
from typing import Any, Protocol

from backupd.replicate.wire import (
    OBJECT,
    PIECE,
    PROTOCOL,
    PULSE,
    AnswerReader,
    ConnectionBroken,
    OtherAsks,
    Refused,
    parse_object,
    write_watched,
)
from backupd.rsync.bandwidth import Bucket, prepare, relay_command
from backupd.rsync.command import ssh_command
from btrkeep.config import Config, HostConfig
from btrkeep.config.documents import page
from btrkeep.config.keys import DEFAULTS
from btrkeep.config.model import PushSettings, ReplicaSettings
from btrkeep.config.sources import name_fault
from btrkeep.decisions.replication import FarBackup, Fetch
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool
from btrkeep.process.error_report import ERROR_MARK, last_remote_error
from btrkeep.process.piped import piped
from btrkeep.process.programs import ProgramFailed
from btrkeep.units import format_duration, parse_backup_name, parse_time, printable

_MOST_HOSTS, _MOST_BACKUPS = 200_000, 100_000
_MOST_LISTED = 2_000_000  # backups of all hosts
_MOST_WORDS = 16 << 20  # letters of all former names, holds and ids of pools
_A_WORD = 64  # letters: what each takes in memory besides its own
_LONGEST_REASON = 1000
_KEPT_NOTES = 64 << 10
_WAITS_EVERY = 1.0  # seconds
_LONGEST_WAIT = 86400.0  # seconds: a night, or an expiry, of the other pool
_MOST_LEFT = 64 << 20  # bytes of an answer that nobody wants any more
_LARGEST_SIZE = 1 << 63
_MOST_COPIED = 250_000  # names of backups
_NOT_OURS = 'does `backupd send-only` answer there? see command="..." before the key in its authorized_keys'
_RECEIVES = (
    'the key needs command="backupd send-only ..." there; of several lines with one key, sshd takes the first, so give the two '
    "directions a key each, or change the line"
)
_HINTS = {
    ExitCause.HOST_KEY: f"ssh-keyscan it into known_hosts, and compare the key with its own; {page('second-copy')} has the lines",
    ExitCause.KEY_REFUSED: f"add this server's public key to its authorized_keys; {page('second-copy')} has the line",
    ExitCause.NO_RSYNC: "install btrkeep there, or correct the path in its authorized_keys",
    ExitCause.NO_SUCH_NAME: "correct the address, or /etc/hosts",
}


class FarPoolMissing(OperatorError):
    """The other pool does not answer, or is not there now."""


@dataclass(frozen=True, slots=True)
class FarHost:
    """A host as the other pool lists it. `was`: names that it had; `held`: why and until when a backup is held, by name.

    `copy_of`: the id of the pool that it is fetched from there; None for one that is backed up there.
    """

    name: str
    was: tuple[str, ...]
    backups: tuple[FarBackup, ...]
    held: dict[str, tuple[str | None, str]]
    copy_of: str | None = None


@dataclass(frozen=True, slots=True)
class Announced:
    """What the other pool says of a stream before it comes. `notes`: what it notes of the backup; `bytes`: how long the stream may
    become; `total`: of all files of the backup. None: unknown.
    """

    notes: dict[str, dict[str, Any]]
    bytes: int | None
    stream: int
    total: int | None = None


@dataclass(frozen=True, slots=True)
class CopyAnnouncement(Announced):
    """What the other pool says of a backup before it comes by rsync. `transid`: the generation of its last change there.

    `size_and_time`: each file that has other content than in the common backup has another size or time, so rsync sees it.
    """

    transid: int = 0
    size_and_time: bool = False


def replica_buckets(config: Config, pool: Pool, replica: ReplicaSettings) -> list[Bucket]:
    """The bandwidth budgets of what the replica fetches: its own, and over a network the one of all transfers."""
    shared = None if replica.folder else config.backup.bandwidth
    rates = (("pool", shared), (f"replica-{replica.name}", replica.bandwidth))
    return [prepare(pool.bandwidth, name, rate) for name, rate in rates if rate]


def send_command(config: Config, replica: ReplicaSettings, buckets: Sequence[Bucket]) -> tuple[str, ...]:
    """The command that answers for the other pool, within a bandwidth budget."""
    if replica.folder:
        return relay_command(buckets, (sys.executable, "-m", "backupd", "send-only", "--path", str(replica.folder)))
    remote = f"backupd --pool {replica.pool_name} send-only"
    return (*relay_command(buckets, remote_shell(config, replica)), replica.address or "", remote)


def seed_command(folder: Path) -> tuple[str, ...]:
    """The command that answers for a seed."""
    return (sys.executable, "-m", "backupd", "send-only", "--seed", str(folder))


def push_command(config: Config, push: PushSettings) -> tuple[str, ...]:
    """The command that has the other server ask for what it wants. A forced command there says by itself which replica it is."""
    remote = f"backupd --pool {push.pool_name} receive-only --replica {push.name}"
    return (*remote_shell(config, push), push.address, remote)


def remote_shell(config: Config, replica: ReplicaSettings | PushSettings) -> Sequence[str]:
    """The words of ssh up to the address."""
    host = HostConfig(replica.name, address=replica.address, port=replica.port, ssh_options=replica.ssh_options)
    return ssh_command(host, config.ssh)


def unreached_hint(lines: Sequence[str]) -> str:
    """Says what to do when these lines are the last of a connection that has not come about; "" if nobody knows."""
    return "" if any(line.startswith(ERROR_MARK) for line in lines) else _HINTS.get(meaning(255, lines).cause, "")


class Answering(Protocol):
    """What answers: descriptors of ours, and what it says besides."""

    @property
    def input(self) -> int: ...
    @property
    def output(self) -> int: ...
    def said(self) -> list[str]:
        """The lines of its messages so far."""

    def end(self) -> None:
        """Ends the program."""


@dataclass(frozen=True, slots=True)
class OwnStreams:
    """Whoever began the connection answers, at the other end of this program's standard input and output."""

    input: int
    output: int

    def said(self) -> list[str]:
        return []

    def end(self) -> None:
        """Does nothing: the connection is not ours to end."""


class FarPool:
    """One connection to what answers at its other end. `look` is called now and then, and may raise."""

    def __init__(
        self,
        program: Answering,
        look: Callable[[], None],
        says: Mapping[str, Any] | None = None,
        patience: float = DEFAULTS["stall"],
    ) -> None:
        """`says`: what the other side is told of this one; `patience`: the seconds in which it has to say something: its kernel may
        look long for what has changed. Raises FarPoolMissing.
        """
        self._program, self.look = program, look
        self._tells_waits = bool(says and says.get("tells_waits"))
        os.set_blocking(program.input, False)
        self.pace: Callable[[int], None] = lambda _: None
        """Is given each count of bytes that came, and may take its time: the other side waits meanwhile."""
        self._frames = AnswerReader(program.output, self._count, why_ended=self._said)
        self.bytes = 0
        try:
            said = self._one({**(says or {}), "verb": "hello"})
        except OtherAsks as error:  # it has complained of our request in its own words
            raise FarPoolMissing(error.message, _RECEIVES) from None
        except OperatorError as error:
            words = self._said()
            raise FarPoolMissing(words or error.message, unreached_hint(self._program.said()) if words else _NOT_OURS) from None
        if said.get("protocol") != PROTOCOL or not isinstance(said.get("pool"), str):
            raise FarPoolMissing(f"it speaks another protocol ({said.get('protocol')!r})", "use the same btrkeep on both")
        self.id, self.version = said["pool"], printable(str(said.get("version")))[:40]
        self.stream = said["stream"] if said.get("stream") in (1, 2) else 1
        engines = said.get("engines")
        self.sends_by_rsync = isinstance(engines, list) and "rsync" in engines
        self.now = time_in(said)
        """What its clock said just now; None: an earlier version does not tell."""
        self.waits: Callable[[str], None] = lambda _: None
        """Is given why the other side sends nothing yet."""
        self.free, self.used = size_in(said, "free"), size_in(said, "used")
        """Bytes of data that fit there, and that are used there; None: an earlier version does not say."""
        self._frames.patience = patience
        self._pulse = PULSE if says and said.get("beats") is True else None
        """Within how many seconds the other side says something while it sends, where nothing sees that the line is dead."""

    def _count(self, size: int) -> None:
        self.bytes += size
        self.pace(size)
        self.look()

    def hosts(self) -> Iterator[FarHost]:
        """Yields the hosts of the other pool that have something to fetch. Raises ConnectionBroken, Refused."""
        self._ask({"verb": "list"})
        backups = words = 0
        for number, said in enumerate(self._frames.objects()):
            host = _host(said)
            backups += len(host.backups)
            words += sum(len(word) + _A_WORD for word in _words(host))
            if number >= _MOST_HOSTS or backups > _MOST_LISTED or words > _MOST_WORDS:  # all of it is in memory
                raise ConnectionBroken("the other side lists hosts without end")
            yield host

    def fetch(self, host: str, fetch: Fetch, version: int) -> tuple[Announced, Iterator[bytes]]:
        """Requests a stream: returns its announcement, and its pieces. Raises ConnectionBroken, Refused."""
        self._ask({"verb": "send", "stream": version} | _asked(host, fetch))
        answer, end = self._frames.answer(), time.monotonic() + _LONGEST_WAIT
        next_told = 0.0
        while True:
            kind, content = next(answer, (b"", b""))
            if kind != OBJECT:
                raise ConnectionBroken("the other side does not say what it sends")
            said = parse_object(content)
            if "waits" not in said:
                return _announced(said, version), self._pieces(answer)
            if (now := time.monotonic()) > end:
                raise ConnectionBroken(f"the other side has waited for more than {format_duration(_LONGEST_WAIT)}")
            if now >= next_told:  # it can say so a million times a second, each time in other words
                self.waits(printable(str(said["waits"]))[:_LONGEST_REASON])
                next_told = now + _WAITS_EVERY
            self._frames.begin_span()
            self._frames.pulse = self._pulse

    def _pieces(self, answer: Iterator[tuple[bytes, bytes]]) -> Iterator[bytes]:
        self._frames.pulse = self._pulse
        for kind, content in answer:
            if kind != PIECE:
                raise ConnectionBroken("the other side says something in the middle of a stream")
            if content:
                yield content

    def announce_copy(self, host: str, fetch: Fetch) -> CopyAnnouncement:
        """Announces a copy that rsync will fetch by its own connection; returns the answer. Raises ConnectionBroken, Refused."""
        if not self.sends_by_rsync:
            raise Refused('the btrkeep there cannot send by rsync: update it, or leave out engine = "rsync"')
        self._ask({"verb": "copy"} | _asked(host, fetch))
        found = list(self._frames.objects())
        if len(found) != 1:
            raise ConnectionBroken("the other side does not say what it sends")
        said, told = found[0], _announced(found[0], 1)
        transid = said.get("transid")
        known = transid if type(transid) is int and 0 <= transid < 1 << 63 else 0
        return CopyAnnouncement(told.notes, told.bytes, told.stream, told.total, known, said.get("size_and_time") is True)

    def note_common(self, replica: str, hosts: Mapping[str, str], copied: Mapping[str, list[str]] | None = None) -> None:
        """Makes the other pool keep these backups, by host; tells it all that are `copied`. Raises ConnectionBroken, Refused."""
        asked = {"verb": "common", "replica": replica, "hosts": hosts}
        if copied is not None and sum(map(len, copied.values())) <= _MOST_COPIED:  # a request has a longest length there
            asked["copied"] = copied
        self._ask(asked)
        for _ in self._frames.answer():
            pass

    def tell_wait(self, who: str) -> None:
        """Tells whoever began the connection, and gives up one on which nothing comes, what this side gives way to.

        Raises ConnectionBroken.
        """
        if not self._tells_waits:
            return
        self._ask({"verb": "waits", "who": who})
        with suppress(Refused):  # an earlier version there does not know it, and waits all the same
            for _ in self._frames.answer():
                pass

    def note_end(self, error: str, failed: dict[str, str]) -> None:
        """Tells the other side that all was asked for: what went wrong, and with which hosts. Raises ConnectionBroken, Refused."""
        self._ask({"verb": "ended", "error": error, "failed": failed})
        for _ in self._frames.answer():
            pass

    def _ask(self, asked: dict[str, Any]) -> None:
        if self._frames.is_open:
            self._settle()
        self._write(asked)

    def _settle(self) -> None:
        """Ends an answer that was not read to its end: a further request makes the other side end it, and both are read."""
        if self._frames.is_torn:
            raise ConnectionBroken("the connection was left in the middle of an answer")
        self._write({"verb": "hello"})
        left = self.bytes + _MOST_LEFT
        with suppress(Refused):
            for _ in self._frames.rest():
                if self.bytes > left:
                    raise ConnectionBroken("the other side does not end what it sends")
        for _ in self._frames.objects():
            pass

    def _write(self, asked: dict[str, Any]) -> None:
        """What both pools have of all hosts is megabytes, more than a pipe holds when nobody reads it."""
        patience = self._frames.patience
        end = time.monotonic() + patience

        def take() -> None:
            self.look()
            if time.monotonic() > end:
                raise ConnectionBroken(f"the other side has taken nothing for {format_duration(patience)}")

        try:
            write_watched(self._program.input, json.dumps(asked).encode() + b"\n", take)
        except OSError:
            raise ConnectionBroken(self._said() or "the connection has ended") from None

    def _one(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._ask(asked)
        found = list(self._frames.objects())
        if len(found) != 1:
            raise ConnectionBroken("the other side does not say who it is")
        return found[0]

    def _said(self) -> str:
        """The program's last error, else its last line, when it has had the time to say it."""
        self._program.end()
        return printable(last_remote_error(self._program.said()))[:_LONGEST_REASON]


def size_in(said: Mapping[str, Any], name: str) -> int | None:
    """Returns a number of bytes that the other side gave; None if it gave none that is possible."""
    size = said.get(name)
    return size if type(size) is int and 0 <= size < _LARGEST_SIZE else None


def time_in(said: Mapping[str, Any]) -> datetime | None:
    """Returns the time of the other side's clock."""
    try:
        return parse_time(str(said.get("now")))
    except ValueError:
        return None


@contextmanager
def connected(
    command: Sequence[str], look: Callable[[], None] = lambda: None, patience: float = DEFAULTS["stall"]
) -> Iterator[FarPool]:
    """A connection by that command. Raises FarPoolMissing."""
    with ExitStack() as held:
        try:
            program = held.enter_context(piped(command, own_modules()))
        except ProgramFailed as error:
            raise FarPoolMissing(error.message) from None
        yield FarPool(program, look, patience=patience)


def own_modules() -> dict[str, str]:
    """This program's own modules are found where they are now, also in a checkout."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _asked(host: str, fetch: Fetch) -> dict[str, Any]:
    parent = fetch.parent
    asked = {"host": host, "name": fetch.backup.name, "uuid": fetch.backup.uuid}
    return asked | ({"parent": parent.name, "parent_uuid": parent.uuid} if parent else {})


def _host(said: dict[str, Any]) -> FarHost:
    """Raises ConnectionBroken for what names no host and no backups."""
    name, was, backups = said.get("host"), said.get("was"), said.get("backups")
    if not isinstance(name, str) or name_fault(name) or not isinstance(was, list) or not isinstance(backups, list):
        raise ConnectionBroken("the other side lists what is no host")
    if len(backups) > _MOST_BACKUPS or not all(isinstance(old, str) for old in was):
        raise ConnectionBroken(f"the other side lists what is no host: {name}")
    found, held = [], {}
    for one in backups:
        if not _is_backup(one):
            raise ConnectionBroken(f"the other side lists what is no backup of {name}")
        found.append(FarBackup(one[0], one[1], intern(one[2])))
        if len(one) > 3:
            held[one[0]] = (one[3][0], one[3][1])
    copy_of = said.get("copy_of")
    return FarHost(name, tuple(was), tuple(found), held, copy_of if isinstance(copy_of, str) else None)


def _words(host: FarHost) -> Iterator[str]:
    """What the other side has said of the host in its own words, of any length."""
    yield from host.was
    yield host.copy_of or ""
    for until, why in host.held.values():
        yield until or ""
        yield why


def _is_backup(one: Any) -> bool:
    if not isinstance(one, list) or len(one) not in (3, 4) or not all(isinstance(text, str) for text in one[:3]):
        return False
    if parse_backup_name(one[0]) is None or len(one[1]) != 36 or not one[1].isascii() or one[2] not in ("complete", "suspect"):
        return False
    hold = one[3] if len(one) == 4 else [None, ""]
    return isinstance(hold, list) and len(hold) == 2 and isinstance(hold[1], str) and isinstance(hold[0], str | None)


def _announced(said: dict[str, Any], version: int) -> Announced:
    notes = said.get("notes")
    if not isinstance(notes, dict) or len(json.dumps(notes)) > _KEPT_NOTES:
        raise ConnectionBroken("the other side says of a backup what cannot be noted")
    kept = {key: dict(note) for key, note in notes.items() if isinstance(note, dict)}
    stream = said.get("stream")
    stream = stream if type(stream) is int and 0 < stream <= version else 1
    return Announced(kept, size_in(said, "bytes"), stream, size_in(said, "total"))
