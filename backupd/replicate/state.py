"""What is known of a replica between two replications: when it was last complete. The catalogue has it as a fact."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from backupd.replicate.outcome import ReplicationSummary
from btrkeep.catalogue import Catalogue
from btrkeep.config.model import ReplicaSettings
from btrkeep.units import format_duration, format_time, parse_time

_FACT = "replica:"


@dataclass(frozen=True, slots=True)
class ReplicaSession:
    """The newest replication that came to its end: when, from which pool, how much came, and how many hosts did not."""

    at: str
    pool: str
    fetched: int
    bytes: int
    failed: int


def note_session(catalogue: Catalogue, replica: ReplicaSettings, pool: str, now: datetime, summary: ReplicationSummary) -> None:
    """Remembers a replication of all hosts."""
    session = ReplicaSession(format_time(now), pool, len(summary.fetched), summary.bytes, len(summary.failed))
    catalogue.set_fact(_FACT + replica.name, json.dumps(asdict(session)))


def last_session(catalogue: Catalogue, replica: str) -> ReplicaSession | None:
    """The newest one; None when there was none, or nothing is known of it."""
    try:
        return ReplicaSession(**json.loads(catalogue.get_fact(_FACT + replica) or ""))
    except (ValueError, TypeError):
        return None


def overdue(catalogue: Catalogue, replica: ReplicaSettings, now: datetime) -> str:
    """Why the replica needs a look, in words; "" when its last replication is young enough."""
    session = last_session(catalogue, replica.name)
    if session is None:
        return "it was never fetched"
    age = (now - parse_time(session.at)).total_seconds()
    return f"it was last fetched {format_duration(age)} ago" if age > replica.oldest else ""
