"""Another process in a pool: takes locks one after the other, and records the content of a folder in between.

    python -m tests.beds.holding LOCKS FLAG LOG LISTED NAME...

FLAG is made when the first lock is held. Each lock is held until the next one is; after 0.8 s of each, or when the lock of the host
web1 is free, for which it waits 20 s at most, a line of LOG has its name, the names in LISTED, and whether that lock is free.
"""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from btrkeep.pool.locks import take_lock
from tests.beds.watch import is_locked


def main() -> None:
    locks, flag, log, listed = map(Path, sys.argv[1:5])
    with ExitStack() as held:
        for name in sys.argv[5:]:
            before = held.pop_all()
            held.enter_context(take_lock(locks / name, f"a {name} of a test", "2026-03-20T12:00:00Z"))
            before.close()
            flag.touch()
            time.sleep(0.8)
            host, end = locks / "host-web1", time.monotonic() + 60
            while not (is_free := not host.exists() or not is_locked(host)) and time.monotonic() < end:
                time.sleep(0.05)
            names = sorted(path.name for path in listed.iterdir()) if listed.is_dir() else []
            with log.open("a") as file:
                file.write(json.dumps([name, names, is_free]) + "\n")


if __name__ == "__main__":
    main()
