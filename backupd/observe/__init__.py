"""Measurements of the pool: samples every few minutes and charts of months of them, the use of space, numbers for Prometheus.

`sampling` reads the kernel's numbers, stores them, and merges old samples into hours and days. `chart` and `graph_pictures` draw,
and are pure. btrkeep.decisions has the calculations. The metrics are named in btrkeep.metrics, those of the dashboard's own process
in web.health; a test ensures that the alert rules and the dashboard for Grafana in docs/monitoring name no other, and that
docs/monitoring.rst lists them all.

`usage` measures the space of hosts and backups, without qgroups: data on disk, after compression, once whatever the profile, and
without metadata. Three methods, from cheap to exact: `written` (the data that rsync wrote, from the catalogue), `sampled` (the
owners of random places of the disks) and `extents` (all extents of a host's backups are compared).
"""
