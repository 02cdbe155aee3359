"""The data of a host in a pool, and how it is read: backup.json, notes.json, final backups, `latest`, and the rows that follow
them.

`reconcile` makes rows and folders agree; the pool takes precedence. Nothing here starts a run or deletes a final backup.
"""
