"""`backupd scrub`: reads everything on the pool's filesystem, and corrects errors if possible."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from backupd.cli.command_context import load_config, opened
from backupd.proof.cli.damaged import COLUMNS, show
from backupd.proof.damaged_files import DamagedFile, damaged_files
from backupd.proof.read_errors import ScrubDamage, check_read_errors, record_scrub_damage
from backupd.proof.scrub import ScrubResult, ScrubState, is_unfinished, scrub
from backupd.repo.pool_context import open_configured, require_privileges, require_writable
from btrkeep.cli import json_option, print_answer, print_error
from btrkeep.cli.listings import objects
from btrkeep.cli.output import print_wrapped, say, survive_closed_stdout
from btrkeep.decisions.pool_health import redundancy_as_json, redundancy_words
from btrkeep.decisions.repeated import AttemptOutcome, Step, StepAttempt, note_attempt
from btrkeep.decisions.scrub import unread_words
from btrkeep.decisions.verification import ScrubBegin, note_begin
from btrkeep.errors import Exit, OperatorError
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancellation, Status, signal_status
from btrkeep.units import counted, format_duration, format_share, format_size, printable

_SHOWN = 10  # damaged files; `backupd damaged` shows all


@click.command("scrub")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """Read everything on the pool's filesystem, and correct errors if there is a good copy.

    Runs `btrfs scrub` on the pool's filesystem: every copy of data and metadata is read and compared with its checksum. A cancelled
    or interrupted scrub is resumed. It may take days; backups continue during it.

    Uncorrectable errors are resolved to files and to all backups that share them, and recorded: `backupd damaged` lists them.

    Ctrl-C and SIGTERM cancel it; the next scrub resumes it.

    It succeeds if each present device was read completely, by its own counters. It names devices that were not read, and prints how
    much data has only one good copy left.

    Exit status 0: it read everything and found no errors; 1: it found errors, even if they were corrected, or a device is
    missing or was not read, or it did not finish; 3: a scrub is already running.
    """
    pool = open_configured(load_config(ctx))
    require_writable(pool)
    require_privileges()
    survive_closed_stdout()
    cancellation, status = Cancellation(), Status()
    cancellation.listen()
    status.say("scrubbing")
    _note_begin(ctx, pool)
    begun = _note_attempt(ctx, StepAttempt(datetime.now(UTC), AttemptOutcome.BEGUN))
    try:
        done = asyncio.run(scrub(pool.path, cancellation, lambda now: status.say(progress_line(now))))
    except OperatorError as error:
        _note_attempt(ctx, StepAttempt(begun, AttemptOutcome.FAILED, error.message))
        raise
    _note_attempt(ctx, StepAttempt(begun, *_ended(done)))
    status.say(line(done))
    scrub_damage, files = _recorded(ctx, done)

    def show_all() -> None:
        say(line(done))
        for words in (*_unread_lines(done), *_damage_lines(scrub_damage)):
            print_wrapped(words)
        if files:
            show(files, _SHOWN)

    print_answer(_fields(done, pool.filesystem) | _damage_fields(scrub_damage, files), show_all, as_json=as_json)
    return exit_status(done)


def _note_attempt(ctx: click.Context, attempt: StepAttempt) -> datetime:
    """Records the start of the scrub, or its end, if the catalogue can be written. Returns the time of the start."""
    begun = attempt.at.replace(microsecond=0)
    with suppress(OperatorError), opened(ctx) as context:
        note_attempt(context.catalogue, Step.SCRUB, replace(attempt, at=begun))
    return begun


def _ended(done: ScrubResult) -> tuple[AttemptOutcome, str]:
    """A stopped scrub continues from there the next time."""
    if done.outcome == "failed":
        return AttemptOutcome.FAILED, done.why
    came_forward = done.outcome == "finished" or done.scrubbed > 0
    return (AttemptOutcome.DONE, "") if came_forward else (AttemptOutcome.UNFINISHED, done.why)


def _note_begin(ctx: click.Context, pool: Pool) -> None:
    """Records the present backups: a scrub only proves these. A resumed scrub started earlier."""
    try:
        if not is_unfinished(pool.path):
            with opened(ctx) as context:
                moment = context.clock.now()
                note_begin(context.catalogue, ScrubBegin(context.catalogue.newest_subvolume(), moment))
                check_read_errors(context, moment)  # the scrub will find the errors counted so far
    except OperatorError as error:  # the scrub is valid even without the catalogue
        print_error(error)
    except OSError as error:
        print_error(OperatorError(f"errors of the devices could not be read: {error}", "the scrub finds the damaged files"))


def _recorded(ctx: click.Context, done: ScrubResult) -> tuple[ScrubDamage | None, list[DamagedFile]]:
    """Records the damage and returns it. Failing to record it does not fail the scrub."""
    try:
        with opened(ctx) as context:
            scrub_damage = record_scrub_damage(context, done, context.clock.now())
            return scrub_damage, damaged_files(context, scrub_damage.rows)
    except OperatorError as error:
        print_error(error)
    except OSError as error:
        print_error(OperatorError(f"the damaged files could not be determined: {error}", "`backupd verify` finds the damage too"))
    return None, []


def _unread_lines(done: ScrubResult) -> Iterator[str]:
    for unread in done.unread:
        yield unread_words(unread)
    if done.redundancy is None:
        yield "the number of good copies could not be read: `backupd check` shows why"
    elif done.unread or done.redundancy.reduced:
        yield f"redundancy: {redundancy_words(done.redundancy)}"


def _damage_lines(damage: ScrubDamage | None) -> Iterator[str]:
    if not damage:
        return
    for tree in damage.trees:
        yield (
            f"metadata cannot be read within 64 KiB from {tree.vaddr}, where tree {tree.tree} has a block of level {tree.level}: "
            "`btrfs check --readonly`, with the pool unmounted, shows the damage"
        )
    if damage.elsewhere:
        places = ", ".join(str(vaddr) for vaddr in damage.elsewhere[:_SHOWN])
        yield f"{counted(len(damage.elsewhere), 'damaged address')} with data of no finished backup: {places}"
    if damage.unnamed:
        why = f" ({damage.why})" if damage.why else ""
        count = counted(damage.unnamed, "error")
        yield f"{count} not named by the kernel's log{why}: `backupd verify` reads every file, and finds the damaged ones"


def _damage_fields(damage: ScrubDamage | None, files: list[DamagedFile]) -> dict[str, Any]:
    return {
        "damaged": list(objects(COLUMNS, files)) if damage else None,
        "metadata": [{"vaddr": tree.vaddr, "tree": tree.tree, "level": tree.level} for tree in damage.trees] if damage else None,
        "elsewhere": list(damage.elsewhere) if damage else None,
        "unnamed": damage.unnamed if damage else None,
    }


def exit_status(done: ScrubResult) -> int:
    """Returns the exit status of a finished scrub."""
    if done.outcome == "stopped" and done.signal:
        return signal_status(done.signal)
    return Exit.OK if done.good else Exit.ATTENTION


def progress_line(now: ScrubState) -> str:
    """Formats the progress."""
    of = f" of {format_size(now.total)} ({format_share(min(1.0, now.scrubbed / now.total))})" if now.total else ""
    return f"{format_size(now.scrubbed)}{of} scrubbed, {errors_in_words(now.errors)}"


def errors_in_words(errors: dict[str, int]) -> str:
    """Formats the non-zero counters."""
    counts = [f"{number:,} {kind}" for kind, number in errors.items() if number]
    return f"errors: {', '.join(counts)}" if counts else "no errors"


def line(done: ScrubResult) -> str:
    """Formats the result."""
    head = f"{done.outcome}{f' ({printable(done.why)})' if done.why else ''}"
    if done.signal and done.outcome == "stopped":
        head += "; the next scrub continues from here"
    part = " in all" if done.resumed else ""
    return f"{head}: {format_size(done.scrubbed)} scrubbed{part}, {errors_in_words(done.errors)}, {format_duration(done.seconds)}"


def _fields(done: ScrubResult, filesystem: str) -> dict[str, Any]:
    return {
        "filesystem": filesystem,
        "outcome": done.outcome,
        "why": done.why or None,
        "resumed": done.resumed,
        "scrubbed": done.scrubbed,
        "seconds": round(done.seconds, 3),
        "errors": done.errors,
        "since": done.begun,
        "unread": [
            {"device": unread_device.devid, "why": unread_device.why, "used": unread_device.used} for unread_device in done.unread
        ],
        "redundancy": redundancy_as_json(done.redundancy) if done.redundancy else None,
    }
