"""The rules of retention a second time: GNU date gives the day, week, month and year of a time, and SQLite selects.

It shares no code and no way of counting with backupd: dates are text, and every question is asked of every backup again. So it is
slow, and easy to check by eye. The golden lists beside it are made by

    python -m tests.backupd.golden.reference

Each has one line for every backup that is kept: its name and all its reasons.
"""

import random
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

GOLDEN = Path(__file__).parent
RULES = {"daily": "day", "weekly": "week", "monthly": "month", "yearly": "year"}


class Backup(NamedTuple):
    """A backup's start in seconds since the epoch, and its state."""

    epoch: int
    state: str = "complete"

    @property
    def name(self) -> str:
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H%M%SZ")


class Scenario(NamedTuple):
    """`policy` has the numbers of the four rules and `min_keep`. `end` is the time of the question."""

    zone: str
    policy: Mapping[str, int]
    end: datetime
    backups: Sequence[Backup]


def kept(backups: Sequence[Backup], policy: Mapping[str, int], zone: str) -> dict[str, set[str]]:
    """Returns, by name, the reasons of all kept backups, if no backup is in use, held or dated in the future."""
    pool = _table(backups, zone)
    by_name: dict[str, set[str]] = {}
    for name, reason in _reasons(pool, policy):
        by_name.setdefault(name, set()).add(reason)
    return by_name


def _table(backups: Sequence[Backup], zone: str) -> sqlite3.Connection:
    pool = sqlite3.connect(":memory:")
    pool.execute("CREATE TABLE backup (name TEXT, epoch INTEGER, state TEXT, day TEXT, week TEXT, month TEXT, year TEXT)")
    asked = "".join(f"@{backup.epoch}\n" for backup in backups)
    done = subprocess.run(
        ["date", "-f", "-", "+%F %G-W%V %Y-%m %Y"], input=asked, env={"TZ": zone}, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    rows = [(backup.name, *backup, *line.split()) for backup, line in zip(backups, done, strict=True)]
    pool.executemany("INSERT INTO backup VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    pool.execute("CREATE VIEW good AS SELECT * FROM backup WHERE state = 'complete'")
    for period in RULES.values():
        pool.execute(f"CREATE INDEX by_{period} ON backup ({period}, epoch, state)")
    return pool


def _reasons(pool: sqlite3.Connection, policy: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    yield from _by_rules(pool, "good", policy)
    newest = pool.execute("SELECT name FROM good ORDER BY epoch DESC").fetchall()
    yield from ((name, "newest complete") for (name,) in newest[:1])
    least = policy["min_keep"]
    yield from ((name, f"min_keep {number} of {least}") for number, (name,) in enumerate(newest[:least], 1))
    for newer in (0, 1):
        for state in ("suspect", "failed"):
            yield from _thinned(pool, policy, state, newer)


def _by_rules(pool: sqlite3.Connection, source: str, policy: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for rule, period in RULES.items():
        limit = policy.get(rule, 0)
        yield from pool.execute(
            f"""
            SELECT name, '{rule} ' || (later + 1) || ' of {limit}' FROM (
                SELECT name, (SELECT count(DISTINCT {period}) FROM {source} AS other WHERE other.{period} > one.{period}) AS later
                FROM {source} AS one
                WHERE NOT EXISTS (SELECT * FROM {source} AS other WHERE other.{period} = one.{period} AND other.epoch < one.epoch)
            ) WHERE later < {limit}"""
        )


def _thinned(pool: sqlite3.Connection, policy: Mapping[str, int], state: str, newer: int) -> Iterator[tuple[str, str]]:
    """Yields the suspect or failed backups with exactly that many newer complete ones."""
    pool.execute("DROP TABLE IF EXISTS bad")
    count = "(SELECT count(*) FROM good AS other WHERE other.epoch > one.epoch)"
    pool.execute(f"CREATE TABLE bad AS SELECT * FROM backup AS one WHERE state = '{state}' AND {count} = {newer}")
    least = policy["min_keep"]
    newest = pool.execute("SELECT name FROM bad ORDER BY epoch DESC LIMIT ?", (least,)).fetchall()
    rows = [*_by_rules(pool, "bad", policy), *((name, f"newest {number} of {least}") for number, (name,) in enumerate(newest, 1))]
    for name, reason in rows:
        yield name, f"{state}: {reason}"
        if state == "suspect":
            before = "SELECT name FROM good WHERE epoch < (SELECT epoch FROM bad WHERE name = ?) ORDER BY epoch DESC LIMIT 1"
            yield from ((good, f"last complete before the suspect {name}") for (good,) in pool.execute(before, (name,)).fetchall())


def scenarios() -> dict[str, Scenario]:
    """Returns scenarios of five years each. The times are such that backups are on both sides of local midnight and of clock
    changes.
    """
    return {"daily": _daily(), "four-a-day": _four_a_day(), "patchy": _patchy()}


def _daily() -> Scenario:
    """A night's backup between 22:30 and 23:29 UTC, which in Berlin is before midnight or after. 2020 has a week 53."""
    first = datetime(2016, 1, 25, 22, 30, tzinfo=UTC)
    backups = [Backup(int((first + timedelta(days=day, minutes=day * 37 % 60)).timestamp())) for day in range(5 * 365 + 2)]
    return Scenario(
        "Europe/Berlin",
        {"daily": 14, "weekly": 13, "monthly": 12, "yearly": 5, "min_keep": 3},
        datetime(2021, 1, 25, 12, tzinfo=UTC),
        backups,
    )


def _four_a_day() -> Scenario:
    """Every six hours, the first a little before or after local midnight, when Brazil changed its clocks."""
    first = datetime(2013, 11, 10, 2, 50, tzinfo=UTC)
    backups = [
        Backup(int((first + timedelta(hours=6 * number, minutes=number * 7 % 30)).timestamp()))
        for number in range(4 * (5 * 365 + 1))
    ]
    return Scenario(
        "America/Sao_Paulo",
        {"daily": 14, "weekly": 13, "monthly": 12, "yearly": 0, "min_keep": 3},
        datetime(2018, 11, 10, 12, tzinfo=UTC),
        backups,
    )


def _patchy() -> Scenario:
    """Outages of weeks, days with none, one or several backups, one in seven suspect or failed; Samoa had no 2011-12-30."""
    chance = random.Random(163)  # with a suspect one near the end, and several around the day that never was
    day, last, backups = datetime(2007, 1, 13, tzinfo=UTC), datetime(2012, 1, 12, tzinfo=UTC), list[Backup]()
    while day < last:
        hours = sorted({int(chance.random() * 24) for _ in range(int(chance.random() * 3))})
        for hour in hours:
            state = ("suspect", "failed")[int(chance.random() * 2)] if chance.random() < 1 / 7 else "complete"
            backups.append(Backup(int(day.timestamp()) + hour * 3600 + int(chance.random() * 3600), state))
        day += timedelta(days=1 + int(chance.random() * 40) if chance.random() < 0.02 else 1)
    return Scenario("Pacific/Apia", {"daily": 10, "weekly": 9, "monthly": 24, "yearly": 7, "min_keep": 5}, last, backups)


def golden(name: str) -> dict[str, set[str]]:
    """Returns the kept backups and the reasons, according to the stored list."""
    lines = [line for line in (GOLDEN / f"{name}.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    return {backup: set(reasons.split(", ")) for backup, _, reasons in (line.partition("  ") for line in lines)}


def text(name: str, scenario: Scenario) -> str:
    """Formats a golden list as it is stored."""
    policy = ", ".join(f"{key} = {value}" for key, value in scenario.policy.items())
    states = sorted({backup.state for backup in scenario.backups})
    counts = ", ".join(f"{sum(backup.state == state for backup in scenario.backups)} {state}" for state in states)
    by_name = kept(scenario.backups, scenario.policy, scenario.zone)
    head = [f"# {name}: {counts}; {scenario.zone}; {policy}", f"# {len(by_name)} are kept. Made by reference.py; do not edit."]
    return "\n".join(head + [f"{backup}  {', '.join(sorted(reasons))}" for backup, reasons in sorted(by_name.items())]) + "\n"


if __name__ == "__main__":
    for title, described in scenarios().items():
        (GOLDEN / f"{title}.txt").write_text(text(title, described), "utf-8")
