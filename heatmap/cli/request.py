"""What a picture is asked to be: the options of the command, checked."""

from dataclasses import dataclass
from pathlib import Path

import click

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Extras:
    """What a picture brings along. `map` and `record_to` are names of files, "-" is standard output."""

    legend: bool = False
    map: str | None = None
    record: bool = False
    record_to: str | None = None
    show: bool = False


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """The options."""

    path: Path
    order: int | None
    size: int | None
    sort: str
    blockgroup: int | None
    curve: str
    output: str | None
    form: str
    colour: str
    device: tuple[int, ...]
    extents: bool
    verbosity: int
    extras: Extras = Extras()

    def say(self, *lines: str, at: int = 0) -> None:
        """Lines for people, where no picture goes to standard output."""
        if self.verbosity >= at and STDOUT not in (self.output, self.extras.map, self.extras.record_to):
            click.echo("\n".join(lines))
