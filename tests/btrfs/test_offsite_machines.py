"""A repository in which two machines had the same name one after the other: plain restic lists the remaining snapshots of each."""

import fcntl
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backupd.offsite.offsite_run import OffsiteEvent, OffsiteRun
from backupd.offsite.restic import restic_of
from btrkeep.catalogue import Catalogue
from btrkeep.config import load
from btrkeep.pool.marker import open_pool
from btrkeep.process.progress import ProgressSinks, Waiting
from tests.beds.cli import backupd_start
from tests.beds.watch import wait_for
from tests.beds.work import work
from tests.btrfs.test_offsite import Offsite

pytestmark = pytest.mark.btrfs


@pytest.fixture
def far(make_btrfs: Callable[..., Path]) -> Iterator[Offsite]:
    """Three backups of a machine called web1 are sent, with a retention that keeps two."""
    made = Offsite(make_btrfs())
    made.settings()
    made.night.tables["offsite.far.retention"] = {"daily": 2, "min_keep": 1}
    made.night.write()
    made.offsite("init", "far")
    (made.night.source / "file").write_text("of the former machine")
    for day in (1, 2, 3):
        made.backup(f"2026-03-0{day}T22:00:00Z")
        made.run("--now", f"2026-03-0{day}T23:00:00Z")
    yield made
    shutil.rmtree(made.away)


def left(far: Offsite) -> list[tuple[str, str]]:
    """Returns the name and the day of each snapshot that plain restic lists."""
    return sorted((host, time[:10]) for host, time, _ in far.listed_by_restic())


def another_machine(far: Offsite, days: tuple[int, ...]) -> None:
    """Makes another machine called web1, with backups of these days, each of which is sent."""
    source = far.night.top / "another"
    source.mkdir()
    (source / "file").write_text("of the new machine")
    far.night.host("web1", source)
    for day in days:
        far.backup(f"2026-03-{day:02}T22:00:00Z")
        assert [sent_backup["host"] for sent_backup in far.run("--now", f"2026-03-{day:02}T23:00:00Z")["sent"]] == ["web1"]


def test_a_machine_that_has_the_name_of_a_renamed_one_takes_nothing_of_its_away(far: Offsite) -> None:
    former = [("web1", "2026-03-02"), ("web1", "2026-03-03")]
    assert left(far) == former
    far.night.backupd("rename", "web1", "old1", "--yes")
    far.night.tables["host"]["old1"] = {**far.night.tables["host"].pop("web1"), "enabled": False}
    far.night.write()
    (again,) = far.run("--now", "2026-03-04T12:00:00Z")["sent"]  # today's name alone suffices to find it
    assert (again["host"], again["bytes"] < 20_000) == ("old1", True)
    assert far.run("--now", "2026-03-04T13:00:00Z")["sent"] == []
    another_machine(far, (5, 6, 7))
    assert left(far) == [("old1", "2026-03-03"), *former, ("web1", "2026-03-06"), ("web1", "2026-03-07")]
    rows = {(row["host"], row["backup"][:10]) for row in json.loads(far.offsite("list", "--json").stdout)}
    assert rows == {("old1", "2026-03-02"), ("old1", "2026-03-03"), ("web1", "2026-03-06"), ("web1", "2026-03-07")}
    far.offsite("check", "--files", "1")
    far.night.tables["host"]["old1"]["enabled"] = True
    far.night.write()
    far.backup("2026-03-08T22:00:00Z", "old1")
    far.run("--now", "2026-03-08T23:00:00Z")
    days = (("old1", "03"), ("old1", "08"), ("web1", "03"), ("web1", "06"), ("web1", "07"))
    assert left(far) == [(host, f"2026-03-{day}") for host, day in days]


def test_a_machine_that_has_the_name_of_a_forgotten_one_takes_nothing_of_its_away(far: Offsite) -> None:
    former = left(far)
    far.night.tables["host"].pop("web1")
    far.night.write()
    far.night.backupd("forget", "web1", "--yes", "--now", "2026-03-04T12:00:00Z")
    for day in ("2026-03-05", "2026-03-25"):
        far.night.backupd("expire", "--now", f"{day}T14:00:00Z", "--force", "hosts")
    assert not (far.night.pool / "hosts/web1").exists()
    another_machine(far, (26, 27, 28))
    assert left(far) == [*former, ("web1", "2026-03-27"), ("web1", "2026-03-28")]
    listed = json.loads(far.offsite("list", "--json").stdout)
    assert [row["former"] for row in sorted(listed, key=lambda answer: str(answer["backup"]))] == [True, True, False, False]
    assert "another machine" in far.offsite("list").stdout


def test_a_copy_of_the_former_machine_is_none_of_the_new_one(far: Offsite) -> None:
    """Before any backup of the new machine is sent, its newest backup there is not that of the former."""
    far.night.backupd("rename", "web1", "old1", "--yes")
    far.night.tables["host"].pop("web1")
    source = far.night.top / "another"
    source.mkdir()
    far.night.host("web1", source)
    far.backup("2026-03-05T22:00:00Z")
    far.settings(hosts=["old1"])
    far.run("--now", "2026-03-05T23:00:00Z")
    (copy,) = far.night.json("status", "--now", "2026-03-05T23:30:00Z")["copies"]
    assert [host_lag["host"] for host_lag in copy["lag"]] == ["old1"]


def without_machines(far: Offsite) -> str:
    """Makes the snapshots that are there such of a read-only pool, without ids; returns the id of web1."""
    machine = str(json.loads((far.night.pool / "hosts/web1/notes.json").read_text())["machine"])
    far.restic("tag", "--remove", f"machine:{machine}")
    assert "machine:" not in far.restic("snapshots", "--json")
    return machine


def test_what_was_sent_without_an_id_is_of_the_host_whose_backup_it_is(far: Offsite) -> None:
    """If the pool still has that backup, this is proof; snapshots without proof are never removed, and do not count."""
    machine = without_machines(far)
    assert left(far) == [("web1", "2026-03-02"), ("web1", "2026-03-03")]
    work("btrfs", "subvolume", "delete", far.night.pool / "hosts/web1" / far.night.names("web1")[1])
    for day, going in (("06", []), ("07", ["2026-03-03"])):
        far.backup(f"2026-03-{day}T22:00:00Z")
        far.run("--now", f"2026-03-{day}T23:00:00Z")
        of_machine = json.loads(far.restic("snapshots", "--json", "--tag", f"machine:{machine}"))
        assert ("2026-03-03" in [row["time"][:10] for row in of_machine]) == (not going)
        assert ("web1", "2026-03-02") in left(far)


def test_what_was_sent_without_an_id_of_a_renamed_host_is_not_of_the_one_that_has_its_name(far: Offsite) -> None:
    machine = without_machines(far)
    far.night.backupd("rename", "web1", "old1", "--yes")
    far.night.tables["host"]["old1"] = {**far.night.tables["host"].pop("web1"), "enabled": False}
    far.night.write()
    far.run("--now", "2026-03-04T12:00:00Z")
    another_machine(far, (5, 6, 7))
    assert left(far) == [("old1", "2026-03-03"), *[("web1", f"2026-03-0{day}") for day in (2, 3, 6, 7)]]
    of_old = json.loads(far.restic("snapshots", "--json", "--tag", f"machine:{machine}"))
    assert sorted((row["hostname"], row["time"][:10]) for row in of_old) == [
        ("old1", "2026-03-03"), ("web1", "2026-03-02"), ("web1", "2026-03-03"),
    ]  # fmt: skip


def test_a_tag_that_was_killed_leaves_no_snapshot_twice(far: Offsite) -> None:
    """restic writes a new snapshot and deletes the old one; if it cannot delete it, both exist, as after a kill in between."""
    without_machines(far)
    old = list((far.repository / "snapshots").iterdir())
    before = left(far)
    for path in old:
        work("chattr", "+i", path)
    far.backup("2026-03-04T22:00:00Z")
    far.offsite("run", "--now", "2026-03-04T23:00:00Z", status=1)
    for path in old:
        work("chattr", "-i", path)
    assert len(left(far)) > len(before) + 1
    far.run("--now", "2026-03-04T23:30:00Z")
    assert sorted(set(left(far))) == sorted(left(far))
    assert all("machine:" in " ".join(row["tags"]) for row in json.loads(far.restic("snapshots", "--json")))


@contextmanager
def at_work(far: Offsite, host: str) -> Iterator[None]:
    """Lets another command work on the host at the same time."""
    with (far.night.pool / f".btrkeep/locks/host-{host}").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def new(make_btrfs: Callable[..., Path]) -> Iterator[Offsite]:
    """Two hosts, web2 and web3, of which nothing was sent so far."""
    made = Offsite(make_btrfs())
    made.night.tables["host"] = {}
    made.offsite("init", "far")
    for name in ("web2", "web3"):
        (made.night.top / name).mkdir()
        (made.night.top / name / "file").write_text(name)
        made.night.host(name, made.night.top / name)
    made.night.backupd("run", "web2", "web3", "--now", "2026-03-04T22:00:00Z")
    yield made
    shutil.rmtree(made.away)


def test_the_first_copy_of_a_host_that_is_being_worked_on_is_sent_when_that_has_ended(new: Offsite) -> None:
    with at_work(new, "web2"):
        sends = backupd_start("--config", new.night.config, "offsite", "run", "--json", "--now", "2026-03-04T23:00:00Z")
        wait_for(lambda: any(host == "web3" for host, _ in left(new)), 60, "the other host was not sent")
        time.sleep(1.5)
        assert sends.poll() is None
    output, err = sends.communicate(timeout=60)
    assert sends.returncode == 0, err
    assert [sent_backup["host"] for sent_backup in json.loads(output)[0]["sent"]] == ["web3", "web2"]
    tagged = [row["tags"] for row in json.loads(new.restic("snapshots", "--json", "--host", "web2"))]
    noted = json.loads((new.night.pool / "hosts/web2/notes.json").read_text())["machine"]
    assert [tag for tags in tagged for tag in tags if tag.startswith("machine:")] == [f"machine:{noted}"]


def test_a_host_that_is_worked_on_for_long_is_left_to_the_next_run(new: Offsite) -> None:
    config, now = load("main", new.night.config), datetime(2026, 3, 4, 23, tzinfo=UTC)
    settings = config.offsites["far"]
    waits = list[Waiting]()
    with at_work(new, "web2"), Catalogue.open(config.pool.state) as catalogue:
        restic = restic_of(settings, config.pool.state, config.pool.path)
        sinks: ProgressSinks[OffsiteEvent] = ProgressSinks(lambda event: waits.append(event) if type(event) is Waiting else None)
        run = OffsiteRun(config, open_pool(config.pool.path), catalogue, settings, restic, now, sinks, patience=1.0)
        summary, snapshots, sendings = run.plan([])
        run.send(summary, snapshots, sendings)
    assert [sent.host for sent in summary.sent] == ["web3"]
    (failed,) = summary.failed
    assert failed.host == "web2"
    assert "the lock is held" in failed.error
    assert waits
    assert not any(host == "web2" for host, _ in left(new))
    assert [sent_backup["host"] for sent_backup in new.run("--now", "2026-03-04T23:30:00Z")["sent"]] == ["web2"]


def test_a_signal_ends_the_wait_for_a_host(new: Offsite) -> None:
    with at_work(new, "web2"):
        sends = backupd_start("--config", new.night.config, "offsite", "run", "--now", "2026-03-04T23:00:00Z")
        wait_for(lambda: any(host == "web3" for host, _ in left(new)), 60, "the other host was not sent")
        sends.send_signal(signal.SIGTERM)
        err = sends.communicate(timeout=60)[1]
    assert (sends.returncode, "Traceback" in err) == (143, False), err
    assert not (new.night.pool / "hosts/web2/notes.json").exists()
