"""What a pool holds of a host, and how it is read: backup.json, notes.json, final backups, `latest`, and the rows that follow them.

`reconcile` makes rows and folders agree, and the pool wins. Nothing here starts a run or deletes a final backup.
"""
