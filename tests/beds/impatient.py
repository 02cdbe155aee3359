"""backupd with less patience: a process that cannot be ended is given up after one second, not after forty."""

import backupd.cli
import backupd.leftovers
import backupd.transfer
from btrkeep.process import group, programs

PATIENCE = 0.5

if __name__ == "__main__":
    for module, name, value in (
        (backupd.transfer, "_PATIENCE", PATIENCE),
        (group, "UNENDING", PATIENCE),
        (programs, "UNENDING", PATIENCE),
        (backupd.leftovers, "_LOOKS", 5),
    ):
        setattr(module, name, value)
    backupd.cli.main()
