"""Histories that other programs have made, as backups of this pool.

Formats are read only; each tree becomes a backup by the steps of a night, from a snapshot of the one before it.
"""
