"""Which backups of another pool are fetched, and as a difference to which: pure."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from btrkeep.config import Retention
from btrkeep.decisions.replication import FarBackup, NearBackup, NearHost, Obstacle, ReplicaMark, plan_fetches

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
EVERYTHING = Retention()
MARK = ReplicaMark("pool-1", "office")


def name(day: int) -> str:
    return f"2026-03-{day:02}T220000Z"


def there(*days: int) -> list[FarBackup]:
    return [FarBackup(name(day), f"uuid-{day}", "complete") for day in days]


def here(*days: int, mark: ReplicaMark | None = MARK, refused: tuple[int, ...] = (), forgotten: bool = False) -> NearHost:
    backups = [NearBackup(name(day), f"uuid-{day}", "complete") for day in days]
    return NearHost(backups, mark, forgotten, [name(day) for day in refused], known=True)


def planned(
    far: list[FarBackup], near: NearHost, policy: Retention = EVERYTHING, *, newest_only: bool = False
) -> list[tuple[str, str | None]]:
    found = plan_fetches("web1", far, near, MARK, policy, ZoneInfo("UTC"), NOW, newest_only=newest_only)
    assert found.obstacle is None
    return [(one.backup.name, one.parent.name if one.parent else None) for one in found.fetches]


def test_each_is_a_difference_to_the_one_before_it_that_both_have_by_then() -> None:
    assert planned(there(1, 2, 3, 4), here(1, 3)) == [(name(2), name(1)), (name(4), name(3))]
    assert planned(there(1, 2), NearHost()) == [(name(1), None), (name(2), name(1))]


def test_one_that_is_older_than_all_that_both_have_is_a_difference_to_the_next() -> None:
    assert planned(there(1, 5), here(5)) == [(name(1), name(5))]


def test_what_is_gone_there_is_no_base() -> None:
    assert planned(there(2), here(1)) == [(name(2), None)]


def test_only_what_the_own_retention_keeps_comes() -> None:
    assert planned(there(*range(1, 11)), NearHost(), Retention(daily=2, min_keep=1)) == [(name(9), None), (name(10), name(9))]


def test_what_somebody_deleted_here_does_not_come_again() -> None:
    assert planned(there(1, 2), here(2, refused=(1,))) == []


def test_what_is_invented_for_days_that_are_over_takes_the_place_of_nothing_here() -> None:
    invented = [FarBackup(f"2026-03-{day:02}T000001Z", f"evil-{day}", "complete") for day in range(1, 5)]
    policy = Retention(daily=3, min_keep=1)
    assert planned([*there(1, 2, 3, 4), *invented], here(1, 2, 3, 4), policy) == []
    assert planned([*there(1, 2, 3, 4, 5), *invented], here(1, 2, 3, 4), policy) == [(name(5), name(4))]


def test_what_is_stamped_in_the_future_waits() -> None:
    assert planned(there(1, 21), here(1)) == []


def test_the_newest_alone() -> None:
    assert planned(there(1, 2, 3), NearHost(), newest_only=True) == [(name(3), None)]
    assert planned(there(1, 2, 3), here(1), newest_only=True) == [(name(3), name(1))]
    assert planned(there(1, 2, 3), here(3), newest_only=True) == []


@pytest.mark.parametrize(
    ("near", "far", "obstacle"),
    [
        (here(1, mark=None), there(2), Obstacle.BACKED_UP_HERE),
        (here(1, mark=None), there(1), Obstacle.BOTH_BACK_UP),
        (here(1, mark=ReplicaMark("pool-2", "office")), there(1), Obstacle.OF_ANOTHER_POOL),
        (here(1, forgotten=True), there(2), Obstacle.FORGOTTEN_HERE),
        (here(1), [FarBackup(name(1), "uuid-x", "complete")], Obstacle.OTHER_BACKUP),
    ],
)
def test_what_stands_in_the_way(near: NearHost, far: list[FarBackup], obstacle: Obstacle) -> None:
    found = plan_fetches("web1", far, near, MARK, Retention(), ZoneInfo("UTC"), NOW)
    assert (found.obstacle, found.fetches) == (obstacle, ())


def test_the_newest_that_both_have_is_named() -> None:
    found = plan_fetches("web1", there(1, 2, 3), here(1, 2), MARK, Retention(), ZoneInfo("UTC"), NOW)
    assert found.common == name(2)
