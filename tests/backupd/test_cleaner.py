"""Rate and time left, calculated from invented readings whose true drops are known."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.expire import monitor
from backupd.expire.monitor import WINDOW, CleanerMonitor, CleanerWatch, held_at_least, rate, require_btrfs, time_left, watched
from btrkeep.errors import PoolUnusable, UsageError
from btrkeep.pool.orphans import DeadRoot, Drop, Key

IDS = range(1000, 1_000_000)


def watch_after(looks: list[tuple[float, set[int]]], watch: CleanerWatch | None = None) -> CleanerWatch:
    watch = watch or CleanerWatch()
    for at, waiting in looks:
        watch = watched(watch, at, waiting, None)
    return watch


def evenly(count: int, per_second: float, every: float, until: float) -> list[tuple[float, set[int]]]:
    """Returns readings of a queue of `count` entries, which leave it one by one."""
    times = [number * every for number in range(round(until / every) + 1)]
    return [(at, set(IDS[int(at * per_second + 1e-9) : count])) for at in times]


def test_before_enough_was_seen_all_is_unknown() -> None:
    assert rate(CleanerWatch()) is None
    assert time_left(CleanerWatch(), None) is None
    watch = watch_after([(0.0, {1, 2, 3})])
    assert rate(watch) is None
    assert time_left(watch, None) is None
    watch = watch_after(evenly(100, 4, 0.1, 0.9))
    assert rate(watch) is None  # less than a second
    assert time_left(watch_after(evenly(100, 4, 0.1, 1.0)), None) is None  # four of them gone


def test_six_looks_and_five_drops_are_needed_for_a_time_left() -> None:
    looks = evenly(100, 4, 0.5, 10)
    assert time_left(watch_after(looks[:5]), None) is None  # eight drops in two seconds, but only four parts
    assert time_left(watch_after(looks[:6]), None) is not None
    few = [(float(at), set(IDS[max(0, at - 5) : 100])) for at in range(11)]
    assert time_left(watch_after(few[:10]), None) is None  # four drops
    assert time_left(watch_after(few), None) is not None


def test_the_time_left_is_known_from_a_whole_second_on() -> None:
    looks = evenly(100, 16, 0.125, 1.0)
    assert time_left(watch_after(looks[:-1]), None) is None
    assert rate(watch_after(looks[:-1])) is None
    assert time_left(watch_after(looks), None) is not None
    assert rate(watch_after(looks)) is not None


def test_at_an_even_pace_the_rate_and_the_time_left_are_exact() -> None:
    watch = watch_after(evenly(600, 2, 0.5, 100))
    result, left = rate(watch), time_left(watch, None)
    assert result is not None
    assert result.per_minute == pytest.approx(120)
    assert result.seconds == pytest.approx(100)
    assert left is not None
    assert left.seconds == pytest.approx(200)  # 400 wait
    assert left.at_least < 200 < (left.at_most or 0)
    assert (left.at_most or 0) - left.at_least < 15


def test_new_ones_that_come_meanwhile_change_no_rate_but_the_time_left() -> None:
    alone = watch_after(evenly(600, 2, 0.5, 100))
    looks = [(at, waiting | set(range(round(at * 10)))) for at, waiting in evenly(600, 2, 0.5, 100)]
    more = watch_after(looks)
    assert rate(more) == rate(alone)
    left, other = time_left(alone, None), time_left(more, None)
    assert left is not None
    assert other is not None
    assert other.seconds == pytest.approx(left.seconds * (400 + 1000) / 400)


def test_a_queue_that_only_grows_has_no_rate_above_zero_and_no_end() -> None:
    watch = watch_after([(float(at), set(range(at + 1))) for at in range(60)])
    result = rate(watch)
    assert result is not None
    assert result.per_minute == 0
    assert time_left(watch, None) is None


def test_idle_time_does_not_count_but_a_cleaner_that_sleeps_does() -> None:
    idle = [(float(at), set[int]()) for at in range(100)]
    busy = [(at + 100.0, waiting) for at, waiting in evenly(600, 2, 0.5, 50)]
    assert rate(watch_after(idle + busy)) == rate(watch_after(busy))
    sleeping = [(at - 50, set(IDS[:600])) for at, _ in evenly(600, 2, 0.5, 50)]
    result = rate(watch_after(sleeping + evenly(600, 2, 0.5, 50)[1:]))
    assert result is not None
    assert result.per_minute == pytest.approx(60)


def test_only_the_last_minutes_count() -> None:
    fast = evenly(5000, 20, 1, 200)
    slow = [(200.0 + at, set(IDS[4000 + at : 5000])) for at in range(1, int(WINDOW) + 50)]
    watch = watch_after(fast + slow)
    result = rate(watch)
    assert result is not None
    assert result.per_minute == pytest.approx(60, rel=0.01)
    assert result.seconds <= WINDOW
    assert len(watch.steps) <= WINDOW + 2


def test_the_more_uneven_the_pace_the_wider_the_time_left() -> None:
    even, rough = evenly(1000, 2, 1, 100), []
    for at, _ in even:
        burst = int(at // 20) * 40 + min(40, int(at % 20) * 20)  # forty within two seconds, then nothing for eighteen
        rough.append((at, set(IDS[burst:1000])))
    left_when_even, left_when_rough = time_left(watch_after(even), None), time_left(watch_after(rough), None)
    assert left_when_even is not None
    assert left_when_even.at_most is not None
    assert left_when_rough is not None
    assert left_when_rough.at_most is None or left_when_rough.at_most - left_when_rough.at_least > 3 * (
        left_when_even.at_most - left_when_even.at_least
    )


def test_the_uncertainty_is_that_of_ten_equal_parts_of_the_time() -> None:
    """Readings every four seconds; each of the ten parts begins and ends between two readings. In the last part nothing
    is dropped.
    """
    drops = [*[(8, 4, 12)[number % 3] for number in range(22)], 0, 0, 0]
    gone = [sum(drops[:number]) for number in range(26)]
    left = time_left(watch_after([(4.0 * number, set(IDS[count:1000])) for number, count in enumerate(gone)]), None)
    until = [
        sum(count * min(1.0, max(0.0, (at - 4 * number) / 4)) for number, count in enumerate(drops)) for at in range(0, 101, 10)
    ]
    rates = [(after - before) / 10 for before, after in pairwise(until)]
    mean, margin = gone[-1] / 100, 2.5 * stdev(rates) / sqrt(10)
    assert left is not None
    assert left.seconds == pytest.approx((1000 - gone[-1]) / mean)
    assert left.at_least == pytest.approx((1000 - gone[-1]) / (mean + margin))
    assert left.at_most == pytest.approx((1000 - gone[-1]) / (mean - margin))


def test_the_last_part_of_the_time_ends_with_the_last_reading_however_a_sixth_of_it_is_rounded() -> None:
    """Six times a sixth of this time is more than the whole time, by the last bit."""
    rounded = 120.66026270711713
    assert 6 * (rounded / 6) > rounded
    looks = [(20.0 * number, set(IDS[:1000])) for number in range(6)]
    left, near = (time_left(watch_after([*looks, (end, set(IDS[100:1000]))]), None) for end in (rounded, 120.66))
    assert left is not None
    assert near is not None
    assert left.at_least == pytest.approx(near.at_least, rel=1e-3)


def test_the_dropped_share_of_the_present_subvolume_shortens_the_time_left() -> None:
    watch = watch_after(evenly(110, 2, 0.5, 50))
    whole, half = time_left(watch, None), time_left(watch, 0.5)
    assert whole is not None
    assert half is not None
    assert whole.seconds == pytest.approx(5.0)
    assert half.seconds == pytest.approx(4.75)


def test_nothing_that_waits_takes_no_time() -> None:
    left = time_left(watch_after([(0.0, set())]), None)
    assert left is not None
    assert (left.seconds, left.at_least, left.at_most) == (0.0, 0.0, 0.0)


def test_the_time_that_a_drop_takes_counts_from_the_first_look_at_it() -> None:
    watch = watched(CleanerWatch(), 10.0, {5, 6}, 5)
    assert (watch.dropping, watch.since, watch.from_before) == (5, 10.0, True)
    watch = watched(watch, 12.0, {5, 6}, 5)
    assert (watch.since, watch.from_before) == (10.0, True)
    watch = watched(watch, 14.0, {6}, 6)
    assert (watch.dropping, watch.since, watch.from_before) == (6, 14.0, False)
    watch = watched(watch, 16.0, {6}, None)
    assert (watch.dropping, watch.since, watch.from_before) == (None, None, False)


def test_only_what_has_waited_and_is_not_in_the_list_is_held() -> None:
    assert held_at_least([0.0, 0.0, 0.0], 2.0, 0) == 2  # the cleaner may be dropping one
    assert held_at_least([0.0, 0.0, 0.0], 2.0, 1) == 1
    assert held_at_least([0.0, 1.5, 1.5], 2.0, 0) == 0  # two are just being deleted, and come into the list in a moment


def test_a_cleaner_that_drops_many_during_one_reading_leaves_none_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readings of a kernel that drops forty subvolumes while the others are read."""
    clock, count, lists = [0.0], [101], iter([100, 60, 60, 20])
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(monitor, "filesystem_uuid", lambda _path: "uuid")
    monkeypatch.setattr(monitor, "mount_of", lambda _path: SimpleNamespace(super_options=()))
    monkeypatch.setattr(monitor, "queued", lambda _path: next(lists))
    monkeypatch.setattr(monitor, "dead_roots", lambda _path: [DeadRoot(number, 0, 0, 0, None) for number in IDS[: count[0]]])
    watcher = monitor.CleanerMonitor(Path("/"))
    assert watcher.take_reading().held == 0
    clock[0], count[0] = 2.0, 61
    assert (seen := watcher.take_reading()).held == 0, "those that are dropped while the others are read"
    assert (seen.waiting, seen.idle) == (61, False)


@pytest.mark.parametrize(
    ("mountpoint", "error"), [("", "MOUNTPOINT is empty"), ("/nowhere", "no folder /nowhere"), ("/proc", "proc, not btrfs")]
)
def test_only_a_folder_on_a_mounted_btrfs_can_be_watched(mountpoint: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        require_btrfs(mountpoint)


def test_a_part_of_the_time_may_end_before_the_second_look() -> None:
    """At an even pace the parts have no deviation, however uneven the readings are: only the count is uncertain."""
    watch = watch_after([(at, set(IDS[int(at) : 100])) for at in (0.0, 10.0, 11.0, 12.0, 13.0, 14.0)])
    left = time_left(watch, None)
    assert left is not None
    assert [left.seconds, left.at_least] == pytest.approx([86, 86 / (1 + 2.5 / 14)])


@dataclass
class Kernel:
    """The kernel's answers about a filesystem; each version gives only some of them."""

    dead: list[DeadRoot]
    queued: Iterator[int | None]
    option: str = "rw"
    filesystem: str | OSError = "uuid"
    branches: tuple[Key, ...] = ()
    read: list[int] = field(default_factory=list)
    """The subvolumes whose branches were read."""
    at: float = 0.0

    def answer(self, monkeypatch: pytest.MonkeyPatch) -> CleanerMonitor:
        def filesystem(_: Path) -> str:
            if isinstance(self.filesystem, OSError):
                raise self.filesystem
            return self.filesystem

        def branches(_: Path, root: DeadRoot) -> tuple[Key, ...]:
            self.read.append(root.id)
            return self.branches

        monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: self.at))
        monkeypatch.setattr(monitor, "filesystem_uuid", filesystem)
        monkeypatch.setattr(monitor, "branches", branches)
        monkeypatch.setattr(monitor, "dead_roots", lambda _: self.dead)
        monkeypatch.setattr(monitor, "queued", lambda _: next(self.queued))
        monkeypatch.setattr(monitor, "mount_of", lambda _: SimpleNamespace(super_options=(self.option,)))
        return CleanerMonitor(Path("/srv/backup"))


def dead(*numbers: int) -> list[DeadRoot]:
    return [DeadRoot(number, 1 << 20, 7, 2, None) for number in numbers]


@pytest.mark.parametrize(
    ("queued", "option", "held", "idle"),
    [
        ((None, None), "rw", 0, False),  # before Linux 6.13
        ((None, None), "ro", 0, True),
        ((0, 0), "rw", 3, False),  # the cleaner may be dropping the fourth
        ((1, 1), "rw", 2, False),
        ((4, 1), "rw", 0, False),  # it was at work in between
        ((1, 4), "rw", 0, False),
        ((4, 4), "rw", 0, True),
        ((0, 0), "ro", 0, True),
    ],
)
def test_what_is_held_is_known_from_the_cleaners_list_alone(
    monkeypatch: pytest.MonkeyPatch, queued: tuple[int | None, int | None], option: str, held: int, idle: bool
) -> None:
    kernel = Kernel(dead(1, 2, 3, 4), iter(queued * 2), option)
    watch = kernel.answer(monkeypatch)
    assert watch.take_reading().held == 0  # they may be on their way into the list
    kernel.at = 2.0
    reading = watch.take_reading()
    assert (reading.waiting, reading.held, reading.idle, reading.dropping) == (4, held, idle, None)


def test_the_share_of_a_drop_is_that_of_its_own_tree_whose_branches_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (replace(dead(number)[0], drop=Drop(number, (9, 0, 0), 1)) for number in (7, 8))
    kernel = Kernel([first, second], iter([None] * 8), branches=((1, 0, 0), (5, 0, 0), (9, 0, 0), (12, 0, 0)))
    watch = kernel.answer(monkeypatch)
    assert watch.take_reading().dropping is None  # which of the two is unknown until one goes on
    for root, key, share in ((first, (12, 0, 0), 0.75), (first, (12, 0, 0), 0.75), (second, (5, 0, 0), 0.25)):
        moved = replace(root, drop=Drop(root.id, key, 1))
        kernel.dead = [moved if each.id == root.id else each for each in kernel.dead]
        reading = watch.take_reading()
        assert reading.dropping is not None
        assert (reading.dropping.drop.root, reading.dropping.share, reading.dropping.from_before) == (root.id, share, False)
    assert kernel.read == [7, 8]


def test_what_cannot_be_asked_or_is_another_filesystem_now_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([], iter([0] * 8))
    watch = kernel.answer(monkeypatch)
    assert watch.take_reading().waiting == 0
    for answer, error in (
        ("another", "is on another filesystem now"),
        (PermissionError(13, "Permission denied"), "no permission to read the deleted subvolumes"),
        (OSError(5, "Input/output error"), "cannot be watched: Input/output error"),
    ):
        kernel.filesystem = answer
        with pytest.raises(PoolUnusable, match=error) as refused:
            watch.take_reading()
        assert refused.value.hint


_CHANGES = st.lists(st.tuples(st.floats(0.05, 30), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=80)


@given(_CHANGES, st.floats(0, 0.99))
def test_rate_and_time_left_never_contradict_each_other(changes: list[tuple[float, int, int]], share: float) -> None:
    watch, at, low, high, gone = CleanerWatch(), 0.0, 0, 20, 0
    watch = watched(watch, at, set(range(low, high)), None)
    for seconds, going, coming in changes:
        at, low, high = at + seconds, min(high, low + going), high + coming
        gone = low
        watch = watched(watch, at, set(range(low, high)), None)
    for before, after in pairwise(watch.steps):
        assert before.at < after.at
        assert before.busy <= after.busy
        assert before.gone <= after.gone
    assert watch.steps[-1].gone == gone
    result, left = rate(watch), time_left(watch, share if low < high else None)
    if result:
        assert result.per_minute >= 0
        assert result.seconds <= at
    if left and watch.waiting:
        assert result is not None
        assert 0 < left.at_least < left.seconds < (left.at_most or float("inf"))
        assert left.seconds == pytest.approx((high - low - share) / result.per_minute * 60)
    later = watched(replace(watch), at + 1e6, watch.waiting, None)
    assert rate(later) is None  # nothing of it is of the last minutes
