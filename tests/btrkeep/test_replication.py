"""Which backups of another pool are fetched, and as a difference to which backup; computed without input or output."""

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from btrkeep.config import Retention
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.replication import (
    Fetch,
    HostFetches,
    LocalBackup,
    LocalHost,
    Obstacle,
    Parents,
    RemoteBackup,
    ReplicaMark,
    demotion_obstacle,
    misplaced,
    obstacle_words,
    plan_fetches,
    planned_again,
)

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
EVERYTHING = Retention()
MARK = ReplicaMark("pool-1", "office")


def name(day: int) -> str:
    return f"2026-03-{day:02}T220000Z"


def remote(*days: int) -> list[RemoteBackup]:
    return [RemoteBackup(name(day), f"uuid-{day}", "complete") for day in days]


def here(*days: int, mark: ReplicaMark | None = MARK, refused: tuple[int, ...] = (), forgotten: bool = False) -> LocalHost:
    backups = [LocalBackup(name(day), f"uuid-{day}", "complete") for day in days]
    return LocalHost(backups, mark, forgotten, [name(day) for day in refused], is_known=True)


def planned(
    far: list[RemoteBackup], near: LocalHost, policy: Retention = EVERYTHING, *, newest_only: bool = False
) -> list[tuple[str, str | None]]:
    replica = ReplicaSettings("office", retention=policy, newest_only=newest_only)
    host_fetches = plan_fetches("web1", far, near, MARK, replica, ZoneInfo("UTC"), NOW)
    assert host_fetches.obstacle is None
    return [(fetch.backup.name, fetch.parent.name if fetch.parent else None) for fetch in host_fetches.fetches]


def test_each_is_a_difference_to_the_one_before_it_that_both_have_by_then() -> None:
    assert planned(remote(1, 2, 3, 4), here(1, 3)) == [(name(2), name(1)), (name(4), name(3))]
    assert planned(remote(1, 2, 3), here(1)) == [(name(2), name(1)), (name(3), name(2))]
    assert planned(remote(1, 2), LocalHost()) == [(name(1), None), (name(2), name(1))]


def test_one_that_is_older_than_all_that_both_have_is_a_difference_to_the_next() -> None:
    assert planned(remote(1, 5), here(5)) == [(name(1), name(5))]


def test_what_is_gone_there_is_no_base() -> None:
    assert planned(remote(2), here(1)) == [(name(2), None)]


def test_only_what_the_own_retention_keeps_comes() -> None:
    assert planned(remote(*range(1, 11)), LocalHost(), Retention(daily=2, min_keep=1)) == [
        (name(9), None),
        (name(10), name(9)),
    ]


def test_a_backup_deleted_here_is_not_fetched_again() -> None:
    assert planned(remote(1, 2), here(2, refused=(1,))) == []


def test_what_is_invented_for_days_that_are_over_takes_the_place_of_nothing_here() -> None:
    invented = [RemoteBackup(f"2026-03-{day:02}T000001Z", f"evil-{day}", "complete") for day in range(1, 5)]
    policy = Retention(daily=3, min_keep=1)
    assert planned([*remote(1, 2, 3, 4), *invented], here(1, 2, 3, 4), policy) == []
    assert planned([*remote(1, 2, 3, 4, 5), *invented], here(1, 2, 3, 4), policy) == [(name(5), name(4))]


def test_an_older_backup_that_takes_no_place_comes_with_a_newer_one_that_does() -> None:
    policy = Retention(daily=2, monthly=2, min_keep=1)
    assert planned(remote(8, 17, 18, 19), here(17, 18), policy) == [(name(8), name(17)), (name(19), name(18))]


def test_what_is_stamped_in_the_future_waits() -> None:
    assert planned(remote(1, 21), here(1)) == []


def test_what_has_no_name_of_a_backup_is_not_fetched() -> None:
    assert planned([*remote(1, 2), RemoteBackup("strange", "uuid-x", "complete")], here(1)) == [(name(2), name(1))]


def with_parents(near: LocalHost, *, damaged: bool = False) -> list[tuple[str, str | None]]:
    host_fetches = plan_fetches(
        "web1", remote(1, 2, 3, 4), near, MARK, ReplicaSettings("office"), ZoneInfo("UTC"), NOW, damaged=damaged
    )
    return [(fetch.backup.name, fetch.parent.name if fetch.parent else None) for fetch in host_fetches.fetches]


def test_what_is_known_to_be_damaged_is_a_parent_only_without_another_one() -> None:
    assert with_parents(replace(here(1, 2, 3), damaged={name(3)})) == [(name(4), name(2))]
    assert with_parents(replace(here(2, 3, 4), damaged={name(2), name(3)})) == [(name(1), name(4))]
    assert with_parents(replace(here(1, 2), damaged={name(1), name(2)})) == [(name(3), name(2)), (name(4), name(3))]


def test_what_cannot_be_read_at_all_is_never_a_parent() -> None:
    assert with_parents(replace(here(1, 2, 3), damaged={name(2)}, unreadable={name(1), name(3)})) == [(name(4), name(2))]
    assert with_parents(replace(here(1, 2, 3), unreadable={name(1), name(2), name(3)})) == [(name(4), None)]


def test_what_was_altered_here_is_no_parent() -> None:
    """The difference would be applied to other content, and the copy would differ from the backup."""
    first, second = here(1, 2).backups
    assert with_parents(replace(here(), backups=[first, replace(second, state="altered", is_original=False)])) == [
        (name(3), name(1)),
        (name(4), name(3)),
    ]


def test_what_comes_again_is_no_difference_to_what_is_damaged() -> None:
    near = replace(here(1, 2, 3), damaged={name(1), name(2)}, unreadable={name(3)})
    assert with_parents(near, damaged=True) == [(name(1), None), (name(2), name(1)), (name(3), name(2)), (name(4), name(3))]


def test_after_a_parent_was_passed_over_the_next_nearest_one_is_taken() -> None:
    host_fetches = plan_fetches(
        "web1",
        remote(1, 2, 3, 4),
        replace(here(1, 2), damaged={name(1)}),
        MARK,
        ReplicaSettings("office"),
        ZoneInfo("UTC"),
        NOW,
    )
    left = host_fetches.parents.without(remote(2)[0])
    assert [
        (fetch.backup.name, fetch.parent.name if fetch.parent else None) for fetch in planned_again(host_fetches.fetches, left)
    ] == [
        (name(3), name(1)),
        (name(4), name(3)),
    ]
    assert planned_again(host_fetches.fetches, left.without(remote(1)[0]))[0].parent is None


def test_planned_once_more_each_backup_still_comes_once_and_a_damaged_one_again() -> None:
    first, second = remote(1, 2)
    fetches = (Fetch(first, None, again=True), Fetch(second, first))
    assert planned_again(fetches, Parents()) == fetches
    assert planned_again(fetches, Parents(whole=tuple(remote(9)))) == (
        Fetch(first, remote(9)[0], again=True),
        Fetch(second, first),
    )


def test_the_newest_alone() -> None:
    assert planned(remote(1, 2, 3), LocalHost(), newest_only=True) == [(name(3), None)]
    assert planned(remote(1, 2, 3), here(1), newest_only=True) == [(name(3), name(1))]
    assert planned(remote(1, 2, 3), here(3), newest_only=True) == []
    assert planned(remote(1, 2, 3), here(1, 3), newest_only=True) == []  # the newest that both have is newer


@pytest.mark.parametrize(
    ("near", "far", "obstacle"),
    [
        (here(1, mark=None), remote(2), Obstacle.BACKED_UP_HERE),
        (here(1, mark=None), remote(1), Obstacle.BOTH_BACK_UP),
        (here(1, mark=ReplicaMark("pool-2", "office")), remote(1), Obstacle.OF_ANOTHER_POOL),
        (here(1, forgotten=True), remote(2), Obstacle.FORGOTTEN_HERE),
        (here(1), [RemoteBackup(name(1), "uuid-x", "complete")], Obstacle.OTHER_BACKUP),
    ],
)
def test_what_stands_in_the_way(near: LocalHost, far: list[RemoteBackup], obstacle: Obstacle) -> None:
    host_fetches = plan_fetches("web1", far, near, MARK, ReplicaSettings("office"), ZoneInfo("UTC"), NOW)
    assert (host_fetches.obstacle, host_fetches.fetches) == (obstacle, ())


@pytest.mark.parametrize(
    ("far", "near", "is_copy_there", "obstacle"),
    [
        (remote(1, 2), here(1), False, None),
        (remote(1, 2), here(1, 9), False, None),
        ([], here(1), False, (Obstacle.NOT_THERE, "")),
        (remote(1), here(1), True, (Obstacle.NOBODY_BACKS_UP, "")),
        (
            [*remote(1), RemoteBackup(name(2), "x", "complete"), RemoteBackup(name(3), "y", "complete")],
            here(1, 2, 3),
            False,
            (Obstacle.OTHER_BACKUP, name(2)),
        ),
        (remote(2), here(1), False, (Obstacle.NOTHING_COMMON, "")),
    ],
)
def test_a_host_becomes_a_copy_only_of_a_pool_that_backs_it_up_and_has_a_common_backup(
    far: list[RemoteBackup], near: LocalHost, is_copy_there: bool, obstacle: tuple[Obstacle, str] | None
) -> None:
    assert demotion_obstacle(far, near.backups, is_copy_there=is_copy_there) == obstacle


def test_each_obstacle_is_explained_with_the_names_that_it_is_about() -> None:
    assert obstacle_words(HostFetches("new")) == ""
    for obstacle in Obstacle:
        words = obstacle_words(HostFetches("new", obstacle=obstacle, text="old"))
        assert words
        assert "{" not in words
    assert "`backupd rename old new`" in obstacle_words(HostFetches("new", obstacle=Obstacle.RENAMED_THERE, text="old"))


def test_only_a_host_that_was_renamed_there_has_a_former_name_here() -> None:
    assert HostFetches("new", obstacle=Obstacle.RENAMED_THERE, text="old").former_name == "old"
    assert HostFetches("new", obstacle=Obstacle.OTHER_BACKUP, text=name(1)).former_name is None
    assert HostFetches("new").former_name is None


def test_the_newest_that_both_have_is_named() -> None:
    host_fetches = plan_fetches("web1", remote(1, 2, 3), here(1, 2), MARK, ReplicaSettings("office"), ZoneInfo("UTC"), NOW)
    assert host_fetches.common == name(2)


def test_copies_are_known_by_what_they_are_and_not_by_a_name_that_another_host_has_now() -> None:
    own, other = remote(1, 2, 3), [RemoteBackup(name(day), f"other-{day}", "complete") for day in (4, 5)]
    near = {"web1": here(1, 2)}
    assert misplaced({"web1": ((), own)}, near, "pool-1") == ({}, {})
    assert misplaced({"old": (("web1",), own), "web1": ((), other)}, near, "pool-1") == ({"web1": "old"}, {"old": "web1"})
    # the copies are those of the host that has the name now, so the one that had it before is just new
    assert misplaced({"old": (("web1",), other), "web1": ((), own)}, near, "pool-1") == ({}, {})
    # the name has had three hosts: only one of them is here
    third = [RemoteBackup(name(6), "third", "complete")]
    assert misplaced({"a": (("web1",), other), "b": (("web1",), own), "web1": ((), third)}, near, "pool-1")[0] == {"web1": "b"}
    # no backup is on both servers, and it was not fetched under the new name: in doubt, neither is
    assert misplaced({"old": (("web1",), remote(9)), "web1": ((), other)}, near, "pool-1") == ({"web1": "old"}, {})


@pytest.mark.parametrize(
    ("near", "was"),
    [
        ({"old": here(1, mark=None)}, ("old",)),  # it is backed up here
        ({"old": here(1, mark=ReplicaMark("pool-2", "office"))}, ("old",)),
        ({"new": here(1)}, ("new",)),
        ({}, ("old",)),
    ],
)
def test_a_host_that_is_no_copy_of_the_other_pools_is_not_renamed_after_it(
    near: dict[str, LocalHost], was: tuple[str, ...]
) -> None:
    assert misplaced({"new": (was, remote(1))}, near, "pool-1")[0] == {}
    assert misplaced({"new": (("old",), remote(1))}, {"old": here(1)}, "pool-1")[0] == {"old": "new"}


def test_hosts_that_have_changed_names_are_renamed_one_after_the_other() -> None:
    far_backups, two = remote(1), [RemoteBackup(name(2), "two", "complete")]
    far = {"b": (("a", "aside"), far_backups), "a": (("b",), two)}
    a, b = here(1), LocalHost([LocalBackup(name(2), "two", "complete")], MARK, is_known=True)
    assert misplaced(far, {"a": a, "b": b}, "pool-1")[0] == {"a": "b", "b": "a"}
    assert misplaced(far, {"aside": a, "b": b}, "pool-1")[0] == {"aside": "b", "b": "a"}
    assert misplaced(far, {"aside": a, "a": b}, "pool-1")[0] == {"aside": "b"}
    assert misplaced(far, {"b": a, "a": b}, "pool-1") == ({}, {})


def test_a_host_that_this_pool_has_under_another_name_is_found() -> None:
    assert misplaced({"web1": ((), remote(1, 2))}, {"mine": here(1), "web1": here(2)}, "pool-1") == ({}, {"web1": "mine"})
