"""Measurements of the pool: samples every few minutes and charts of months of them, the use of space, numbers for Prometheus.

`sampling` asks the kernel, keeps the answer, and makes hours and days of old samples. `chart` and `picture` draw, and are pure.
btrkeep.decisions has the answers. The metrics are named in btrkeep.metrics, those of the dashboard's own process in
web.health; a test holds that the alert rules and the dashboard for Grafana in docs/monitoring name no other, and that
docs/monitoring.rst lists them all.

`usage` measures what hosts and backups use, without qgroups. Counted is data on disk, after compression and once, whatever the
profile stores; no metadata. Three methods, from cheap to exact: `written` (what rsync wrote, from the catalogue), `sampled` (random
places of the disks are asked whose they are) and `extents` (all extents of a host's backups are compared).
"""
