"""The data of a host in a pool, and how it is read: backup.json, notes.json, final backups, `latest`, and their rows in the
catalogue.

`reconcile` makes rows and folders agree; if they differ, the pool is right. Nothing here starts a run or deletes a final backup.
"""
