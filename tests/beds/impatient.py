"""backupd with less patience: a process that cannot be ended is given up after one second, not after forty, and a file that does
not answer after half a second, not after ten.
"""

import backupd.cli
import backupd.cli.hung_state
import backupd.cli.notify_
import backupd.rsync.process
import backupd.run.orphaned_receivers
import backupd.serve.start_job
from btrkeep import hung_storage
from btrkeep.catalogue import sqlite
from btrkeep.process import group, outliving, programs

PATIENCE = 0.5

if __name__ == "__main__":
    for module, name, value in (
        (backupd.rsync.process, "PATIENCE", PATIENCE),
        (group, "PATIENCE", PATIENCE),
        (outliving, "LOOK", PATIENCE),
        (backupd.cli.hung_state, "WORK_PATIENCE", PATIENCE),
        (hung_storage, "PATIENCE", PATIENCE),
        (hung_storage, "_SILENT_FOR", PATIENCE),
        (backupd.serve.start_job, "_PATIENCE", PATIENCE),
        (backupd.serve.start_job, "_AGAIN", PATIENCE),
        (group, "UNENDING", PATIENCE),
        (programs, "UNENDING", PATIENCE),
        (backupd.cli.notify_, "_PATIENCE", PATIENCE),
        (sqlite, "BUSY_TIMEOUT", PATIENCE),
        (backupd.run.orphaned_receivers, "_LOOKS", 5),
    ):
        assert hasattr(module, name)
        setattr(module, name, value)
    backupd.cli.main()
