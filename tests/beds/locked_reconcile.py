"""backupd whose catalogue is locked by a writer when an expiry starts to reconcile: `locked_reconcile.py CATALOGUE WORDS...`.

It waits half a second for that writer, which stays to its end.
"""

import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import backupd.cli
from backupd.expire import expiry_runner
from btrkeep.catalogue import sqlite

if __name__ == "__main__":
    assert hasattr(sqlite, "BUSY_TIMEOUT")
    sqlite.BUSY_TIMEOUT = 0.5
    reconcile: Callable[..., Any] = vars(expiry_runner)["reconcile"]
    writer = sqlite3.connect(sys.argv.pop(1), isolation_level=None)

    def locked(*given: Any) -> Any:
        if not writer.in_transaction:
            writer.execute("BEGIN IMMEDIATE")
        return reconcile(*given)

    vars(expiry_runner)["reconcile"] = locked
    backupd.cli.main()
