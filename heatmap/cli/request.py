"""The requested picture: the checked options of the command, and those that several commands have."""

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from btrkeep.choices import COLOURS, CURVES, SORTS
from btrkeep.cli.output import print_wrapped

STDOUT = "-"

order_option = click.option(
    "--order", type=click.IntRange(0, 14), help="2^ORDER lines of 2^ORDER pixels.  [default: what fits, at most 10]"
)
size_option = click.option(
    "--size", type=click.IntRange(0, 15), help="Enlarge to 2^SIZE lines.  [default: 10, or ORDER if that is more]"
)
sort_option = click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="physical",
    show_default=True,
    help="By position on the devices, or by virtual address.",
)
curve_option = click.option(
    "--curve", type=click.Choice(CURVES), default="hilbert", show_default=True, help="The order in which pixels are filled."
)
colour_option = click.option(
    "--colour", "--color", type=click.Choice([*COLOURS]), default="usage", show_default=True, help="What the colours show."
)


@dataclass(frozen=True, slots=True)
class Extras:
    """The additional output besides the picture. The file name "-" is standard output."""

    legend: bool = False
    """True if the legend is part of the picture."""
    map: str | None = None
    """The file of the map."""
    record: bool = False
    """True if the state is recorded."""
    record_to: str | None = None
    """The file of the recorded state."""
    show: bool = False
    """True if the picture is shown in the terminal."""


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """The options of a picture."""

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

    def say(self, *lines: str) -> None:
        """Prints lines for people, unless a picture is written to standard output or -q was given. Lines for a terminal are wrapped
        between words.
        """
        if self.verbosity < 0 or STDOUT in (self.output, self.extras.map, self.extras.record_to):
            return
        if not sys.stdout.isatty():
            click.echo("\n".join(lines))
            return
        for line in lines:
            print_wrapped(line, "  ")
