"""``python -m backupd``: the same as the command ``backupd``."""

from backupd.cli import main

main()
