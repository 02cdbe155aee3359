"""Rehearses nights on a throwaway pool, with two or more settings side by side; see docs/decisions/0054-rehearse.rst.

`learn`, `scale`, `churn`, `variants`, `judge` are pure: what hosts are like, how much of it fits, what a night changes, which
settings, which of them is better. `pool` makes and removes the filesystem, `fill` writes a night, `nights` runs them all.
"""
