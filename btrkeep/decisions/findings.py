"""What is wrong, in one type for `check`, `doctor`, `status`, the alarms and the metrics; and how the catalogue keeps what was
decided about the pool for the dashboard. Pure.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from btrkeep.decisions.remedy import NO_REMEDY, Remedy
from btrkeep.decisions.rsync_meaning import ExitCause
from btrkeep.units import format_time, parse_time

FACT = "health"
"""The name under which the catalogue has the newest verdict of `backupd notify`."""

UNUSABLE, CATALOGUE, READ_ONLY = "unusable", "catalogue", "read-only"
MISSING, ERRORS = "missing-device", "device-errors"
ROOM, UNALLOCATED, USED = "room", "unallocated", "used"
CHECKS = (UNUSABLE, CATALOGUE, READ_ONLY, MISSING, ERRORS, ROOM, UNALLOCATED, USED)
"""All that is looked at, in the order in which it is told. `backupd doctor` has checks of the same names."""

_STORED = ("check", "level", "text", "hint", "unusable", "device", "count")
CLOCK = "clock"
"""A check of `check`, `doctor` and `status`: it is about the machine, not the pool."""

OK, UNKNOWN, NOTE, WARNING, ERROR = "ok", "unknown", "note", "warning", "error"
LEVELS = (OK, UNKNOWN, NOTE, WARNING, ERROR)
"""From well to worst. Unknown: nothing was found, and something could not be looked at. A note is worth knowing and may stay as it
is; a warning is to be acted on; an error now."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has to say of one thing. `check` is its code, `level` one of LEVELS, `text` and `hint` are words for people.

    `subject`: what it is about, where that is not the check itself: a host, a program. `unusable`: no backup can be made.
    `device` is its number where it is about one, `count` how many errors that has counted. `cause`: why rsync could not list a
    path. `remedy`: what `backupd doctor` knows of it besides.
    """

    check: str
    level: str
    text: str
    hint: str = ""
    unusable: bool = False
    device: int | None = None
    count: int = 0
    subject: str = ""
    cause: ExitCause | None = None
    remedy: Remedy = NO_REMEDY

    @property
    def about(self) -> str:
        """What it is about, as a table names it."""
        return self.subject or self.check


@dataclass(frozen=True, slots=True)
class PoolVerdict:
    """All that is wrong, in the order of CHECKS, and the checks that could not look."""

    findings: tuple[Finding, ...] = ()
    unlooked: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """That of the worst finding."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default=UNKNOWN if self.unlooked else OK)

    def of(self, check: str) -> tuple[Finding, ...]:
        """What that check has found."""
        return tuple(finding for finding in self.findings if finding.check == check)

    def level_of(self, check: str) -> str:
        """OK, UNKNOWN, or the worst that it has found."""
        return PoolVerdict(self.of(check), tuple(one for one in self.unlooked if one == check)).level


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A verdict of a moment, as the catalogue has it."""

    looked: datetime
    verdict: PoolVerdict


def as_text(kept: StoredVerdict) -> str:
    """For the catalogue."""
    findings = [{name: getattr(one, name) for name in _STORED} for one in kept.verdict.findings]
    return json.dumps({"looked": format_time(kept.looked), "findings": findings, "unlooked": kept.verdict.unlooked})


def from_text(text: str | None) -> StoredVerdict | None:
    """What the catalogue has; None when it has none, or one that an earlier or later version wrote otherwise."""
    try:
        said: dict[str, Any] = json.loads(text or "{}")
        findings = tuple(Finding(**one) for one in said["findings"])
        return StoredVerdict(parse_time(said["looked"]), PoolVerdict(findings, tuple(said["unlooked"])))
    except (KeyError, TypeError, ValueError):
        return None


def as_json(verdict: PoolVerdict) -> dict[str, Any]:
    """For --json: one object of what `backupd status` and the dashboard say of the pool."""
    findings = [{"check": one.check, "level": one.level, "text": one.text, "hint": one.hint} for one in verdict.findings]
    return {"level": verdict.level, "findings": findings, "not_looked_at": list(verdict.unlooked)}


def check_as_json(one: Finding) -> dict[str, str]:
    """For --json: a line of `backupd check`."""
    return {"level": one.level, "subject": one.about, "message": one.text, "hint": one.hint}


def grade(level: str) -> int | None:
    """A level as a number for metrics: 0 is well or worth a note, 1 a warning, 2 an error; None is not known."""
    return {OK: 0, NOTE: 0, WARNING: 1, ERROR: 2}.get(level)
