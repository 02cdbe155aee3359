"""From options to settings, and from these to a plan on the screen, or to a run with its display, its record and its
exit status.
"""

import shutil
import sys
from contextlib import ExitStack
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from balancer.balance_history import Recorder, measured_balances
from balancer.balance_plan import FilesystemReading, plan_all, read_filesystem, require_devices
from balancer.balancing import Balancing
from balancer.choose import FLOORS, Floors, why_not
from balancer.cli.options import NONE
from balancer.cli.plan_view import cut_of, lines, plan_as_json, report_as_json
from balancer.cli.run_view import BalanceLines, BalanceStatus, warnings_on_stderr
from balancer.cost_model import DEFAULT, Model, fit
from balancer.run_types import INTENDED, BalanceEvent, Report, RoomFloor, RunSettings, StopReason
from balancer.survey import filesystem_uuid
from btrkeep.cli import print_answer
from btrkeep.cli.output import has_live_terminal
from btrkeep.errors import Exit
from btrkeep.pool.mounts import open_btrfs
from btrkeep.process.progress import ProgressSink, ProgressSinks, is_service, signal_status

if TYPE_CHECKING:
    from btrkeep.config import BalanceSettings


_ANY = 1 << 62


def settings_of(
    balance: "BalanceSettings | None",
    *,
    min_score: float | None = None,
    min_benefit: float | None = None,
    min_unallocated: int | float | None = None,
    patience: float | None = None,
    **options: Any,
) -> RunSettings:
    """Returns the settings from the options, and from the pool's configuration (`balance`) for options that are None.

    `options`: names of RunSettings; "none" is no limit. `balance`: None if no pool was named.
    """
    values: dict[str, Any] = {}
    if balance:
        values = {field.name: getattr(balance, field.name) for field in fields(balance) if field.name in RunSettings.__slots__}
        values["only_to_expiry"] = balance.while_backups
    floor = values.pop("min_unallocated", None)
    values |= {name: None if option == NONE else option for name, option in options.items() if option is not None}
    if min_unallocated is None and floor is not None:
        min_unallocated = floor.size if floor.share is None else floor.share
    if min_unallocated is not None:
        floors = (min_unallocated, 1.0) if isinstance(min_unallocated, int) else (_ANY, min_unallocated)
        values["min_unallocated"] = RoomFloor(*floors)
    if patience is not None:
        values |= {"wait_for_others": True, "patience": patience}
    settings = RunSettings(**values)
    return replace(settings, floors=_floors(settings.policy, min_score, min_benefit))


def _floors(policy: str, min_score: float | None, min_benefit: float | None) -> Floors:
    floors = FLOORS[policy]
    return replace(
        floors,
        min_score=floors.min_score if min_score is None else min_score,
        min_benefit=floors.min_benefit if min_benefit is None else min_benefit,
    )


def model_of(state: Path | None, filesystem: str) -> Model:
    """Returns the model for this filesystem, learnt from its balanced block groups if a catalogue has them. Raises
    OperatorError.
    """
    return fit(measured_balances(state, filesystem)) if state else DEFAULT


def show_plan(path: Path, settings: RunSettings, state: Path | None, *, as_json: bool) -> None:
    """Prints everything that would be balanced. Raises OperatorError."""
    with open_btrfs(path) as fd:
        filesystem = filesystem_uuid(path)
        require_devices(path if path.is_dir() else path.resolve().parent, settings)
        seen = read_filesystem(fd, path if path.is_dir() else path.resolve().parent)
        steps = plan_all(fd, seen, settings, model_of(state, filesystem))
        alone = "" if steps else left_alone(seen, settings)
    now = seen.numbers()
    cut = cut_of(steps, settings, datetime.now(UTC))

    def show() -> None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        click.echo("\n".join(lines(filesystem, now, steps, cut, alone, width)))

    print_answer(plan_as_json(filesystem, now, steps, cut, settings), show, as_json=as_json)


def left_alone(seen: FilesystemReading, settings: RunSettings) -> str:
    """Returns why no block group is worth it, with the worst one as example."""
    groups = seen.survey.groups
    if not len(groups.vaddr):
        return "there are no data block groups yet"
    worst = int(groups.score.argmax())
    reason = why_not(
        groups, worst, settings.floors, unallocated=seen.room.unallocated, policy=settings.policy, by_device=settings.by_device
    )
    name = f"the block group at {groups.vaddr[worst]} has the highest score"
    return f"{name}, and {reason or 'its data fits nowhere else'}"


def balance(path: Path, settings: RunSettings, state: Path | None, *, as_json: bool, quiet: bool) -> int:
    """Balances; returns the exit status. `state`: the folder of the catalogue for the record. Raises OperatorError."""
    with open_btrfs(path):
        filesystem = filesystem_uuid(path)
        require_devices(path if path.is_dir() else path.resolve().parent, settings)
    model = model_of(state, filesystem)
    with ExitStack() as held:
        shown = _sink(held, as_json=as_json, quiet=quiet)
        sinks = [shown]
        if state:
            warn = ProgressSinks(shown).notice
            sinks.insert(0, held.enter_context(Recorder(state, filesystem, path.resolve(), warn)))
        if is_service():
            sinks.append(BalanceStatus())
        balancing = Balancing(path, settings, model, sinks)
        with balancing.cancellation.listening():
            report = balancing.run()
    print_answer(report_as_json(report, settings), (), as_json=as_json)
    return exit_status(report)


def exit_status(report: Report) -> int:
    """Returns the exit status of a finished run. A block group that could not be moved is a problem, unless the reason is a swap
    file.
    """
    if report.reason is StopReason.SIGNAL and report.signal:
        return signal_status(report.signal)
    is_well = report.reason in INTENDED and not any(step.is_failure for step in report.steps)
    return Exit.OK if is_well else Exit.ATTENTION


def _sink(held: ExitStack, *, as_json: bool, quiet: bool) -> ProgressSink[BalanceEvent]:
    if as_json:
        return warnings_on_stderr
    if not quiet and has_live_terminal():
        from balancer.cli.balance_live import BalanceDisplay

        live = BalanceDisplay()
        held.callback(live.close)
        return live
    return BalanceLines(quiet=quiet)
