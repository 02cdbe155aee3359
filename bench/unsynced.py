"""unsynced.py [the words of tests/beds/kill_at.py]: backupd without its last sync, to see that a bench of power cuts finds that."""

import runpy
from pathlib import Path

from btrkeep.pool.syncfs import Syncfs

_KILL_AT = Path(__file__).resolve().parents[1] / "tests" / "beds" / "kill_at.py"


def _nothing(self: Syncfs) -> None:
    """Replaces Syncfs.sync."""


if __name__ == "__main__":
    Syncfs.sync = _nothing  # type: ignore[method-assign]
    runpy.run_path(str(_KILL_AT), run_name="__main__")
