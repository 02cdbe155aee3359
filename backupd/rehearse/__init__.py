"""Rehearses nights on a throwaway pool, with two or more settings side by side; see docs/decisions/0054-rehearse.rst.

`fleet`, `variants` and `judge` are pure: what hosts are like and how much of it fits, which settings, which of them is better.
`pool` makes and removes the filesystem, `fill` decides and writes what a night changes, `rehearsal_nights` runs them all.
"""
