"""The states of a backup, as backup.json, the catalogue and JSON name them."""

RUNNING, PARTIAL = "running", "partial"
COMPLETE, SUSPECT, FAILED = "complete", "suspect", "failed"
ALTERED = "altered"  # changed after it was final; only the host's notes have it, never a record
EXPIRED, DELETING = "expired", "deleting"
FINAL = (COMPLETE, SUSPECT, FAILED)
"""The states of a final backup by its own record."""
FINISHED = (*FINAL, ALTERED)
"""The same by its record and its host's notes together, without expiry."""
GOING = (EXPIRED, DELETING)
BACKUP_STATES = (RUNNING, PARTIAL, *FINISHED, *GOING)
