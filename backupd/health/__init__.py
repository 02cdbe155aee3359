"""The health of the pool: `pool_facts` reads the facts, btrkeep.decisions.pool_health judges them, `status_report` has everything.

What was decided (btrkeep.decisions.findings) goes through the catalogue. `backupd check`, `doctor` and `status`,
the alarms, the metrics and the dashboard use nothing else.
"""
