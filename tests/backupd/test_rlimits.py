"""How many hosts a night backs up at once under limits of open files and processes: fewer, but always at least one."""

import errno
import resource
import threading

import pytest

from backupd.run import slots as module
from backupd.run.slots import CONFINED, OPEN, Needs, has_files_for, possible_at_once
from btrkeep.process import threads as threads_module
from btrkeep.process.threads import NoThread

UNLIMITED = resource.RLIM_INFINITY


class Limits:
    """The limits of open files that the kernel reports for this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, *, may_raise: bool = True) -> None:
        self.soft, self.hard, self.may_raise = soft, hard, may_raise
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (self.soft, self.hard))
        monkeypatch.setattr(resource, "setrlimit", self.set)

    def set(self, _which: int, limits: tuple[int, int]) -> None:
        if not self.may_raise or (self.hard != UNLIMITED and limits[0] > self.hard) or limits[1] != self.hard:
            raise OSError(errno.EPERM, "Operation not permitted")
        self.soft = limits[0]


@pytest.mark.parametrize(
    ("soft", "hard", "hosts"), [(10_000, 10_000, 8), (200, 10_000, 8), (200, UNLIMITED, 8), (UNLIMITED, UNLIMITED, 8), (50, 50, 1)]
)
def test_the_limit_is_raised_where_that_is_allowed_and_one_host_always_runs(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, hosts: int
) -> None:
    limits = Limits(monkeypatch, soft, hard)
    assert possible_at_once(8, CONFINED) == hosts
    assert limits.soft == UNLIMITED if soft == UNLIMITED else limits.soft >= soft  # it is never lowered


def test_the_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 150, 300)
    assert possible_at_once(50, OPEN) > 150 / OPEN.files
    assert limits.soft == 300


@pytest.mark.parametrize("may_raise", [True, False])
def test_with_few_files_fewer_hosts_run_at_once_instead_of_failing_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, may_raise: bool
) -> None:
    limits = Limits(monkeypatch, 300, 300 if may_raise else 10_000, may_raise=may_raise)
    hosts = possible_at_once(50, OPEN)
    assert 1 < hosts < 300 / OPEN.files
    assert limits.soft == 300
    assert not has_files_for(50, OPEN)
    assert has_files_for(hosts, OPEN)


@pytest.mark.parametrize(("threads", "hosts"), [(0, 0), (1, 1), (5, 1), (6, 1), (13, 2), (900, 4)])
def test_with_few_processes_fewer_hosts_run_at_once_and_without_one_none(
    monkeypatch: pytest.MonkeyPatch, threads: int, hosts: int
) -> None:
    left, before = iter(range(threads)), threading.active_count()
    start = threads_module.start

    def limited(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise NoThread
        start(thread)

    monkeypatch.setattr(module, "start", limited)
    assert possible_at_once(4, Needs(files=1, tasks=6)) == hosts
    assert threading.active_count() == before
