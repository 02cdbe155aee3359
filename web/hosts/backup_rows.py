"""The backups of a host for its page: each with the reason why it is kept, according to the retention or the root service; and as a
calendar with a row for each month, the newest first, with the letters of `backupd retention explain`.
"""

from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

from btrkeep.backup_states import FINISHED
from btrkeep.catalogue import Backup
from btrkeep.config import Retention
from btrkeep.decisions.calendar_strip import KINDS, NONE, StripLetter, kind_of
from btrkeep.decisions.copy_status import REPLICA
from btrkeep.decisions.due import latest
from btrkeep.decisions.expiry_plan import HostBackups
from btrkeep.decisions.retention import Candidate, Decision, Hold, RetentionCode
from btrkeep.decisions.retention_words import explain, hold_words, reason_words
from btrkeep.decisions.verification import Verified, verified_words
from btrkeep.units import format_time, parse_time
from web.copies import also_on
from web.mapping import from_row
from web.redaction import host_error, host_line
from web.source import RequestContext


@dataclass(frozen=True, slots=True)
class BackupRow:
    """One backup. Times, seconds and bytes are as in the catalogue."""

    name: str | None
    """Its name; null: the backup is unfinished."""
    state: str
    """Its state."""
    started: datetime
    """When its run started."""
    finished: datetime | None
    """When its run ended; null: it has not."""
    duration: float | None
    """Seconds that the run took; null, like the next fields: unknown."""
    files: int | None
    """Number of regular files."""
    size: int | None
    """The size of its files on the host."""
    new_bytes: int | None
    """Bytes of new data."""
    base: str | None
    """The backup on which it is based; null: a first copy."""
    error: str | None
    """Why it is not complete; null: it is."""
    warnings: tuple[str, ...]
    """What is missing or unusual, one line each."""
    keep: bool | None
    """Whether the retention keeps it; null: it is unfinished."""
    why: str
    """The rules that keep it, or when it expires and why, as `backupd retention explain` prints it."""
    goes: datetime | None
    """When it may be deleted; null: it is kept."""
    held: str | None
    """Its hold in words; null: it is not held."""
    letter: str
    """Its letter on the calendar."""
    kind: str
    """The meaning of that letter, as a word."""
    may_hold: bool
    """Whether the user may hold it."""
    may_release: bool
    """Whether the user may release its hold."""
    may_accept: bool
    """Whether the user may accept it."""
    ahead: bool = False
    """Whether its time is in the future, because a clock was wrong."""
    verified: Verified | None = None
    """The state of its data; null: the backup is unfinished."""
    verified_words: str = ""
    """The same in a sentence."""
    copies: tuple[str, ...] = ()
    """The replicas and repositories that also have it, as of the last replication or listing."""
    live_paths: int | None = None
    """Number of source paths that were not read from snapshots of the host; null: `snapshots` was off."""

    @property
    def restorable(self) -> bool:
        """Returns True if files of it can be restored."""
        return self.name is not None and self.state != "deleting"


@dataclass(frozen=True, slots=True)
class KnownDecision:
    """The decision about a backup, made here or by `backupd retention explain`."""

    keep: bool
    """True if it is kept."""
    rules: tuple[str, ...]
    """The rules that keep it."""
    reasons: tuple[str, ...]
    """In words, for each rule."""
    expires: datetime | None
    """When it may be deleted; None: it is kept."""


def decided(backups: Sequence[Backup], policy: Retention | None, source: RequestContext, host: str) -> dict[str, KnownDecision]:
    """Returns the decision about each final backup by the host's policy, by name; without a policy all are kept."""
    rules = policy or Retention()
    shared: dict[str, list[str]] = {}
    for copy_elsewhere in (copy_elsewhere for copy_elsewhere in also_on(source, host) if copy_elsewhere.kind == REPLICA):
        shared.setdefault(copy_elsewhere.backup, []).append(copy_elsewhere.replica)
    host_candidates = [replace(candidate, common=", ".join(shared.get(candidate.name, ()))) for candidate in candidates(backups)]
    facts = HostBackups("", host_candidates, rules, configured=policy is not None)
    return {
        decision.name: _known_decision(decision) for decision in explain(facts, rules, source.config.zone, source.now).decisions
    }


def _known_decision(decision: Decision) -> KnownDecision:
    rules = tuple(reason.code for reason in decision.reasons)
    return KnownDecision(decision.keep, rules, tuple(map(reason_words, decision.reasons)), decision.expires)


def candidates(backups: Iterable[Backup]) -> list[Candidate]:
    """Returns the final backups as input for the retention, whether they are expired or not."""
    every = list(backups)
    base = next((backup.base for backup in every if backup.name is None), None)
    return [
        Candidate(backup.name, backup.started, backup.outcome or backup.state, backup.expired, hold_of(backup), backup.name == base)
        for backup in every
        if backup.name and (backup.outcome or backup.state) in FINISHED
    ]


def hold_of(backup: Backup) -> Hold | None:
    """Returns the hold in a row, even if it has expired."""
    return None if backup.held_why is None else Hold(backup.held_until, backup.held_why)


def by_service(answer: Sequence[Mapping[str, Any]]) -> dict[str, KnownDecision]:
    """Parses the decisions from the output of `backupd retention explain HOST --json`."""
    return {
        str(item["name"]): KnownDecision(
            bool(item["keep"]),
            tuple(str(rule) for rule in item["rules"]),
            tuple(str(reason) for reason in item["reasons"]),
            parse_time(item["expires"]) if item["expires"] else None,
        )
        for item in answer
    }


def strip_letter(backup: Backup, decision: KnownDecision) -> StripLetter:
    return kind_of(decision.keep, decision.rules, backup.outcome or backup.state)


def backup_row(
    backup: Backup,
    decision: KnownDecision | None,
    now: datetime,
    time_words: Callable[[datetime], str] = format_time,
    verified: Verified | None = None,
    copies: tuple[str, ...] = (),
) -> BackupRow:
    """Returns one row, with the decision about the backup and the result of its verification."""
    hold = hold_of(backup)
    held = hold_words(hold, time_words) if hold and hold.is_in_force(now) else None
    kind = strip_letter(backup, decision) if decision else None
    stays = decision is not None and backup.state != "deleting"
    return from_row(
        BackupRow,
        backup,
        size=backup.bytes,
        error=host_error(backup.error, backup.cause, backup.host),
        warnings=tuple(host_line(line, backup.host) for line in backup.warnings),
        keep=decision.keep if decision else None,
        why=_reason_words(decision, held) if decision else "",
        goes=decision.expires if decision else None,
        held=held,
        letter=kind.letter if kind else "",
        kind=kind.name if kind else "",
        may_hold=stays and held is None,
        may_release=stays and hold is not None,
        may_accept=backup.state in ("suspect", "altered"),
        ahead=backup.started > latest(now),
        verified=verified,
        verified_words=verified_words(verified, time_words) if verified else "",
        copies=copies,
    )


def _reason_words(decision: KnownDecision, held: str | None) -> str:
    """Returns the reasons. `held`: the text for a hold, if given."""
    pairs = zip(decision.rules, decision.reasons, strict=True)
    return ", ".join(held if held and rule == RetentionCode.HELD else reason for rule, reason in pairs)


@dataclass(frozen=True, slots=True)
class Mark:
    """One backup on the calendar."""

    day: date
    """The day on which it started, in the pool's zone."""
    kind: StripLetter
    """How long it is kept."""
    name: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One day of the calendar. All fields are empty for a day outside of the period from the oldest backup to today."""

    day: str
    """Its date."""
    letter: str = ""
    """The letter of its backup that is kept longest."""
    kind: str = ""
    """The meaning of the letter, as a word for the style sheet."""
    words: str = ""
    """The meaning of the letter."""
    names: tuple[str, ...] = ()
    """Its backups, oldest first."""


@dataclass(frozen=True, slots=True)
class Month:
    """A row of the calendar."""

    month: str
    """Its name."""
    cells: tuple[Cell, ...] = ()
    """Its days."""
    skipped: int = 0
    """The number of months without a backup that this row stands for; 0: it is one month."""
    backups: int = 0
    """Number of its backups."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The calendar."""

    months: tuple[Month, ...]
    """Its rows."""
    legend: tuple[tuple[str, str, str], ...]
    """Letter, word for the style sheet and meaning of each mark on it."""

    @property
    def newest(self) -> int:
        """Returns today's day of the month; 0 without months. The columns up to it are the most relevant."""
        return max((int(cell.day[-2:]) for month in self.months[:1] for cell in month.cells if cell.letter), default=0)


def calendar(marks: Sequence[Mark], today: date) -> Calendar:
    """Returns every day from the oldest backup to `today`, all in the pool's zone. Backups with a later timestamp are left out."""
    shown = sorted((mark for mark in marks if mark.day <= today), key=lambda mark: (mark.day, mark.name))
    if not shown:
        return Calendar((), ())
    days: dict[date, list[Mark]] = {}
    for mark in shown:
        days.setdefault(mark.day, []).append(mark)
    kinds = {mark.kind for mark in shown}
    legend = [(kind.letter, kind.style, kind.words) for kind in KINDS if kind in kinds]
    return Calendar(tuple(_months(days, today)), (*legend, (NONE, "none", "none")))


def _months(days: Mapping[date, Sequence[Mark]], today: date) -> Iterator[Month]:
    first, used, skipped = min(days), {day.replace(day=1) for day in days}, 0
    month = today.replace(day=1)
    while month >= first.replace(day=1):
        if month in used or month == today.replace(day=1):
            yield from _gap(month, skipped)
            skipped = 0
            yield _month(month, days, first, today)
        else:
            skipped += 1
        month = (month - timedelta(days=1)).replace(day=1)


def _gap(before: date, skipped: int) -> Iterator[Month]:
    """Yields the months between `before` and a later one in the calendar."""
    if not skipped:
        return
    last = (before + timedelta(days=31)).replace(day=1)
    yield Month(last.strftime("%Y-%m"), skipped=skipped)


def _month(month: date, days: Mapping[date, Sequence[Mark]], first: date, today: date) -> Month:
    cells = [
        _cell(month.replace(day=number), days, first, today) for number in range(1, monthrange(month.year, month.month)[1] + 1)
    ]
    return Month(month.strftime("%Y-%m"), tuple(cells), backups=sum(len(cell.names) for cell in cells))


def _cell(day: date, days: Mapping[date, Sequence[Mark]], first: date, today: date) -> Cell:
    text = day.isoformat()
    marks = days.get(day, ())
    if not marks:
        return Cell(text, NONE, "none", "none") if first <= day <= today else Cell(text)
    best = min((mark.kind for mark in marks), key=KINDS.index)
    return Cell(text, best.letter, best.style, best.words, tuple(mark.name for mark in marks))
