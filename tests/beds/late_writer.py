"""Starts to write in a catalogue when a folder was deleted: `late_writer.py CATALOGUE FOLDER`, until it is killed."""

import contextlib
import sqlite3
import sys
import time
from pathlib import Path


def main() -> None:
    catalogue, folder = map(Path, sys.argv[1:])
    while folder.exists():
        time.sleep(0.0005)
    connection = sqlite3.connect(catalogue, isolation_level=None, timeout=0)
    while not connection.in_transaction:
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
    sys.stdout.write("holds it\n")
    sys.stdout.flush()
    time.sleep(120)


main()
