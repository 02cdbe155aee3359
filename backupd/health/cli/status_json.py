"""`backupd status` as JSON."""

from datetime import datetime
from typing import Any

from btrkeep.catalogue import KILLED, Dedupe, Progress, StoredAlarm
from btrkeep.config.model import CopySettings
from btrkeep.decisions.copies import CopyStatus, RunningFetch
from btrkeep.decisions.crash import BackupsInDoubt
from btrkeep.decisions.drills import DrillStatus, drill_object
from btrkeep.decisions.host_state import HostStatus
from btrkeep.units import format_time


def host_as_json(status: HostStatus) -> dict[str, Any]:
    return {
        "host": status.host,
        "state": status.state,
        "last_complete": time_or_null(status.last_complete),
        "age": round(status.age) if status.age is not None else None,
        "next_due": time_or_null(status.next_due),
        "error": status.error,
        "warnings": list(status.warnings),
    }


def time_or_null(when: datetime | None) -> str | None:
    return format_time(when) if when else None


def copy_as_json(copy: CopyStatus[CopySettings], running: RunningFetch | None) -> dict[str, Any]:
    """A copy, as `status --json` has it."""
    session = copy.session
    return {
        "replica": copy.replica.name,
        "kind": copy.replica.kind,
        "from": copy.replica.source,
        "state": copy.state,
        "age": round(copy.age) if copy.age is not None else None,
        "max_age": round(copy.replica.oldest),
        "fetched_at": format_time(session.at) if session and session.at else None,
        "tried_at": format_time(session.tried) if session else None,
        "error": copy.error or None,
        "hosts": session.hosts if session else 0,
        "backups": session.fetched if session else 0,
        "bytes": session.bytes if session else 0,
        "seconds": session.seconds if session else None,
        "newest": format_time(session.newest) if session and session.newest else None,
        "behind": [{"host": one.host, "there": one.there, "here": one.here, "error": one.error} for one in copy.behind],
        "lag": [{"host": one.host, "newest": one.newest, "age": round(one.age), "listed": not one.gone} for one in copy.lags],
        "running": fetch_as_json(running) if running else None,
    }


def fetch_as_json(running: RunningFetch) -> dict[str, Any]:
    return {
        "pid": running.pid,
        "began": format_time(running.began),
        "updated": format_time(running.updated),
        "backups": running.done,
        "backups_planned": running.planned,
        "bytes": running.bytes,
        "bytes_announced": running.announced or None,
        "rate": round(running.rate) if running.rate is not None else None,
        "left": round(running.left) if running.left is not None else None,
        "hosts": list(running.hosts),
    }


def progress_as_json(entry: Progress) -> dict[str, Any]:
    return {
        "host": entry.host,
        "path": entry.path,
        "pid": entry.pid,
        "files": entry.files_done,
        "files_total": entry.files_total,
        "bytes": entry.bytes,
        "rate": round(entry.rate) if entry.rate is not None else None,
        "share": entry.share,
        "updated": format_time(entry.updated),
    }


def in_doubt_as_json(found: BackupsInDoubt | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"since": format_time(found.since), "backups": [{"host": host, "name": name} for host, name in sorted(found.backups)]}


def failed_job_as_json(alarm: StoredAlarm) -> dict[str, Any]:
    """An open alarm about a job, or about a service of [notify] urls."""
    return {"subject": alarm.subject, "text": alarm.text, "since": format_time(alarm.since)}


def dedupe_as_json(one: Dedupe) -> dict[str, Any]:
    return {
        "started": format_time(one.started),
        "finished": time_or_null(one.finished),
        "outcome": one.outcome or KILLED,
        "backups": one.backups,
        "left": one.left_out,
        "files": one.files,
        "shared_bytes": one.shared_bytes,
        "read_bytes": one.read_bytes,
        "data_saved": one.data_saved,
        "metadata_added": one.metadata_added,
    }


def drill_as_json(drills: DrillStatus) -> dict[str, Any]:
    return {
        "state": drills.state,
        "age": round(drills.age) if drills.age is not None else None,
        "max_age": round(drills.oldest),
        "last": drill_object(drills.last) if drills.last else None,
        "failed": [drill_object(one) for one in drills.failed],
    }
