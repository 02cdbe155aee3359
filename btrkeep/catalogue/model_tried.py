"""What the catalogue gives out of the runs and backups of many hosts at once. As in model.py."""

from datetime import datetime
from typing import NamedTuple


class HostRuns(NamedTuple):
    """One run without what rsync said. A tuple, since a month of 3,000 hosts has 90,000 of them."""

    host: str
    id: int
    started: datetime
    finished: datetime | None
    outcome: str | None
    """One of RUN_OUTCOMES; None: running now, or killed."""
    backup: str | None
    error: str | None
    literal_bytes: int | None
    pid: int
    pid_started: str | None
    night: bool


class BackupFate(NamedTuple):
    """What a final backup was, and what it is now."""

    host: str
    name: str
    state: str
    """One of BACKUP_STATES."""
    outcome: str | None
    """complete, suspect or failed, whatever became of it since; None where the catalogue does not know."""
