"""Changes of state to cut the power in: for each a pool as it is before, and the commands that are cut.

A scenario is a generator: what comes before its first `yield` is not cut, each Step that it yields is. It may look at the pool
between two of them. What `extra` finds is a fact like those of the pool (cut_truth.py).
"""

import os
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import cut_truth
from bench.cut_disks import CutDisks
from btrkeep.catalogue.migrate import MIGRATIONS
from tests.beds import btrfs, session, work
from tests.beds.expiries import LAST, LATER, NOW, at
from tests.beds.history import every, make_histories
from tests.beds.nights import Nights

MIB = 1 << 20
MANY = 20_000  # small files; bench.power_cuts has an option
_OLD_CATALOGUE = """
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
config = Config()
config.set_main_option("script_location", {migrations!r})
with create_engine("sqlite:///{path}").connect() as connection:
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")
    connection.commit()
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that is cut. `again`: given again after a cut it does the rest, and nothing twice. `status`: how it may end."""

    words: tuple[str, ...]
    status: tuple[int, ...] = (0,)
    again: bool = True
    program: str = "backupd"


def run(*hosts: str, status: tuple[int, ...] = (0,)) -> Step:
    """A run, which makes one backup more each time."""
    return Step(("run", "--json", *(hosts or ("--all",))), status, again=False)


class Site(Nights):
    """A rehearsal pool on disks that can be cut; configuration and sources lie elsewhere, so they survive."""

    def __init__(self, disks: CutDisks, seed: int) -> None:
        super().__init__(disks.pool, "--rehearsal")
        self.top = Path(tempfile.mkdtemp(prefix="site-", dir=session.folder()))
        self.config, self.source, self.state = self.top / "main.toml", self.top / "srv", disks.state / "state"
        self.source.mkdir()
        self.disks = disks
        self.random = random.Random(seed)
        self.out = disks.pool / "out"
        self.elsewhere: set[str] = set()  # hosts whose backups are not made of the source as it is
        self.tables["retention"] = {"daily": 3, "min_keep": 1, "grace": "1d"}
        self.tables["expiry"] = {"max_orphans": 100, "mount_option": "ssd"}
        self.settings("pool", state=str(self.state))
        self.settings("backup", concurrency=2)

    def noise(self, size: int) -> bytes:
        """So many bytes that do not compress."""
        return self.random.randbytes(size)

    def extra(self) -> set[str]:
        """Which of the folders that something was restored to hold the source as it is now."""
        wanted = cut_truth.tree(self.source)
        places = self.out.iterdir() if self.out.is_dir() else ()
        return {f"{place.name} is restored" for place in places if cut_truth.tree(place / self.source.name) == wanted}

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
        """Pieces of the database, same size; a hard link broken, one made; data where a hole was; files gone, new, and renamed."""
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
        """So little that only the last sync brings it to the disk: nobody looks for holes in less than 64 KiB, which syncs too."""
        with (self.source / "database").open("r+b") as file:
            for _ in range(3):
                file.seek(self.random.randrange(2 * MIB - 4000))
                file.write(self.noise(4000))
        for name in ("note", "small/1", f"new{self.random.random()}"):
            (self.source / name).write_bytes(self.noise(7000))

    def hosts(self, *names: str) -> None:
        """Hosts that all have the same source."""
        for name in names:
            self.host(name, self.source)

    def broken_off(self, host: str, count: int) -> None:
        """A run of the host that its connection ends after so many bytes: it leaves a `.working`."""
        self.in_the_middle(count, end="dies")
        self.backupd("run", host, check=False)
        self.ssh("")

    def histories(self, *hosts: str) -> list[str]:
        """Hosts with five nights of backups; their names."""
        self.hosts(*hosts)
        moments = every(1, 5, LAST)
        make_histories(self, hosts, moments)
        return [moment.strftime("%Y-%m-%dT%H%M%SZ") for moment in moments]


def first(site: Site) -> Iterator[Step]:
    """First copies of two hosts at once, slow enough to be cut within their files."""
    site.fill()
    site.hosts("web", "db")
    site.settings("backup", bandwidth="6MB")
    yield run()


def changed(site: Site) -> Iterator[Step]:
    """Two nights of what has changed, the second while another host is copied for the first time."""
    site.fill()
    site.hosts("web", "db")
    site.run()
    site.settings("backup", bandwidth="4MB")
    site.change()
    yield run()
    site.hosts("new")
    site.change()
    yield run()


def few(site: Site) -> Iterator[Step]:
    """Two nights in which little has changed."""
    site.fill()
    site.hosts("web", "db")
    site.run()
    for _ in range(2):
        site.touch_up()
        yield run()


def many(site: Site) -> Iterator[Step]:
    """A first copy of many small files, and a night in which some of them have changed."""
    for number in range(MANY):
        folder = site.source / f"{number // 1000}"
        if not number % 1000:
            folder.mkdir()
        (folder / f"{number}").write_bytes(site.noise(number % 300))
    site.hosts("web")
    yield run()
    for number in range(0, MANY, 97):
        (site.source / f"{number // 1000}" / f"{number}").write_bytes(site.noise(number % 500))
    yield run()


def continued(site: Site) -> Iterator[Step]:
    """Runs that go on with what others left: a first copy, and one that grew from a base."""
    site.fill()
    site.hosts("web", "db")
    site.run("db")
    site.change()
    for host in ("web", "db"):
        site.broken_off(host, 1_500_000)
    site.settings("backup", bandwidth="6MB")
    yield run()


def suspect(site: Site) -> Iterator[Step]:
    """A host that has lost most of its files, and somebody who says that this is right."""
    site.fill()
    site.hosts("web")
    site.run()
    for path in (site.source / "small").iterdir():
        path.unlink()
    yield run(status=(1,))
    yield Step(("accept", "web", site.names("web")[-1], "--why", "moved"), (0, 1))
    yield run()


def expire(site: Site) -> Iterator[Step]:
    """Marks what is too old, and deletes it two days later, with the mount option switched meanwhile."""
    names = site.histories("web", "db", "mail")
    site.backupd("hold", "web", names[0], "--why", "court", *at(NOW))
    yield Step(("expire", *at(NOW)))
    yield Step(("expire", *at(LATER)))


def notes(site: Site) -> Iterator[Step]:
    """What is noted of a backup, and what takes it back."""
    names = site.histories("web", "db")
    yield Step(("hold", "web", names[0], "--why", "court", *at(NOW)))
    yield Step(("expire", *at(NOW)))
    yield Step(("unexpire", "web", names[1], "--why", "needed", *at(NOW)), (0, 1))
    yield Step(("release", "web", names[0], *at(NOW)), (0, 1))
    yield Step(("delete", f"db@{names[2]}", "--reason", "secret", *at(NOW)), (0, 1))
    yield Step(("delete", f"db@{names[3]}", "--reason", "secret", "--now-without-grace", *at(NOW)), (0, 1, 2))


def rename(site: Site) -> Iterator[Step]:
    """A host gets another name, and is backed up under that."""
    site.fill()
    site.hosts("web", "db")
    site.run()
    del site.tables["host"]["web"]
    site.hosts("www")
    yield Step(("rename", "web", "www", "--yes"))
    site.change()
    yield run()


def forget(site: Site) -> Iterator[Step]:
    """A host is given up, and what is left of it goes."""
    site.histories("web", "db")
    del site.tables["host"]["web"]
    site.write()
    yield Step(("forget", "web", "--yes", *at(NOW)), (0, 1))
    yield Step(("expire", *at(LATER), "--force", "hosts", "--force", "pool"), (0, 1))


def discard(site: Site) -> Iterator[Step]:
    """An unfinished backup is given up."""
    site.fill()
    site.hosts("web", "db")
    site.run("db")
    site.change()
    for host in ("web", "db"):
        site.broken_off(host, 1_500_000)
    for host in ("web", "db"):
        yield Step(("discard", host, "--yes"), (0, 1, 2))


def rebuild(site: Site) -> Iterator[Step]:
    """The catalogue is made again, of a pool that has one and of one that has none."""
    names = site.histories("web", "db")
    site.backupd("hold", "web", names[0], "--why", "court", *at(NOW))
    yield Step(("rebuild",))
    for path in site.state.iterdir():
        path.unlink()
    yield Step(("rebuild",))


def restore(site: Site) -> Iterator[Step]:
    """Files come back to a folder of the same disk, twice."""
    site.fill()
    site.hosts("web")
    site.run()
    site.out.mkdir()
    for number in range(2):
        words = ("restore", "web", str(site.source), "--to", str(site.out / str(number)), "--overwrite", "all")
        yield Step(words)


def migration(site: Site) -> Iterator[Step]:
    """A catalogue of the oldest version is brought up by a run."""
    site.fill()
    site.hosts("web")
    site.run()
    for path in site.state.iterdir():
        path.unlink()
    path = site.state / "catalogue.sqlite"
    _make_old(path)
    site.change()
    yield run()


def _make_old(path: Path) -> None:
    work(sys.executable, "-c", _OLD_CATALOGUE.format(migrations=str(MIGRATIONS), path=path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select version_num from alembic_version").fetchone() == ("0001",)


def balance(site: Site) -> Iterator[Step]:
    """Block groups move while hosts are backed up."""
    site.fill()
    site.hosts("web", "db")
    site.run()
    ballast = site.disks.pool / "ballast"
    ballast.mkdir()
    for number in range(64):
        (ballast / f"{number}").write_bytes(site.noise(MIB))
    work("sync", "-f", ballast)
    for number in range(0, 64, 2):
        (ballast / f"{number}").unlink()
    work("sync", "-f", ballast)
    words = ("run", str(site.disks.pool), "--min-score", "0", "--budget", "none", "-q")
    yield Step(words, (0, 1), again=False, program="balancer")
    site.change()
    yield run()


def imported(site: Site) -> Iterator[Step]:
    """The history of another program becomes backups: trees of five days, with hard links between them."""
    site.fill()
    site.hosts("web")
    site.run()
    site.elsewhere.add("attic")
    old, before = site.top / "old", None
    for day in range(1, 6):
        tree = old / f"2026-01-0{day}"
        words = (f"--link-dest={before}",) if before else ()
        tree.mkdir(parents=True)
        work("rsync", "-aH", *words, f"{site.source}/", tree)
        before = tree
        site.touch_up()
    yield Step(("import", "tree", str(old), "--host", "attic", "--verify", "none"))


def repaired(site: Site) -> Iterator[Step]:
    """A copy of a backup in which somebody has spoilt a file; the checksums that the run made say what it was."""
    site.fill()
    site.hosts("web")
    for days in (3, 2, 1):
        site.night("web", now=datetime.now(UTC).replace(microsecond=0) - timedelta(days=days))
        site.touch_up()
    site.elsewhere.add("web")
    name = site.names("web")[0]
    backup, touched = site.backup("web", name), ("/database", "/note", "/small/1")
    sums = [line.split("  ")[1] for line in (backup / "SHA256SUMS").read_text().splitlines()]
    file = next(path for one in sums if (path := backup / one).stat().st_size and not one.endswith(touched))
    stamp = file.stat().st_mtime_ns
    work("btrfs", "property", "set", "-f", backup, "ro", "false")
    with file.open("r+b") as opened:
        opened.write(bytes(100))
    os.utime(file, ns=(stamp, stamp))
    work("btrfs", "property", "set", backup, "ro", "true")
    assert site.backupd("verify", check=False).returncode == 1
    yield Step(("repair", "--yes"))


def fetched(site: Site) -> Iterator[Step]:
    """Backups of another pool are fetched, and some are fetched again because they are damaged."""
    site.fill()
    site.hosts("web")
    site.run()
    site.elsewhere.add("far")
    other = Nights(btrfs.make("500M"), "--rehearsal")
    source = other.source / "far"
    source.mkdir()
    other.host("far", source)
    for days in (3, 2, 1):
        (source / "note").write_bytes(site.noise(7000 * days))
        (source / f"{days}").write_bytes(site.noise(300_000))
        other.night("far", now=datetime.now(UTC).replace(microsecond=0) - timedelta(days=days))
    site.tables["replica.office"] = {"from": str(other.pool), "hosts": ["far"]}
    site.write()
    yield Step(("replicate", "office"))
    with closing(sqlite3.connect(site.state / "catalogue.sqlite")) as rows, rows:
        for name in site.names("far")[:2]:
            place = (name, f"{source}/3")
            rows.execute("insert into damage values ('far', ?, ?, 0, 0, 'scrub', '2026-01-01T00:00:00Z', NULL)", place)
    yield Step(("replicate", "office", "--damaged"))


Scenario = Callable[[Site], Iterator[Step]]
SCENARIOS: Mapping[str, Scenario] = {
    one.__name__: one
    for one in (
        first,
        changed,
        few,
        many,
        continued,
        suspect,
        expire,
        notes,
        rename,
        forget,
        discard,
        rebuild,
        restore,
        migration,
        balance,
        imported,
        repaired,
        fetched,
    )
}
