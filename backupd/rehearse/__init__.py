"""Rehearses nights on a throwaway pool, with two or more settings side by side; see docs/decisions/0054-rehearse.rst.

`fleet` and `variants` are pure: typical hosts and how many fit; the settings, and which of them are better. `pool` creates
and removes the filesystem, `fill` decides and writes the changes of a night, `rehearsal_nights` runs all nights.
"""
