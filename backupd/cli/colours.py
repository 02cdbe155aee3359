"""The colours of states and levels on a terminal: green is ok, cyan is running, yellow needs attention, red is lost or failing."""

from btrkeep.catalogue import KILLED

BACKUP = {
    "complete": "green",
    "running": "cyan",
    "skipped": "cyan",
    "partial": "yellow",
    "suspect": "yellow",
    "failed": "red",
    "altered": "red",
    KILLED: "red",
    "expired": "red",
    "deleting": "red",
}
"""A backup's state, or a run's outcome."""
HOST = {"ok": "green", "copy": "cyan", "late": "yellow", "suspect": "yellow", "failing": "red", "never": "red", "unknown": "yellow"}
"""A host's state, or a copy's."""
LEVEL = {"ok": "green", "note": "cyan", "unknown": "yellow", "warning": "yellow", "error": "red"}
"""The severity of a finding."""
