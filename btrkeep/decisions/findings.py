"""One type for the problems that `check`, `doctor`, `status`, alarms and metrics find, with its remedy and its stored form; and the
findings about missing capabilities of this process. Pure.
"""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from btrkeep.decisions import parse_fact
from btrkeep.decisions.rsync_meaning import ExitCause
from btrkeep.procfs import SYS_ADMIN, Capabilities
from btrkeep.units import format_time, parse_time


@dataclass(frozen=True, slots=True)
class FixCommand:
    """A step of a fix that runs a program."""

    command: tuple[str, ...]
    """The program and its arguments."""

    @property
    def line(self) -> str:
        """The step as a line for a shell."""
        return shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class WriteSysfs:
    """A step of a fix that writes a value to a file of sysfs."""

    file: Path
    """The file."""
    value: str
    """The value."""

    @property
    def line(self) -> str:
        """The step as a line for a shell."""
        return f"echo {shlex.quote(self.value)} > {shlex.quote(str(self.file))}"


Step = FixCommand | WriteSysfs


@dataclass(frozen=True, slots=True)
class Remedy:
    """How a finding is repaired."""

    why: str = ""
    """The consequence if nothing is done."""
    risk: str = ""
    """The risk of the commands; "": none."""
    commands: tuple[str, ...] = ()
    """Lines for a shell that repair it."""
    steps: tuple[Step, ...] = ()
    """Those of them that `doctor --fix` runs; empty: none."""
    unmounted: bool = False
    """True if the commands need the filesystem unmounted."""

    @property
    def fixable(self) -> bool:
        """Returns True if `--fix NAME` can do it."""
        return bool(self.steps)

    @property
    def lines(self) -> tuple[str, ...]:
        """Returns all steps as shell lines: first those that --fix runs, then those to run by hand."""
        return (*(step.line for step in self.steps), *self.commands)


NO_REMEDY = Remedy()


FACT = "health"
"""The name of the fact in the catalogue with the newest verdict of `backupd notify`."""

UNUSABLE, CATALOGUE, READ_ONLY = "unusable", "catalogue", "read-only"
MISSING, ERRORS = "missing-device", "device-errors"
ROOM, UNALLOCATED, USED = "room", "unallocated", "used"
SCHEDULE = "schedule"
CHECKS = (UNUSABLE, CATALOGUE, READ_ONLY, MISSING, ERRORS, ROOM, UNALLOCATED, USED, SCHEDULE)
"""All checks, in the order of output. `backupd doctor` has checks of the same names."""

_PRIVILEGES = "privileges"
_STORED = ("check", "level", "text", "hint", "unusable", "device", "count")
CLOCK = "clock"
"""A check of `check`, `doctor` and `status` that is about the machine, not the pool."""

OK, UNKNOWN, NOTE, WARNING, ERROR = "ok", "unknown", "note", "warning", "error"
LEVELS = (OK, UNKNOWN, NOTE, WARNING, ERROR)
"""From best to worst. Unknown: nothing was found, and something could not be checked. A note is information and may remain; a
warning needs action soon; an error now.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or a remark about one subject."""

    check: str
    """The check that found it."""
    level: str
    """One of LEVELS."""
    text: str
    """The problem in words."""
    hint: str = ""
    """What to do; "": nothing."""
    unusable: bool = False
    """True if no backup can be made."""
    device: int | None = None
    """The number of the device; None: it is not about a device."""
    count: int = 0
    """Number of errors of that device."""
    subject: str = ""
    """The host or program; "": none."""
    cause: ExitCause | None = None
    """Why rsync could not list a path; None: another finding."""
    remedy: Remedy = NO_REMEDY
    """Details for `backupd doctor`."""

    def is_about_the_same(self, other: "Finding") -> bool:
        """Returns True if both are the same problem, whatever numbers are in their texts: the same check, subject and device."""
        return (self.check, self.subject, self.device) == (other.check, other.subject, other.device)

    @property
    def about(self) -> str:
        """Returns the subject as shown in a table."""
        return self.subject or self.check


@dataclass(frozen=True, slots=True)
class PoolVerdict:
    """The judgement about the pool."""

    findings: tuple[Finding, ...] = ()
    """All findings, in the order of CHECKS."""
    unlooked: tuple[str, ...] = ()
    """Names of the checks that could not be made."""

    @property
    def level(self) -> str:
        """Returns the level of the worst finding."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default=UNKNOWN if self.unlooked else OK)

    def of(self, check: str) -> tuple[Finding, ...]:
        """Returns the findings of this check."""
        return tuple(finding for finding in self.findings if finding.check == check)

    def level_of(self, check: str) -> str:
        """Returns OK, UNKNOWN, or the worst level of its findings."""
        return PoolVerdict(self.of(check), tuple(unlooked for unlooked in self.unlooked if unlooked == check)).level


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """The verdict of a time, as stored in the catalogue."""

    looked: datetime
    """When it was made."""
    verdict: PoolVerdict
    """The verdict."""
    pool_looked: datetime | None = None
    """When the pool could last be read; None: unknown."""


def as_text(kept: StoredVerdict) -> str:
    """Encodes the verdict for the catalogue."""
    findings = [{name: getattr(finding, name) for name in _STORED} for finding in kept.verdict.findings]
    pool_looked = format_time(kept.pool_looked) if kept.pool_looked else None
    return json.dumps(
        {
            "looked": format_time(kept.looked),
            "pool_looked": pool_looked,
            "findings": findings,
            "unlooked": kept.verdict.unlooked,
        }
    )


def from_text(text: str | None) -> StoredVerdict | None:
    """Decodes the catalogue's verdict; None if there is none, or if another version wrote it in another form."""
    return parse_fact(text, _verdict, None)


def _verdict(fields: Mapping[str, Any]) -> StoredVerdict:
    findings = tuple(Finding(**finding) for finding in fields["findings"])
    pool_looked = parse_time(fields["pool_looked"]) if fields.get("pool_looked") else None
    return StoredVerdict(parse_time(fields["looked"]), PoolVerdict(findings, tuple(fields["unlooked"])), pool_looked)


def as_json(verdict: PoolVerdict) -> dict[str, Any]:
    """Returns the verdict of `backupd status` and the dashboard as a JSON object."""
    findings = [
        {"check": finding.check, "level": finding.level, "text": finding.text, "hint": finding.hint} for finding in verdict.findings
    ]
    return {"level": verdict.level, "findings": findings, "not_looked_at": list(verdict.unlooked)}


def check_as_json(finding: Finding) -> dict[str, str]:
    """Returns a line of `backupd check` as a JSON object."""
    return {"level": finding.level, "subject": finding.about, "message": finding.text, "hint": finding.hint}


def grade(level: str) -> int | None:
    """Returns a level as a number for metrics: 0 is ok or a note, 1 a warning, 2 an error; None is unknown."""
    return {OK: 0, NOTE: 0, WARNING: 1, ERROR: 2}.get(level)


@dataclass(frozen=True, slots=True)
class Need:
    """A capability that btrkeep needs."""

    capability: str
    """Its name, such as CAP_SYS_ADMIN."""
    purpose: str
    """Its purpose in words."""
    required: bool
    """True if no backup can be made without it."""


NEEDS = (
    Need(SYS_ADMIN, "to delete subvolumes and to read the trees of btrfs", required=True),
    Need("CAP_DAC_OVERRIDE", "to write into folders of other users in a backup", required=True),
    Need("CAP_DAC_READ_SEARCH", "to read files of other users", required=True),
    Need("CAP_CHOWN", "to store the owner of a file", required=True),
    Need("CAP_FOWNER", "to store mode and times of another user's file", required=True),
    Need("CAP_FSETID", "to store setuid and setgid bits", required=False),
    Need("CAP_MKNOD", "to store device files", required=False),
    Need("CAP_SETFCAP", "to store capabilities of programs (security.capability)", required=False),
)


def missing_privileges(capabilities: Capabilities, needs: Collection[Need] = NEEDS) -> tuple[Need, ...]:
    """Returns the needs that the process cannot fulfil."""
    return tuple(need for need in needs if not capabilities.has(need.capability))


def privilege_findings(capabilities: Capabilities | None, *, root: bool) -> Iterator[Finding]:
    """Yields a finding for each missing capability. `root`: the process is root, so that "run this as root" is no advice."""
    if capabilities is None:
        return
    for need in missing_privileges(capabilities):
        level = ERROR if need.required else WARNING
        yield Finding(
            _PRIVILEGES,
            level,
            privilege_words(need, root=root),
            privilege_advice(capabilities, need, root=root),
            subject=_PRIVILEGES,
        )
    if capabilities.namespace:
        text = "this process is in a user namespace: owners and ids of files differ from those on the machine"
        yield Finding(_PRIVILEGES, WARNING, text, "run this on the machine itself", subject=_PRIVILEGES)


def privilege_words(need: Need, *, root: bool) -> str:
    """Returns which capability is missing, and its purpose."""
    return f"{'root has' if root else 'this process has'} no {need.capability} here, which is needed {need.purpose}"


def privilege_advice(capabilities: Capabilities, need: Need, *, root: bool) -> str:
    """Returns how to get it."""
    if not root:
        return "run this as root"
    if capabilities.namespace:
        return "run this on the machine itself, not in an unprivileged container"
    return f"run this on the machine itself, or give the container or service {need.capability}"
