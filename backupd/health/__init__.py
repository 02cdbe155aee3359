"""Whether the pool is well: `look` finds out, btrkeep.decisions.pool_health decides, `status_report` is all that is told.

What was decided (btrkeep.decisions.findings) goes through the catalogue. `backupd check`, `doctor` and `status`,
the alarms, the metrics and the dashboard ask this and nobody else.
"""
