"""`backupd progress`: shows how the kernel drops deleted subvolumes of any program."""

import json
import math
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from backupd.cli.command_context import load_config
from backupd.expire.monitor import CleanerMonitor, CleanerReading, Dropping, Rate, TimeLeft, require_btrfs
from backupd.repo.pool_context import open_configured
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.output import has_live_terminal
from btrkeep.errors import Exit, UsageError
from btrkeep.pool.orphans import key_text
from btrkeep.process.progress import exit_on_sigterm
from btrkeep.units import counted, format_duration, format_share, format_time, local_time, printable

if TYPE_CHECKING:
    from rich.text import Text

_LONGEST_PAUSE = 0.5  # between samples: with longer pauses, more subvolumes appear and vanish uncounted
_LOOKS_PER_INTERVAL = 10
_EASE = 20  # sampling takes at most a twentieth of the time; a sample of 10,000 subvolumes takes more than 0.1 s
_UNKNOWN = "unknown"
_NOTHING = "no deleted subvolume waits for the cleaner"
_LABEL = 12  # columns
_NARROWEST = 8


@click.command("progress")
@click.argument("mountpoint", required=False, type=GivenPath())
@click.option("--once", is_flag=True, help="Watch for one interval, print the result, and exit.")
@json_option
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 86400),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The seconds between updates; at least 0.1.",
)
@click.pass_context
def command(ctx: click.Context, mountpoint: str | None, once: bool, as_json: bool, interval: float) -> int:
    """Watch the kernel drop deleted subvolumes, of any program, until Ctrl-C.

    If the output is a pipe or a file, it prints the state once and exits; with --interval it continues.

    MOUNTPOINT is any folder on a mounted btrfs and needs no configuration; without it the configured pool is watched.

    A deletion returns at once; the kernel's cleaner drops the subvolumes later, one after the other. This shows how many wait;
    which subvolume is being dropped, for how long, and its progress; how many were dropped per minute over the last five
    minutes; and an estimate of the time left. Numbers that cannot be measured are shown as unknown.
    """
    if math.isnan(interval):
        raise UsageError("--interval is not a number", "write seconds, such as --interval 5")
    path = open_configured(load_config(ctx)).path if mountpoint is None else require_btrfs(mountpoint)
    exit_on_sigterm()  # so that a terminal gets its cursor back
    shown = _shown(CleanerMonitor(path), interval)
    is_log = sys.stdout.isatty() or ctx.get_parameter_source("interval") is not ParameterSource.DEFAULT
    if once or not (is_log or as_json):
        seen = _seen_once(shown)
        print_answer(_fields(seen), lambda: _show(seen), as_json=as_json)
    elif not as_json and has_live_terminal():
        _live(shown, str(path))
    elif as_json:
        for seen in shown:
            click.echo(json.dumps(_fields(seen)))
    else:
        _log(shown)
    return Exit.OK


def _log(shown: Iterator[CleanerReading]) -> None:
    """Prints a line for each reading, but only one while nothing waits, because the output may be a file that is
    written for days.
    """
    nothing = False
    for seen in shown:
        if not (nothing and _nothing(seen)):
            click.echo(f"{local_time(datetime.now(UTC))} {line(seen)}")
        nothing = _nothing(seen)


def _shown(watcher: CleanerMonitor, interval: float) -> Iterator[CleanerReading]:
    """Yields readings: at once, and then after each interval. Measures more often in between."""
    following = time.monotonic()
    while True:
        begun = time.monotonic()
        seen = watcher.take_reading()
        now = time.monotonic()
        if now >= following:
            yield seen
            now = time.monotonic()
            following = max(following + interval, now)
        pause = max(min(_LONGEST_PAUSE, interval / _LOOKS_PER_INTERVAL), _EASE * (now - begun))
        time.sleep(max(0.0, min(pause, following - now)))


def _seen_once(shown: Iterator[CleanerReading]) -> CleanerReading:
    """Returns the reading after one interval; if nothing waits, the one before it."""
    seen = next(shown)
    return next(shown) if seen.waiting else seen


def _show(seen: CleanerReading) -> None:
    if _nothing(seen):
        click.echo(_NOTHING)
        return
    for label, value in rows(seen):
        click.echo(f"{label:<{_LABEL}}{value}")


def _fields(seen: CleanerReading) -> dict[str, Any]:
    """Returns a reading for --json: the rate in subvolumes a minute, `eta` in seconds from now; null is unknown."""
    return {
        "orphans": seen.waiting,
        "dropping": _dropping_as_json(seen.dropping) if seen.dropping else None,
        "rate": round(seen.rate.per_minute, 3) if seen.rate else None,
        "eta": round(seen.left.seconds, 1) if seen.left else None,
    }


def _dropping_as_json(dropping: Dropping) -> dict[str, Any]:
    drop = dropping.drop
    return {
        "root": drop.root,
        "since": format_time(dropping.since),
        "drop_progress": list(drop.drop_progress) if drop.drop_progress else None,
        "level": drop.level,
    }


def rows(seen: CleanerReading) -> list[tuple[str, str]]:
    """Returns labels and values for a terminal; one line if nothing waits and nothing was dropped recently."""
    dropping = seen.dropping
    if _nothing(seen):
        return [("waiting", _NOTHING)]
    return [
        ("waiting", waiting_text(seen)),
        ("dropping", dropping_text(seen)),
        ("at key", at_text(dropping)),
        ("done", share_text(dropping)),
        ("rate", rate_text(seen.rate)),
        ("time left", left_text(seen.left)),
    ]


def line(seen: CleanerReading) -> str:
    """Returns the reading in one line."""
    if _nothing(seen):
        return _NOTHING
    parts = [waiting_text(seen)]
    if seen.waiting:
        parts.append(f"dropping: {dropping_text(seen)}")
    if seen.dropping:
        parts.append(f"at {at_text(seen.dropping)}; done: {share_text(seen.dropping)}")
    return "; ".join([*parts, f"rate: {rate_text(seen.rate)}", f"time left: {left_text(seen.left)}"])


def _nothing(seen: CleanerReading) -> bool:
    return not seen.waiting and not seen.dropping and not (seen.rate and seen.rate.per_minute)


def waiting_text(seen: CleanerReading) -> str:
    """Formats the number of deleted subvolumes that the cleaner has not dropped, and the number of those held by open files."""
    held = f" (at least {seen.held:,} held by open files)" if seen.held else ""
    return counted(seen.waiting, "deleted subvolume") + held


def dropping_text(seen: CleanerReading) -> str:
    """Formats the subvolume that is being dropped, and for how long that was observed."""
    dropping = seen.dropping
    if dropping and seen.idle:
        return f"nothing (root {dropping.drop.root} has started)"
    if dropping:
        return f"root {dropping.drop.root} for {'at least ' if dropping.from_before else ''}{format_duration(dropping.seconds)}"
    return "nothing" if seen.idle or not seen.waiting else "unknown: the kernel has recorded no progress"


def at_text(dropping: Dropping | None) -> str:
    """Returns the drop_progress key and level."""
    if not dropping or not dropping.drop.drop_progress:
        return "-"
    return f"{key_text(dropping.drop.drop_progress)} level {dropping.drop.level}"


def share_text(dropping: Dropping | None) -> str:
    """Returns the share of the tree that is dropped."""
    if not dropping:
        return "-"
    if dropping.share is None:
        return _UNKNOWN
    return f"{format_share(dropping.share)} ({dropping.passed} of {dropping.branches} branches)"


def rate_text(rate: Rate | None) -> str:
    """Formats the dropped subvolumes a minute, and the time over which they were counted."""
    return f"{rate.per_minute:,.1f} a minute over {format_duration(rate.seconds)}" if rate else _UNKNOWN


def left_text(left: TimeLeft | None) -> str:
    """Formats the time left with its uncertainty."""
    if not left:
        return _UNKNOWN
    if not left.seconds:
        return "none"
    if left.at_most is None:
        return f"about {format_duration(left.seconds)} (at least {format_duration(left.at_least)})"
    return f"about {format_duration(left.seconds)} ({format_duration(left.at_least)} to {format_duration(left.at_most)})"


def _live(shown: Iterator[CleanerReading], title: str) -> None:
    """Shows a small screen that is redrawn in place; the last one stays."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for seen in shown:
            live.update(screen(seen, title, live.console.width), refresh=True)


def screen(seen: CleanerReading, title: str, width: int) -> "Text":
    """Returns the live display as lines that leave the last column free, because an echoed ^C must not start another line."""
    from rich.text import Text

    text = Text()
    for label, value in [("cleaner of", printable(title)), *rows(seen)]:
        style = "bold" if label == "cleaner of" else "dim" if value in (_UNKNOWN, "-") else "cyan" if label == "waiting" else ""
        for number, piece in enumerate(wrap(value, max(_NARROWEST, width - _LABEL - 1), break_on_hyphens=False)):
            text.append(f"{'' if number else label:<{_LABEL}}").append(piece + "\n", style)
    text.rstrip()
    return text
