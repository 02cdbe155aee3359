"""`btrfs-balancer history`: the data of the catalogue that it shows, their form, and that nothing is invented."""

import itertools
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.balance_history import sums, thinned, thinned_history
from balancer.cli import history_view
from btrkeep.catalogue import Balance, BalanceStep, Catalogue, FreeSpaceScore
from tests.balancer.program import balancer
from tests.beds import TOP, btrfs, session, work
from tests.beds.nights import Nights

NOW = datetime.now(UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ONE = "6b0c8f0e-0000-4000-8000-000000000001"


def score_at(taken: datetime, score: float = 1000.0, filesystem: str = ONE) -> FreeSpaceScore:
    return FreeSpaceScore(
        filesystem, taken, 35_000, 34 << 40, 30 << 40, 1 << 40, 250_000, score, 400, 1 << 30, 10 << 40, ((4096, 7, 28672),)
    )


def balance(finished: datetime | None, moved: int, updated: datetime = NOW) -> Balance:
    return Balance(
        1, ONE, "/srv", NOW - 300 * DAY, finished, "budget", "so much has moved", "benefit", None, 1, None, 3, moved, 2 * moved,
        9.0, 0, None, {}, {}, updated,
    )  # fmt: skip


# --- which samples are shown


moments = st.lists(st.integers(0, 10**6), min_size=1, max_size=200, unique=True).map(
    lambda seconds: [NOW + timedelta(seconds=number) for number in sorted(seconds)]
)


@given(moments, st.integers(2, 40))
def test_the_first_and_the_last_look_are_shown_and_no_more_than_fit(taken: list[datetime], count: int) -> None:
    numbers = thinned(taken, count)
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (0, len(taken) - 1)
    assert len(numbers) <= count
    if len(taken) <= count:
        assert len(numbers) == len(taken)
    slot = (taken[-1] - taken[0]) / (count - 1)
    if len(taken) > count:  # an omitted sample has a shown one soon after it
        assert all(min(taken[at] - moment for at in numbers if taken[at] >= moment) <= slot for moment in taken)


def test_looks_of_one_moment_and_none_at_all_are_no_trouble() -> None:
    assert thinned([], 30) == []
    assert thinned([NOW] * 100, 30) == [0, 99]
    a_clock_set_back = [NOW, NOW, NOW + DAY]
    assert thinned(a_clock_set_back, 2) == [0, 2]


def test_a_busy_week_takes_no_more_lines_than_a_quiet_one() -> None:
    quiet = [NOW + day * DAY for day in range(28)]
    busy = [NOW + 28 * DAY + hour * HOUR / 10 for hour in range(1, 7 * 240)]
    numbers = thinned([*quiet, *busy], 11)
    assert sum(at >= 28 for at in numbers) in (2, 3)


@given(moments, st.lists(st.tuples(st.integers(-100, 10**6), st.integers(0, 10**12)), max_size=30), st.integers(2, 10))
def test_whatever_moved_between_two_looks_stands_in_one_line(
    taken: list[datetime], moved: list[tuple[int, int]], count: int
) -> None:
    balances = [balance(NOW + timedelta(seconds=at), size) for at, size in moved]
    lines = thinned_history([score_at(moment) for moment in taken], balances, count)
    assert lines[0].moved is None
    between = [balance.moved for balance in balances if balance.finished and taken[0] < balance.finished <= taken[-1]]
    assert sum(line.moved or 0 for line in lines) == sum(between)
    for above, line in itertools.pairwise(lines):
        numbers = [
            balance.moved
            for balance in balances
            if balance.finished and above.scoring.taken < balance.finished <= line.scoring.taken
        ]
        assert line.moved == sum(numbers)


def test_a_balance_that_ends_as_a_look_is_taken_counts_there_only() -> None:
    looks = [score_at(NOW), score_at(NOW + DAY), score_at(NOW + 2 * DAY)]
    assert [line.moved for line in thinned_history(looks, [balance(NOW + DAY, 7), balance(NOW, 5)], 30)] == [None, 7, 0]


def test_a_balance_without_an_end_counts_where_it_was_heard_of_last() -> None:
    looks = [score_at(NOW), score_at(NOW + DAY), score_at(NOW + 2 * DAY)]
    lines = thinned_history(looks, [balance(None, 7, NOW + DAY + HOUR)], 30)
    assert [line.moved for line in lines] == [None, 0, 7]
    assert (sums([balance(None, 7), balance(NOW, 5)]).moved, sums([]).count) == (12, 0)


# --- layout


def half_a_year(state: Path, filesystem: str) -> None:
    """A sample each night of 200 days, large numbers, and a balance every 20 days, one of which is still running."""
    me = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    with Catalogue.open(state) as catalogue:
        for day in range(200, -1, -1):
            score = 1_000_000 * (1 + day % 20 / 50)
            catalogue.add_score(score_at(NOW - day * DAY - HOUR, score, filesystem))
            if day % 20 == 0:
                started = NOW - day * DAY - 3 * HOUR
                number = catalogue.start_balance(filesystem, "/srv", started, os.getpid(), me, policy="benefit", budget=20 << 30)
                step = BalanceStep(
                    number, 1, 1 << 40, 1 << 30, 1 << 29, 9, 9, 9, 9.0, started, 9.5, 1 << 29, 1 << 30, None, None, 9.0, "failed",
                    "Input/output error",
                )  # fmt: skip
                catalogue.add_step(step, moved=15 << 30, written=20 << 30, gained=1234.5, block_groups=30)
                catalogue.finish_balance(number, finished=started + HOUR, outcome="budget", why="the next one would not fit 20 GiB")
        for pid_started in (me, "1"):
            catalogue.start_balance(filesystem, "/srv", NOW - HOUR, os.getpid(), pid_started, policy="benefit", budget=None)


@pytest.fixture(scope="module")
def mount(no_leftovers: None) -> Iterator[Path]:
    """A small filesystem of this module's, with a pool that has a history."""
    point = btrfs.make(size="256M")
    yield point
    assert session.remove(point.parent) == []


@pytest.fixture(scope="module")
def nights(mount: Path) -> Nights:
    (mount / "top").mkdir()
    bed = Nights(mount / "top")
    half_a_year(bed.state, work("findmnt", "-no", "UUID", mount).stdout.strip())
    return bed


def on_a_terminal(columns: int, *words: str | Path, **env: str) -> list[str]:
    """Returns the lines that our command writes to a terminal of that width."""
    master, slave = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LINES")}
    environment |= {"PYTHONPATH": str(TOP), "COLUMNS": str(columns), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **env}
    argv = [sys.executable, "-m", "balancer", *map(str, words)]
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # EIO: its other end is closed
                break
            text += data
            if not data:
                break
    os.close(master)
    assert process.returncode == 0, text
    return text.decode().replace("\r\n", "\n").splitlines()


def width(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in click.unstyle(line))


@pytest.mark.btrfs
@pytest.mark.root
@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("colour", [True, False])
def test_the_history_fits_the_terminal_and_has_a_bar_in_every_line(nights: Nights, columns: int, colour: bool) -> None:
    env = {} if colour else {"NO_COLOR": "1"}
    lines = on_a_terminal(columns, "history", nights.pool, "--config", nights.config, **env)
    assert max(map(width, lines)) <= columns
    assert ("\x1b[31m" in "".join(lines)) is colour
    assert ("\x1b[32m" in "".join(lines)) is colour
    rows = [click.unstyle(line) for line in lines if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert len(rows) == 30
    (head,) = (line for line in lines if line.startswith("TAKEN"))
    assert ("BAD" in head, "MOVED" in head, "ALLOCATED" in head, "FRAGS" in head) == (
        columns > 60,
        columns > 60,
        columns > 60,
        True,
    )
    bars = [re.findall(r"[▏▎▍▌▋▊▉█]+$", row) for row in rows]
    assert all(bars)
    scores = [float(re.findall(r"([\d,]+)  [▏▎▍▌▋▊▉█]+$", row)[0].replace(",", "")) for row in rows]
    lengths = [len(bar[0]) for bar in bars]
    assert scores.index(max(scores)) in [at for at, length in enumerate(lengths) if length == max(lengths)]
    assert max(lengths) >= 8
    for length, score in zip(lengths, scores, strict=True):
        assert abs(length - max(lengths) * score / max(scores)) <= 1


@pytest.mark.btrfs
@pytest.mark.root
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_balances_fit_the_terminal(nights: Nights, columns: int) -> None:
    lines = on_a_terminal(columns, "history", nights.pool, "--config", nights.config, "--balances")
    assert max(map(width, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    assert text.count("15.0 GiB 20.0 GiB") == 9  # of 180 days
    assert "runs now" in text
    assert "killed" in text
    assert re.search(r"all 270 135 GiB 180 GiB", text)
    assert "would not fit" in text


@pytest.mark.btrfs
@pytest.mark.root
def test_without_a_terminal_it_is_80_columns_wide_and_in_an_old_locale_ascii(nights: Nights) -> None:
    done = balancer("history", nights.pool, "--config", nights.config, NO_COLOR="")
    assert max(map(width, done.stdout.splitlines())) == 80
    assert "\x1b" not in done.stdout
    plain = balancer("history", nights.pool, "--config", nights.config, PYTHONIOENCODING="ascii", PYTHONUTF8="0").stdout
    assert plain.isascii()
    assert re.search(r"  #{8,}$", plain, re.MULTILINE)


@pytest.mark.btrfs
@pytest.mark.root
def test_the_numbers_of_a_line_are_those_of_the_row(nights: Nights) -> None:
    lines = balancer("history", nights.pool, "--config", nights.config, "--days", "3").stdout.splitlines()
    assert "3 scores of its free space" in lines[0]
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        rows = connection.execute("SELECT taken, score FROM score ORDER BY taken DESC LIMIT 3").fetchall()
    cells_by_line = [line.split() for line in lines if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert [(line[0], line[1:3], line[3:5], line[5:7]) for line in cells_by_line] == [
        (taken[:10], ["34.0", "TiB"], ["30.0", "TiB"], ["250,000", "400"]) for taken, _ in reversed(rows)
    ]
    assert [line[-2] for line in cells_by_line] == [f"{score:,.0f}" for _, score in reversed(rows)]
    assert cells_by_line[2][7:9] == ["15.0", "GiB"]  # MOVED, of the balance that ended before the last sample
    text = " ".join(lines[-5:])
    assert f"{rows[2][1]:,.0f} to {rows[0][1]:,.0f}" in text


@pytest.mark.btrfs
@pytest.mark.root
def test_json_has_every_look_balance_and_step(nights: Nights) -> None:
    answer = json.loads(balancer("history", nights.pool, "--config", nights.config, "--json", "--days", "36500").stdout)
    assert list(answer) == ["filesystem", "since", "scores", "balances"]
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        connection.row_factory = sqlite3.Row
        looks = [dict(row) for row in connection.execute("SELECT * FROM score ORDER BY taken")]
        balances = [dict(row) for row in connection.execute("SELECT * FROM balance ORDER BY id")]
        steps = [dict(row) for row in connection.execute("SELECT * FROM balance_step ORDER BY balance, number")]
    assert len(answer["scores"]) == len(looks) == 201
    for answered, row in zip(answer["scores"], looks, strict=True):
        assert answered["histogram"] == [{"at_least": 4096, "extents": 7, "bytes": 28672}]
        assert answered["taken"] == row["taken"][:19] + "Z"
        assert {name: row[name] for name in answered if name not in ("taken", "histogram")} == {
            name: value for name, value in answered.items() if name not in ("taken", "histogram")
        }
    assert [row["running"] for row in answer["balances"]] == [False] * 11 + [True, False]
    own = {"running", "steps", "started", "finished", "before", "after"}
    for answered, row in zip(answer["balances"], balances, strict=True):
        assert {name: answered[name] for name in answered.keys() - own} == {name: row[name] for name in answered.keys() - own}
    told_steps = [step for row in answer["balances"] for step in row["steps"]]
    assert [
        {name: row[name] for name in told_step if name != "started"} for told_step, row in zip(told_steps, steps, strict=True)
    ] == [{name: value for name, value in told_step.items() if name != "started"} for told_step in told_steps]


@pytest.mark.btrfs
@pytest.mark.root
def test_an_empty_history_says_how_to_begin_and_makes_no_catalogue(nights: Nights, tmp_path: Path) -> None:
    config = tmp_path / "other.toml"
    config.write_text(f'[pool]\npath = "{nights.pool}"\nstate = "{tmp_path / "state"}"\n')
    text = balancer("history", nights.pool, "--config", config).stdout
    assert f"btrfs-balancer score --record --config {config} {nights.pool}" in text
    assert "night" in text
    assert "Nothing was balanced" in balancer("history", nights.pool, "--config", config, "--balances").stdout
    empty = json.loads(balancer("history", nights.pool, "--config", config, "--json").stdout)
    assert (empty["scores"], empty["balances"]) == ([], [])
    assert not (tmp_path / "state").exists()
    filesystem = work("findmnt", "-no", "UUID", "--target", nights.pool).stdout.strip()
    with Catalogue.open(tmp_path / "state") as catalogue:
        catalogue.add_score(score_at(datetime(2020, 2, 3, tzinfo=UTC), filesystem=filesystem))
    assert "The newest are of 2020-02-03: --days N" in balancer("history", nights.pool, "--config", config).stdout
    (only,) = [
        line
        for line in balancer("history", nights.pool, "--config", config, "--days", "36500").stdout.splitlines()
        if line.startswith("2020-02-03")
    ]
    assert only.endswith("█")


@pytest.mark.btrfs
@pytest.mark.root
def test_without_a_catalogue_there_is_no_history(nights: Nights) -> None:
    done = balancer("history", nights.pool, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert balancer("history", "/proc", "--config", nights.config, check=False).returncode == 4
    for words in (("--days", "0"), ("--days", "99999999"), ("--pool", "a", "--config", "b"), ("--config", "")):
        assert balancer("history", nights.pool, *words, check=False).returncode == 2


def test_two_looks_of_one_day_have_their_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    noon = datetime(2026, 11, 20, 12, 34, 56, tzinfo=UTC)
    text = "\n".join(history_view.lines(ONE, [score_at(noon), score_at(noon + 2 * HOUR, score=0.0)], []))
    assert "2026-11-20 12:34" in text
    assert "2026-11-20 14:34" in text
    assert "Nothing was balanced" in text
    assert "(-100%)" in text
    rising = "\n".join(history_view.lines(ONE, [score_at(noon, score=0.0), score_at(noon + DAY, score=0.0)], []))
    assert "2026-11-20 12:34" not in rising
    assert "from 0 to 0," in rising


def test_the_json_in_the_documentation_has_the_fields_that_are_printed() -> None:
    page = (TOP / "docs" / "json.rst").read_text(encoding="utf-8")
    example = json.loads(page.partition("btrfs-balancer history\n")[2].partition(".. code-block:: json\n\n")[2].split("\n\n")[0])
    step = BalanceStep(1, 1, 1, 1, 1, None, None, 1, 1.0, NOW, 1.0, 1, None, None, None, 1.0, "done", None)
    printed = history_view.document(ONE, NOW, [score_at(NOW)], [(balance(None, 1), True, [step])])

    def keys(value: Any) -> Any:
        if isinstance(value, dict):
            return [(name, keys(inner)) for name, inner in value.items() if name not in ("before", "after")]
        return [keys(value[0])] if isinstance(value, list) else None

    assert keys(example) == keys(printed)
