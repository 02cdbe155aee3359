"""Which hosts a night compares with their backups at its end, for how long, and how a failed comparison is handled."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.repo.verification_files import Comparison, HostComparisons, write_compared
from backupd.run import run_hosts as module
from backupd.run.run_context import HostResult
from backupd.run.run_hosts import LONGEST, compare_share
from btrkeep.config import HostConfig
from btrkeep.config.values import FileSample
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancellation, ProgressSinks

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)


class Night:
    """The end of a night with these hosts. `compared`: name and seconds of each comparison; `answers`: results or errors."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, sample: FileSample | None) -> None:
        self.compared, self.answers = list[tuple[str, float]](), dict[str, Any]()
        self.notices, self.last = list[str](), dict[str, datetime]()
        self.cancellation = Cancellation()
        self.clock = 1000.0
        self.takes = 0.0
        pool = Pool(folder, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
        pool.locks.mkdir(parents=True)
        self.hosts = {name: HostConfig(name, address=f"{name}.example.org", paths=("/",)) for name in ("a", "b", "c")}
        config = SimpleNamespace(hosts=self.hosts, verify=SimpleNamespace(against_source=sample), pool=SimpleNamespace(zone=UTC))
        self.context: Any = SimpleNamespace(
            config=config,
            pool=pool,
            clock=SimpleNamespace(now=lambda: NOON),
            sinks=ProgressSinks(lambda event: self.notices.append(str(event))),
            confinement=SimpleNamespace(missing=()),
            rsync=None,
        )
        night = self

        class Comparing:
            def __init__(self, _pool: Any, _catalogue: Any, _config: Any, scope: Any, *_: Any, **__: Any) -> None:
                self.scope = scope

            def compare(self, host: HostConfig, _now: datetime) -> Any:
                night.compared.append((host.name, self.scope.seconds))
                night.clock += night.takes
                answer = night.answers.get(host.name)
                if isinstance(answer, Exception):
                    raise answer
                return answer

        monkeypatch.setattr(module, "SourceComparison", Comparing)
        monkeypatch.setattr(module, "require_harmless", lambda *_: None)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.clock))

    def end(self, **outcomes: str) -> None:
        for host, moment in self.last.items():
            folder = self.context.pool.host(host)
            folder.mkdir(parents=True)
            write_compared(folder, HostComparisons(backups={"2026-03-01T220000Z": Comparison(moment, 1, 1, 0, 0)}))
        results = [HostResult(name, outcome) for name, outcome in outcomes.items()]
        compare_share(self.context, None, results, self.cancellation)  # type: ignore[arg-type]


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    return Night(tmp_path, monkeypatch, FileSample("1%", share=0.01))


def test_the_host_that_was_not_compared_for_the_longest_time_comes_first(night: Night) -> None:
    """Otherwise a short night would never compare the last host."""
    night.last = {"a": NOON, "b": NOON - timedelta(days=3)}
    night.end(a="complete", b="complete", c="complete")
    assert [name for name, _ in night.compared] == ["c", "b", "a"]


def test_only_complete_backups_of_configured_hosts_are_compared(night: Night) -> None:
    night.end(a="complete", b="failed", gone="complete")
    assert [name for name, _ in night.compared] == ["a"]


def test_no_host_takes_the_time_of_the_others(night: Night) -> None:
    night.takes = LONGEST / 2
    night.end(a="complete", b="complete", c="complete")
    assert night.compared == [("a", LONGEST / 3), ("b", LONGEST / 4)]  # for the third one no time is left


def test_a_host_that_cannot_be_compared_is_reported_and_costs_no_other(night: Night) -> None:
    night.answers = {"a": OperatorError("port 22 timed out"), "b": OSError(5, "Input/output error")}
    night.end(a="complete", b="complete", c="complete")
    assert [name for name, _ in night.compared] == ["a", "b", "c"]
    assert len(night.notices) == 2
    assert "a was not compared with its backup: port 22 timed out" in night.notices[0]
    assert "Input/output error" in night.notices[1]


def test_files_that_differ_are_reported(night: Night) -> None:
    night.answers = {"a": SimpleNamespace(differing=(b"/etc/passwd", b"/x")), "b": SimpleNamespace(differing=())}
    night.end(a="complete", b="complete")
    (notice,) = night.notices
    assert "a: 2 files" in notice
    assert "`backupd damaged`" in notice


def test_after_a_signal_no_further_host_is_compared(night: Night) -> None:
    night.cancellation.handle_signal(15)
    night.end(a="complete")
    assert night.compared == []


def test_beside_another_comparison_none_begins_and_that_is_reported(night: Night) -> None:
    with take_lock(night.context.pool.locks / "source", "backupd verify", "2026-03-20T12:00:00Z"):
        night.end(a="complete")
    assert night.compared == []
    assert "no file was compared with the hosts" in night.notices[0]


def test_without_the_key_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = Night(tmp_path, monkeypatch, None)
    night.end(a="complete")
    assert (night.compared, night.notices) == ([], [])


def test_a_host_whose_window_is_over_is_not_connected_to(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    window = object()
    night.hosts["a"] = HostConfig("a", address="a.example.org", paths=("/",), window=window)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "window_end", lambda asked, _zone, _now: None if asked is window else NOON)
    night.end(a="complete", b="complete")
    assert [name for name, _ in night.compared] == ["b"]
