"""backupd with less patience: a process that cannot be ended is given up after one second, not after forty."""

import backupd.cli
import backupd.rsync.process
import backupd.run.orphaned_receivers
from btrkeep.process import group, programs

PATIENCE = 0.5

if __name__ == "__main__":
    for module, name, value in (
        (backupd.rsync.process, "_PATIENCE", PATIENCE),
        (group, "UNENDING", PATIENCE),
        (programs, "UNENDING", PATIENCE),
        (backupd.run.orphaned_receivers, "_LOOKS", 5),
    ):
        setattr(module, name, value)
    backupd.cli.main()
