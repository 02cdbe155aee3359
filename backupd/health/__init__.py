"""Whether the pool is well: `look` finds out, `judge` decides, `verdict` is what was decided and goes through the catalogue.

`judge` and `verdict` are pure. `backupd check`, `doctor` and `status`, the alarms, the metrics and the dashboard ask this and
nobody else.
"""
