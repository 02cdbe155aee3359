"""A process that opens the catalogue, writes, and closes it or dies, over and over: `python catalogue_writer.py STATE NAME SEED`.

Each transaction writes 40 rows with the same number. The committed number is then written to a file beside the state folder. It
ends by SIGTERM, or by `kill -9`, which it also does to itself.
"""

import os
import random
import signal
import sqlite3
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from btrkeep.catalogue import Catalogue, StoredAlarm

SINCE = datetime(2026, 11, 21, tzinfo=UTC)


def alarms(name: str, number: int) -> list[StoredAlarm]:
    filler = "x" * 400  # so that a transaction is some pages, and the journal is full after some dozens
    return [StoredAlarm(name, f"row{row}", f"{number} {filler}", 0, SINCE, 1, None, None, None) for row in range(40)]


def newest(catalogue: Catalogue, name: str) -> int:
    return max((int(alarm.text.split()[0]) for alarm in catalogue.alarms() if alarm.what == name), default=0)


def write(state: Path, name: str, chance: random.Random) -> None:
    file = state.parent / f"committed-{name}"
    with Catalogue.open(state) as catalogue:
        number = newest(catalogue, name)
        for _ in range(chance.choice((1, 2, 5, 40))):
            number += 1
            catalogue.put_alarms(alarms(name, number))
            unfinished = file.with_name(f".{name}")
            unfinished.write_text(str(number))
            unfinished.rename(file)
            time.sleep(chance.choice((0, 0, 0.002)))
        if chance.random() < 0.15:
            os.kill(os.getpid(), signal.SIGKILL)
    if chance.random() < 0.1:
        connection = sqlite3.connect(state / "catalogue.sqlite")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    state, name, chance = Path(sys.argv[1]), sys.argv[2], random.Random(sys.argv[3])
    while True:
        write(state, name, chance)
        time.sleep(chance.choice((0, 0.005, 0.08, 0.2)))


main()
