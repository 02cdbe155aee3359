"""The rows that `score --record` and a run of balances write into a pool's catalogue. Rows are read with sqlite3, btrfs by
python-btrfs.
"""

import json
import logging
import os
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from balancer.balance_history import Recorder, catalogue_of, measured_balances, needed_catalogue_of, recorded_outcome, sample
from balancer.cli import score
from balancer.cost_model import Estimate, MeasuredBalance
from balancer.run_types import (
    BalanceOutcome,
    BalanceStarted,
    PlannedBlockGroup,
    Report,
    RunSettings,
    SpaceNumbers,
    StepDone,
    StopReason,
)
from balancer.score import SIZES, FreeExtents
from balancer.survey import Cost, surveyed
from btrkeep.catalogue import BALANCE_OUTCOMES, STEP_OUTCOMES, Catalogue, sqlite
from btrkeep.config import reading
from btrkeep.errors import ConfigError, PoolUnusable, UsageError
from tests.balancer.program import balancer, histogram, theirs
from tests.beds import TOP, work
from tests.beds.nights import Nights

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
ONE = "6b0c8f0e-0000-4000-8000-000000000001"


def rows(state: Path, statement: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(state / "catalogue.sqlite")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(statement)]


# --- which catalogue


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    """A pool, and its configuration beside it."""
    return Nights(shared_btrfs)


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder instead of this machine's folder of configurations."""
    folder = tmp_path / "etc"
    folder.mkdir()
    monkeypatch.setattr(reading, "FOLDER", folder)
    return folder


def configure(file: Path, pool: Path, state: Path) -> None:
    file.write_text(f'[pool]\npath = "{pool}"\nstate = "{state}"\n')


@pytest.mark.btrfs
@pytest.mark.root
def test_the_catalogue_is_that_of_the_one_pool_on_the_filesystem(
    nights: Nights, etc: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = nights.source / "file"
    file.touch()
    assert catalogue_of(nights.source) is None
    configure(etc / "gone.toml", tmp_path / "gone", tmp_path / "g")
    configure(etc / "unmounted.toml", nights.source, tmp_path / "u")  # a folder, but no pool
    configure(etc / ".#main.toml", nights.pool, tmp_path / "h")
    assert catalogue_of(nights.source) is None
    configure(etc / "main.toml", nights.pool, tmp_path / "state")
    assert not caplog.records
    (etc / "broken.toml").write_text("[pool\n\x1b[31m")
    for path in (nights.pool, nights.source, file, nights.top.parent, nights.pool / "hosts"):
        caplog.clear()
        assert catalogue_of(path) == needed_catalogue_of(path) == tmp_path / "state"
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        assert re.search(r"skipped an invalid configuration: .*broken\.toml: line 1", caplog.text)
        assert "\x1b" not in caplog.text


@pytest.mark.btrfs
@pytest.mark.root
def test_of_two_pools_on_the_filesystem_one_has_to_be_named(
    nights: Nights, etc: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nights.backupd("--config", nights.top / "b.toml", "init", nights.top / "second")
    configure(etc / "a.toml", nights.pool, tmp_path / "state-a")
    configure(etc / "b.toml", nights.top / "second", tmp_path / "state-b")
    assert catalogue_of(nights.source) is None
    assert "several pools" in caplog.text
    with pytest.raises(UsageError) as caught:
        needed_catalogue_of(nights.source)
    assert "--pool" in caught.value.hint
    assert catalogue_of(nights.source, config=etc / "b.toml") == tmp_path / "state-b"


@pytest.mark.btrfs
@pytest.mark.root
def test_a_pool_that_is_named_has_to_be_right_and_on_that_filesystem(
    nights: Nights, etc: Path, tmp_path: Path, make_btrfs: Callable[..., Path]
) -> None:
    elsewhere = make_btrfs(size="128M")
    configure(etc / "main.toml", nights.pool, tmp_path / "state")
    assert (catalogue_of(nights.source), catalogue_of(elsewhere)) == (tmp_path / "state", None)
    with pytest.raises(UsageError, match="is on filesystem") as caught:
        catalogue_of(elsewhere, config=nights.config)
    assert str(nights.pool) in caught.value.hint
    configure(etc / "gone.toml", tmp_path / "gone", tmp_path / "state")
    for words in ({"pool": "nowhere"}, {"config": tmp_path / "none.toml"}):
        with pytest.raises(ConfigError):
            catalogue_of(nights.source, **words)
    with pytest.raises(PoolUnusable, match="is not a pool"):
        catalogue_of(nights.source, config=etc / "gone.toml")
    with pytest.raises(PoolUnusable, match="not on btrfs"):
        catalogue_of(Path("/proc"), config=nights.config)


# --- score --record


@pytest.mark.btrfs
@pytest.mark.root
def test_a_recorded_score_is_what_python_btrfs_counts(nights: Nights) -> None:
    for number in range(40):
        (nights.source / f"{number}").write_bytes(b"x" * 70_000)
    work("btrfs", "filesystem", "sync", nights.source)
    for number in range(0, 40, 2):
        (nights.source / f"{number}").unlink()
    for _ in range(2):
        work("btrfs", "filesystem", "sync", nights.source)
    plain = balancer("score", nights.source)
    before = datetime.now(UTC)
    done = balancer("score", nights.source, "--record", "--config", nights.config)
    seen = list(theirs(nights.source).values())
    assert done.stdout == plain.stdout
    assert re.fullmatch(rf"recorded in the catalogue {nights.state} as of \d\S+Z\n", done.stderr)
    (row,) = rows(nights.state, "SELECT * FROM score")
    assert before <= datetime.fromisoformat(row.pop("taken")) <= datetime.now(UTC)
    lengths = [length for group in seen for length in group.joined]
    usage = work("btrfs", "filesystem", "usage", "-b", nights.source).stdout
    match = re.search(r"Device unallocated:\s+(\d+)", usage)
    assert match
    assert row.pop("unallocated") == pytest.approx(int(match[1]), rel=0.02)  # for single data; statfs omits a little
    assert row.pop("score") == pytest.approx(sum(group.score for group in seen))
    assert [tuple(triple) for triple in json.loads(row.pop("histogram"))] == [
        (row["at_least"], row["extents"], row["bytes"]) for row in histogram(lengths) if row["extents"]
    ]
    assert row == {
        "id": 1,
        "filesystem": work("findmnt", "-no", "UUID", "--target", nights.source).stdout.strip(),
        "block_groups": len(seen),
        "length": sum(group.length for group in seen),
        "used": sum(group.used for group in seen),
        "fragments": sum(group.fragments for group in seen),
        "bad": sum(group.score > 250 for group in seen),
        "largest_free": max(lengths),
        "free_in_large": sum(length for length in lengths if length >= 16 * 2**20),
    }


@pytest.mark.btrfs
@pytest.mark.root
def test_json_is_the_same_with_and_without_recording_and_of_a_file_too(nights: Nights) -> None:
    file = nights.source / "file"
    file.write_bytes(b"x" * 10_000)
    for _ in range(2):
        work("btrfs", "filesystem", "sync", nights.source)
    plain = balancer("score", file, "--json").stdout
    assert balancer("score", file, "--json", "--record", "--config", nights.config).stdout == plain
    assert balancer("score", file, "--json", "--top", "1", "--record", "--config", nights.config).stderr.startswith("recorded")
    assert [row["id"] for row in rows(nights.state, "SELECT id FROM score")] == [1, 2]


@pytest.mark.btrfs
@pytest.mark.root
def test_recording_where_there_is_no_catalogue_is_a_wrong_word_with_a_hint(nights: Nights, tmp_path: Path) -> None:
    done = balancer("score", nights.source, "--record", check=False)  # this machine's configurations know nothing of a test's pool
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no btrkeep pool: the scores and balances would be" in done.stderr
    assert "hint: mount the pool if it is not mounted; otherwise create one with `backupd init`" in done.stderr
    assert not nights.state.exists() or not rows(nights.state, "SELECT * FROM score")
    wrong = (
        ("--pool", "main"),
        ("--config", nights.config),
        ("--record", "--pool", "a", "--config", "b"),
        ("--record", "--pool", ""),
    )
    for words in wrong:
        done = balancer("score", nights.source, *words, check=False)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 2)


def scored(nights: Nights) -> Result:
    """Runs `score --record` within this process."""
    return CliRunner().invoke(score.command, [str(nights.source), "--record", "--config", str(nights.config)])


def is_told_and_scored(result: Result, words: str) -> bool:
    """Returns True if the scores were shown, and one line and a hint about the catalogue."""
    error, hint = result.stderr.splitlines()
    is_true = error.startswith("error: the scores are not recorded: ") and words in error and hint.startswith("hint: ")
    return is_true and "SCORE" in result.stdout and result.return_value == 1


@pytest.fixture
def runner_gives_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes click's runner return the return value of a command, which it ignores."""
    invoke = CliRunner.invoke

    def keep(self: CliRunner, *words: Any, **named: Any) -> Result:
        return invoke(self, *words, standalone_mode=False, **named)

    monkeypatch.setattr(CliRunner, "invoke", keep)


@pytest.mark.btrfs
@pytest.mark.root
@pytest.mark.usefixtures("runner_gives_statuses")
def test_a_catalogue_that_takes_nothing_leaves_the_scores_shown(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scored(nights).return_value == 0
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT", 0.2)
    file = nights.state / "catalogue.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert is_told_and_scored(scored(nights), "locked by another program")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    assert is_told_and_scored(scored(nights), "has schema 99,")
    file.write_bytes(b"these are my notes" * 1000)
    assert is_told_and_scored(scored(nights), "is damaged")
    done = balancer("score", nights.source, "--record", "--config", nights.config, check=False)
    assert (done.returncode, "SCORE" in done.stdout) == (1, True)


@pytest.mark.btrfs
@pytest.mark.root
@pytest.mark.usefixtures("runner_gives_statuses")
def test_a_catalogue_that_cannot_be_written_leaves_the_scores_shown(nights: Nights) -> None:
    state = nights.top / "state"
    work("btrfs", "subvolume", "create", state)
    nights.settings("pool", state=str(state))
    assert scored(nights).return_value == 0
    work("btrfs", "property", "set", "-ts", state, "ro", "true")
    assert is_told_and_scored(scored(nights), "cannot be opened")
    assert balancer("history", nights.source, "--config", nights.config, check=False).returncode == 1


@pytest.mark.btrfs
@pytest.mark.root
def test_neither_catalogue_nor_configuration_is_imported_to_show_scores(nights: Nights) -> None:
    script = "import sys; from balancer.cli import group; group(['score', sys.argv[1], '--json'], standalone_mode=False)"
    script += "; print(*sys.modules, file=sys.stderr)"
    output = work(sys.executable, "-c", script, nights.source, cwd=TOP).stderr
    assert "numpy" in output.split()
    assert not re.search(r"btrkeep\.(config|catalogue)|balancer\.recording", output)


@pytest.mark.btrfs
@pytest.mark.root
def test_a_rebuilt_catalogue_has_all_scores_and_balances_still(nights: Nights) -> None:
    balancer("score", nights.source, "--record", "--config", nights.config)
    record_a_run(nights.state, [done(1)])
    tables = ("score", "balance", "balance_step")
    before = {name: rows(nights.state, f"SELECT * FROM {name}") for name in tables}
    assert all(before.values())
    nights.backupd("rebuild")
    assert {name: rows(nights.state, f"SELECT * FROM {name}") for name in tables} == before


def test_what_finds_the_catalogue_imports_none_until_there_is_one() -> None:
    """`plan` and `run` search for a catalogue of every filesystem."""
    script = "import sys, balancer.balance_history, balancer.balance_history; print(*sys.modules)"
    output = work(sys.executable, "-c", script, cwd=TOP).stdout
    assert "balancer.run_types" in output.split()
    assert not re.search(r"btrkeep\.(config|catalogue)", output)


def test_extents_of_16_mib_and_more_are_large() -> None:
    of_class = np.zeros(SIZES, np.int64)
    of_class[[12, 23, 24, 25]] = [4096, 8 << 20, 16 << 20, 32 << 20]
    extents, score = np.ones(3, np.uint64), np.array([250.0, 250.5, 3.0])
    counted = FreeExtents(np.full(3, 5), extents, np.array([7, 9, 8], np.uint64), score, (of_class > 0).astype(np.int64), of_class)
    free_space_score = sample(ONE, NOW, surveyed(extents, extents, extents, counted, np.array([True, True, False])), 1 << 40)
    assert (free_space_score.free_in_large, free_space_score.largest_free, free_space_score.bad, free_space_score.block_groups) == (
        48 << 20,
        9,
        1,
        2,
    )
    assert (free_space_score.fragments, free_space_score.score, free_space_score.unallocated) == (10, 500.5, 1 << 40)
    assert free_space_score.histogram == ((4096, 1, 4096), (8 << 20, 1, 8 << 20), (16 << 20, 1, 16 << 20), (32 << 20, 1, 32 << 20))
    none = sample(
        ONE,
        NOW,
        surveyed(extents, extents, extents, replace(counted, extents=of_class * 0, bytes=of_class * 0), np.zeros(3, bool)),
        0,
    )
    assert (none.block_groups, none.largest_free, none.score, none.histogram) == (0, 0, 0.0, ())


# --- runs


NUMBERS = SpaceNumbers(30, 30 << 30, 20 << 30, 5 << 30, 4000, 9000.5, 1 << 30, 7 << 30)
AFTER = SpaceNumbers(29, 29 << 30, 20 << 30, 6 << 30, 3000, 7000.25, 1 << 30, 8 << 30)


def view(number: int) -> PlannedBlockGroup:
    return PlannedBlockGroup(
        number, number << 30, 1 << 30, 1, 100 << 20, 300, 512.5, 5125.0, Cost(5000, 7000, 100 << 20, 1 << 20),
        Estimate(100 << 20, 40 << 20, 10.5), number * (100 << 20), 5, None,
    )  # fmt: skip


def done(number: int, outcome: BalanceOutcome = BalanceOutcome.DONE, error: str | None = None) -> StepDone:
    moved = 100 << 20 if outcome is BalanceOutcome.DONE else 0
    return StepDone(view(number), NOW, 12.5, outcome, moved, 150 << 20, 500.25, 8500.0, 5 << 30, error)


def report(steps: list[StepDone]) -> Report:
    return Report(ONE, NUMBERS, AFTER, tuple(steps), NOW, 60.0, StopReason.BUDGET, "20 GiB have moved")


def record_a_run(state: Path, steps: list[StepDone], warn: Callable[[str], None] = pytest.fail) -> None:
    with Recorder(state, ONE, Path("/srv/\udce9"), warn) as recorder:
        recorder(BalanceStarted(NUMBERS, RunSettings(budget=20 << 30)))
        for step in steps:
            recorder(step.group)
            recorder(step)
        recorder(report(steps))


def test_the_catalogue_knows_every_way_in_which_a_run_or_a_step_can_end() -> None:
    assert {recorded_outcome(stop_reason) for stop_reason in StopReason} | {"killed"} == set(BALANCE_OUTCOMES)
    assert {balance_outcome.value for balance_outcome in BalanceOutcome} == set(STEP_OUTCOMES)


def test_a_run_is_kept_with_its_steps_and_sums(tmp_path: Path) -> None:
    record_a_run(
        tmp_path, [done(1), done(2, BalanceOutcome.NO_SPACE, "No space left on device"), done(3, BalanceOutcome.GONE), done(4)]
    )
    (row,) = rows(tmp_path, "SELECT * FROM balance")
    assert {name: json.loads(row.pop(name)) for name in ("before", "after")} == {"before": asdict(NUMBERS), "after": asdict(AFTER)}
    assert row.pop("started") <= row.pop("finished") == row.pop("updated")
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert row == {
        "id": 1, "filesystem": ONE, "mountpoint": "/srv/\\udce9", "outcome": "budget", "why": "20 GiB have moved",
        "policy": "benefit", "budget": 20 << 30, "pid": os.getpid(), "pid_started": stat[19], "block_groups": 2, "moved": 200 << 20,
        "written": 600 << 20, "gained": 4 * 500.25, "failed": 1, "current": None,
    }  # fmt: skip
    steps = rows(tmp_path, "SELECT * FROM balance_step ORDER BY number")
    assert [(step["number"], step["outcome"], step["error"]) for step in steps] == [
        (1, "done", None), (2, "no space", "No space left on device"), (3, "gone", None), (4, "done", None)
    ]  # fmt: skip
    assert steps[0] == {
        "balance": 1, "number": 1, "vaddr": 1 << 30, "length": 1 << 30, "used": 100 << 20, "extents": 5000, "refs": 7000,
        "fragments": 300, "score": 512.5, "started": "2026-11-20T22:00:00.000000Z", "seconds": 12.5, "moved": 100 << 20,
        "written": 150 << 20, "estimate_written": 140 << 20, "estimate_seconds": 10.5, "gained": 500.25, "outcome": "done",
        "error": None,
    }  # fmt: skip
    assert measured_balances(tmp_path, ONE) == [MeasuredBalance(100 << 20, 5000, 7000, 150 << 20, 12.5)] * 2
    assert measured_balances(tmp_path, "another") == measured_balances(tmp_path / "none", ONE) == []
    assert not (tmp_path / "none").exists()


def test_while_it_goes_on_a_run_says_which_block_group_it_has(tmp_path: Path) -> None:
    with Recorder(tmp_path, ONE, Path("/srv"), pytest.fail) as recorder:
        recorder(BalanceStarted(NUMBERS, RunSettings()))
        recorder(view(3))
        assert [(row["current"], row["outcome"]) for row in rows(tmp_path, "SELECT * FROM balance")] == [(3 << 30, None)]
        recorder(done(3))
        (row,) = rows(tmp_path, "SELECT * FROM balance")
        assert (row["current"], row["block_groups"], row["finished"]) == (None, 1, None)
        recorder(report([]))


def test_a_run_that_dies_of_an_error_is_a_failed_one(tmp_path: Path) -> None:
    def die() -> None:
        with Recorder(tmp_path, ONE, Path("/srv"), pytest.fail) as recorder:
            recorder(BalanceStarted(NUMBERS, RunSettings()))
            recorder(view(1))
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        die()
    (row,) = rows(tmp_path, "SELECT * FROM balance")
    assert (row["outcome"], row["current"], row["after"]) == ("failed", None, None)
    assert "Input/output error" in row["why"]


@pytest.mark.slow
def test_the_next_run_gives_killed_ones_their_end_and_leaves_living_ones_alone(tmp_path: Path) -> None:
    last_heard = NOW + timedelta(minutes=5)
    work(sys.executable, "-c", KILLED, tmp_path, cwd=TOP, check=False)
    with Catalogue.open(tmp_path) as catalogue:
        me = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        living = catalogue.start_balance("other", "/mnt", NOW, os.getpid(), me, policy="score", budget=None)
        recycled = catalogue.start_balance("other", "/mnt", NOW, os.getpid(), "1", policy="score", budget=None)
        catalogue.update_balance(recycled, updated=last_heard)
    record_a_run(tmp_path, [])
    answer = {row["id"]: (row["outcome"], row["current"]) for row in rows(tmp_path, "SELECT * FROM balance")}
    assert answer == {1: ("killed", None), living: (None, None), recycled: ("killed", None), recycled + 1: ("budget", None)}
    assert rows(tmp_path, f"SELECT finished FROM balance WHERE id = {recycled}") == [{"finished": "2026-11-20T22:05:00.000000Z"}]
    assert rows(tmp_path, "SELECT block_groups, moved FROM balance WHERE id = 1") == [{"block_groups": 1, "moved": 100 << 20}]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.balancer.test_recording import NUMBERS, ONE, BalanceStarted, Recorder, RunSettings, done, view
with Recorder(Path(sys.argv[1]), ONE, Path("/srv"), print) as recorder:
    recorder(BalanceStarted(NUMBERS, RunSettings()))
    recorder(view(1))
    recorder(done(1))
    recorder(view(2))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_is_wrong_with_the_catalogue_is_told_once_and_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    (tmp_path / "catalogue.sqlite").write_bytes(b"these are my notes" * 1000)
    record_a_run(tmp_path, [done(1), done(2)], lines.append)
    assert len(lines) == 1
    assert "damaged" in lines[0]
    lines.clear()
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT", 0.1)
    state = tmp_path / "state"
    with Recorder(state, ONE, Path("/srv"), lines.append) as recorder:
        recorder(BalanceStarted(NUMBERS, RunSettings()))
        recorder(done(1))
        with closing(sqlite3.connect(state / "catalogue.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            recorder(done(2))
        recorder(done(3))
        recorder(report([]))
    assert len(lines) == 1
    assert "locked by another program" in lines[0]
    assert [row["number"] for row in rows(state, "SELECT number FROM balance_step")] == [1]
