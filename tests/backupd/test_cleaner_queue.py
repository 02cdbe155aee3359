"""The queue of the kernel's cleaner from invented readings: how many entries wait, how many of them can be dropped, and
the rate.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from backupd.expire import queue as module
from backupd.expire.queue import CleanerQueue
from backupd.expire.report import DeletedBackup
from btrkeep.errors import PoolUnusable


class Looks:
    """Each look finds the next of the prepared sets, at a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.ids: Iterable[int] = ()
        monkeypatch.setattr(module, "orphan_items", lambda _path: list(self.ids))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def queue(self, most: int) -> CleanerQueue:
        return CleanerQueue(Path("/pool"), most)

    def look(self, queue: CleanerQueue, ids: Iterable[int], seconds: float = 1.0) -> int:
        self.now += seconds
        self.ids = ids
        return queue.count_waiting()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_deletions_of_others_wait_in_the_queue_too_and_it_is_full_at_its_limit(looks: Looks) -> None:
    queue = looks.queue(3)
    assert looks.look(queue, (1, 2)) == 2
    assert not queue.full()
    looks.ids = (1, 2, 3)
    assert queue.full()
    assert (queue.waiting, queue.most_waiting, queue.dropped) == (3, 3, 0)
    looks.look(queue, (3,))
    assert (queue.waiting, queue.most_waiting, queue.dropped) == (1, 3, 2)


def test_those_before_a_dropped_one_are_held_by_an_open_file(looks: Looks) -> None:
    queue = looks.queue(9)
    looks.look(queue, (1, 2))
    assert queue.moving() == 2
    looks.look(queue, (1, 2, 3, 4))
    assert queue.moving() == 4
    looks.look(queue, (1, 2, 4))  # 3 was dropped, so 1 and 2 are held; 4 is new
    assert queue.moving() == 1
    looks.look(queue, (1, 2, 4, 5))
    assert queue.moving() == 2
    looks.look(queue, (2, 4, 5))  # a held one was dropped after all
    assert queue.moving() == 2


def test_drops_a_second_are_those_of_the_last_minute(looks: Looks) -> None:
    queue = looks.queue(1000)
    assert queue.rate() is None
    looks.look(queue, range(500))
    assert queue.rate() is None
    for second in range(1, 11):
        looks.look(queue, range(2 * second, 500))
    assert queue.rate() == pytest.approx(2.0)
    for second in range(1, 71):
        looks.look(queue, range(20 + 4 * second, 500))
    assert queue.rate() == pytest.approx(4.0, rel=0.05)
    looks.now += 3600
    assert 0 < (queue.rate() or 0) < 0.1


def test_nothing_is_known_of_the_rate_within_the_first_second_or_without_a_drop(looks: Looks) -> None:
    queue = looks.queue(1000)
    looks.look(queue, range(10))
    looks.look(queue, range(5, 10), 1.0)
    assert queue.rate() is None
    looks.now += 0.1
    assert queue.rate() is not None
    still = looks.queue(1000)
    for _ in range(10):
        looks.look(still, range(10))
    assert still.rate() is None


def test_the_queue_stands_still_since_the_last_change_of_any_kind(looks: Looks) -> None:
    queue = looks.queue(10)
    looks.look(queue, (1, 2))
    looks.now += 7
    assert queue._standing() == 7
    looks.look(queue, (1, 2), 0)
    assert queue._standing() == 7
    looks.look(queue, (1,), 0)
    assert queue._standing() == 0
    looks.now += 3
    looks.look(queue, (1, 5), 0)
    assert queue._standing() == 0


def test_a_sleeping_cleaner_is_woken_less_and_less_often(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[float] = []
    began = looks.now + 1
    monkeypatch.setattr(module, "commit", lambda _path: commits.append(looks.now - began))
    queue = looks.queue(10)
    looks.look(queue, (1, 2))
    for _ in range(100):
        queue._wake_if_asleep()
        looks.now += 0.1
    assert len(commits) == 6  # after 0.3 seconds, and whenever twice as many have passed
    assert all(2 * before <= after <= 2 * before + 0.2 for before, after in pairwise(commits))
    looks.look(queue, (1,))
    looks.now += 0.3
    queue._wake_if_asleep()
    assert len(commits) == 7  # after a drop it is not waited for as long


def test_a_queue_that_cannot_be_read_makes_the_pool_unusable(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "orphan_items", failing)
    with pytest.raises(PoolUnusable):
        looks.queue(5).count_waiting()
    monkeypatch.setattr(module, "commit", failing)
    with pytest.raises(PoolUnusable):
        looks.queue(5).commit()


def test_what_is_remembered_of_looks_does_not_grow_with_their_number(looks: Looks) -> None:
    """The queue is read thirty times a second, and a large expiry takes all night."""
    queue = looks.queue(10)
    for _ in range(4000):
        looks.look(queue, (), 1 / 32)
    assert len(queue._seen) == 240


class Waiting:
    """A cancellation whose sleep takes no time here: after each, the next of `sets` waits, and after the last it is cancelled."""

    def __init__(self, looks: Looks, *sets: Iterable[int]) -> None:
        self.looks, self.sets, self.is_cancelled = looks, list(sets), False

    def __bool__(self) -> bool:
        return self.is_cancelled

    def sleep(self, seconds: float) -> None:
        self.looks.now += seconds
        if self.sets:
            self.looks.ids = self.sets.pop(0)
        else:
            self.is_cancelled = True


def test_deletions_go_on_when_half_of_the_queue_is_empty_or_nothing_has_moved_for_seconds(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "commit", lambda _path: None)
    ticks: list[None] = []
    for sets, room in (
        ([range(1, 5), range(2, 5), range(3, 5), range(4, 5)], 3),
        ([range(5)] * 9, 0),  # cancelled
        ([range(4)] * 300, 1),
    ):
        queue = looks.queue(5)
        looks.ids = range(5)
        assert queue.wait_for_room(Waiting(looks, *sets), lambda: ticks.append(None)) == room  # type: ignore[arg-type]
        assert not queue.stuck
    assert ticks


def test_an_expiry_waits_until_its_own_are_dropped_and_for_no_others(looks: Looks) -> None:
    deleted = {number: DeletedBackup("web1", f"n{number}", f"/pool/n{number}") for number in (1, 2)}
    waiting = Waiting(looks, (1, 2, 9), (2, 9), (9,), (9,))
    looks.ids = (1, 2)
    queue = looks.queue(5)
    assert queue.wait_until_dropped(deleted, waiting, lambda: None, None) == {}  # type: ignore[arg-type]
    assert (waiting.is_cancelled, waiting.sets, queue.waiting) == (False, [(9,)], 1)
