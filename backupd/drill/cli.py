"""`backupd drill`: restores or boots backups for real, compares them, and deletes the result."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import SystemRandom
from typing import Any

import click

from backupd.cli.command_context import dry_run_option, opened, pass_context
from backupd.cli.names import backups_argument
from backupd.drill.boot import BootDrill, require_bootable, run_boot_drill
from backupd.drill.drill_context import DrillContext
from backupd.drill.load import Load, loads_of, run_load_drill
from backupd.drill.restore_drill import RestoreDrill, restore_plan, run_restore_drill
from backupd.files.backup_selector import NEWEST, Restorable, expand_which, find, restorable
from backupd.files.cli.opened_backup import reading
from backupd.files.cli.restore_view import RestoreProgressPrinter
from backupd.repo.pool_context import PoolContext
from backupd.repo.pool_files import hosts_of
from btrkeep.backup_states import COMPLETE
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import ParsedType
from btrkeep.cli.output import print_wrapped
from btrkeep.config.values import FileSample, parse_sample
from btrkeep.decisions.drills import (
    DrillKind,
    DrillOutcome,
    DrillResult,
    drill_object,
    failure_words,
    in_turn,
    note_drill,
    proven_words,
    read_drills,
    repeat_arguments,
)
from btrkeep.errors import Exit, UsageError
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancelled, Status, signal_status
from btrkeep.units import counted, format_duration, format_size, parse_duration, printable


def _sample(text: str) -> FileSample:
    try:
        return parse_sample(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a sample: write a number of names such as 1000, a share such as 5%, or all") from None


def _time(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a time: write it like 30m or 2h")
    return seconds


SAMPLE, DURATION = ParsedType("sample", _sample), ParsedType("duration", _time)


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """The scope of a drill; None: as configured."""

    sample: FileSample | None
    boot: bool
    as_root: bool
    seconds: float | None
    dry_run: bool
    as_json: bool


@click.command("drill")
@backups_argument
@click.option(
    "--sample",
    type=SAMPLE,
    metavar="N|P%|all",
    help="How many names to restore, chosen at random. [default: as configured, 1000 names]",
)
@click.option("--boot", is_flag=True, help="Boot the whole system of HOST in a container, and check that it starts completely.")
@click.option("--as-root", is_flag=True, help="With --boot: boot it even if its root user would be root of this machine.")
@click.option("--time", "seconds", type=DURATION, metavar="TIME", help="How long one drill may take. [default: as configured, 2h]")
@dry_run_option("the backup and files that would be restored")
@json_option
@pass_context
def command(ctx: click.Context, which: tuple[str, ...], **options: Any) -> int:
    """Restore a backup, compare the restored files with it, and delete them.

    HOST chooses a random complete backup of that host, HOST@BACKUP a certain backup; without either, the host whose last drill
    is longest ago is chosen. A random sample of its names, or all of them, is restored into a temporary subvolume of the pool,
    like any restore. rsync then compares content, owners, modes, times, ACLs, attributes and hard links. Result, size and speed
    are recorded: `backupd status` shows the last proven restore.

    If a dump of the backup has a command in `load` of [drill], it is restored too, and the command has to load it.

    With --boot, systemd-nspawn instead boots a writable snapshot of a backup of a whole system, without network. All its units
    must be up within `boot_timeout`, and the `boot_checks` of the host must succeed in it. Nothing is copied, so it takes
    seconds. It does not test the kernel, the boot loader and the hardware. Do not boot a system that an attacker may control:
    use a virtual machine for it. The container gets separate user ids; if that is not possible, it is booted only with
    --as-root.

    The drill pauses for backups, expiry and balancing. Its temporary subvolume is deleted at the end; if the drill was killed,
    by the next drill or night.

    Exit status 0: everything was restored without a difference; 1: there was a difference, or the drill did not complete; 3:
    another drill is running.
    """
    given = DrillOptions(**options)
    if given.boot and (not which or given.sample):
        raise UsageError("--boot needs names of hosts, and excludes --sample", "`backupd drill HOST --boot`")
    if given.as_root and not given.boot:
        raise UsageError("--as-root needs --boot", "`backupd drill HOST --boot --as-root`")
    with opened(ctx, writes=not given.dry_run) as context:
        context.config.require_section("drill")
        limit = given.seconds if given.seconds is not None else context.config.drill.time
        status, printer = Status(), RestoreProgressPrinter(lines=False)
        drilling = DrillContext(context.config, context.pool, context.clock.now(), limit, SystemRandom())
        drilling.waits = lambda who: status.say(f"waits: {who}" if who else "continues")
        shown: list[dict[str, Any]] = []
        failed = False
        with drilling.cancellation.listening():
            try:
                for backup in _backups(context, drilling, which):
                    if given.boot:
                        drilled = _boot_drill(context, backup, as_root=given.as_root)
                        failed |= _boot(context, drilling, drilled, shown, status, given)
                        continue
                    drill = RestoreDrill(backup, given.sample or context.config.drill.sample)
                    status.say(f"drill: {backup.host}@{backup.name}")
                    if given.dry_run:
                        shown.append(_planned(drilling, drill, printer, given.as_json))
                        continue
                    done = run_restore_drill(drilling, drill, printer)
                    printer.clear()
                    failed |= _noted(context, done, shown, given)
                    if loads := _loads(context, backup):
                        status.say(f"load: {backup.host}@{backup.name}")
                        failed |= _noted(context, run_load_drill(drilling, backup, loads), shown, given)
            except Cancelled:
                printer.clear()
                print_wrapped("stopped; all files of the drill are deleted", err=True)
                return signal_status(drilling.cancellation.signal)
    print_answer(shown, (), as_json=given.as_json)
    return Exit.ATTENTION if failed else Exit.OK


def _boot_drill(context: PoolContext, backup: Restorable, *, as_root: bool) -> BootDrill:
    """Raises OperatorError if the backup has no bootable system."""
    require_bootable(backup)
    host = context.config.hosts.get(backup.host)
    return BootDrill(backup, host.boot_checks if host else (), context.config.drill.boot_timeout, as_root)


def _boot(
    context: PoolContext,
    drilling: DrillContext,
    drill: BootDrill,
    shown: list[dict[str, Any]],
    status: Status,
    given: DrillOptions,
) -> bool:
    """Boots one backup; returns True if that failed."""
    backup, where = drill.backup, f"{drill.backup.host}@{drill.backup.name}"
    if given.dry_run:
        shown.append({"host": backup.host, "backup": backup.name, "boot_checks": list(drill.checks)})
        if not given.as_json:
            print_wrapped(f"{where}: would be booted, and {counted(len(drill.checks), 'check')} run in it")
        return False
    status.say(f"boot: {where}")
    return _noted(context, run_boot_drill(drilling, drill), shown, given)


def _noted(context: PoolContext, done: DrillResult, shown: list[dict[str, Any]], given: DrillOptions) -> bool:
    """Records and shows the result of a drill; returns True if it is not proven."""
    note_drill(context.catalogue, done)
    shown.append(drill_object(done))
    if not given.as_json:
        say_drill(done)
    return done.outcome != DrillOutcome.PROVEN


def _loads(context: PoolContext, backup: Restorable) -> list[Load]:
    configured = context.config.drill.load
    if not configured:
        return []
    with reading(f"{backup.host}@{backup.name}"):
        return loads_of(backup, configured)


def _backups(context: PoolContext, drilling: DrillContext, which: tuple[str, ...]) -> Iterator[Restorable]:
    """Yields the backups to drill. Raises UsageError."""
    if not which:
        yield _next(context, drilling)
    for host, name in expand_which(context.pool, which):
        if name:
            yield find(context.pool, host, name)
        else:
            backup = _any_complete(context.pool, host, drilling)
            yield backup or find(context.pool, host, NEWEST)


def _next(context: PoolContext, drilling: DrillContext) -> Restorable:
    """Returns a random complete backup of the host whose last drill is longest ago. Raises UsageError."""
    hosts, drills = hosts_of(context.pool), read_drills(context.catalogue)
    for host in in_turn(hosts, drills, drilling.chance, drilling.now):
        if backup := _any_complete(context.pool, host, drilling):
            return backup
    raise UsageError("there is no complete backup yet", "`backupd run` makes one")


def _any_complete(pool: Pool, host: str, drilling: DrillContext) -> Restorable | None:
    with reading(host):
        restorables = [backup for backup in restorable(pool, host) if backup.state == COMPLETE]
    return drilling.chance.choice(restorables) if restorables else None


def _planned(drilling: DrillContext, drill: RestoreDrill, printer: RestoreProgressPrinter, as_json: bool) -> dict[str, Any]:
    with reading(f"{drill.backup.host}@{drill.backup.name}"):
        plan = restore_plan(drilling, drill, printer)
    printer.clear()
    where = f"{drill.backup.host}@{drill.backup.name}"
    if not as_json:
        print_wrapped(
            f"{where}: {plan.names:,} of {counted(plan.of, 'name')}, {format_size(plan.needed)}, would be restored and compared"
        )
        if plan.left_out:
            print_wrapped(
                f"{counted(plan.left_out, 'file')} would be skipped: the pool has only {format_size(plan.room)} for the drill"
            )
    return {"host": drill.backup.host, "backup": drill.backup.name, "sample": str(drill.sample), **asdict(plan)}


def say_drill(done: DrillResult) -> None:
    """Prints the result of a drill on a terminal."""
    where = f"{done.host}@{done.backup}"
    match done.outcome:
        case DrillOutcome.PROVEN if done.kind == DrillKind.BOOT:
            print_wrapped(f"booted: {where}, {printable(done.text)}")
            print_wrapped("not tested: kernel, boot loader, hardware, network")
        case DrillOutcome.PROVEN if done.kind == DrillKind.LOAD:
            print_wrapped(f"loaded: {where}, {printable(done.text)}")
        case DrillOutcome.PROVEN:
            print_wrapped(f"proven: {proven_words(done)}")
            print_wrapped("restored, and compared by rsync: content, owners, modes, times, ACLs, attributes, hard links")
        case DrillOutcome.FAILED:
            print_wrapped(click.style("failed: ", fg="red", bold=True) + printable(failure_words(done)))
            print_wrapped(f"correct the cause, then repeat the drill: `backupd drill {repeat_arguments(done)}`")
        case DrillOutcome.UNFINISHED:
            print_wrapped(click.style("not finished: ", fg="yellow") + f"{where}: {printable(done.text)}")
    if done.left_out:
        print_wrapped(f"{counted(done.left_out, 'file')} of the sample did not fit into the pool and were skipped")
    print_wrapped(f"{format_duration(done.seconds)} in all; all files of the drill are deleted")
