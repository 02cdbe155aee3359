"""What a replication has received of a backup that is not whole yet, or never will be."""

import os
import shutil

from btrkeep.checkpoints import Checkpoint
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import delete, describe

RECEIVING = ".receiving"


def discard_received(pool: Pool, host: str) -> bool:
    """Deletes what a replication that was cut off has left of a backup; whether there was something. Needs the host's lock."""
    folder = pool.host(host) / RECEIVING
    if not os.path.lexists(folder):
        return False
    with Checkpoint("received part deleted"):
        for path in folder.iterdir():
            if left := describe(path):
                delete(folder, left.id)
        shutil.rmtree(folder)
    return True
