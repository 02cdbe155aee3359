"""What is known of a replica between two replications: when it was last complete. The catalogue has it as a fact."""

import json
from dataclasses import asdict
from datetime import datetime

from backupd.replicate.run import ReplicationSummary
from btrkeep.catalogue import Catalogue
from btrkeep.config.model import ReplicaSettings
from btrkeep.decisions.copies import REPLICATED, ReplicaSession, session_of
from btrkeep.units import format_duration, format_time, parse_time


def note_session(catalogue: Catalogue, replica: ReplicaSettings, pool: str, now: datetime, summary: ReplicationSummary) -> None:
    """Remembers a replication of all hosts."""
    session = ReplicaSession(format_time(now), pool, len(summary.fetched), summary.bytes, len(summary.failed))
    catalogue.set_fact(REPLICATED + replica.name, json.dumps(asdict(session)))


def last_session(catalogue: Catalogue, replica: str) -> ReplicaSession | None:
    """The newest one; None when there was none, or nothing is known of it."""
    return session_of(catalogue.get_fact(REPLICATED + replica))


def overdue(catalogue: Catalogue, replica: ReplicaSettings, now: datetime) -> str:
    """Why the replica needs a look, in words; "" when its last replication is young enough."""
    session = last_session(catalogue, replica.name)
    if session is None:
        return "it was never fetched"
    age = (now - parse_time(session.at)).total_seconds()
    return f"it was last fetched {format_duration(age)} ago" if age > replica.oldest else ""
