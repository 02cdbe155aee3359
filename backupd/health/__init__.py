"""The health of the pool: `pool_facts` reads the facts, btrkeep.decisions.pool_health judges them, `status_report` has everything.

What was decided (btrkeep.decisions.findings) goes through the catalogue. `backupd check`, `doctor` and `status`,
the alarms, the metrics and the dashboard use nothing else.

`callers` has what started this process, `starters` what starts the runs of the pool, by the lines that `start_lines` reads. `trust`
says whether catalogue and clock can be right.
"""
