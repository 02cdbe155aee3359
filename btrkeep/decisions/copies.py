"""How a replica is doing: ok, late, failing, or never fetched. Pure.

`backupd replicate` notes in the catalogue what became of it; `status`, alarms, metrics and the dashboard read it from there.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Protocol

from btrkeep.config.model import ReplicaSettings
from btrkeep.units import format_time, parse_time

_FACT = "replica:"


class CopyState(StrEnum):
    """`failing`: the newest replication did not reach the other pool, or did not fetch all hosts. `late`: older than `max_age`."""

    OK = "ok"
    LATE = "late"
    FAILING = "failing"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class HostBehind:
    """A host of which not everything could be fetched. `there` and `here`: its newest backup on either side, by name; and why."""

    host: str
    there: str | None
    here: str | None
    error: str


@dataclass(frozen=True, slots=True)
class ReplicaSession:
    """What is known of a replica. `tried`: the newest replication of all its hosts; `at`: the newest that came to its end.

    `error`: why the one that was tried came to none, or "". Hosts are those of the other pool that the replica fetches; `fetched`
    backups, `bytes` of streams and `seconds` are of the session at `at`.
    """

    tried: datetime
    at: datetime | None = None
    error: str = ""
    pool: str = ""
    hosts: int = 0
    fetched: int = 0
    bytes: int = 0
    seconds: float = 0.0
    behind: tuple[HostBehind, ...] = ()

    @property
    def rate(self) -> float | None:
        """Bytes per second; None when nothing came."""
        return self.bytes / self.seconds if self.bytes and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """A replica and its state. `age`: seconds since it was last fetched; None when it never was."""

    replica: ReplicaSettings
    state: CopyState
    age: float | None
    session: ReplicaSession | None

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def source(self) -> str:
        """Where it is fetched from, as the configuration has it."""
        return f"ssh://{self.replica.address}" if self.replica.address else str(self.replica.folder)

    @property
    def behind(self) -> tuple[HostBehind, ...]:
        """Hosts of which not everything is here."""
        return self.session.behind if self.session else ()

    @property
    def error(self) -> str:
        """Why the newest attempt came to nothing, or ""."""
        return self.session.error if self.session else ""


class FactReader(Protocol):
    """The catalogue, as far as it is needed here."""

    def get_fact(self, name: str) -> str | None:
        """A fact by its name."""


class FactWriter(FactReader, Protocol):
    """And to write."""

    def set_fact(self, name: str, value: str | None) -> None:
        """Keep a fact."""


def copy_status(replica: ReplicaSettings, session: ReplicaSession | None, now: datetime) -> CopyStatus:
    """How the replica is doing. A pool that comes and goes (a folder) may be away until it is late."""
    age = max(0.0, (now - session.at).total_seconds()) if session and session.at else None
    late = age is None or age > replica.oldest
    if session and (session.behind or (session.error and (late or replica.address))):
        state = CopyState.FAILING
    elif age is None:
        state = CopyState.NEVER
    else:
        state = CopyState.LATE if late else CopyState.OK
    return CopyStatus(replica, state, age, session)


def copy_statuses(replicas: Mapping[str, ReplicaSettings], facts: FactReader, now: datetime) -> list[CopyStatus]:
    """Of all replicas, by what the catalogue knows."""
    return [copy_status(replica, read_session(facts, name), now) for name, replica in replicas.items()]


def not_copied(hosts: Collection[str], replicas: Collection[ReplicaSettings]) -> list[str]:
    """Those of the hosts that no replica fetches."""
    return [host for host in hosts if not any(fetches(replica, host) for replica in replicas)]


def fetches(replica: ReplicaSettings, host: str) -> bool:
    """Whether the replica fetches that host."""
    return any(fnmatchcase(host, pattern) for pattern in replica.hosts)


def note_session(facts: FactWriter, name: str, session: ReplicaSession) -> None:
    """Keeps what became of a replication of all hosts."""
    at = format_time(session.at) if session.at else None
    facts.set_fact(_FACT + name, json.dumps({**asdict(session), "tried": format_time(session.tried), "at": at}))


def note_failure(facts: FactWriter, name: str, now: datetime, error: str) -> None:
    """Keeps that the other pool could not be reached; when it was last fetched stays."""
    before = read_session(facts, name) or ReplicaSession(now)
    note_session(facts, name, replace(before, tried=now, error=error))


def read_session(facts: FactReader, name: str) -> ReplicaSession | None:
    """What is known of the replica; None when it was never tried, or nothing can be understood of it."""
    try:
        said = json.loads(facts.get_fact(_FACT + name) or "null")
        behind = tuple(HostBehind(**one) for one in said.pop("behind", ()))
        at = said.pop("at")
        tried = said.pop("tried", at)
        said["fetched"] = int(said.get("fetched", 0))
        said.pop("failed", None)  # of the first version
        return ReplicaSession(parse_time(tried), parse_time(at) if at else None, behind=behind, **said)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
