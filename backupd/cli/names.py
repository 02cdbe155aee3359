"""Hosts, backups and days as an operator types them: completed by the shell, and checked with similar names."""

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import click

from backupd.cli.command_context import ShownState, no_host, opened
from backupd.repo.final_backups import LATEST
from backupd.repo.notes_json import HOLD, read_notes
from backupd.repo.pool_context import PoolContext, open_configured, writing
from backupd.repo.pool_files import hosts_of, is_pattern, names_of
from btrkeep.backup_states import EXPIRED
from btrkeep.cli.arguments import ParsedType
from btrkeep.config import Config, load_usable
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.units import format_time, local_time, parse_time

if TYPE_CHECKING:
    from backupd.actions.hold import HoldResult

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_WALL_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", re.ASCII)
Completion = Callable[[click.Context, click.Parameter, str], list[str]]
_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])


def _parse_day(text: str) -> date:
    with suppress(ValueError):
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
        if _WALL_TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    if not _DAY.fullmatch(text[:10]) or len(text) == 10:
        raise ValueError(f"{text!r} is not a date: write it like 2027-01-01, 2027-01-01T06:00 or 2027-01-01T06:00:00Z")
    return parse_time(text)


DAY = ParsedType("date", _parse_day)
"""A date, or a time: a datetime, without a zone if none was typed (see `moment_of`)."""


def moment_of(day: date, zone: ZoneInfo) -> datetime:
    """Returns the start of the day in the pool's zone. A time without a zone is read in the pool's zone; a time with one is
    unchanged.

    Raises UsageError for a time that occurs twice or not at all in the pool's zone, and at the limits of the calendar.
    """
    try:
        if isinstance(day, datetime):
            return day if day.tzinfo else _on_the_clocks(day, zone)
        return datetime.combine(day, time(0), zone).astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{day} is out of range", "give a date such as 2026-11-19") from None


def _on_the_clocks(wall: datetime, zone: ZoneInfo) -> datetime:
    moments = [wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
    if moments[0].utcoffset() != moments[1].utcoffset():
        typed = " or ".join(local_time(moment.astimezone(UTC)) for moment in moments)
        raise UsageError(
            f"clocks in {zone.key} show {wall.time()} twice or not at all on {wall.date()}", f"write the offset too: {typed}"
        )
    return moments[0].astimezone(UTC)


def require_host_or_folder(context: PoolContext | ShownState, host: str) -> None:
    """Raises UsageError when the host is not configured, has no folder in the pool and is not in the catalogue."""
    folders = hosts_of(context.pool) if context.pool else []
    hosts = {*context.config.every_host, *folders, *context.catalogue.hosts()}
    if host not in hosts:
        raise no_host(host, hosts)


@contextmanager
def locked_host(ctx: click.Context, host: str, action: str) -> Iterator[tuple[PoolContext, datetime]]:
    """Yields the opened context and its current time in whole seconds, while holding the host's lock. Raises any OperatorError."""
    with opened(ctx, writes=True) as context:
        require_host_or_folder(context, host)
        moment = context.clock.now().replace(microsecond=0)
        with take_lock(context.pool.host_lock(host), f"backupd {action}", format_time(moment)), writing(context.pool):
            yield context, moment


def unreadable_lines(host: str, done: "HoldResult") -> list[str]:
    """Returns a line if a backup cannot be read, so that only its notes were changed."""
    return [f"{host} {done.name} itself cannot be read: `backupd damaged {host}` lists the damage"] if done.is_unreadable else []


def name_argument(complete: Completion) -> Callable[[_CommandT], _CommandT]:
    """The argument NAME after the argument `host`; it may be left out if that is HOST@NAME."""
    return click.argument("name", metavar="NAME", required=False, callback=_name_behind_host, shell_complete=complete)


def _name_behind_host(ctx: click.Context, param: click.Parameter, name: str | None) -> str:
    if name is not None:
        return name
    ctx.params["host"], _, name = ctx.params.get("host", "").partition("@")
    if not name:
        raise click.MissingParameter(ctx=ctx, param=param)
    return name


def backups_argument(command: _CommandT) -> _CommandT:
    """The argument `which`: any number of HOST or HOST@BACKUP. HOST may be a pattern where `expand_which` reads it."""
    return click.argument("which", nargs=-1, metavar="[HOST[@BACKUP]]...", shell_complete=complete_which)(command)


def expand_hosts(words: Iterable[str], hosts: Iterable[str]) -> list[str]:
    """Replaces each pattern, such as 'web*', by the matching hosts; a name stays, whether or not the host exists. Each host appears
    once.

    Raises UsageError for a pattern that matches no host. Only for commands that delete nothing.
    """
    names, all_hosts = dict[str, None](), list(hosts)
    for word in words:
        matching = fnmatch.filter(all_hosts, word) if is_pattern(word) else [word]
        if not matching:
            raise UsageError(f"no host matches {word}", "`backupd host list` shows the hosts")
        names |= dict.fromkeys(matching)
    return list(names)


def hosts_named(patterns: Iterable[str], hosts: Iterable[str], problem: str) -> list[str]:
    """Returns the hosts that match the patterns, each once. Raises UsageError if a pattern matches none."""
    chosen: dict[str, None] = {}
    for pattern in patterns:
        named = fnmatch.filter(hosts, pattern)
        if not named:
            raise UsageError(f"{pattern}: no host of that name {problem}", "`backupd list` lists the hosts")
        chosen |= dict.fromkeys(named)
    return list(chosen)


def complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names of the backups of the host that was typed before, and `latest`."""
    return _completed(ctx, incomplete, lambda pool, host: names_of(pool, host) - {WORKING})


def complete_noted(key: str) -> Completion:
    """The names of the backups with this kind of note: HOLD, EXPIRED."""

    def noted(pool: Pool, host: str) -> set[str]:
        notes = read_notes(pool.host(host))
        return {name for name in names_of(pool, host) if notes.note(name, key)}

    return lambda ctx, _param, incomplete: _completed(ctx, incomplete, noted)


complete_held, complete_expired = complete_noted(HOLD), complete_noted(EXPIRED)


def complete_host_of_pool(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes hosts that have a folder in the pool, configured or not."""
    opened_pool = _config_and_pool(ctx)
    return [host for host in hosts_of(opened_pool[1]) if host.startswith(incomplete)] if opened_pool else []


def complete_which(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """HOST, and after an @ the names of its backups."""
    pool = completing(ctx)
    if not pool:
        return []
    host, at, which = incomplete.partition("@")
    if not at:
        return [host_name for host_name in hosts_of(pool) if host_name.startswith(host)]
    if "/" in host:
        return []
    names = sorted(names_of(pool, host) - {WORKING}, reverse=True)
    return [f"{host}@{name}" for name in [*names, LATEST] if name.startswith(which)]


def require_confirmation(question: str, answer: str, yes: bool, as_json: bool) -> None:
    """Asks for `answer` to be typed, unless `yes`. Raises UsageError without a terminal, OperatorError for any other answer."""
    if yes:
        return
    if not os.isatty(0):
        raise UsageError("there is no terminal to ask for confirmation", "add --yes if you are sure")
    if click.prompt(f'{question}: type "{answer}" to continue', default="", show_default=False, err=as_json) != answer:
        raise OperatorError("the confirmation does not match: nothing was changed", f'type "{answer}" exactly')


def _completed(ctx: click.Context, incomplete: str, names: Callable[[Pool, str], set[str]]) -> list[str]:
    opened_pool, host = _config_and_pool(ctx), ctx.params.get("host")
    if not opened_pool or not host or "/" in host:
        return []
    try:
        return [name for name in [*sorted(names(opened_pool[1], host), reverse=True), LATEST] if name.startswith(incomplete)]
    except OperatorError:
        return []


def completing(ctx: click.Context) -> Pool | None:
    """Returns the pool for completing names; None if it cannot be opened."""
    opened_pool = _config_and_pool(ctx)
    return opened_pool[1] if opened_pool else None


def _config_and_pool(ctx: click.Context) -> tuple[Config, Pool] | None:
    """Returns None if the configuration or the pool does not exist: then nothing is completed."""
    words = ctx.find_root().params
    try:
        config = load_usable(words["pool_name"], Path(words["config_file"]) if words["config_file"] else None)
        return config, open_configured(config)
    except (OperatorError, OSError):
        return None
