"""How to solve a finding: why it matters, the commands, and their risk. Nothing is run here."""

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FixCommand:
    """A step of a fix: a program with its words."""

    command: tuple[str, ...]

    @property
    def line(self) -> str:
        """The step as one that can be pasted into a shell."""
        return shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class WriteSysfs:
    """A step of a fix: a value that a file of sysfs takes."""

    file: Path
    value: str

    @property
    def line(self) -> str:
        """The step as one that can be pasted into a shell."""
        return f"echo {shlex.quote(self.value)} > {shlex.quote(str(self.file))}"


Step = FixCommand | WriteSysfs


@dataclass(frozen=True, slots=True)
class Remedy:
    """`commands` mend it, as lines for a shell. `steps` are what `doctor --fix` does of that, none where it does nothing.

    `unmounted`: the commands need the filesystem unmounted.
    """

    why: str = ""
    risk: str = ""
    commands: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    unmounted: bool = False

    @property
    def fixable(self) -> bool:
        """Returns True if `--fix NAME` can do it."""
        return bool(self.steps)

    @property
    def lines(self) -> tuple[str, ...]:
        """Returns all steps as shell lines: first those that --fix runs, then those to run by hand."""
        return (*(step.line for step in self.steps), *self.commands)


NO_REMEDY = Remedy()
