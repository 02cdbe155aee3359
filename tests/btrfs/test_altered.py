"""Backups that were changed after they were final: *altered*, never a base, a parent or whole, until an administrator decides."""

import fcntl
import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from backupd.repo.reconcile import check_seals
from btrkeep.catalogue import Catalogue
from btrkeep.pool.marker import open_pool
from tests.beds import work
from tests.beds.cli import command
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.watch import does_at
from tests.btrfs.test_repair import spoilt

FIRST, SECOND, THIRD = "2026-03-10T22:00:00Z", "2026-03-11T22:00:00Z", "2026-03-12T22:00:00Z"
MORNING = "2026-03-13T08:00:00Z"
_FIDEDUPERANGE = 0xC0189436
_BLOCK = b"x" * (1 << 17)


def writable(backup: Path, change: Callable[[Path], object]) -> None:
    """Makes a final backup writable, like an administrator who changes it manually."""
    work("btrfs", "property", "set", "-f", "-ts", str(backup), "ro", "false")
    change(backup)
    work("btrfs", "property", "set", "-ts", str(backup), "ro", "true")


def content(backup: Path, name: str) -> Path:
    return next(backup.rglob(name))


def path_of(pool: Path, name: str) -> Path:
    return pool / "hosts" / "web1" / name


def states(nights: Nights, now: str = MORNING) -> dict[str, str]:
    return {row["name"]: row["state"] for row in nights.json("list", "web1", "--now", now)}


def notes(pool: Path) -> Any:
    file = pool / "hosts/web1/notes.json"
    return json.loads(file.read_text()) if file.exists() else {"backups": {}}


def seal(pool: Path, name: str) -> Any:
    """Returns the number of the subvolume, its ctransid and the time."""
    return json.loads((pool / "hosts/web1/seals.json").read_text())["backups"][name]


def share(source: Path, target: Path) -> None:
    """Shares the data of two files like duperemove, by the kernel's own comparison. Works on read-only subvolumes."""
    size = source.stat().st_size
    fds = [os.open(path, os.O_RDONLY) for path in (source, target)]
    try:
        request = bytearray(struct.pack("=QQHHI", 0, size, 1, 0, 0) + struct.pack("=qQQiI", fds[1], 0, 0, 0, 0))
        fcntl.ioctl(fds[0], _FIDEDUPERANGE, request)
        assert struct.unpack_from("=qQQiI", request, 24)[2:4] == (size, 0)
    finally:
        for fd in fds:
            os.close(fd)


def test_a_changed_backup_is_no_base_and_no_parent_of_a_copy(two: TwoPools) -> None:
    (two.source / "secret").write_text("secret")
    first = two.night(FIRST, "a")
    assert two.fetch()[0]["fetched"]
    writable(path_of(two.first.pool, first), lambda backup: content(backup, "secret").unlink())
    (two.source / "secret").unlink()
    second = two.night(SECOND, "b")
    assert states(two.first) == {first: "altered", second: "complete"}
    assert json.loads((path_of(two.first.pool, second) / "backup.json").read_text())["base"] is None
    assert two.fetch()[0]["failed"] == []
    assert two.differences(second) == ""
    assert not list(path_of(two.second.pool, second).rglob("secret"))


def test_a_backup_that_was_changed_since_the_last_check_is_no_parent_either(two: TwoPools) -> None:
    """The first pool was not checked since then: the sender itself compares with the seals."""
    (two.source / "secret").write_text("secret")
    first = two.night(FIRST, "a")
    two.fetch()
    (two.source / "secret").unlink()
    second = two.night(SECOND, "b")
    writable(path_of(two.first.pool, first), lambda backup: content(backup, "secret").unlink())
    assert states(two.first)[first] == "complete"  # by the catalogue
    assert two.fetch()[0]["failed"] == []
    assert two.differences(second) == ""


def test_a_changed_copy_does_not_stop_replication_and_can_be_fetched_again(two: TwoPools) -> None:
    names = [two.night(FIRST, "a")]
    two.fetch()
    names.append(two.night(SECOND, "b"))
    two.fetch()
    copy = path_of(two.second.pool, names[1])
    writable(copy, lambda backup: content(backup, "changed").write_text("by hand"))
    assert "received_uuid" not in work("btrfs", "subvolume", "show", str(copy)).stdout
    names.append(two.night(THIRD, "c"))
    fetched = two.fetch()[0]
    assert (fetched["failed"], [fetched_backup["parent"] for fetched_backup in fetched["fetched"]]) == ([], [names[0]])
    assert states(two.second) == {names[0]: "complete", names[1]: "altered", names[2]: "complete"}
    assert two.fetch()[0]["fetched"] == []
    two.second.backupd("rebuild")
    assert states(two.second)[names[1]] == "altered"
    assert [fetched_backup["backup"] for fetched_backup in two.fetch("office", "--damaged")[0]["fetched"]] == [names[1]]
    assert states(two.second)[names[1]] == "complete"
    assert two.differences(names[1]) == ""
    two.second.backupd("verify", "--now", MORNING)
    assert states(two.second)[names[1]] == "complete"


def test_shared_data_and_the_read_only_flag_alone_are_no_change(two: TwoPools) -> None:
    for name in ("one", "other"):
        (two.source / name).write_bytes(_BLOCK)
    first = two.night(FIRST, "a")
    two.fetch()
    for nights in (two.first, two.second):
        backup = path_of(nights.pool, first)
        before = seal(nights.pool, first)
        share(content(backup, "one"), content(backup, "other"))
        writable(backup, lambda backup: list(backup.rglob("*")))  # this writes access times
        work("btrfs", "filesystem", "sync", str(nights.pool))
        nights.backupd("verify", "--now", MORNING)
        after = seal(nights.pool, first)
        assert states(nights) == {first: "complete"}
        assert (after[2], notes(nights.pool)["backups"]) == (before[2], {})
        assert after[1] > before[1]
        writable(backup, lambda backup: (backup / "data/added").write_text("x"))
        nights.backupd("verify", "--now", MORNING, check=False)
        assert states(nights) == {first: "altered"}


def test_a_backup_without_a_seal_is_sealed_and_a_later_change_noticed(two: TwoPools) -> None:
    """As after an update: there are no seals."""
    first = two.night(FIRST, "a")
    (two.first.pool / "hosts/web1/seals.json").unlink()
    two.first.backupd("rebuild")
    assert seal(two.first.pool, first)
    assert states(two.first) == {first: "complete"}
    writable(path_of(two.first.pool, first), lambda backup: content(backup, "changed").unlink())
    second = two.night(SECOND, "b")
    assert states(two.first) == {first: "altered", second: "complete"}


def test_a_copy_without_a_seal_that_shares_data_is_still_a_copy(two: TwoPools) -> None:
    """As after a kill between its name and its seal."""
    for name in ("one", "other"):
        (two.source / name).write_bytes(_BLOCK)
    first = two.night(FIRST, "a")
    two.fetch()
    (two.second.pool / "hosts/web1/seals.json").unlink()
    copy = path_of(two.second.pool, first)
    share(content(copy, "one"), content(copy, "other"))
    second = two.night(SECOND, "b")
    assert [fetched_backup["parent"] for fetched_backup in two.fetch()[0]["fetched"]] == [first]
    assert states(two.second) == {first: "complete", second: "complete"}
    assert two.differences(second) == ""


def test_an_altered_backup_counts_for_nothing_and_is_kept(two: TwoPools) -> None:
    names = [two.night(FIRST, "a"), two.night(SECOND, "b"), two.night(THIRD, "c")]
    two.first.tables["retention"] = {"daily": 1, "min_keep": 1, "grace": "1s"}
    two.first.write()
    writable(path_of(two.first.pool, names[2]), lambda backup: content(backup, "changed").unlink())
    two.first.backupd("expire", "web1", "--skip-grace", "--now", MORNING)
    assert states(two.first) == {names[1]: "complete", names[2]: "altered"}
    assert (two.first.pool / "hosts/web1/latest").readlink() == Path(names[1])
    explained = {row["name"]: row for row in two.first.json("retention", "explain", "web1", "--now", MORNING)}
    assert (explained[names[2]]["keep"], explained[names[2]]["rules"]) == (True, ["altered"])
    two.first.backupd("delete", f"web1@{names[2]}", "--now-without-grace", "--now", MORNING)
    assert states(two.first) == {names[1]: "complete"}


def change(backup: Path) -> None:
    """Deletes one file and adds another."""
    content(backup, "changed").unlink()
    (backup / "data/added").touch()


def test_everything_that_reports_names_an_altered_backup_in_one_line(two: TwoPools) -> None:
    first, second = two.night(FIRST, "a"), two.night(SECOND, "b")
    two.first.backupd("verify", "--now", MORNING)
    assert [row["verified"]["state"] for row in two.first.json("list", "web1", "--now", MORNING)] == ["whole", "whole"]
    backup = path_of(two.first.pool, first)
    writable(backup, change)
    verified = two.first.backupd("verify", "--now", MORNING, check=False)
    assert verified.returncode == 1, verified.stdout
    read = json.loads(two.first.backupd("verify", "--json", "--now", MORNING, check=False).stdout)
    assert [row["name"] for row in read["altered"]] == [first]
    assert {backup["name"]: backup["state"] for backup in read["backups"]} == {first: "never", second: "whole"}
    line = f"web1@{first} was altered after it was final: 3 changed paths"
    named = verified.stdout[verified.stdout.index(line) :].splitlines()[1:4]
    assert named == [
        "  data",
        "  data/added",
        f"  {content(backup, 'new-2026-03-10').parent.relative_to(backup)}",
    ]
    line = f"1 backup was changed after it was final: web1@{first}"
    status = two.first.backupd("status", "--now", MORNING).stdout
    assert status.count(line) == 1
    assert "1 never" in status
    assert line in two.first.backupd("check", check=False).stdout.replace("\n", " ")
    assert two.first.json("status", "--now", MORNING)["altered"] == [{"host": "web1", "name": first}]
    listed = {row["name"]: row for row in two.first.json("list", "web1", "--now", MORNING)}
    assert [listed[name]["verified"] and listed[name]["verified"]["state"] for name in (first, second)] == [None, "whole"]
    assert "changed after it was final" in two.first.backupd("list", "web1", "--now", MORNING).stdout
    assert 'btrkeep_backups{pool="main",state="altered"} 1' in two.first.backupd("metrics", "--now", MORNING).stdout
    alarms = json.loads(two.first.backupd("notify", "--dry-run", "--json", "--now", MORNING, check=False).stdout)
    assert [alarm["text"] for alarm in alarms["alarms"] if alarm["subject"] == "altered"] == [line]


def test_accepting_changes_does_not_accept_a_suspect_backup(two: TwoPools) -> None:
    for number in range(200):
        (two.source / f"file{number}").write_text("x")
    first = two.night(FIRST, "a")
    for number in range(200):
        (two.source / f"file{number}").unlink()
    second = two.first.backupd("run", "web1", "--now", SECOND, check=False)
    assert second.returncode == 1
    names = two.names(two.first.pool)
    assert states(two.first)[names[1]] == "suspect"
    writable(path_of(two.first.pool, names[1]), lambda backup: (backup / "data/added").touch())
    two.first.backupd("verify", "--now", MORNING, check=False)
    assert states(two.first) == {first: "complete", names[1]: "altered"}
    output = two.first.backupd("accept", f"web1@{names[1]}", "--now", MORNING).stdout
    assert "it is suspect" in output.replace("\n", " ")
    assert states(two.first)[names[1]] == "suspect"
    two.first.backupd("accept", f"web1@{names[1]}", "--now", MORNING)
    assert states(two.first)[names[1]] == "complete"
    two.first.backupd("verify", "--now", MORNING)
    assert states(two.first)[names[1]] == "complete"
    assert json.loads((path_of(two.first.pool, two.night(THIRD, "c")) / "backup.json").read_text())["base"] == names[1]
    assert names[1] not in {fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]}
    writable(path_of(two.first.pool, names[1]), lambda backup: (backup / "data/added").unlink())
    two.first.backupd("verify", "--now", MORNING, check=False)
    assert states(two.first)[names[1]] == "altered"


def test_an_altered_copy_in_which_a_folder_was_renamed_comes_again(two: TwoPools) -> None:
    (two.source / "sub" / "deep").mkdir(parents=True)
    (two.source / "sub" / "deep" / "file").write_text("x")
    first = two.night(FIRST, "a")
    two.fetch()
    copy = path_of(two.second.pool, first)
    writable(copy, lambda backup: content(backup, "sub").rename(content(backup, "sub").with_name("renamed")))
    assert two.fetch()[0]["fetched"] == []
    assert states(two.second) == {first: "altered"}
    assert [fetched_backup["backup"] for fetched_backup in two.fetch("office", "--damaged")[0]["fetched"]] == [first]
    assert states(two.second) == {first: "complete"}
    assert two.differences(first) == ""


def test_what_was_not_changed_by_hand_has_to_be_the_same_when_an_altered_copy_comes_again(two: TwoPools) -> None:
    """A file was added to the copy, and another one was changed on the first server."""
    (two.source / "secret").write_text("secret")
    first = two.night(FIRST, "a")
    two.fetch()
    copy = path_of(two.second.pool, first)
    writable(copy, lambda backup: (backup / "data/added").write_text("by hand"))
    writable(path_of(two.first.pool, first), lambda backup: content(backup, "secret").write_text("SECRET"))
    hide_changes(two.first.pool / "hosts/web1")
    two.first.backupd("rebuild")
    failed = two.fetch("office", "--damaged", status=1)[0]["failed"]
    assert ["has changed" in row["error"] for row in failed] == [True], failed
    assert content(copy, "secret").read_text() == "secret"
    assert states(two.second) == {first: "altered"}


def test_a_seal_by_a_clock_that_is_behind_is_no_earlier_than_the_backup(two: TwoPools, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update, and a boot with a wrong clock: sharing of data is still not a change."""
    for name in ("one", "other"):
        (two.source / name).write_bytes(_BLOCK)
    first = two.night(FIRST, "a")
    (two.first.pool / "hosts/web1/seals.json").unlink()
    monkeypatch.setattr("time.time_ns", lambda: 10**9)
    with Catalogue.open(two.first.state) as catalogue:
        catalogue.set_seals([("web1", first, 1)])
        check_seals(open_pool(two.first.pool), catalogue, FIRST)
    assert seal(two.first.pool, first)
    share(content(path_of(two.first.pool, first), "one"), content(path_of(two.first.pool, first), "other"))
    work("btrfs", "filesystem", "sync", str(two.first.pool))
    two.first.backupd("verify", "--now", MORNING)
    assert states(two.first) == {first: "complete"}
    writable(path_of(two.first.pool, first), lambda backup: content(backup, "one").unlink())
    two.first.backupd("verify", "--now", MORNING, check=False)
    assert states(two.first) == {first: "altered"}


def test_a_change_by_hand_is_no_damage(two: TwoPools) -> None:
    first = two.night(FIRST, "a")
    two.night(SECOND, "b")

    def change_in_place(backup: Path) -> None:
        path = content(backup, "changed")
        status = path.stat()
        with path.open("r+") as file:
            file.write("by hand")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    writable(path_of(two.first.pool, first), change_in_place)
    for day, word in ((13, ""), (14, "accept"), (15, "verify")):
        now = f"2026-03-{day}T08:00:00Z"
        if word == "accept":
            two.first.backupd("accept", f"web1@{first}", "--now", now)
        done = two.first.backupd("verify", "--now", now, check=False)
        assert ("altered" in done.stdout, "damaged" in done.stdout) == (not word, False), done.stdout
        assert json.loads(two.first.backupd("damaged", "--json", "--now", now, check=False).stdout) == []
    assert states(two.first)[first] == "complete"


def test_two_bytes_that_are_changed_in_memory_only_are_reported_at_once(two: TwoPools) -> None:
    first = two.night(FIRST, "a")
    two.first.backupd("verify", "--now", MORNING)

    def change_two_bytes(backup: Path) -> None:
        with content(backup, "changed").open("r+b") as file:
            file.write(b"by")

    backup = path_of(two.first.pool, first)
    writable(backup, change_two_bytes)
    done = two.first.backupd("verify", "web1", "--now", MORNING, check=False)
    assert (done.returncode, "damaged" in done.stdout) == (1, False), done.stdout
    assert f"web1@{first} was altered after it was final: 1 changed path" in done.stdout
    assert f"  {content(backup, 'changed').relative_to(backup)}\n" in done.stdout
    assert "" not in done.stdout.splitlines()
    assert states(two.first) == {first: "altered"}


@contextmanager
def locked(pool: Path) -> Iterator[None]:
    """As while a backup of the host runs."""
    with (pool / ".btrkeep/locks/host-web1").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_backup_of_a_host_that_is_in_use_is_compared_too_or_reported_as_not_compared(two: TwoPools) -> None:
    first, second = two.night(FIRST, "a"), two.night(SECOND, "b")
    backup = path_of(two.first.pool, first)
    writable(backup, lambda backup: content(backup, "changed").unlink())
    with locked(two.first.pool):
        done = two.first.backupd("verify", "web1", "--now", MORNING, check=False)
        assert done.returncode == 1, done.stdout
        assert f"web1@{first} was altered after it was final: 1 changed path" in done.stdout
        (two.first.pool / "hosts/web1/seals.json").unlink()
        done = two.first.backupd("verify", f"web1@{second}", "--json", "--now", MORNING, check=False)
        assert done.returncode == 1, done.stdout
        (row,) = json.loads(done.stdout)["not_compared"]
        assert (row["host"], row["name"], "no seal yet" in row["why"]) == ("web1", second, True)
        assert f"web1@{second} could not be compared with its seal, so it may be altered" in done.stderr
    two.first.backupd("verify", f"web1@{second}", "--now", MORNING)
    assert states(two.first) == {first: "altered", second: "complete"}


def test_a_seal_is_no_earlier_than_that_of_the_base(two: TwoPools) -> None:
    """The clock is behind in the second night: files of the base have later times, which is still not a change."""
    first = two.night(FIRST, "a")
    file = two.first.pool / "hosts/web1/seals.json"
    fields = json.loads(file.read_text())
    fields["backups"][first][2] += 3600 * 10**9
    file.write_text(json.dumps(fields))
    second = two.night(SECOND, "b")
    assert seal(two.first.pool, second)[2] == fields["backups"][first][2]


@pytest.mark.parametrize("number", [None, 1])
def test_a_row_of_a_subvolume_that_is_not_there_is_compared_all_the_same(two: TwoPools, number: int | None) -> None:
    first = two.night(FIRST, "a")
    writable(path_of(two.first.pool, first), lambda backup: content(backup, "changed").write_text("by hand"))
    with closing(sqlite3.connect(two.first.state / "catalogue.sqlite")) as connection, connection:
        connection.execute("UPDATE backup SET subvolume_id = ?", (number,))
    two.night(SECOND, "b")
    assert states(two.first)[first] == "altered"


def test_an_altered_backup_that_was_deleted_is_over(two: TwoPools) -> None:
    """The printed command was run, but status, check and the alarm still named the backup until its grace period ended."""
    first = two.night(FIRST, "a")
    writable(path_of(two.first.pool, first), lambda backup: content(backup, "changed").write_text("by hand"))
    second = two.night(SECOND, "b")

    def named() -> list[str]:
        report = two.first.json("status", "--now", MORNING)
        return [row["name"] for row in report["altered"]]

    assert named() == [first]
    two.first.backupd("delete", f"web1@{first}", "--now", MORNING)
    assert named() == []
    assert "changed after it was final" not in two.first.backupd("check", "--now", MORNING, check=False).stdout
    assert "changed after it was final" not in two.first.backupd("notify", "--dry-run", "--now", MORNING).stdout
    two.first.backupd("unexpire", f"web1@{first}", "--now", MORNING)
    assert named() == [first]
    two.first.backupd("release", f"web1@{first}", "--now", MORNING)
    two.first.backupd("delete", f"web1@{first}", "--now", MORNING)
    two.first.backupd("expire", "--now", "2026-03-15T08:00:00Z")
    assert (states(two.first), named()) == ({second: "complete"}, [])


def test_a_changed_copy_that_was_verified_can_be_fetched_again(two: TwoPools) -> None:
    name = two.night(FIRST, "a")
    two.fetch()
    writable(path_of(two.second.pool, name), lambda backup: content(backup, "changed").write_text("by hand"))
    two.second.backupd("verify", f"web1@{name}", "--now", MORNING, check=False)
    assert states(two.second)[name] == "altered"
    assert [fetched_backup["backup"] for fetched_backup in two.fetch("office", "--damaged")[0]["fetched"]] == [name]
    assert two.differences(name) == ""
    assert two.second.json("status", "--now", MORNING)["altered"] == []
    assert two.second.json("damaged") == []


def test_accepted_changes_of_a_copy_are_not_replaced(two: TwoPools) -> None:
    name = two.night(FIRST, "a")
    two.fetch()
    writable(path_of(two.second.pool, name), lambda backup: content(backup, "changed").write_text("by hand"))
    two.fetch()  # this compares with the seals
    two.second.backupd("accept", f"web1@{name}", "--now", MORNING)
    again = two.fetch("office", "--damaged")[0]
    assert (again["fetched"], again["failed"]) == ([], [])
    assert content(path_of(two.second.pool, name), "changed").read_text() == "by hand"
    assert two.second.json("status", "--now", MORNING)["altered"] == []


def test_what_is_deleted_depends_on_the_seals_at_that_moment(two: TwoPools) -> None:
    """The newest backup is changed after expire has checked it; or a run held the host's lock during the check."""
    first, second = two.night(FIRST, "a"), two.night(SECOND, "b")
    two.first.tables["retention"] = {"daily": 1, "min_keep": 1, "grace": "1s"}
    two.first.write()
    backup = path_of(two.first.pool, second)
    change_it = f"btrfs property set -ts {backup} ro false && rm -r {backup}/data && btrfs property set -ts {backup} ro true"
    words = ("--config", two.first.config, "expire", "web1", "--skip-grace", "--now", MORNING)
    command("backupd", *words, at=(f"does:{change_it}", "after", "catalogue reconciled with the pool", 1), check=False)
    assert not (backup / "data").exists()
    assert two.names(two.first.pool) == [first, second]
    two.first.backupd("expire", "web1", "--skip-grace", "--now", MORNING)
    assert states(two.first) == {first: "complete", second: "altered"}


def test_one_seal_from_the_future_hides_no_change_of_later_backups(nights: Nights) -> None:
    """The clock was ahead for a moment, when the first backup was sealed."""
    (nights.source / "changed").write_text("a")
    nights.host("web1", nights.source)
    nights.run("web1")
    (first,) = nights.names("web1")
    file = nights.pool / "hosts/web1/seals.json"
    seals = json.loads(file.read_text())
    seals["backups"][first][2] += 3650 * 86400 * 10**9
    file.write_text(json.dumps(seals))
    nights.run("web1")
    second = nights.names("web1")[1]
    assert nights.record("web1", second)["base"] == first
    writable(path_of(nights.pool, second), lambda backup: content(backup, "changed").write_text("by hand"))
    nights.backupd("verify", f"web1@{second}", check=False)
    assert {row["name"]: row["state"] for row in nights.json("list", "web1")} == {first: "complete", second: "altered"}


def test_a_backup_or_a_copy_that_another_hand_changes_meanwhile_is_not_repaired(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    """The plan was made for other files."""
    nights, first, second, third = spoilt(make_btrfs(size="300M"), tree)
    database = nights.working("web", tree) / "database"
    replace = f"touch {database}.new && mv {database}.new {database}"
    done = does_at(nights, replace, "before", "damaged file replaced", "repair", f"web@{first}", "--yes", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["failed"] == {f"web@{first}": f"{tree}/database was replaced"}
    assert nights.names("web") == [first, second, third]
    assert not (nights.pool / "hosts/web/.working").exists()
    unlock = f"btrfs property set -f -ts {nights.backup('web', second)} ro false"
    done = does_at(nights, unlock, "before", "damaged file replaced", "repair", "--yes", "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["failed"] == {f"web@{second}": f"web {second} was replaced"}
    copies = [backup["repaired_in"] for backup in answer["backups"]]
    assert (copies[1], nights.names("web")) == (None, sorted([first, copies[0], second, third]))
