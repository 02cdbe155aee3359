"""What a scenario of bench/cut_scenarios.py is made of: the commands that are cut, and the pool and sources that they work on."""

import json
import os
import random
import re
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from backupd.repo.verification_files import enter_damages
from bench import cut_truth
from bench.cut_disks import CutDisks
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.fs.file_data import address
from btrkeep.pool.marker import open_pool
from btrkeep.pool.subvolume import create
from tests.beds import work
from tests.beds.cli import command
from tests.beds.expiries import LAST
from tests.beds.hidden_changes import hide_changes
from tests.beds.history import every, make_histories
from tests.beds.nights import Nights

MIB = 1 << 20
LONGEST = 1800.0  # seconds of a command
_TEMPORARY = re.compile(r"(.*/)?\.[^/]+\.[A-Za-z0-9]{6}")
_ANOTHER_BOOT = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Step:
    """A command that is cut. `again`: the command that is run after a cut; it completes the work, and does nothing twice. `status`:
    the expected exit status.

    `was_done`: how it may end besides if all of it was done already.
    """

    words: tuple[str, ...]
    status: tuple[int, ...] = (0,)
    again: bool = True
    was_done: tuple[int, ...] = ()
    program: str = "backupd"


def run(*hosts: str, status: tuple[int, ...] = (0,)) -> Step:
    """Returns a run, which makes one more backup."""
    return Step(("run", "--json", *(hosts or ("--all",))), status, again=False)


class Site(Nights):
    """A rehearsal pool on disks that can be cut; configuration and sources are elsewhere, so they survive. The
    source is a subvolume, so its state before a step is a snapshot.
    """

    def __init__(self, disks: CutDisks, seed: int) -> None:
        super().__init__(disks.pool, "--rehearsal")
        self.top = Path(tempfile.mkdtemp(prefix="site-", dir=disks.images))
        self.config, self.source, self.state = self.top / "main.toml", self.top / "srv", disks.state / "state"
        create(self.source)
        self.disks = disks
        self.random = random.Random(seed)
        self.out = disks.pool / "out"
        self.elsewhere: set[str] = set()  # hosts whose backups are not made of the source as it is
        self.is_host = (
            False  # whether `out` is a host's: a cut may leave a temporary file of rsync's there, which no restore removes
        )
        self.spoilt: tuple[str, str, str] | None = None  # host, backup and path of a file
        self.called_damaged: tuple[str, str, int | None] | None = None  # host and path of a file, and where its data lies
        self.tables["retention"] = {"daily": 3, "min_keep": 1, "grace": "1d"}
        self.tables["expiry"] = {"max_orphans": 100, "mount_option": "ssd"}
        self.settings("pool", state=str(self.state))
        self.settings("backup", concurrency=2)

    def noise(self, size: int) -> bytes:
        """Returns that number of incompressible bytes."""
        return self.random.randbytes(size)

    def extra(self) -> set[str]:
        """Returns the restored folders that contain the present source."""
        places = list(self.out.iterdir()) if self.out.is_dir() else []
        wanted = cut_truth.tree(self.source) if places else {}
        restored = {f"{place.name} is restored" for place in places if not self._unlike(place / self.source.name, wanted)}
        reported = {f"{place} is known to be damaged" for place in self._known_damage()}
        return restored | reported | {f"{place} has damage that nobody knows" for place in self._hidden_damage()}

    def _unlike(self, place: Path, wanted: cut_truth.Tree) -> list[str]:
        differences = cut_truth.unlike(cut_truth.tree(place), wanted)
        return [name for name in differences if name in wanted or not (self.is_host and _TEMPORARY.fullmatch(name))]

    def _known_damage(self) -> list[str]:
        """Returns the damaged file, as host/name/path, once the catalogue has it as damaged."""
        path = self.state / "catalogue.sqlite"
        if not self.spoilt or not path.exists():
            return []
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as rows:
            rows_of_damage = rows.execute(
                "select distinct host, name, path from damage where (host, name, path) = (?, ?, ?)", self.spoilt
            )
            return ["/".join(row) for row in rows_of_damage]

    def call_damaged(self, host: str, name: str, path: str) -> None:
        """Records that a file of a backup is damaged, and remembers the place of its data."""
        self.called_damaged = host, path, self._place(host, name, path)
        with Catalogue.open(self.state) as catalogue:
            row = Damage(host, name, path, 0, 0, "verify", datetime.now(UTC).replace(microsecond=0))
            enter_damages(open_pool(self.pool), catalogue, [host], [row])

    def _place(self, host: str, name: str, path: str) -> int | None:
        with (self.backup(host, name) / "data" / path.strip("/")).open("rb") as file:
            return address(file.fileno(), 0)

    def _hidden_damage(self) -> list[str]:
        """Returns the backups with the damaged data of `called_damaged` that neither the catalogue nor damaged.json has
        as damaged.
        """
        if not self.called_damaged:
            return []
        host, path, place = self.called_damaged
        file = self.pool / "hosts" / host / "damaged.json"
        noted = json.loads(file.read_text())["backups"] if file.exists() else {}
        recorded = {name for name, rows in noted.items() if any(row["path"] == path for row in rows)}
        if (self.state / "catalogue.sqlite").exists():
            with closing(sqlite3.connect(f"file:{self.state / 'catalogue.sqlite'}?mode=ro", uri=True)) as rows:
                recorded |= {name for (name,) in rows.execute("select name from damage where (host, path) = (?, ?)", (host, path))}
        return [f"{host}/{name}" for name in self.names(host) if name not in recorded and self._place(host, name, path) == place]

    def end_rehearsal(self) -> None:
        """Makes this a normal pool: it has boots, and commands accept no `--now`."""
        path = self.pool / ".btrkeep" / "pool.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rehearsal": False}))

    def another_boot(self) -> None:
        """Changes the notes of this boot into those of an earlier boot."""
        path = self.pool / ".btrkeep" / "boot.json"
        if path.exists() and (text := path.read_text()):
            path.write_text(json.dumps(json.loads(text) | {"boot": _ANOTHER_BOOT}))

    def spoil(self, host: str, name: str) -> None:
        """Overwrites the beginning of a file of a backup with zeros, which its recorded checksum detects."""
        backup, touched = self.backup(host, name), ("/database", "/note", "/small/1")
        sums = [line.split("  ")[1] for line in (backup / "SHA256SUMS").read_text().splitlines()]
        file = next(path for name in sums if (path := backup / name).stat().st_size and not name.endswith(touched))
        stamp = file.stat().st_mtime_ns
        work("btrfs", "property", "set", "-f", backup, "ro", "false")
        with file.open("r+b") as opened:
            opened.write(bytes(100))
        os.utime(file, ns=(stamp, stamp))
        work("btrfs", "property", "set", backup, "ro", "true")
        hide_changes(backup.parent)  # a disk does this without any trace
        self.spoilt = (host, name, str(file).removeprefix(f"{backup}/data"))

    def fill(self) -> None:
        """A database, a sparse image with a zero tail, one full of holes, many small files, some empty, hard links."""
        (self.source / "database").write_bytes(self.noise(2 * MIB))
        for name, places in (("zero-tail", (0, 1)), ("holes", (0, 3, 7))):
            with (self.source / name).open("wb") as file:
                for place in places:
                    file.seek(place * 512 * 1024)
                    file.write(self.noise(200_000))
                file.truncate(5 * MIB)
        small = self.source / "small"
        small.mkdir()
        for number in range(150):
            (small / f"{number}").write_bytes(self.noise(self.random.choice((0, 100, 2000, 9000))))
        for number in range(6):
            (self.source / f"pair{number}").write_bytes(self.noise(20_000))
            (self.source / f"pair{number}-too").hardlink_to(self.source / f"pair{number}")
        (self.source / "link").symlink_to("database")

    def change(self) -> None:
        """Changes files: parts of the database, same size; a hard link broken, another one made; data in a hole; files deleted,
        added and renamed.
        """
        with (self.source / "database").open("r+b") as file:
            for _ in range(20):
                file.seek(self.random.randrange(2 * MIB - 9000))
                file.write(self.noise(9000))
        with (self.source / "zero-tail").open("r+b") as file:
            file.seek(self.random.randrange(4 * MIB))
            file.write(self.noise(300_000))
            file.truncate(6 * MIB)
        (self.source / "pair1").unlink()
        (self.source / "pair1").write_bytes(self.noise(20_000))
        (self.source / "late-link").unlink(missing_ok=True)
        (self.source / "late-link").hardlink_to(self.source / "small" / "1")
        for number in self.random.sample(range(2, 150), 25):
            path = self.source / "small" / f"{number}"
            if path.exists() and number % 3 == 0:
                path.unlink()
            else:
                path.write_bytes(self.noise(5000))
        (self.source / f"new{self.random.random()}").write_bytes(self.noise(MIB))

    def touch_up(self) -> None:
        """Makes changes that are too small to reach the disk before the last sync: holes, whose search syncs as well, are searched
        only in files of 64 KiB or more.
        """
        with (self.source / "database").open("r+b") as file:
            for _ in range(3):
                file.seek(self.random.randrange(2 * MIB - 4000))
                file.write(self.noise(4000))
        for name in ("note", "small/1", f"new{self.random.random()}"):
            (self.source / name).write_bytes(self.noise(7000))

    def hosts(self, *names: str) -> None:
        """Adds hosts that all have the same source."""
        for name in names:
            self.host(name, self.source)

    def broken_off(self, host: str, count: int) -> None:
        """Makes a run of the host whose connection ends after that many bytes: it leaves a `.working`."""
        self.in_the_middle(count, end="dies")
        command("backupd", "--config", self.config, "run", host, check=False, timeout=LONGEST)
        self.ssh("")

    def histories(self, *hosts: str) -> list[str]:
        """Makes hosts with five nights of backups; returns their names."""
        self.hosts(*hosts)
        moments = every(1, 5, LAST)
        make_histories(self, hosts, moments)
        return [moment.strftime("%Y-%m-%dT%H%M%SZ") for moment in moments]
