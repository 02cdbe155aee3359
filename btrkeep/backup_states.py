"""The states of a backup, as backup.json, the catalogue and JSON name them."""

RUNNING, PARTIAL = "running", "partial"
COMPLETE, SUSPECT, FAILED = "complete", "suspect", "failed"
EXPIRED, DELETING = "expired", "deleting"
FINAL = (COMPLETE, SUSPECT, FAILED)
GOING = (EXPIRED, DELETING)
BACKUP_STATES = (RUNNING, PARTIAL, *FINAL, *GOING)
