"""The pool that backups are fetched from: a connection to the program that sends them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backupd.replicate.wire import OBJECT, PIECE, PROTOCOL, Frames, LineBroken, parse_object, write_all
from backupd.rsync.bandwidth import Bucket, relay_command
from backupd.rsync.command import ssh_command
from btrkeep.config import Config, HostConfig
from btrkeep.config.model import ReplicaSettings
from btrkeep.config.sources import name_fault
from btrkeep.decisions.replication import FarBackup, Fetch
from btrkeep.errors import OperatorError
from btrkeep.process.programs import environment, wait_for_end
from btrkeep.units import parse_backup_name, printable

_MOST_HOSTS, _MOST_BACKUPS = 200_000, 100_000
_LONGEST_REASON = 1000
_ERRORS = 1 << 16
_PATIENCE = 1800.0  # seconds: the kernel may look long for what has changed
_KEPT_NOTES = 64 << 10


class FarPoolMissing(OperatorError):
    """The other pool does not answer, or is not there now."""


@dataclass(frozen=True, slots=True)
class FarHost:
    """A host as the other pool lists it. `was`: names that it had; `held`: why and until when a backup is held, by name."""

    name: str
    was: tuple[str, ...]
    backups: tuple[FarBackup, ...]
    held: dict[str, tuple[str | None, str]]


@dataclass(frozen=True, slots=True)
class Announced:
    """What the other pool says of a stream before it comes. `notes`: what it notes of the backup; `bytes` None: unknown."""

    notes: dict[str, dict[str, Any]]
    bytes: int | None
    stream: int


def send_command(config: Config, replica: ReplicaSettings, buckets: Sequence[Bucket]) -> tuple[str, ...]:
    """The command that answers for the other pool, within a bandwidth budget."""
    if replica.folder:
        return (sys.executable, "-m", "backupd", "send-only", "--path", str(replica.folder))
    host = HostConfig(replica.name, address=replica.address, port=replica.port, ssh_options=replica.ssh_options)
    shell = ssh_command(host, config.ssh)
    remote = f"backupd --pool {replica.pool_name} send-only"
    return (*relay_command(buckets, shell), replica.address or "", remote)


class FarPool:
    """One connection. Its process is ours: it ends with the connection. `look` is called now and then, and may raise."""

    def __init__(self, command: Sequence[str], look: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._errors = os.fdopen(os.memfd_create("said"), "w+b")
        self.bytes = 0
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=_environment(), bufsize=0
            )
        except OSError as error:
            self._errors.close()
            raise FarPoolMissing(f"{command[0]}: {error.strerror}") from None
        assert self._process.stdout is not None
        self._frames = Frames(self._process.stdout.fileno(), self._count)
        self.id = ""
        self.version = ""
        self.stream = 1

    def _count(self, size: int) -> None:
        self.bytes += size
        self._look()

    def __enter__(self) -> "FarPool":
        try:
            said = self._one({"verb": "hello"})
        except OperatorError as error:
            self.close()
            raise FarPoolMissing(self._said() or error.message) from None
        except BaseException:
            self.close()
            raise
        if said.get("protocol") != PROTOCOL or not isinstance(said.get("pool"), str):
            self.close()
            raise FarPoolMissing(
                f"the other side speaks another protocol ({said.get('protocol')!r})", "use the same btrkeep on both"
            )
        self.id, self.version = said["pool"], printable(str(said.get("version")))[:40]
        self.stream = said["stream"] if said.get("stream") in (1, 2) else 1
        self._frames.patience = _PATIENCE
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and whoever answers."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            wait_for_end(self._process)

    def hosts(self) -> Iterator[FarHost]:
        """Yields the hosts of the other pool that have something to fetch. Raises LineBroken, Refused."""
        self._ask({"verb": "list"})
        for number, said in enumerate(self._frames.objects()):
            if number >= _MOST_HOSTS:
                raise LineBroken("the other side lists hosts without end")
            yield _host(said)

    def fetch(self, host: str, fetch: Fetch, version: int) -> tuple[Announced, Iterator[bytes]]:
        """What is said of the stream, and the stream in pieces. Raises LineBroken, Refused."""
        parent = fetch.parent
        asked: dict[str, Any] = {
            "verb": "send",
            "host": host,
            "name": fetch.backup.name,
            "uuid": fetch.backup.uuid,
            "stream": version,
        }
        self._ask(asked | ({"parent": parent.name, "parent_uuid": parent.uuid} if parent else {}))
        answer = self._frames.answer()
        kind, content = next(answer, (b"", b""))
        if kind != OBJECT:
            raise LineBroken("the other side does not say what it sends")
        return _announced(parse_object(content), version), _pieces(answer)

    def note_common(self, replica: str, hosts: dict[str, str]) -> None:
        """Has the other pool leave these backups, by host, alone. Raises LineBroken, Refused."""
        self._ask({"verb": "common", "replica": replica, "hosts": hosts})
        for _ in self._frames.answer():
            pass

    def _ask(self, asked: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            write_all(self._process.stdin.fileno(), json.dumps(asked).encode() + b"\n")
        except OSError:
            raise LineBroken(self._said() or "the connection has ended") from None

    def _one(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._ask(asked)
        found = list(self._frames.objects())
        if len(found) != 1:
            raise LineBroken("the other side does not say who it is")
        return found[0]

    def _said(self) -> str:
        """The last line of its errors."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._errors.seek(0)
        lines = self._errors.read(_ERRORS).decode(errors="replace").strip().splitlines()
        return printable(lines[-1])[:_LONGEST_REASON] if lines else ""


def _environment() -> dict[str, str]:
    """This program's own modules are found where they are now, also in a checkout."""
    return environment({"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})


def _pieces(answer: Iterator[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for kind, content in answer:
        if kind != PIECE:
            raise LineBroken("the other side says something in the middle of a stream")
        yield content


def _host(said: dict[str, Any]) -> FarHost:
    """Raises LineBroken for what names no host and no backups."""
    name, was, backups = said.get("host"), said.get("was"), said.get("backups")
    if not isinstance(name, str) or name_fault(name) or not isinstance(was, list) or not isinstance(backups, list):
        raise LineBroken("the other side lists what is no host")
    if len(backups) > _MOST_BACKUPS or not all(isinstance(old, str) for old in was):
        raise LineBroken(f"the other side lists what is no host: {name}")
    found, held = [], {}
    for one in backups:
        if not _is_backup(one):
            raise LineBroken(f"the other side lists what is no backup of {name}")
        found.append(FarBackup(*one[:3]))
        if len(one) > 3:
            held[one[0]] = (one[3][0], one[3][1])
    return FarHost(name, tuple(was), tuple(found), held)


def _is_backup(one: Any) -> bool:
    if not isinstance(one, list) or len(one) not in (3, 4) or not all(isinstance(text, str) for text in one[:3]):
        return False
    if parse_backup_name(one[0]) is None or len(one[1]) != 36 or one[2] not in ("complete", "suspect"):
        return False
    hold = one[3] if len(one) == 4 else [None, ""]
    return isinstance(hold, list) and len(hold) == 2 and isinstance(hold[1], str) and isinstance(hold[0], str | None)


def _announced(said: dict[str, Any], version: int) -> Announced:
    notes = said.get("notes")
    if not isinstance(notes, dict) or len(json.dumps(notes)) > _KEPT_NOTES:
        raise LineBroken("the other side says of a backup what cannot be noted")
    size = said.get("bytes")
    kept = {key: dict(note) for key, note in notes.items() if isinstance(note, dict)}
    stream = said.get("stream")
    return Announced(kept, size if type(size) is int else None, stream if type(stream) is int and stream <= version else 1)
