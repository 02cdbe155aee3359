"""Measures what hosts and backups use of the pool, without qgroups.

Counted is data on disk, after compression and once, whatever the profile stores; no metadata.

Three methods, from cheap to exact: `written` (what rsync wrote, from the catalogue), `sampled` (random places of the disks are
asked whose they are) and `extents` (all extents of a host's backups are compared).
"""
