"""The objects that every command needs first: configuration, pool, catalogue and clock."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from backupd.repo.pool_context import PoolContext, open_configured, require_catalogue_of, require_writable
from btrkeep.cli import print_error
from btrkeep.cli.arguments import ParsedType
from btrkeep.cli.output import survive_closed_stdout
from btrkeep.clock import Clock
from btrkeep.config import Config, ReportingConfig, keep_valid, load_for_reports, load_usable
from btrkeep.errors import OperatorError, PoolUnusable, UsageError, did_you_mean, quoted
from btrkeep.pool.marker import Pool
from btrkeep.process.outliving import StorageHung, outlive
from btrkeep.units import format_time, parse_duration, parse_share, parse_time, show_times_in

if TYPE_CHECKING:  # importing it takes half of a command's start, and some commands read only the pool
    from btrkeep.catalogue import Catalogue


_YEARS = range(1970, 9001)  # of --now: calculations need days before and after it


def _parse_now(text: str) -> datetime:
    moment = parse_time(text)
    if moment.year not in _YEARS:
        raise ValueError(f"{text!r} is not in the years {_YEARS[0]} to {_YEARS[-1]}")
    return moment


TIME = ParsedType("time", _parse_now)
_NOW = "btrkeep.now"
_MOST_FAULTS = 20
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
time_option = click.option(
    "--time",
    "seconds",
    type=ParsedType("duration", parse_duration),
    metavar="2h",
    help="Stop after this time: no further file is started.",
)
pace_option = click.option(
    "--pace",
    type=ParsedType("share", parse_share),
    metavar="P%",
    help="Pause while processes wait for I/O more than this share of the time.",
)

C = TypeVar("C", bound=Callable[..., object])


def _keep_now(ctx: click.Context, _param: click.Parameter, now: datetime | None) -> None:
    ctx.meta[_NOW] = now


def pass_context(command: C) -> C:
    """Like click.pass_context, with the option --now: `opened` and `clock_for` find its time in the context."""
    text = "Run as if the time were TIME; only on a pool made with --rehearsal."
    option = click.option("--now", type=TIME, metavar="TIME", expose_value=False, callback=_keep_now, help=text)
    return option(click.pass_context(command))  # type: ignore[return-value]  # it is called with the context before all else


def dry_run_option(shows: str) -> Callable[[C], C]:
    """Returns the option --dry-run, which shows `shows` and changes nothing."""
    return click.option("--dry-run", is_flag=True, help=f"Show {shows}; change nothing.")


def complete_host(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes configured hosts; none if the configuration cannot be read."""
    config = completing_config(ctx)
    return [name for name in config.hosts if name.startswith(incomplete)] if config else []


def complete_group(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes configured groups."""
    config = completing_config(ctx)
    return [name for name in config.groups if name.startswith(incomplete)] if config else []


def completing_config(ctx: click.Context) -> Config | None:
    """Returns the configuration for completing names; None if it cannot be read."""
    words = ctx.find_root().params
    try:
        return load_usable(words["pool_name"], Path(words["config_file"]) if words["config_file"] else None)
    except OperatorError:
        return None


def load_config(ctx: click.Context) -> Config:
    """Loads the configuration that --pool or --config names, without hosts that have a mistake. Raises ConfigError."""
    chosen = ctx.find_root().obj
    config = load_usable(chosen["pool"], Path(chosen["config"]) if chosen["config"] else None)
    outlive_hung_state(ctx, config)
    show_times_in(config.pool.zone)
    return config


def load_reporting(ctx: click.Context) -> ReportingConfig:
    """Loads the configuration for commands that only report: if it is invalid, the last valid one. Raises ConfigError if there is
    none.
    """
    chosen = ctx.find_root().obj
    reporting = load_for_reports(chosen["pool"], Path(chosen["config"]) if chosen["config"] else None)
    if not reporting.is_bare:
        outlive_hung_state(ctx, reporting.config)
    show_times_in(reporting.config.pool.zone)
    return reporting


def complain_of_faults(faults: Sequence[str]) -> None:
    """Prints the mistakes because of which parts of the configuration are skipped."""
    for fault in faults[:_MOST_FAULTS]:
        print_error(OperatorError(fault))
    if len(faults) > _MOST_FAULTS:
        print_error(OperatorError(f"and {len(faults) - _MOST_FAULTS:,} more mistakes: `backupd check` lists them"))


def clock_for(ctx: click.Context, pool: Pool) -> Clock:
    """Returns the clock, stopped at the time of --now if that is given. Raises UsageError for --now with a pool that was not made
    for rehearsals.
    """
    now = given_now(ctx)
    if now and not pool.rehearsal:
        raise UsageError("--now works only on a pool that was made with `backupd init --rehearsal`", "leave --now out")
    return Clock(now)


def present(ctx: click.Context, config: Config) -> datetime:
    """Returns the time of --now, or the machine's. Opens the pool only for --now. Raises as `clock_for` does."""
    return clock_for(ctx, open_configured(config)).now() if given_now(ctx) else datetime.now(UTC)


def given_now(ctx: click.Context) -> datetime | None:
    """Returns the time of --now, if it was given."""
    given: datetime | None = ctx.meta.get(_NOW)
    return given


@contextmanager
def opened(
    ctx: click.Context, *, writes: bool = False, stand_in: bool = False, config: Config | None = None
) -> Iterator[PoolContext]:
    """Opens and checks everything; with `writes`, also that the pool is writable. Raises any OperatorError.

    With `writes` the command also continues when its output is no longer read.

    With `stand_in` an unusable catalogue is replaced by one in memory, and `problem` shows why. A lost catalogue is a warning,
    except with `writes`, because commands that write first update the catalogue from the pool.

    `config`: a configuration for reports, whose mistakes the caller shows.
    """
    from btrkeep.catalogue import Catalogue

    if config is None:
        config = load_config(ctx)
        complain_of_faults(config.faults)
    pool = open_configured(config)
    if writes:
        require_writable(pool)
        survive_closed_stdout()
    clock = clock_for(ctx, pool)
    if writes:
        keep_valid(config, clock.now())
    with ExitStack() as held:
        problem = None
        if stand_in:
            from backupd.repo.reconcile import open_catalogue_or_memory

            catalogue, problem = held.enter_context(open_catalogue_or_memory(config.pool.state, pool.id))
        else:
            try:
                catalogue = held.enter_context(Catalogue.open(config.pool.state))
            except OSError as error:
                hint = f"check that its filesystem is mounted, not read-only and not full: df {config.pool.state}"
                raise OperatorError(f"the catalogue in {config.pool.state} cannot be opened: {error.strerror}", hint) from None
        recorded_id = catalogue.pool_id()
        if recorded_id is None:
            catalogue.set_pool_id(pool.id)
        require_catalogue_of(config, pool, recorded_id)
        if clock.is_pool_time(rehearsal=pool.rehearsal):
            catalogue.know_since(clock.now())
        if writes:
            from backupd.repo.publish import publish_to_dashboard

            publish_to_dashboard(config, pool, catalogue, clock)
        if problem:
            yield PoolContext(config, pool, catalogue, clock, problem)
            return
        from backupd.expire.trust import check_trust, lost_catalogue

        trust_check = check_trust(pool, catalogue, clock.now())
        if trust_check.lost and not writes:
            print_error(lost_catalogue(config.pool.state))
        yield PoolContext(config, pool, catalogue, clock, None, trust_check.lost, trust_check.clock)


@dataclass(frozen=True, slots=True)
class ShownState:
    """The pool and its catalogue, or only the catalogue if the pool cannot be used."""

    config: Config
    """The configuration."""
    catalogue: "Catalogue"
    """The catalogue."""
    clock: Clock
    """The clock."""
    lost: bool = False
    """True if the catalogue lists no backup of the pool."""
    pool: Pool | None = None
    """The pool; None if it cannot be used."""
    error: PoolUnusable | None = None
    """Why the pool cannot be used."""


@contextmanager
def opened_to_show(ctx: click.Context) -> Iterator[ShownState]:
    """Opens everything like `opened`, or only the catalogue if the pool cannot be used: then the block shows the last recorded
    state, and `error` is raised after it. Raises any OperatorError.
    """
    config = load_config(ctx)
    complain_of_faults(config.faults)
    with ExitStack() as held:
        try:
            context = held.enter_context(opened(ctx, config=config))
        except PoolUnusable as error:
            shown = _catalogue_alone(ctx, config, error, held)
        else:
            shown = ShownState(context.config, context.catalogue, context.clock, context.lost, context.pool)
        yield shown
        if shown.error:
            raise shown.error


def _catalogue_alone(ctx: click.Context, config: Config, error: PoolUnusable, held: ExitStack) -> ShownState:
    """Raises the pool's error if the catalogue cannot be read either."""
    from btrkeep.catalogue import Catalogue

    if given_now(ctx):
        raise error
    try:
        catalogue = held.enter_context(Catalogue.open_readonly(config.pool.state))
        catalogue.pool_id()
    except OperatorError:
        raise error from None
    message = f"{error.message}; this is the last recorded state, without holds, expiry and actions, which only the pool has"
    return ShownState(config, catalogue, Clock(), error=PoolUnusable(message, error.hint))


def fill_stand_in(context: PoolContext) -> None:
    """Fills a catalogue in memory from the pool and reports why it is needed; does nothing with the real one."""
    if context.problem is None:
        return
    from backupd.expire.trust import recall_clocks
    from backupd.repo.reconcile import reconcile

    error = context.problem
    print_error(OperatorError(f"{error.message}; this command reads the backups' own records instead", error.hint))
    reconcile(context.pool, context.catalogue, format_time(context.clock.now()))
    recall_clocks(context.catalogue, context.config.pool.state)


def require_host(config: Config, catalogue: "Catalogue", host: str) -> None:
    """Raises UsageError when the host is neither configured nor known to the catalogue."""
    if host in config.every_host:
        return
    hosts = catalogue.hosts()
    if host not in hosts:
        raise no_host(host, {*config.every_host, *hosts})


def no_host(host: str, hosts: Iterable[str]) -> UsageError:
    """Returns the error for an unknown host."""
    return UsageError(f"there is no host {quoted(host)}", did_you_mean(host, sorted(hosts), "`backupd status` lists them"))


# Some commands continue when the state folder stops answering: docs/decisions/0077.
REPORTING = frozenset(("status", "check", "notify", "metrics"))
"""Commands that continue without the catalogue, so the fault is reported at once."""
SHOWING = frozenset(("list", "log", "doctor", "day", "trend", "forecast"))
"""Commands that end with an error."""
WORKING = frozenset(("run", "run-job", "expire", "sample"))
"""Commands that wait for a while first, because the server may be restarting."""
WORK_PATIENCE = 600.0  # seconds
_DONE = "btrkeep.outlives"


def outlive_hung_state(ctx: click.Context, config: Config) -> None:
    """Continues in a child process if this is one of these commands and the state folder is remote. Raises StorageHung in the
    parent.
    """
    name, meta = ctx.info_name, ctx.find_root().meta
    is_working = name in WORKING
    if meta.get(_DONE) or not (is_working or name in REPORTING or (name in SHOWING and not ctx.params.get("name"))):
        return
    meta[_DONE] = True
    try:
        outlive(config.pool.state, WORK_PATIENCE if is_working else 0, keeps_output=not is_working)
    except StorageHung:
        if name not in REPORTING:
            raise
