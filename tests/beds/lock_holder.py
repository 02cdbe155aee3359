"""Holds what locks a user can hold on the catalogue's files: `lock_holder.py STATE`, until it is killed.

A read lock by fcntl needs a descriptor that is open for reading, and no right to write. On the byte 0x40000002 of the database it
keeps the last writer from deleting the -wal, and on byte 120 of the -shm it is in the way of all who take SQLite's lock for
writing. It also keeps a read transaction open. It prints the name of each file that it could open.

Root's holder has the catalogue itself open before it begins: its -wal and -shm exist while a command has them open, which is less
time than a busy machine needs to look.
"""

import contextlib
import fcntl
import os
import sqlite3
import struct
import sys
import time
from pathlib import Path

_LOCKS = {"": (0x40000002, 510), "-wal": (0, 0), "-shm": (120, 1)}  # offset and length


def read_lock(fd: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, start, length, 0))


def hold(path: Path, held: dict[Path, tuple[int, int]], start: int, length: int) -> None:
    """Takes the lock of this file, once."""
    inode = path.stat().st_ino
    if held.get(path, (0, 0))[1] != inode:
        fd = os.open(path, os.O_RDONLY)
        held[path] = fd, inode
        sys.stdout.write(f"{path.name}\n")
        sys.stdout.flush()
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        read_lock(fd, start, length)


def hold_all(state: Path, held: dict[Path, tuple[int, int]]) -> None:
    for name in ("catalogue.sqlite", "dashboard.sqlite"):
        for suffix, (start, length) in _LOCKS.items():
            with contextlib.suppress(OSError):
                hold(state / f"{name}{suffix}", held, start, length)


def transaction(path: Path) -> sqlite3.Connection | None:
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection
    return None


def main() -> None:
    state = Path(sys.argv[1])
    held: dict[Path, tuple[int, int]] = {}
    reading: dict[str, sqlite3.Connection] = {}
    if os.geteuid() == 0 and (opened := transaction(state / "catalogue.sqlite")):
        reading["catalogue"] = opened
        hold_all(state, held)
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    while True:
        hold_all(state, held)
        for name in ("catalogue.lock", "dashboard.lock", "dashboard.sqlite.tmp"):
            with contextlib.suppress(OSError):
                hold(state / name, held, 0, 0)
        if "dashboard" not in reading and (opened := transaction(state / "dashboard.sqlite")):
            reading["dashboard"] = opened
        time.sleep(0.002)


main()
