"""The cost of the pool's copy of the history: its size, the CPU seconds to write and to restore it, and memory.

    python -m bench.history_copy [--hosts 2800] [--backups 32]

Needs no btrfs: the pool is a folder in memory. The runs are those of bench/make_catalogue.py, one for each backup.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from backupd.repo.history_copy import FILE, keep_history, restore_history
from bench.make_catalogue import POOL_ID, make
from btrkeep.catalogue import Catalogue
from btrkeep.pool.marker import MARKER, Pool


def seconds(of: Callable[[], object]) -> float:
    """Returns the CPU seconds of a call."""
    before = time.process_time()
    of()
    return time.process_time() - before


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Measure the pool's copy of the history.")
    parser.add_argument("--hosts", type=int, default=2800)
    parser.add_argument("--backups", type=int, default=32)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        (folder / MARKER).mkdir()
        pool = Pool(folder, POOL_ID, "", rehearsal=False)
        runs = make(folder / "state", words.hosts, words.backups)
        with Catalogue.open(folder / "state") as catalogue:
            written = seconds(lambda: keep_history(pool, catalogue, datetime.now(UTC), daily=False))
            again = seconds(lambda: keep_history(pool, catalogue, datetime.now(UTC)))
        size = (folder / MARKER / FILE).stat().st_size
        with Catalogue.open(folder / "new") as catalogue:
            back = seconds(lambda: restore_history(pool, catalogue))
            assert catalogue.runs(limit=1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{runs:,} runs: {size:,} bytes ({size / runs:.0f} a run)")
    print(f"written in {written:.2f} s of CPU, looked at in {again:.4f} s, brought back in {back:.2f} s; at most {memory:.0f} MiB")


if __name__ == "__main__":
    main()
