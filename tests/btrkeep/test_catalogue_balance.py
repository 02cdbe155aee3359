"""btrfs-balancer's writes and queries in the catalogue. The tests read the rows with sqlite3."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from sqlite3 import IntegrityError
from typing import Any

import pytest

from btrkeep.catalogue import (
    BALANCE_OUTCOMES,
    STEP_OUTCOMES,
    Backup,
    Balance,
    BalanceStep,
    Catalogue,
    FreeSpaceScore,
)
from btrkeep.catalogue.sqlite import CatalogueDamaged
from tests.beds import TOP

EVENING = datetime(2026, 11, 20, 22, 0, 3, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
ONE, OTHER = "6b0c8f0e-0000-4000-8000-000000000001", "6b0c8f0e-0000-4000-8000-000000000002"
SCORE = FreeSpaceScore(
    ONE, EVENING, 35_000, 42 << 40, 30 << 40, 1 << 40, 250_000, 1234567.25, 400, 1 << 30, 10 << 40,
    ((4096, 100_000, 500_000_000), (1 << 24, 9, 10 << 40)),
)  # fmt: skip
STEP = BalanceStep(
    1, 1, 3 << 60, 1 << 30, 100 << 20, 5000, 7000, 300, 512.5, EVENING, 12.5, 100 << 20, 150 << 20, 140 << 20, 10.0, 500.25,
    "done", None,
)  # fmt: skip


@pytest.fixture
def sql(sql: sqlite3.Connection) -> sqlite3.Connection:
    """Opens the same file with sqlite3, with a row's columns by name."""
    sql.row_factory = sqlite3.Row
    return sql


def start(catalogue: Catalogue, filesystem: str = ONE, at: datetime = EVENING) -> int:
    return catalogue.start_balance(filesystem, "/srv/backup", at, 4242, "99", policy="benefit", budget=20 << 30)


def ids(balances: list[Balance]) -> list[int]:
    return [balance.id for balance in balances]


def test_a_score_comes_back_as_it_went_in(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    odd = replace(SCORE, taken=EVENING + DAY, block_groups=0, score=0.0, histogram=())
    first, second = catalogue.add_score(SCORE), catalogue.add_score(odd)
    assert second > first
    assert catalogue.scores(ONE) == [SCORE, odd]
    assert dict(sql.execute("SELECT * FROM score WHERE id = ?", [first]).fetchone()) == {
        "id": first, "filesystem": ONE, "taken": "2026-11-20T22:00:03.123456Z", "block_groups": 35_000, "length": 42 << 40,
        "used": 30 << 40, "unallocated": 1 << 40, "fragments": 250_000, "score": 1234567.25, "bad": 400, "largest_free": 1 << 30,
        "free_in_large": 10 << 40, "histogram": "[[4096,100000,500000000],[16777216,9,10995116277760]]",
    }  # fmt: skip


def test_scores_are_those_of_one_filesystem_since_a_time_oldest_first(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    for day in (3, 1, 2, 0):  # a clock that was set back
        for filesystem in (ONE, OTHER):
            catalogue.add_score(replace(SCORE, filesystem=filesystem, taken=EVENING + day * DAY, bad=day))
    assert [score.bad for score in catalogue.scores(ONE)] == [0, 1, 2, 3]
    assert [score.bad for score in catalogue.scores(ONE, EVENING + 2 * DAY)] == [2, 3]
    east = (EVENING + 2 * DAY).astimezone(timezone(timedelta(hours=9)))
    assert [score.bad for score in catalogue.scores(ONE, east)] == [2, 3]
    assert {score.filesystem for score in catalogue.scores(OTHER)} == {OTHER}
    assert catalogue.scores("nobody") == []
    words = " ".join(
        row["detail"]
        for row in sql.execute("EXPLAIN QUERY PLAN SELECT * FROM score WHERE filesystem = 'x' AND taken >= 'y' ORDER BY taken, id")
    )
    assert "score_by_time" in words
    assert "TEMP B-TREE" not in words


def test_a_balance_is_told_while_it_goes_on_and_when_it_ends(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    number = catalogue.start_balance(
        ONE, "/srv/\udce9", EVENING, 4242, "99", policy="benefit", budget=None, before={"score": 9.5, "allocated": 1 << 40}
    )
    assert catalogue.balances(ONE) == catalogue.unfinished_balances() == [
        Balance(number, ONE, "/srv/\udce9", EVENING, None, None, None, "benefit", None, 4242, "99", 0, 0, None, 0.0, 0, None,
                {"score": 9.5, "allocated": 1 << 40}, {}, EVENING)
    ]  # fmt: skip
    later = EVENING + timedelta(minutes=5)
    catalogue.update_balance(number, current=3 << 60, updated=later)
    row = sql.execute("SELECT * FROM balance").fetchone()
    assert (row["current"], row["updated"], row["finished"]) == (3 << 60, "2026-11-20T22:05:03.123456Z", None)
    assert (row["mountpoint"], json.loads(row["before"])) == ("/srv/\\udce9", {"score": 9.5, "allocated": 1 << 40})
    catalogue.finish_balance(
        number, finished=later, outcome="budget", why="20 GiB have moved", moved=20 << 30, written=None, after={"score": 1.0}
    )  # fmt: skip
    assert catalogue.unfinished_balances() == []
    row = sql.execute("SELECT * FROM balance").fetchone()
    assert (row["outcome"], row["why"], row["moved"], row["current"]) == ("budget", "20 GiB have moved", 20 << 30, None)
    assert catalogue.balances(ONE)[0].after == {"score": 1.0}
    sql.execute("DELETE FROM balance")
    assert start(catalogue) > number


def test_balances_are_those_of_one_filesystem_newest_first(catalogue: Catalogue) -> None:
    mine = [start(catalogue, at=EVENING + day * DAY) for day in range(4)]
    other = start(catalogue, OTHER)
    assert ids(catalogue.balances(ONE)) == mine[::-1]
    assert ids(catalogue.balances(ONE, limit=2)) == mine[:1:-1]
    assert ids(catalogue.balances(ONE, since=EVENING + 3 * DAY)) == mine[3:]
    assert ids(catalogue.balances(OTHER)) == [other]
    assert ids(catalogue.unfinished_balances()) == [*mine, other]


def test_a_balance_ends_with_time_and_outcome_and_has_no_other_fields(catalogue: Catalogue) -> None:
    number = start(catalogue)
    with pytest.raises(TypeError, match="colour"):
        catalogue.update_balance(number, colour="red")
    with pytest.raises(TypeError, match="colour"):
        catalogue.start_balance(ONE, "/", EVENING, 1, None, policy="score", budget=None, colour="red")
    with pytest.raises(TypeError, match="ends with"):
        catalogue.update_balance(number, finished=EVENING)
    with pytest.raises(TypeError, match="ends with"):
        catalogue.finish_balance(number, outcome="failed")
    with pytest.raises(TypeError, match="ends with"):
        catalogue.finish_balance(number, why="no reason")
    for change in (catalogue.update_balance, catalogue.finish_balance):
        with pytest.raises(KeyError):
            change(number + 1, finished=EVENING, outcome="done")
    with pytest.raises(IntegrityError):
        catalogue.finish_balance(number, finished=EVENING, outcome="splendid")
    assert ids(catalogue.unfinished_balances()) == [number]
    for outcome in BALANCE_OUTCOMES:
        catalogue.finish_balance(number, finished=EVENING, outcome=outcome)


def test_steps_come_back_in_their_order_and_the_sums_with_them(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    number = start(catalogue)
    whole = replace(STEP, balance=number)
    poor = replace(whole, number=2, extents=None, refs=None, written=None, estimate_written=None, estimate_seconds=None,
                   gained=-3.5, outcome="no space", error="No space left on device")  # fmt: skip
    catalogue.add_step(poor, failed=1)
    catalogue.add_step(whole, block_groups=1, moved=100 << 20, written=150 << 20, gained=500.25, updated=EVENING + DAY)
    assert catalogue.steps(number) == [whole, poor]
    row = sql.execute("SELECT * FROM balance_step WHERE number = 1").fetchone()
    assert {name: row[name] for name in ("vaddr", "refs", "estimate_seconds", "started", "outcome", "error")} == {
        "vaddr": 3 << 60, "refs": 7000, "estimate_seconds": 10.0, "started": "2026-11-20T22:00:03.123456Z", "outcome": "done",
        "error": None,
    }  # fmt: skip
    row = sql.execute("SELECT * FROM balance").fetchone()
    assert [row[name] for name in ("block_groups", "moved", "written", "gained", "failed")] == [1, 100 << 20, 150 << 20, 500.25, 1]
    assert catalogue.steps(number + 1) == []


def test_a_step_comes_with_its_sums_or_not_at_all(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    number = start(catalogue)
    step = replace(STEP, balance=number)
    catalogue.add_step(step)
    wrong: list[tuple[BalanceStep, dict[str, Any], type[Exception]]] = [
        (step, {"moved": 1}, IntegrityError),
        (replace(step, number=2, balance=number + 1), {"moved": 1}, CatalogueDamaged),
        (replace(step, number=2, outcome="splendid"), {"moved": 1}, IntegrityError),
        (replace(step, number=2), {"colour": "red"}, TypeError),
        (replace(step, number=2), {"finished": EVENING, "outcome": "splendid"}, IntegrityError),
    ]
    for balance_step, sums, error in wrong:
        with pytest.raises(error):
            catalogue.add_step(balance_step, **sums)
    assert catalogue.steps(number) == [step]
    assert sql.execute("SELECT moved, finished FROM balance").fetchall()[0]["moved"] == 0
    for place, outcome in enumerate(STEP_OUTCOMES, 2):
        catalogue.add_step(replace(step, number=place, outcome=outcome))


def test_measured_are_the_last_that_were_done_on_a_filesystem(catalogue: Catalogue) -> None:
    first, other, second = start(catalogue), start(catalogue, OTHER), start(catalogue)
    for balance in (second, other, first):
        for place, outcome in enumerate(("done", "gone", "no space", "done", "cancelled", "failed"), 1):
            catalogue.add_step(replace(STEP, balance=balance, number=place, outcome=outcome))
    numbers = [(balance_step.balance, balance_step.number) for balance_step in catalogue.measured(ONE)]
    assert numbers == [(second, 4), (second, 1), (first, 4), (first, 1)]
    assert [(balance_step.balance, balance_step.number) for balance_step in catalogue.measured(ONE, limit=3)] == numbers[:3]
    assert {balance_step.outcome for balance_step in catalogue.measured(ONE)} == {"done"}


def test_a_rebuild_loses_neither_scores_nor_balances(catalogue: Catalogue) -> None:
    backup = Backup("web1", "n1", "/p", "complete", EVENING, EVENING, 1.0, 1, 1, 1, None)
    catalogue.add_score(SCORE)
    number = start(catalogue)
    catalogue.add_step(replace(STEP, balance=number))
    before = (catalogue.scores(ONE), catalogue.balances(ONE), catalogue.steps(number))
    assert catalogue.replace_backups("p", [backup]) == 1
    catalogue.drop_host("web1")
    assert (catalogue.scores(ONE), catalogue.balances(ONE), catalogue.steps(number)) == before


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from btrkeep.catalogue import Catalogue
from tests.btrkeep.test_catalogue_balance import EVENING, ONE, SCORE, STEP, start
with Catalogue.open(Path(sys.argv[1])) as catalogue:
    print("ready", flush=True)
    sys.stdin.readline()
    number = start(catalogue)
    for place in range(1, 41):
        catalogue.add_step(replace(STEP, balance=number, number=place), block_groups=place, moved=place)
        catalogue.add_score(replace(SCORE, bad=number))
        assert catalogue.measured(ONE)
    catalogue.finish_balance(number, finished=EVENING, outcome="done")
"""


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    Catalogue.open(tmp_path).close()
    argv, pipe = [sys.executable, "-c", WRITER, str(tmp_path)], subprocess.PIPE
    together = [subprocess.Popen(argv, cwd=TOP, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
    for process in together:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    assert [process.communicate("\n")[1] for process in together] == [""] * 3
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT outcome, block_groups, moved FROM balance").fetchall() == [("done", 40, 40)] * 3
        assert connection.execute("SELECT balance, count(*), max(number) FROM balance_step GROUP BY 1").fetchall() == [
            (number, 40, 40) for number in (1, 2, 3)
        ]
        assert connection.execute("SELECT bad, count(*) FROM score GROUP BY 1").fetchall() == [(1, 40), (2, 40), (3, 40)]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
