"""Checks whether a job without an end in the catalogue is still running.

It looks for the process in /proc. If this service may not see others' processes (ProtectProc=invisible), it uses the time of the
job's last update in the catalogue.
"""

from datetime import datetime, timedelta

from btrkeep.process.proc import start_time

_SILENT = timedelta(minutes=10)
"""A running job updates its row far more often."""
_INIT = 1


def is_alive(pid: int, pid_started: str | None, heard: datetime, now: datetime) -> bool:
    """Returns True if the job is still running. `heard`: the time of the last update of its row."""
    if start_time(_INIT) is None:
        return now - heard <= _SILENT
    return pid_started is not None and start_time(pid) == pid_started
