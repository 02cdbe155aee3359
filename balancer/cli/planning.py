"""From options to settings, and from these to a plan on the screen."""

import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from balancer.by_device import require_devices
from balancer.choose import FLOORS, Floors, why_not
from balancer.cli.options import POLICIES
from balancer.cli.plan_view import cut_of, lines
from balancer.cli.run_json import plan_as_json
from balancer.cost_model import DEFAULT, Model, fit
from balancer.history_catalogue import measured
from balancer.planning import FilesystemReading, look, planned
from balancer.run_types import RoomFloor, RunSettings
from balancer.survey import identity
from btrkeep.cli import echo_json
from btrkeep.pool.opening import open_btrfs

if TYPE_CHECKING:
    from btrkeep.config import BalanceSettings

_ANY = 1 << 62
_PRESSURE = 0.4
_Limit = TypeVar("_Limit", int, float)


def settings_of(
    balance: "BalanceSettings | None",
    budget: int | str | None,
    seconds: float | str | None,
    policy: str | None,
    min_score: float | None,
    min_benefit: float | None,
    *,
    devices: tuple[int, ...] = (),
    fill: int | None = None,
    until: datetime | None = None,
    least: int | float | None = None,
    yields: bool = True,
    pressure: float | str | None = None,
    patience: float | None = None,
) -> RunSettings:
    """Returns the settings from the options, and from the pool's configuration (`balance`) for options that are None.

    "none" is no limit. `balance` is None if no pool was named.
    """
    policy = policy or (balance.policy if balance else POLICIES[0])
    settings = RunSettings(
        policy=policy,
        floors=_floors(policy, min_score, min_benefit),
        budget=_limit(budget, balance.budget if balance else None),
        time=_limit(seconds, balance.time if balance else None),
        until=until,
        yield_to_backups=yields,
        only_to_expiry=balance.while_backups if balance else False,
        max_pressure=_limit(pressure, balance.max_pressure if balance else _PRESSURE),
        devices=devices,
        fill=fill,
    )
    floor = _floor(balance) if least is None else least
    if floor is not None:
        settings = replace(settings, min_unallocated=RoomFloor(floor, 1.0) if isinstance(floor, int) else RoomFloor(_ANY, floor))
    return settings if patience is None else replace(settings, wait_for_others=True, patience=patience)


def _limit(option: _Limit | str | None, configured: _Limit | None) -> _Limit | None:
    if option is None:
        return configured
    return None if isinstance(option, str) else option


def _floor(balance: "BalanceSettings | None") -> int | float | None:
    floor = balance.min_unallocated if balance else None
    if floor is None:
        return None
    return floor.size if floor.share is None else floor.share


def _floors(policy: str, min_score: float | None, min_benefit: float | None) -> Floors:
    floors = FLOORS[policy]
    return replace(
        floors,
        min_score=floors.min_score if min_score is None else min_score,
        min_benefit=floors.min_benefit if min_benefit is None else min_benefit,
    )


def model_of(state: Path | None, filesystem: str) -> Model:
    """Learnt from what balanced block groups of this filesystem took, when there is a catalogue of them. Raises OperatorError."""
    return fit(measured(state, filesystem)) if state else DEFAULT


def show_plan(path: Path, settings: RunSettings, state: Path | None, *, as_json: bool) -> None:
    """Everything that would be balanced. Raises OperatorError."""
    with open_btrfs(path) as fd:
        filesystem = identity(path)
        require_devices(path if path.is_dir() else path.resolve().parent, settings)
        seen = look(fd, path if path.is_dir() else path.resolve().parent)
        steps = planned(fd, seen, settings, model_of(state, filesystem))
        alone = "" if steps else left_alone(seen, settings)
    now = seen.numbers()
    cut = cut_of(steps, settings, datetime.now(UTC))
    if as_json:
        echo_json(plan_as_json(filesystem, now, steps, cut, settings))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    click.echo("\n".join(lines(filesystem, now, steps, cut, alone, width)))


def left_alone(seen: FilesystemReading, settings: RunSettings) -> str:
    """Says why no block group is worth it, by the worst one."""
    groups = seen.survey.groups
    if not len(groups.vaddr):
        return "there are no data block groups yet"
    worst = int(groups.score.argmax())
    reason = why_not(
        groups, worst, settings.floors, unallocated=seen.room.unallocated, policy=settings.policy, by_device=settings.by_device
    )
    name = f"the block group with the highest score is the one at {groups.vaddr[worst]}"
    return f"{name}, and {reason or 'what is in it fits nowhere else'}"
