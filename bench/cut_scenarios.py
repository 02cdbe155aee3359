"""Changes of state during which the power is cut: with the pool before each change, and the commands that are cut.

A scenario is a generator: code before its first `yield` is not cut, each Step that it yields is. It may read the pool between two
of them. The results of `extra` of the site are facts like those of the pool (cut_truth.py).
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.cut_site import MIB, Site, Step, run
from tests.beds import btrfs, work
from tests.beds.expiries import LATER, NOW, at
from tests.beds.nights import Nights

MANY = 20_000  # small files; bench.power_cuts has an option
OF_MANY_FILES = ("many", "many_continued")


def _backed_up(site: Site, *hosts: str) -> None:
    site.fill()
    site.hosts(*hosts)
    site.run()


def _broken_off(site: Site) -> tuple[str, ...]:
    """Two hosts whose runs broke off: one in its first copy, one that has a base."""
    hosts = ("web", "db")
    site.fill()
    site.hosts(*hosts)
    site.run("db")
    site.change()
    for host in hosts:
        site.broken_off(host, 1_500_000)
    return hosts


def first(site: Site) -> Iterator[Step]:
    """First copies of two hosts at once, slow enough to be cut within their files."""
    site.fill()
    site.hosts("web", "db")
    site.settings("backup", bandwidth="6MB")
    yield run()


def changed(site: Site) -> Iterator[Step]:
    """Two nights with changed files, the second while another host is copied for the first time."""
    _backed_up(site, "web", "db")
    site.settings("backup", bandwidth="4MB")
    site.change()
    yield run()
    site.hosts("new")
    site.change()
    yield run()


def few(site: Site) -> Iterator[Step]:
    """Two nights in which little has changed."""
    _backed_up(site, "web", "db")
    for _ in range(2):
        site.touch_up()
        yield run()


def many(site: Site) -> Iterator[Step]:
    """A first copy of many small files, and a night in which some of them have changed."""
    _many_files(site)
    yield run()
    for number in range(0, MANY, 97):
        (site.source / f"{number // 1000}" / f"{number}").write_bytes(site.noise(number % 500))
    yield run()


def many_continued(site: Site) -> Iterator[Step]:
    """A first copy of many small files continues after its connection ended in the middle."""
    _many_files(site)
    site.broken_off("web", 100 * MANY)
    yield run()


def _many_files(site: Site) -> None:
    for number in range(MANY):
        folder = site.source / f"{number // 1000}"
        if not number % 1000:
            folder.mkdir()
        (folder / f"{number}").write_bytes(site.noise(number % 300))
    site.hosts("web")


def continued(site: Site) -> Iterator[Step]:
    """Runs that continue the unfinished copies of others: a first copy, and one that began from a base."""
    _broken_off(site)
    site.settings("backup", bandwidth="6MB")
    yield run()


def suspect(site: Site) -> Iterator[Step]:
    """A host that has lost most of its files, and a user who accepts that."""
    _backed_up(site, "web")
    for path in (site.source / "small").iterdir():
        path.unlink()
    yield run(status=(1,))
    yield Step(("accept", "web", site.names("web")[-1], "--why", "moved"), (0, 1))
    yield run()


def altered(site: Site) -> Iterator[Step]:
    """The newest backup was changed manually: a run uses an older base; then a user accepts the change, and the next run uses it as
    base.
    """
    _backed_up(site, "web")
    site.change()
    site.run()
    name = site.names("web")[-1]
    backup = site.backup("web", name)
    work("btrfs", "property", "set", "-f", "-ts", backup, "ro", "false")
    (backup / "data" / "by hand").write_bytes(site.noise(7000))
    work("btrfs", "property", "set", "-ts", backup, "ro", "true")
    site.touch_up()
    yield run()
    yield Step(("accept", "web", name, "--why", "mine"), (0, 1))
    site.touch_up()
    yield run()


def expire(site: Site) -> Iterator[Step]:
    """Marks backups that are too old, and deletes them two days later, while the mount option is switched."""
    names = site.histories("web", "db", "mail")
    site.backupd("hold", "web", names[0], "--why", "court", *at(NOW))
    yield Step(("expire", *at(NOW)))
    yield Step(("expire", *at(LATER)))


def notes(site: Site) -> Iterator[Step]:
    """Notes of a backup, and the commands that remove them."""
    names = site.histories("web", "db")
    yield Step(("hold", "web", names[0], "--why", "court", *at(NOW)))
    yield Step(("expire", *at(NOW)))
    yield Step(("unexpire", "web", names[1], "--why", "needed", *at(NOW)), (0, 1))
    yield Step(("release", "web", names[0], *at(NOW)), (0, 1))
    yield Step(("delete", f"db@{names[2]}", "--why", "secret", *at(NOW)), (0, 1))
    yield Step(("delete", f"db@{names[3]}", "--why", "secret", "--now-without-grace", *at(NOW)), (0, 1, 2))


def rename(site: Site) -> Iterator[Step]:
    """A host is renamed, and is backed up under its new name."""
    _backed_up(site, "web", "db")
    del site.tables["host"]["web"]
    site.hosts("www")
    yield Step(("rename", "web", "www", "--yes"))
    site.change()
    yield run()


def forget(site: Site) -> Iterator[Step]:
    """A host is forgotten, and its backups are deleted."""
    site.histories("web", "db")
    del site.tables["host"]["web"]
    site.write()
    yield Step(("forget", "web", "--yes", *at(NOW)), (0, 1))
    yield Step(("expire", *at(LATER), "--force", "hosts", "--force", "pool"), (0, 1))


def discard(site: Site) -> Iterator[Step]:
    """An unfinished backup is discarded."""
    for host in _broken_off(site):
        yield Step(("discard", host, "--yes"), (0, 1, 2))


def rebuild(site: Site) -> Iterator[Step]:
    """The catalogue is rebuilt, with and without an old one."""
    names = site.histories("web", "db")
    site.backupd("hold", "web", names[0], "--why", "court", *at(NOW))
    yield Step(("rebuild",))
    for path in site.state.iterdir():
        path.unlink()
    yield Step(("rebuild",))


def restore(site: Site) -> Iterator[Step]:
    """Files are restored to a folder of the same disk, twice."""
    _backed_up(site, "web")
    site.out.mkdir()
    for number in range(2):
        words = ("restore", "web", str(site.source), "--to", str(site.out / str(number)), "--overwrite", "all")
        yield Step(words)


def balance(site: Site) -> Iterator[Step]:
    """Block groups move while hosts are backed up."""
    _backed_up(site, "web", "db")
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
    _backed_up(site, "web")
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
    """A copy of a backup in which a file was damaged; the checksums of the run have its original content."""
    site.fill()
    site.hosts("web")
    for days in (3, 2, 1):
        site.night("web", now=datetime.now(UTC).replace(microsecond=0) - timedelta(days=days))
        site.touch_up()
    site.elsewhere.add("web")
    site.spoil("web", site.names("web")[0])
    assert site.backupd("verify", check=False).returncode == 1
    yield Step(("repair", "--yes"))


def _with_another_pool(site: Site) -> tuple[Nights, Path]:
    """Returns another pool with a host `far`, whose backups the site will fetch, and the host's folder."""
    _backed_up(site, "web")
    site.elsewhere.add("far")
    other = Nights(btrfs.make("500M"), "--rehearsal")
    source = other.source / "far"
    source.mkdir()
    other.host("far", source)
    return other, source


def fetched(site: Site) -> Iterator[Step]:
    """Backups of another pool are fetched, and some are fetched again because they are damaged."""
    other, source = _with_another_pool(site)
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


def damaged_parent(site: Site) -> Iterator[Step]:
    """A copy that is fetched as a difference to a damaged one is damaged too; then all of them are fetched again."""
    other, source = _with_another_pool(site)
    (source / "database").write_bytes(site.noise(300_000))
    for days in (3, 2, 1):
        (source / "note").write_bytes(site.noise(7000 * days))
        other.night("far", now=datetime.now(UTC).replace(microsecond=0) - timedelta(days=days))
        if days == 3:
            site.tables["replica.office"] = {"from": str(other.pool), "hosts": ["far"]}
            site.write()
            site.backupd("replicate", "office")
            site.call_damaged("far", site.names("far")[0], f"{source}/database")
    yield Step(("replicate", "office"))
    yield Step(("replicate", "office", "--damaged"))


def shared(site: Site) -> Iterator[Step]:
    """The first backups of two hosts share their data with that of a third, which has nearly the same files."""
    _backed_up(site, "web")
    site.touch_up()
    for name in ("web2", "web3"):
        site.host(name, site.source, share_with="web", share_across_groups=True)
    yield run("web2", "web3")
    site.touch_up()
    yield run()


def doubted(site: Site) -> Iterator[Step]:
    """A first copy and a run from a base are continued after a crash. It is unknown which of their data reached the disk."""
    for host in _broken_off(site):
        os.removexattr(site.pool / "hosts" / host / ".working", "user.btrkeep.synced")
    (site.source / "database").unlink()
    yield run()


def outdated(site: Site) -> Iterator[Step]:
    """A run discards unfinished backups of earlier runs, because other files are excluded now."""
    for host in _broken_off(site):
        site.host(host, site.source, exclude=["*.secret"])
    yield run()


def verified(site: Site) -> Iterator[Step]:
    """Backups are read after a crash and later again, and a damaged file is found; this pool is not a rehearsal pool, so it has
    boots.
    """
    _backed_up(site, "web", "db")
    site.touch_up()
    site.run()
    site.end_rehearsal()
    site.backupd("verify", "--after-crash")
    site.spoil("web", site.names("web")[0])
    site.another_boot()
    yield Step(("verify", "--after-crash"), (1,))
    yield Step(("verify",), (1,))
    site.touch_up()
    yield run()
    yield Step(("verify", "--sample", "50%"), (0, 1))


def to_host(site: Site) -> Iterator[Step]:
    """Files are restored over ssh to a host whose disk loses its power too, twice: to a new folder, and over existing files.

    A host syncs them when it likes; here it does so after each restore.
    """
    _backed_up(site, "web")
    site.is_host = True
    site.out.mkdir()
    for number in range(2):
        (site.out / str(number)).mkdir()
    with (site.source / "database").open("rb") as file:
        (site.out / "1" / site.source.name).mkdir()
        (site.out / "1" / site.source.name / "database").write_bytes(file.read(MIB))
    for number in range(2):
        to = f"--to-host=root@web:{site.out / str(number)}"
        yield Step(("restore", "web", str(site.source), "--overwrite", "all", to))
        work("sync", "-f", site.out)


def promoted(site: Site) -> Iterator[Step]:
    """A host that was fetched from another pool is backed up here, and later is fetched again."""
    _backed_up(site, "web")
    other, now = Nights(btrfs.make("500M"), "--rehearsal"), datetime.now(UTC).replace(microsecond=0)
    other.host("far", site.source)
    other.night("far", now=now - timedelta(days=1))
    site.elsewhere.add("far")
    site.tables["replica.office"] = {"from": str(other.pool), "hosts": ["far"]}
    site.write()
    site.backupd("replicate", "office")
    yield Step(("promote", "far", "--yes"), was_done=(2,))
    site.hosts("far")
    site.touch_up()
    yield run()
    other.night("far", now=now - timedelta(hours=1))  # another second than here: a name is one backup
    del site.tables["host"]["far"]
    site.write()
    yield Step(("demote", "office", "far", "--yes"), was_done=(2,))
    yield Step(("replicate", "office"))


Scenario = Callable[[Site], Iterator[Step]]
SCENARIOS: Mapping[str, Scenario] = {
    path.__name__: path
    for path in (
        first,
        changed,
        few,
        many,
        many_continued,
        continued,
        suspect,
        altered,
        expire,
        notes,
        rename,
        forget,
        discard,
        rebuild,
        restore,
        balance,
        imported,
        repaired,
        fetched,
        damaged_parent,
        shared,
        doubted,
        outdated,
        verified,
        to_host,
        promoted,
    )
}
