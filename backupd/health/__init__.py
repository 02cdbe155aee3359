"""The health of the pool: `pool_facts` reads the facts, btrkeep.decisions.pool_health judges them, `status_report` has everything.
The findings (btrkeep.decisions.findings) pass through the catalogue.

`backupd check`, `doctor` and `status`, the alarms, the metrics and the dashboard use only these. `callers` finds the program that
started this process, `starters` what starts the runs of the pool, from the lines that `start_lines` parses. `trust` checks
catalogue and clock.
"""
