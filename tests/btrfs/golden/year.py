"""The expected result of a year of nights (tests/beds/year.py), computed naively: without backupd's code, from scratch every day.

GNU date determines the day, week, month and year of a moment, in Berlin; everything else is lists of text. The golden list beside
it is made by

    python -m tests.btrfs.golden.year

It has one line for each existing backup, on some mornings and at the end: host, label, state, and why it is kept or deleted.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.beds.year import (
    AFTERWARDS,
    AWAY,
    CHECKPOINTS,
    DEEDS,
    GROUPS,
    HALF,
    HOSTS,
    MORNING,
    MORNINGS,
    NIGHT,
    NOON,
    RETENTION,
    SMALL,
    ZONE,
    Deed,
    Host,
    at,
    every_night,
    label,
)

GOLDEN = Path(__file__).with_suffix(".txt")
RULES = ("daily", "weekly", "monthly", "yearly")
ENOUGH_GOES, ENOUGH_TENTHS = 10, 3  # more than ten, and more than three tenths: the host is left out


@dataclass
class Backup:
    label: str
    moment: datetime
    state: str
    small: bool
    marked: datetime | None = None
    hold: tuple[str, str] | None = None  # until (or nothing), why


@dataclass
class Kept:
    """A host's side of the pool. `there` is oldest first; `small`: its newest complete backup is one of the small source."""

    host: Host
    name: str
    policy: dict[str, Any]
    in_pool: list[Backup] = field(default_factory=list)
    configured: bool = True
    forgotten: bool = False

    def good(self) -> list[Backup]:
        return [backup for backup in self.in_pool if backup.state == "complete"]

    def find(self, name: str) -> Backup:
        return next(backup for backup in self.in_pool if backup.label == name)


def local_days() -> dict[datetime, tuple[str, ...]]:
    """Returns day, ISO week, month and year in the pool's zone of every moment at which a backup may start."""
    moments = [moment for night in every_night() for moment in (at(night, NOON), at(night, NIGHT))]
    asked = "".join(f"@{int(moment.timestamp())}\n" for moment in moments)
    process = subprocess.run(
        ["date", "-f", "-", "+%F %G-W%V %Y-%m %Y"], input=asked, env={"TZ": ZONE}, check=True, capture_output=True, text=True
    )
    return {moment: tuple(line.split()) for moment, line in zip(moments, process.stdout.splitlines(), strict=True)}


LOCAL = local_days()


def hours(text: str) -> timedelta:
    assert text.endswith("h")
    return timedelta(hours=int(text[:-1]))


def reasons(kept: Kept, now: datetime) -> dict[str, list[str]]:
    """Returns why each of the host's kept backups is kept, by label."""
    by_name: dict[str, list[str]] = {}

    def keep(backup: Backup, why: str) -> None:
        by_name.setdefault(backup.label, []).append(why)

    for backup in kept.in_pool:
        if backup.hold and (not backup.hold[0] or now < datetime.fromisoformat(backup.hold[0])):
            keep(backup, "held" + (" until" if backup.hold[0] else ""))
    if not any(kept.policy[rule] for rule in RULES):
        for backup in kept.in_pool:
            keep(backup, "no retention policy")
        return by_name
    good = kept.good()
    for backup, why in stands(good, kept.policy):
        keep(backup, why)
    if good:
        keep(good[-1], "newest complete")
    for number, backup in enumerate(good[::-1][: kept.policy["min_keep"]], 1):
        keep(backup, f"min_keep {number} of {kept.policy['min_keep']}")
    bad: dict[tuple[str, int], list[Backup]] = {}
    for backup in kept.in_pool:
        newer = [other for other in good if other.label > backup.label]
        if backup.state != "complete" and len(newer) < 2 and backup.label not in by_name:
            bad.setdefault((backup.state, len(newer)), []).append(backup)
    for (state, _), backups in bad.items():
        for backup, why in stands(backups, kept.policy):
            keep(backup, f"{state}: {why}")
        for number, backup in enumerate(backups[::-1][: kept.policy["min_keep"]], 1):
            keep(backup, f"{state}: newest {number} of {kept.policy['min_keep']}")
    for suspect in kept.in_pool:
        before = [other for other in good if other.label < suspect.label]
        if suspect.state == "suspect" and suspect.label in by_name and before:
            keep(before[-1], f"last complete before the suspect {suspect.label}")
    return by_name


def stands(backups: list[Backup], policy: Mapping[str, int]) -> Iterator[tuple[Backup, str]]:
    """Yields the first backup of each of the newest days, weeks, months and years that have one; backups are oldest first."""
    for column, rule in enumerate(RULES):
        periods = sorted({LOCAL[backup.moment][column] for backup in backups}, reverse=True)
        for number, period in enumerate(periods[: policy[rule]], 1):
            first = next(backup for backup in backups if LOCAL[backup.moment][column] == period)
            yield first, f"{rule} {number} of {policy[rule]}"


def is_due(kept: Kept, moment: datetime) -> bool:
    """Returns True if no complete backup was made yet in this period of days, counted from 1970-01-01."""

    def period(when: datetime) -> int:
        return (date.fromisoformat(LOCAL[when][0]) - date(1970, 1, 1)).days // kept.host.every

    return not any(period(backup.moment) == period(moment) for backup in kept.good())


def back_up(kept: Kept, night: date, moment: datetime) -> bool:
    """One run of one host; returns whether it needs no attention."""
    subject = kept.host.on(night)
    if subject == AWAY:
        return kept.host.optional
    shrunk = subject == SMALL and bool(kept.good()) and not kept.good()[-1].small
    state = "failed" if subject == HALF else "suspect" if shrunk else "complete"
    kept.in_pool.append(Backup(label(moment), moment, state, subject == SMALL))
    return state == "complete"


def expire(pool: Mapping[str, Kept], now: datetime, words: tuple[str, ...]) -> bool:
    """One expiry; returns whether it needs no attention. With a limit it only marks: the next morning all due ones are deleted."""
    well = True
    for kept in pool.values():
        why = {} if kept.forgotten else reasons(kept, now)
        going = [backup for backup in kept.in_pool if backup.label not in why]
        new = [backup for backup in going if not backup.marked]
        too_many = len(new) > ENOUGH_GOES and 10 * len(new) > ENOUGH_TENTHS * len(kept.in_pool)
        if too_many and not kept.forgotten and kept.name not in words:
            well = False
            continue
        for backup in kept.in_pool:
            backup.marked = (backup.marked or now) if backup in going else None
        if "--limit" not in words:
            grace = hours(kept.policy["grace"])
            kept.in_pool = [backup for backup in kept.in_pool if not backup.marked or backup.marked + grace > now]
    return well


def do(pool: dict[str, Kept], deed: Deed) -> None:
    kept = pool[deed.host]
    noon = at(date.fromisoformat(deed.day), NOON)
    match deed.what:
        case "run":
            assert back_up(kept, noon.date(), noon)
        case "hold":
            kept.find(deed.backup).hold = (deed.until, deed.why)
        case "release":
            kept.find(deed.backup).hold = None
        case "unexpire":
            backup = kept.find(deed.backup)
            assert backup.marked
            backup.marked, backup.hold = None, ((noon + timedelta(days=30)).isoformat(), "")
        case "accept":
            kept.find(deed.backup).state = "complete"
        case "rename":
            kept.name = deed.new
        case "leave":
            kept.configured, kept.policy = False, kept.policy | dict.fromkeys(RULES, 0)
        case "forget":
            kept.configured, kept.forgotten = False, True
        case "set":
            kept.policy |= deed.retention


@dataclass
class Year:
    """The result: the pool at the checkpoints as lines, and the nights and mornings that end with exit status 1."""

    lines: dict[str, list[str]] = field(default_factory=dict)
    bad_runs: list[date] = field(default_factory=list)
    bad_expiries: list[date] = field(default_factory=list)


def live(nights: Sequence[date]) -> Year:
    """Returns the year in these nights, in order; nothing happens on the days between."""
    year = Year()
    pool = {host.name: Kept(host, host.name, {**RETENTION, **GROUPS.get(host.group or "", {}), **host.retention}) for host in HOSTS}
    for night in nights:
        for deed in DEEDS:
            if deed.day == str(night):
                do(pool, deed)
        moment = at(night, NIGHT)
        due = [kept for kept in pool.values() if kept.configured and kept.host.joins <= str(night) and is_due(kept, moment)]
        well = [back_up(kept, night, moment) for kept in due]
        if not all(well):
            year.bad_runs.append(night)
        morning = at(night + timedelta(days=1), MORNING)
        words = MORNINGS.get(str(night), ())
        if words is not None and not expire(pool, morning, words):
            year.bad_expiries.append(night)
        if str(night) in CHECKPOINTS:
            year.lines[str(night)] = list(lines(pool, morning))
    afterwards = datetime.fromisoformat(AFTERWARDS)
    assert expire(pool, afterwards, ())
    year.lines["the end"] = list(lines(pool, afterwards))
    return year


def lines(pool: Mapping[str, Kept], now: datetime) -> Iterator[str]:
    for kept in sorted(pool.values(), key=lambda kept: kept.name):
        why = {} if kept.forgotten else reasons(kept, now)
        for backup in kept.in_pool:
            subject = f"{backup.state}, expired" if backup.marked else backup.state
            yield f"{kept.name} {backup.label}  {subject}: {', '.join(sorted(why.get(backup.label, ['goes'])))}"


def spans(days: list[date]) -> Iterator[str]:
    """Yields successive days as from .. to."""
    for _, group in groupby(enumerate(days), lambda pair: pair[1].toordinal() - pair[0]):
        span = [day for _, day in group]
        yield str(span[0]) if len(span) == 1 else f"{span[0]} .. {span[-1]}"


def text(year: Year) -> str:
    """Returns the golden list as it is stored."""
    parts = ["# A year of nights: what is there on some mornings and at the end. Made by year.py beside it; do not edit."]
    parts += ["", "== run ends with 1 in the nights of", *spans(year.bad_runs)]
    parts += ["", "== expire ends with 1 in the mornings after", *spans(year.bad_expiries)]
    for when, names in year.lines.items():
        count = f"{len(names)} backups"
        parts += ["", f"== there after {when}: {count}", *names]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(text(live(every_night())), "utf-8")
