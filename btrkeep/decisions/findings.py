"""What was decided about the pool, and how the catalogue keeps it for the dashboard. Pure."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from btrkeep.units import format_time, parse_time

FACT = "health"
"""The name under which the catalogue has the newest verdict of `backupd notify`."""

UNUSABLE, CATALOGUE, READ_ONLY = "unusable", "catalogue", "read-only"
MISSING, ERRORS = "missing-device", "device-errors"
ROOM, UNALLOCATED, USED = "room", "unallocated", "used"
CHECKS = (UNUSABLE, CATALOGUE, READ_ONLY, MISSING, ERRORS, ROOM, UNALLOCATED, USED)
"""All that is looked at, in the order in which it is told. `backupd doctor` has checks of the same names."""

OK, UNKNOWN, WARNING, ERROR = "ok", "unknown", "warning", "error"
LEVELS = (OK, UNKNOWN, WARNING, ERROR)
"""From well to worst. Unknown: nothing was found, and something could not be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with the pool. `level` is WARNING or ERROR.

    `unusable`: no backup can be made. `device` is its number where it is about one, `count` how many errors that has counted.
    """

    check: str
    level: str
    text: str
    hint: str = ""
    unusable: bool = False
    device: int | None = None
    count: int = 0


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
    findings = [asdict(finding) for finding in kept.verdict.findings]
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


def grade(level: str) -> int | None:
    """A level as a number for metrics: 0 is well, 1 a warning, 2 an error; None is not known."""
    return {OK: 0, WARNING: 1, ERROR: 2}.get(level)
