"""Imports histories that other programs have made as backups of this pool.

The formats are only read; each tree becomes a backup by the steps of a night, from a snapshot of the backup before it.
"""
