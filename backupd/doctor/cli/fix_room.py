"""`backupd doctor --fix room`: shows the plan, does it, and prints the result."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import click

from backupd.doctor.room_fix import RoomFix, RoomFixed, attach_left
from backupd.doctor.room_words import attached_error, plan_lines
from backupd.repo.context import open_configured
from btrkeep.cli import echo_json
from btrkeep.config import Config
from btrkeep.errors import Exit, PoolUnusable
from btrkeep.pool.temporary_devices import read_record
from btrkeep.units import format_size, printable


def fix_room(config: Config, now: Callable[[], datetime], named: Sequence[Path], *, dry_run: bool, as_json: bool) -> int:
    """Runs it, or with `dry_run` shows what it would do. Raises OperatorError."""
    is_left = read_record(config.pool.state) is not None
    try:
        pool = open_configured(config)
    except PoolUnusable:
        if is_left and not dry_run and (loops := attach_left(config.pool.state)):
            raise attached_error(loops, config.pool.path) from None
        raise
    work = RoomFix(config, pool, now(), named, (lambda _: None) if as_json else lambda line: click.echo(printable(line)))
    planned = work.planned()
    if not as_json:
        for line in plan_lines(planned.plan, planned.devices, is_left=is_left):
            click.echo(printable(line))
    fixed = planned if dry_run else work.run()
    if as_json:
        echo_json(_as_json(fixed, dry_run=dry_run))
    elif dry_run:
        click.echo("room: --dry-run: nothing was done")
    elif fixed.devices:
        click.echo(f"room: done: {format_size(fixed.unallocated)} are unallocated, and the temporary device is removed")
    return Exit.OK


def _as_json(fixed: RoomFixed, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "needed": fixed.plan.is_needed,
        "goal": fixed.goal,
        "gain": fixed.plan.gain,
        "before": fixed.plan.unallocated,
        "unallocated": fixed.unallocated,
        "devices": [str(device.path) for device in fixed.devices],
        "steps": fixed.steps,
        "reason": fixed.reason,
    }
