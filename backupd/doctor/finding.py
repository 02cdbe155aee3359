"""What a rule finds, and what a rule is."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from backupd.doctor.facts import DoctorFacts

SEVERITIES = ("note", "warning", "error")
"""A note is worth knowing and may stay as it is; a warning is to be acted on; an error now."""


@dataclass(frozen=True, slots=True)
class FixCommand:
    """A step of a fix: a program with its words."""

    command: tuple[str, ...]

    @property
    def line(self) -> str:
        """The step as one that can be pasted into a shell."""
        return shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class Write:
    """A step of a fix: a value that a file of sysfs takes."""

    file: Path
    value: str

    @property
    def line(self) -> str:
        """The step as one that can be pasted into a shell."""
        return f"echo {shlex.quote(self.value)} > {shlex.quote(str(self.file))}"


Step = FixCommand | Write


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that is wrong or slow. `name` is its rule's.

    `commands` mend it, as lines for a shell. `steps` are what --fix does of that, none where it does nothing. `unmounted`: the
    commands need the filesystem unmounted.
    """

    name: str
    severity: str
    what: str
    why: str
    risk: str
    commands: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    unmounted: bool = False

    @property
    def fixable(self) -> bool:
        """Whether `--fix NAME` can do it."""
        return bool(self.steps)

    @property
    def lines(self) -> tuple[str, ...]:
        """All that there is to do, as lines for a shell: first what --fix does, then what stays to be done by hand."""
        return (*(step.line for step in self.steps), *self.commands)


def _sees(_: DoctorFacts) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class DoctorRule:
    """A check: from facts to findings, none when all is well. `looks` says in one phrase what it finds, for the documentation.

    `severities` are those that its findings can have; `fixable`: whether any of them can have steps. `blind` says why it could not
    look, "" when it could: a check that finds nothing and is blind is not well.
    """

    name: str
    severities: tuple[str, ...]
    looks: str
    check: Callable[[DoctorFacts], Iterator[DoctorFinding]] = field(repr=False)
    fixable: bool = False
    blind: Callable[[DoctorFacts], str] = field(default=_sees, repr=False)


@dataclass(frozen=True, slots=True)
class Unlooked:
    """A check that could not look, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What rules say: findings, the worst first; names of the checks that looked and found nothing; those that could not look."""

    findings: tuple[DoctorFinding, ...]
    well: tuple[str, ...]
    unlooked: tuple[Unlooked, ...]
