"""unsynced.py [the words of tests/beds/kill_at.py]: backupd without its last sync, to see that a bench of power cuts finds that."""

import runpy

from btrkeep.pool.syncfs import Syncfs
from tests.beds.watch import KILL_AT


def _nothing(self: Syncfs) -> None:
    """Stands for Syncfs.sync."""


if __name__ == "__main__":
    Syncfs.sync = _nothing  # type: ignore[method-assign]
    runpy.run_path(str(KILL_AT), run_name="__main__")
