"""`backupd dedupe`: equal files of backups share their data (docs/decisions/0052-sharing-old-data.rst).

Files are compared by content, whatever their names; the kernel compares them again before it shares anything.
"""
