"""Which backups are sent to an offsite repository, and which are removed from it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.config.config_model import Retention
from btrkeep.decisions.offsite import OffsiteSnapshot, newest_in_repository, placed, to_remove, to_send
from btrkeep.decisions.safety_limits import Forced
from btrkeep.units import backup_name

NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
DAILY = Retention(daily=2, min_keep=1)
NOBODY, EVERYBODY = Forced.parse((), ()), Forced.parse(("hosts", "pool"), ())


def snapshots_of(host: str, *days: int) -> list[OffsiteSnapshot]:
    moments = [NOW - timedelta(days=day) for day in days]
    return [OffsiteSnapshot(f"{host}-{day}", host, backup_name(when), when) for day, when in zip(days, moments, strict=True)]


def test_what_is_not_there_is_sent_and_those_behind_the_longest_first() -> None:
    newest = {host: backup_name(NOW) for host in ("new", "old", "far-behind", "there")}
    snapshots = [*snapshots_of("old", 2, 1), *snapshots_of("far-behind", 9), *snapshots_of("there", 0), *snapshots_of("new", 0)]
    assert [host for host, _ in to_send(newest, snapshots, {"new-0"})] == ["new", "far-behind", "old"]
    assert newest_in_repository(snapshots, {"old-1"})["old"] == backup_name(NOW - timedelta(days=2))


def test_what_the_policy_does_not_keep_goes_host_by_host() -> None:
    snapshots = [*snapshots_of("web1", 0, 1, 2, 3), *snapshots_of("db1", 7)]
    removal = to_remove(snapshots, (), DAILY, ZoneInfo("UTC"), NOW, NOBODY)
    assert [snapshot.id for snapshot in removal.going] == ["web1-2", "web1-3"]


def test_a_machine_is_known_by_its_id_and_not_by_the_name_that_it_has() -> None:
    renamed, gone, nameless = (snapshots_of("web1", *days) for days in ((9, 8), (5, 4), (2, 1)))
    renamed, gone = (
        [replace(snapshot, machine=id_) for snapshot in offsite_snapshots]
        for offsite_snapshots, id_ in ((renamed, "r"), (gone, "g"))
    )
    snapshots = placed([*renamed, *gone, *nameless], {"old1": "r", "web1": None})
    assert [(snapshot.host, snapshot.label, snapshot.former) for snapshot in snapshots] == [
        *[("old1", "web1", False)] * 2,
        *[("web1", "", True)] * 2,
        *[("web1", "", False)] * 2,
    ]
    assert newest_in_repository(snapshots, ()) == {"web1": backup_name(NOW - timedelta(days=1))}
    newest = {"old1": renamed[1].name, "web1": gone[1].name}
    assert to_send(newest, snapshots, ()) == [("old1", renamed[1].name), ("web1", gone[1].name)]
    removal = to_remove([*snapshots, *snapshots_of("web1", 3)], (), replace(DAILY, daily=1), ZoneInfo("UTC"), NOW, EVERYBODY)
    assert [snapshot.id for snapshot in removal.going] == ["web1-9", "web1-5", "web1-2", "web1-3"]


def test_without_a_rule_nothing_goes() -> None:
    assert to_remove(snapshots_of("web1", 0, 1, 900), (), Retention(), ZoneInfo("UTC"), NOW, NOBODY).going == ()


def test_what_is_not_whole_counts_for_nothing_and_goes_once_a_whole_one_is_newer() -> None:
    snapshots = snapshots_of("web1", 0, 1, 2, 3)
    removal = to_remove(snapshots, {"web1-0", "web1-3"}, DAILY, ZoneInfo("UTC"), NOW, NOBODY)
    assert [snapshot.id for snapshot in removal.going] == ["web1-3"]


def test_too_much_of_a_host_at_once_stays_until_it_is_asked_for() -> None:
    snapshots = [*snapshots_of("web1", *range(13)), *snapshots_of("db1", 0, 1, 2)]
    removal = to_remove(snapshots, (), DAILY, ZoneInfo("UTC"), NOW, NOBODY)
    assert ([snapshot.id for snapshot in removal.going], list(removal.guarded.skipped_hosts)) == (["db1-2"], ["web1"])
    assert len(to_remove(snapshots, (), DAILY, ZoneInfo("UTC"), NOW, EVERYBODY).going) == 12


def test_too_much_of_all_at_once_removes_nothing() -> None:
    snapshots = [snapshot for number in range(60) for snapshot in snapshots_of(f"web{number}", 0, 1, 2, 3)]
    removal = to_remove(snapshots, (), DAILY, ZoneInfo("UTC"), NOW, NOBODY)
    assert (removal.going, bool(removal.guarded.stop)) == ((), True)


def test_copies_of_a_former_machine_do_not_make_room_for_more_to_go_of_the_one_that_has_its_name() -> None:
    """The limit is a share of the copies that may be removed: 12 of 20 are too many at once, however many copies of another machine
    there are.
    """
    former = [replace(snapshot, machine="f") for snapshot in snapshots_of("web1", *(100 + 31 * month for month in range(25)))]
    present = [replace(snapshot, machine="p") for snapshot in snapshots_of("web1", *range(20))]
    policy = Retention(daily=7, monthly=60, min_keep=1)
    for snapshots in (present, [*former, *present]):
        removal = to_remove(placed(snapshots, {"web1": "p"}), (), policy, ZoneInfo("UTC"), NOW, NOBODY)
        assert removal.going == ()
        share = removal.guarded.skipped_hosts["web1"]
        assert share.going / share.total > 0.5


def test_a_folder_that_was_copied_with_its_notes_deletes_no_copies() -> None:
    """Both hosts then have the same id. Each keeps the snapshots with its name, and its own history."""
    snapshots = [replace(snapshot, machine="m") for snapshot in (*snapshots_of("web1", 9, 8), *snapshots_of("web2", 2, 1))]
    both = placed(snapshots, {"web1": "m", "web2": "m"})
    assert [(snapshot.host, snapshot.label, snapshot.former) for snapshot in both] == [("web1", "", False)] * 2 + [
        ("web2", "", False)
    ] * 2
    assert to_remove(both, (), DAILY, ZoneInfo("UTC"), NOW, EVERYBODY).going == ()
    moved = placed(snapshots, {"old1": "m", "web2": "m"})
    assert [(snapshot.host, snapshot.label) for snapshot in moved] == [("web1", "")] * 2 + [("web2", "")] * 2
