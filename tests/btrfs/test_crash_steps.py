"""A run that is killed at any of its steps, and the next run: no backup is lost, doubled, half final or changed afterwards.

One pool for all: each step kills the run of a host of its own. All hosts have the same sources, backed up once; then the sources
changed in every way that has a step of its own (a source path gone, a hard link broken, data, holes).
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.beds import differences, manifest
from tests.beds.nights import Nights
from tests.beds.watch import checkpoints, disagreements, is_writable, killed, rows, subvolumes, writable_finals

pytestmark = [pytest.mark.btrfs, pytest.mark.filterwarnings("ignore")]


@dataclass(frozen=True)
class Step:
    """Where to kill, and whether the backup was finished by then: it only lacks its name or its row, and no rsync runs again."""

    when: str
    checkpoint: str
    finished: bool = False
    count: int = 1

    @property
    def host(self) -> str:
        return f"{self.when}-{self.checkpoint}-{self.count}".replace(" ", "-").replace(".", "-")


STEPS = (
    Step("before", "host lock taken"),
    Step("after", "host lock taken"),
    Step("after", "run begun in the catalogue"),
    Step("before", "snapshot made"),
    Step("after", "snapshot made"),
    Step("before", "backup.json replaced"),
    Step("after", "backup.json replaced"),
    Step("after", "working subvolume named"),
    Step("before", "other paths removed"),
    Step("after", "other paths removed"),
    Step("before", "hard links split"),
    Step("before", "inode copied"),
    Step("after", "inode copied", count=2),  # the copy is beside `data`, not yet under its name
    Step("after", "hard links split"),
    Step("before", "backup row written"),
    Step("after", "backup row written"),
    Step("before", "process group started"),
    Step("after", "process group started"),  # rsync runs, and the lock does not name it yet
    Step("after", "process group noted"),
    Step("before", "progress of rsync noted"),  # rsync has printed its first line
    Step("after", "rsync ended"),
    Step("after", "rsync ended", count=2),
    Step("before", "holes punched"),
    Step("after", "holes punched"),
    Step("before", "backup.json replaced", count=2),
    Step("after", "backup.json replaced", count=2),
    Step("after", "filesystem synced"),
    Step("before", "subvolume made read-only"),
    Step("after", "subvolume made read-only", finished=True),
    Step("before", "backup named", finished=True),
    Step("before", "latest pointed", finished=True),
    Step("after", "latest pointed", finished=True),
    Step("before", "run and backup finished in the catalogue", finished=True),
    Step("after", "run and backup finished in the catalogue", finished=True),
)


@dataclass(frozen=True)
class Crowd:
    nights: Nights
    kept: Path
    new: Path

    def untouched(self, host: str, base: str, before: dict) -> bool:
        return differences(before, manifest(self.nights.backup(host, base))) == []


def fill(kept: Path) -> None:
    kept.mkdir()
    (kept / "same").write_bytes(os.urandom(3000))
    (kept / "changes").write_bytes(os.urandom(300_000))
    (kept / "goes").write_text("goes")
    for number in range(3):  # each is split, and one of them has to be
        (kept / f"pair{number}").write_bytes(os.urandom(70_000))
        (kept / f"pair{number}-too").hardlink_to(kept / f"pair{number}")


def change(kept: Path) -> None:
    (kept / "goes").unlink()
    with (kept / "changes").open("r+b") as file:
        file.seek(100_000)
        file.write(os.urandom(5000))
    (kept / "new").write_bytes(os.urandom(70_000))
    (kept / "pair1").unlink()
    (kept / "pair1").write_bytes(os.urandom(70_000))
    with (kept / "holes").open("wb") as file:
        file.truncate(3 << 20)
        file.write(os.urandom(70_000))


@pytest.fixture(scope="module")
def crowd(module_btrfs: Path) -> Crowd:
    """The pool after its first night, with changed sources."""
    nights = Nights(module_btrfs)
    kept, gone, new = (nights.source / name for name in ("kept", "gone", "new"))
    fill(kept)
    gone.mkdir()
    (gone / "file").write_text("of a path that is not a source any more")
    for host in (*(step.host for step in STEPS), "other"):
        nights.host(host, kept, gone)
    nights.settings("backup", concurrency=4)
    nights.run()
    change(kept)
    new.mkdir()
    (new / "file").write_text("of a path that is a source now")
    for step in STEPS:
        nights.host(step.host, kept, new)
    return Crowd(nights, kept, new)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.host)
def test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began(
    crowd: Crowd, step: Step
) -> None:
    nights, host = crowd.nights, step.host
    (base,) = nights.names(host)
    before = manifest(nights.backup(host, base))

    killed(nights, step.when, step.checkpoint, "run", host, count=step.count)

    assert crowd.untouched(host, base, before)
    assert writable_finals(nights) == []
    working = nights.backup(host, ".working")
    if step.finished:
        assert len(nights.names(host)) == 2 or not is_writable(working)
        nights.run("other")  # any run brings all hosts in order
    else:
        assert nights.names(host) == [base]
        assert not working.exists() or is_writable(working)
        assert nights.run(host)[host]["outcome"] == "complete"

    assert crowd.untouched(host, base, before)
    first, name = nights.names(host)
    assert first == base
    assert not working.exists()
    assert list((nights.pool / ".btrkeep" / "new" / host).iterdir()) == []
    assert writable_finals(nights) == []
    assert nights.record(host)["state"] == "complete"
    assert nights.record(host)["name"] == name
    for source in (crowd.kept, crowd.new):
        assert nights.differences(host, source, name) == []
    assert not nights.data(host, nights.source / "gone", name).exists()
    assert {path.name for path in nights.backup(host, name).iterdir()} - {"SHA256SUMS"} == {"backup.json", "data"}
    assert nights.grew_from(host) == base
    assert disagreements(nights) == []
    states = rows(nights, f"select name, state from backup where host = '{host}' order by name")
    assert states == [(base, "complete"), (name, "complete")]
    assert nights.status(host)["state"] == "ok"
    latest = nights.pool / "hosts" / host / "latest"
    assert latest.readlink() in (Path(base), Path(name))


def test_a_run_announces_what_it_changes_in_order_and_can_be_killed_at_any_of_it(crowd: Crowd) -> None:
    nights = crowd.nights
    nights.host("announces", crowd.kept)
    nights.run("announces")
    passed = checkpoints(nights, "run", "announces")
    changes = (
        "host lock taken",
        "snapshot made",
        "working subvolume named",
        "process group noted",
        "filesystem synced",
        "subvolume made read-only",
        "backup named",
        "latest pointed",
        "run and backup finished in the catalogue",
        "host lock released",
    )
    assert [line for line in passed if line in {f"after {change}" for change in changes}] == [f"after {name}" for name in changes]

    killed(nights, "any", "any", "run", "announces", count=passed.index("after snapshot made") + 1)
    staged = ".btrkeep/new/announces/.working"
    assert staged in subvolumes(nights)
    nights.run("announces")
    assert staged not in subvolumes(nights)
    assert len(nights.names("announces")) == 3


def test_a_killed_run_whose_backup_was_final_is_remembered_with_that_backup(crowd: Crowd) -> None:
    nights = crowd.nights
    nights.host("final", crowd.kept)
    killed(nights, "before", "run and backup finished in the catalogue", "run", "final")
    nights.run("other")
    (run,) = rows(nights, "select outcome, backup, error from run where host = 'final'")
    assert run == ("complete", nights.names("final")[0], None)


FIRST_STEPS = (
    Step("before", "subvolume created"),
    Step("after", "subvolume created"),
    Step("after", "backup.json replaced"),
    Step("after", "progress of rsync noted"),
    Step("after", "latest pointed", finished=True),
)


@pytest.mark.parametrize("step", FIRST_STEPS, ids=lambda step: step.host)
def test_the_first_backup_of_a_host_may_be_killed_too(crowd: Crowd, step: Step) -> None:
    nights, host = crowd.nights, f"first-{step.host}"
    nights.host(host, crowd.kept)
    killed(nights, step.when, step.checkpoint, "run", host)
    nights.run("other" if step.finished else host)
    assert len(nights.names(host)) == 1
    assert nights.differences(host, crowd.kept) == []
    assert not nights.backup(host, ".working").exists()
    assert disagreements(nights) == []


def test_a_writable_working_is_continued_whatever_its_backup_json_says(crowd: Crowd) -> None:
    """Killed after writing a complete record, before read-only: the backup must have the source's present state."""
    nights, host = crowd.nights, "says-complete"
    source = nights.source / "moving"
    source.mkdir()
    (source / "file").write_text("first")
    nights.host(host, source)
    killed(nights, "before", "subvolume made read-only", "run", host)
    assert nights.record(host, ".working")["state"] == "complete"
    assert nights.json("list", host)[0]["name"] is None
    nights.run("other")
    assert rows(nights, f"select name, state from backup where host = '{host}'") == [("", "partial")]
    kept = subvolumes(nights)[f"hosts/{host}/.working"]
    (source / "file").write_text("second")
    nights.run(host)
    assert nights.data(host, source).joinpath("file").read_text() == "second"
    (name,) = nights.names(host)
    assert subvolumes(nights)[f"hosts/{host}/{name}"] == kept


def test_a_finished_working_gets_the_name_of_its_record_although_the_host_is_run_again_at_once(crowd: Crowd) -> None:
    nights, host = crowd.nights, "finished"
    nights.host(host, crowd.kept)
    killed(nights, "after", "subvolume made read-only", "run", host)
    name = nights.record(host, ".working")["name"]
    before = manifest(nights.backup(host, ".working"))
    nights.run(host)
    assert nights.names(host)[0] == name
    assert len(nights.names(host)) == 2
    assert differences(before, manifest(nights.backup(host, name))) == []
    assert disagreements(nights) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_run_that_ends_what_another_left_may_be_killed_as_well(crowd: Crowd, when: str) -> None:
    nights, host = crowd.nights, f"twice-{when}"
    nights.host(host, crowd.kept)
    killed(nights, "after", "subvolume made read-only", "run", host)
    killed(nights, when, "backup named", "run", "other")
    nights.run("other")
    (name,) = nights.names(host)
    assert nights.record(host)["name"] == name
    assert nights.differences(host, crowd.kept) == []
    assert disagreements(nights) == []


def test_what_was_killed_while_links_were_split_is_discarded_when_it_does_not_fit_any_more(crowd: Crowd) -> None:
    nights, host = crowd.nights, "split-then-changed"
    nights.host(host, crowd.kept)
    nights.run(host)
    killed(nights, "after", "inode copied", "run", host)
    assert (nights.backup(host, ".working") / ".split").exists()
    nights.host(host, crowd.kept, exclude=["/nothing"])
    assert nights.run(host)[host]["outcome"] == "complete"
    assert nights.differences(host, crowd.kept) == []


def test_an_acceptance_that_was_killed_before_its_row_can_be_given_again(crowd: Crowd) -> None:
    nights, host = crowd.nights, "accepts"
    source = nights.source / "shrinks"
    source.mkdir()
    for number in range(10):
        (source / str(number)).write_text("text")
    nights.host(host, source)
    nights.run(host)
    for number in range(9):
        (source / str(number)).unlink()
    assert nights.run(host, status=1)[host]["outcome"] == "suspect"
    name = nights.names(host)[-1]
    killed(nights, "after", "notes.json replaced", "accept", host, name, "--why", "moved")
    nights.backupd("accept", host, name)
    assert rows(nights, f"select state from backup where host = '{host}' order by name") == [("complete",), ("complete",)]
    assert "moved" in (nights.pool / "hosts" / host / "notes.json").read_text()
