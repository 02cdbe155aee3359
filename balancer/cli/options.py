"""The argument that names a filesystem, the options that name a pool, and those of both `plan` and `run`.

Without them, the catalogue of the pool on the filesystem is used.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from btrkeep.choices import BALANCE_POLICIES, DEFAULT_POLICY
from btrkeep.cli import json_option
from btrkeep.cli.arguments import GivenPath, ParsedType, Value, complete_mount, pool_options, require_one_pool
from btrkeep.units import parse_duration, parse_share, parse_size, parse_time, show_times_in

if TYPE_CHECKING:
    from btrkeep.config import BalanceSettings

mount_point = click.argument(
    "path", metavar="MOUNTPOINT", required=False, type=GivenPath(path_type=Path), shell_complete=complete_mount
)
"""For every command that reads a filesystem. Without it, `balance_target` uses the filesystem of the named pool."""

which_pool = pool_options("the pool on the filesystem")


@dataclass(frozen=True, slots=True)
class BalanceTarget:
    """The filesystem of `path`, and the [balance] section of the named pool; None without a pool."""

    path: Path
    balance: "BalanceSettings | None" = None


def balance_target(path: Path | None, pool: str | None, config: Path | None) -> BalanceTarget:
    """Resolves the arguments of the command line. Raises ConfigError, PoolUnusable and UsageError.

    The pool's marker is checked if only a name was given, because the pool might not be mounted.
    """
    require_one_pool(pool, config)
    if pool is None and config is None:
        return BalanceTarget(_needed(path))
    from btrkeep.config import load_usable  # importing it takes longer than scanning a whole filesystem

    usable = load_usable(pool or "main", config)
    show_times_in(usable.pool.zone)
    usable.require_section("balance")
    if path is None:
        from btrkeep.pool.marker import open_pool

        open_pool(usable.pool.path)
    return BalanceTarget(path or usable.pool.path, usable.balance)


def _needed(path: Path | None) -> Path:
    if path is None:
        ctx = click.get_current_context()
        raise click.MissingParameter(ctx=ctx, param=next(param for param in ctx.command.params if param.name == "path"))
    return path


NONE = "none"
_HOURS = re.compile(r"\d?\d:\d\d", re.ASCII)
_NO_TIME = "{text!r} is not a time: write it like 06:00, or 2026-11-20T06:00:00Z"


def size_or_share(text: str) -> int | float:
    """Parses "4GiB" into bytes as int, "2%" into a fraction as float. Raises ValueError."""
    if "%" in text:
        return parse_share(text)
    try:
        return parse_size(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a size nor a share: write it like 4GiB or 2%") from None


def or_none(parse: Callable[[str], Value]) -> Callable[[str], Value | str]:
    """Returns a parser that keeps "none", which means no limit; an option that is not given means the configured value."""
    return lambda text: text if text == NONE else parse(text)


def pressure(text: str) -> float | None:
    """Parses a fraction from "40%" or "40"; returns None for "none", which disables the check. Raises ValueError."""
    return None if text == "none" else parse_share(text if "%" in text else f"{text}%")


def moment(text: str, now: datetime | None = None, zone: tzinfo | None = None) -> datetime:
    """Parses "06:00" into the next time of that in `zone`, or in the time zone of this machine without one; or parses an RFC 3339
    time. Raises ValueError.

    `now`: in the same time zone, without naming it; None: the present time.
    """
    if not _HOURS.fullmatch(text):
        try:
            return parse_time(text)
        except ValueError:
            raise ValueError(_NO_TIME.format(text=text)) from None
    try:
        at = time.fromisoformat(text.zfill(5))
    except ValueError:
        raise ValueError(_NO_TIME.format(text=text)) from None
    now = now or datetime.now(zone).replace(tzinfo=None)  # local wall time: when clocks change, 06:00 is still 06:00
    following = datetime.combine(now.date(), at)
    if following <= now:
        following += timedelta(days=1)
    return (following.replace(tzinfo=zone) if zone else following).astimezone(UTC)


def _valid_moment(text: str) -> str:
    moment(text)
    return text


SIZE = ParsedType("size", or_none(parse_size))
TIME = ParsedType("duration", or_none(parse_duration))
DURATION = ParsedType("duration", parse_duration)
MOMENT = ParsedType("time", _valid_moment)
"""Accepts a text for `moment`: the zone of a pool is read later."""
ROOM = ParsedType("size", size_or_share)
PRESSURE = ParsedType("percent", or_none(pressure))

_POLICY = f"What to balance first; see above.  [default: {DEFAULT_POLICY}]"
_CHOOSING = (
    click.option(
        "--budget", type=SIZE, metavar="SIZE", help="The maximum amount of data to move, such as 20GiB; `none`: no limit."
    ),
    click.option("--time", type=TIME, metavar="TIME", help="The maximum duration, such as 2h; `none`: no limit."),
    click.option("--policy", type=click.Choice(list(BALANCE_POLICIES)), help=_POLICY),
    click.option(
        "--min-score",
        type=click.FloatRange(min=0),
        metavar="S",
        help="Only block groups with a score of at least S. If all are smaller than 1 GiB, S is reduced in proportion.",
    ),
    click.option(
        "--min-benefit",
        type=click.FloatRange(min=0),
        metavar="B",
        help="Only block groups whose balance removes a score of at least B per GiB moved.",
    ),
    click.option(
        "--device",
        "devices",
        type=click.IntRange(min=1),
        multiple=True,
        metavar="DEVID",
        help="Only block groups on this device, by number. May be given several times.",
    ),
    click.option(
        "--fill",
        type=click.IntRange(min=1),
        metavar="DEVID",
        help="Only block groups that are not on this device: to fill a new device.",
    ),
    json_option,
)


def choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that select what is balanced, and how much: those of `plan_and_run.settings_of`, and `as_json`.

    In the command's help, the policies replace the word POLICIES.
    """
    command.__doc__ = (command.__doc__ or "").replace(
        "POLICIES", "\n      ".join(map("{0[0]:9} {0[1]}".format, BALANCE_POLICIES.items()))
    )
    for option in reversed(_CHOOSING):
        command = option(command)
    return command
