"""`backupd scrub`: reads everything on the pool's filesystem, and puts right what can be."""

import asyncio
from typing import Any

import click

from backupd.actions.scrub import Scrubbed, ScrubState, scrub
from backupd.cli.context import load_config
from backupd.repo.context import open_configured, require_writable
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import say
from btrkeep.errors import Exit
from btrkeep.process.cancellation import Cancellation, signal_status
from btrkeep.process.service import Status
from btrkeep.units import format_duration, format_share, format_size, printable


@click.command("scrub")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """Read everything on the pool's filesystem, and repair what can be repaired.

    It is `btrfs scrub` on the pool's filesystem: every copy of data and metadata is read and compared with its checksum. One
    that was cancelled, or ended by a reboot, is continued. It may take days; backups run meanwhile.

    Ctrl-C and SIGTERM cancel it, and the next one continues from there.

    Exit status 0: it finished and found no errors; 1: it found some, even if they were repaired, or did not finish; 3: a
    scrub is already running.
    """
    pool = open_configured(load_config(ctx))
    require_writable(pool)
    cancellation, status = Cancellation(), Status()
    cancellation.listen()
    status.say("scrubbing")
    done = asyncio.run(scrub(pool.path, cancellation, lambda now: status.say(progress_line(now))))
    status.say(line(done))
    if as_json:
        echo_json(as_json_object(done, pool.filesystem))
    else:
        say(line(done))
    return exit_status(done)


def exit_status(done: Scrubbed) -> int:
    """Of a scrub that has ended."""
    if done.outcome == "stopped" and done.signal:
        return signal_status(done.signal)
    return Exit.OK if done.good else Exit.ATTENTION


def progress_line(now: ScrubState) -> str:
    """How far it is."""
    of = f" of {format_size(now.total)} ({format_share(min(1.0, now.scrubbed / now.total))})" if now.total else ""
    return f"{format_size(now.scrubbed)}{of} scrubbed, {errors_in_words(now.errors)}"


def errors_in_words(errors: dict[str, int]) -> str:
    """Those that there are."""
    found = [f"{number:,} {kind}" for kind, number in errors.items() if number]
    return f"errors: {', '.join(found)}" if found else "no errors"


def line(done: Scrubbed) -> str:
    """What came of it."""
    head = f"{done.outcome}{f' ({printable(done.why)})' if done.why else ''}"
    if done.signal and done.outcome == "stopped":
        head += "; the next one continues from here"
    part = " in all" if done.resumed else ""
    return f"{head}: {format_size(done.scrubbed)} scrubbed{part}, {errors_in_words(done.errors)}, {format_duration(done.seconds)}"


def as_json_object(done: Scrubbed, filesystem: str) -> dict[str, Any]:
    """For --json."""
    return {
        "filesystem": filesystem,
        "outcome": done.outcome,
        "why": done.why or None,
        "resumed": done.resumed,
        "scrubbed": done.scrubbed,
        "seconds": round(done.seconds, 3),
        "errors": done.errors,
    }
