"""Pools for tests of expiry: hosts with a history, a policy, and checks of the result with other programs."""

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.beds.history import every, make_history, moment
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, rows, subvolumes

LAST = moment("2026-03-20 22:00")
NOW = LAST + timedelta(hours=2)
LATER = NOW + timedelta(days=2)  # when every grace is over


def at(when: datetime) -> tuple[str, str]:
    """Returns the options that set that time."""
    return "--now", when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Expiries(Nights):
    """A rehearsal pool with a policy that keeps three days, and one day of grace."""

    def __init__(self, top: Path) -> None:
        super().__init__(top, "--rehearsal")
        self.tables["retention"] = {"daily": 3, "min_keep": 1, "grace": "1d"}
        self.tables["expiry"] = {"max_orphans": 100}
        self.write()

    def history(self, host: str, count: int = 5, **wishes: Any) -> list[str]:
        """Makes a configured host with a backup on each of that many days, the last of them at LAST; returns their names."""
        self.host(host, self.source)
        return make_history(self, host, every(1, count, LAST), **wishes)

    def expire(self, when: datetime = NOW, *words: str, status: int = 0) -> dict[str, Any]:
        """Runs `backupd expire --json` at that time; returns its output, after checking the exit status."""
        done = self.backupd("expire", "--json", *words, *at(when), check=False)
        assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return dict(json.loads(done.stdout or "{}"))

    def expire_twice(self, when: datetime = NOW) -> None:
        """Marks the backups that are due, and deletes them two days later."""
        self.expire(when)
        self.expire(when + timedelta(days=2))

    def left(self, host: str) -> list[str]:
        """Returns the host's final backups, from `btrfs subvolume list`."""
        start = f"hosts/{host}/"
        lines = [path.removeprefix(start) for path in subvolumes(self) if path.startswith(start)]
        return sorted(name for name in lines if name[0].isdigit() and "/" not in name)

    def notes(self, host: str) -> dict[str, Any]:
        path = self.pool / "hosts" / host / "notes.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"backups": {}}

    def marked(self, host: str) -> list[str]:
        return sorted(name for name, note in self.notes(host)["backups"].items() if "expired" in note)

    def states(self, host: str) -> dict[str, str]:
        return dict(rows(self, f"select name, state from backup where host = '{host}'"))

    def consistent(self) -> list[str]:
        """Returns contradictions between pool, notes and catalogue while nothing runs."""
        results = disagreements(self)
        results += [
            f"{host} {name} is {state}"
            for host, name, state in rows(self, "select host, name, state from backup where state = 'deleting'")
        ]
        lines = set(subvolumes(self))
        for host in sorted(path.name for path in (self.pool / "hosts").iterdir()):
            marked, states = set(self.marked(host)), self.states(host)
            results += [f"{host} {name}: note without a backup" for name in marked if f"hosts/{host}/{name}" not in lines]
            expired = {name for name, state in states.items() if state == "expired"}
            results += [f"{host} {name}: row and note differ" for name in expired ^ marked]
        return results


def fingerprint(folder: Path) -> dict[str, Any]:
    """Returns each file's inode, mode, times and content, and the targets of links."""
    answer: dict[str, Any] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content = (
            path.readlink() if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        )
        answer[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, status.st_ctime_ns, content)
    return answer


def dump(nights: Nights) -> list[str]:
    """Returns the catalogue as an SQL dump of SQLite."""
    with closing(sqlite3.connect(f"file:{nights.state / 'catalogue.sqlite'}?mode=ro", uri=True)) as connection:
        return list(connection.iterdump())


@contextmanager
def sampled(look: Callable[[], int]) -> Iterator[list[int]]:
    """Checks repeatedly, in a thread, during the block."""
    seen: list[int] = []
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            seen.append(look())
            time.sleep(0.002)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
