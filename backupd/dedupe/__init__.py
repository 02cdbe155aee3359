"""`backupd dedupe`: equal files of backups share their data (docs/decisions/0052-sharing-what-is-old.rst).

The files are found by their content, whatever they are called; the kernel compares them again before it shares anything.
"""
