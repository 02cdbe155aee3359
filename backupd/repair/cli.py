"""`backupd repair`: makes a repaired copy of each damaged backup."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from os import fsdecode
from pathlib import Path
from typing import Any

import click

from backupd.cli.command_context import dry_run_option, opened, pass_context, yes_option
from backupd.cli.names import backups_argument, require_confirmation, require_host_or_folder
from backupd.expire.cli.expire import expiry_sinks
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.trust import lost_catalogue
from backupd.files.backup_selector import find, parse_which
from backupd.proof.cli.damaged import ranges
from backupd.proof.read_errors import OwnReads
from backupd.repair.plan import DamagedPath, FileFate, RepairPlan, RepairPlanner, RepairProof
from backupd.repair.repaired_copy import RepairDone, repair
from backupd.repo.final_backups import is_unreadable
from backupd.repo.notes_json import read_notes
from backupd.repo.pool_context import PoolContext, writing
from backupd.repo.pool_files import names_of
from btrkeep.backup_states import EXPIRED
from btrkeep.catalogue import WHOLE
from btrkeep.cli import json_option, print_answer, print_error
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.listings import table
from btrkeep.cli.output import print_wrapped
from btrkeep.errors import Exit, LockHeld, OperatorError, PoolUnusable, UsageError
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.progress import Cancellation, Cancelled
from btrkeep.units import counted, printable

_HEADERS = ["HOST", "PATH", "BACKUPS", "REPAIRED FROM", "PROVEN BY"]
_PROVEN = {
    RepairProof.CHECKSUM: "checksum",
    RepairProof.READABLE: "size, time, and readable content",
    RepairProof.TIME: "only size and time",
}
_LEFT = {
    FileFate.WHOLE: "it is undamaged: `backupd verify` removes it from this list",
    FileFate.UNPROVEN: "no checksum: --unproven uses the copy",
    FileFate.NO_COPY: "no copy is known",
    FileFate.HOST_DIFFERS: "the host has other content",
    FileFate.NO_FILE: "not a plain file, or unreadable",
}


@click.command("repair")
@backups_argument
@click.option(
    "--from",
    "folders",
    multiple=True,
    type=GivenPath(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also use copies in this folder, with the same paths as on the host. May be given several times.",
)
@click.option("--unproven", is_flag=True, help="Also use a copy of the same size and time without a recorded checksum as proof.")
@dry_run_option("the repairs and the copies they use")
@yes_option
@json_option
@pass_context
def command(
    ctx: click.Context,
    which: tuple[str, ...],
    folders: tuple[Path, ...],
    unproven: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Make a repaired copy of each damaged backup: of all hosts, of each HOST, or of HOST@BACKUP.

    The plan comes first: each damaged file, and the copy that would replace it. A copy is taken from another backup of the
    host, or from a DIR, if it has the checksum recorded for the damaged file. With --unproven, a copy without a recorded
    checksum is used too, if its size and time, and all still readable content, are equal.

    The repaired copy is a separate backup, named one second later and marked as repaired. The damaged backup is not changed,
    and expires as with `backupd delete`. It does not expire if it is held, if it is the base of a replica or an unfinished
    backup, or if a copy is not proven; then the repaired copy is held. The copy inherits the hold and the
    acceptance of the damaged backup.

    Exit status 0: all damaged files are repaired; 1: some files are not, or the catalogue was lost; 3: a host is being backed
    up; 4: the pool is unusable.
    """
    cancellation = Cancellation()
    with opened(ctx, writes=not dry_run) as context, cancellation.listening():
        if context.lost:  # the damage is unknown, so there is no answer
            if not dry_run:  # a dry run prints its line anyway
                print_error(lost_catalogue(context.config.pool.state))
            return int(Exit.ATTENTION)
        try:
            plans, is_whole, unreadable = _plans(
                context, which, [folder.absolute() for folder in folders], cancellation, unproven=unproven
            )
        except Cancelled:
            return cancellation.exit_status()
        todo = [plan for plan in plans if plan.repairs or plan.repaired_in]
        unplanned = [_lost_fields(host, name) for host, name in unreadable]
        if not as_json:
            _show(plans, unreadable)
        is_left = bool(unplanned) or not is_whole or any(plan.unrepaired for plan in plans)
        if dry_run or not todo:
            print_answer({"dry_run": dry_run, "backups": [*map(_fields, plans), *unplanned], "failed": {}}, (), as_json=as_json)
            return int(Exit.ATTENTION if is_left or (dry_run and any(plan.repairs for plan in plans)) else Exit.OK)
        require_confirmation(f"{counted(len(todo), 'backup')} will get a repaired copy", "repair", yes, as_json)
        done, failed, status = _repaired(context, todo, cancellation, as_json=as_json)
    made = {(repair_done.plan.backup.host, repair_done.plan.backup.name): repair_done for repair_done in done}
    fields = [_fields(plan, made.get((plan.backup.host, plan.backup.name))) for plan in plans]
    print_answer({"dry_run": False, "backups": [*fields, *unplanned], "failed": failed}, (), as_json=as_json)
    return cancellation.exit_status(status or (Exit.ATTENTION if is_left else Exit.OK))


def _plans(
    context: PoolContext, which: tuple[str, ...], folders: Sequence[Path], cancellation: Cancellation, *, unproven: bool
) -> tuple[list[RepairPlan], bool, list[tuple[str, str]]]:
    """Returns plans for the requested damaged backups, by host, oldest first, and whether they are complete. Also returns host and
    name of backups that cannot be read at all, for which there is no plan.

    Expired ones are skipped. Without names, damaged copies of another pool do not prevent the repair of other hosts. Raises
    UsageError if there are only such copies, or they are named; OSError.
    """
    own, unreadable = OwnReads(context, context.clock.now()), list[tuple[str, str]]()  # its damage is planned for too
    refused: list[UsageError] = []
    try:
        plans = list(_planned(context, which, folders, cancellation, own, refused, unreadable, unproven=unproven))
    finally:
        own.forget()
    if refused and (which or not plans):
        raise refused[0]
    for error in refused:
        print_error(error)
    return plans, not refused, unreadable


def _planned(
    context: PoolContext,
    which: tuple[str, ...],
    folders: Sequence[Path],
    cancellation: Cancellation,
    own: OwnReads,
    refused: list[UsageError],
    unreadable: list[tuple[str, str]],
    *,
    unproven: bool,
) -> Iterator[RepairPlan]:
    """Yields the plans; `refused` receives an error for each host that another pool repairs."""
    wanted: dict[str, set[str]] = {}
    for text in which or sorted({damage.host for damage in context.catalogue.damages() if damage.fate is None}):
        host, name = parse_which(text)
        require_host_or_folder(context, host)
        is_lost = name in names_of(context.pool, host) and is_unreadable(context.pool.host(host) / name)
        wanted.setdefault(host, set()).add(name if is_lost else find(context.pool, host, name).name if name else "")
    for host, names in wanted.items():
        try:
            planner = RepairPlanner(context, host, folders, lambda: not cancellation, own, unproven=unproven)
        except UsageError:  # the pool no longer has the host; the catalogue will be updated
            continue
        if planner.damaged and (fetched := read_notes(context.pool.host(host)).replica):
            refetch = f"`backupd replicate {fetched.get('name')} {host} --damaged` fetches the damaged backups again"
            error = UsageError(f"the backups of {printable(host)} are copies, fetched from another pool", printable(refetch))
            refused.append(error)
            continue
        unreadable += [(host, name) for name in planner.unreadable if "" in names or name in names]
        for backup in planner.damaged:
            if ("" in names and backup.state != EXPIRED) or backup.name in names:
                plan = planner.plan(backup)
                if not (plan.repaired_in and backup.state == EXPIRED):
                    yield plan


def _repaired(
    context: PoolContext, plans: Iterable[RepairPlan], cancellation: Cancellation, *, as_json: bool
) -> tuple[list[RepairDone], dict[str, str], int]:
    """Returns the repaired backups, the failures with their reasons, and the exit status. A failure does not affect the others."""
    expiry = ExpiryContext(
        context.config, context.pool, context.catalogue, context.clock.now().replace(microsecond=0), expiry_sinks(as_json=as_json)
    )
    done, failed, status = list[RepairDone](), dict[str, str](), int(Exit.OK)
    with writing(context.pool):
        ensure_reserve(context.pool.path)
        for plan in plans:
            if cancellation:
                break
            name = f"{plan.backup.host}@{plan.backup.name}"
            try:
                with expiry.lock(plan.backup.host):
                    repair_done = repair(expiry, plan)
            except PoolUnusable:
                raise
            except OperatorError as error:
                failed[name] = error.message
                status = max(status, int(Exit.LOCKED if isinstance(error, LockHeld) else Exit.ATTENTION))
                print_error(OperatorError(f"{name} was not repaired: {error.message}", error.hint))
                continue
            done.append(repair_done)
            if not as_json:
                print_wrapped(
                    printable(
                        f"{name} is repaired in {repair_done.name}"
                        + (f"; the damaged backup does not expire: {repair_done.stays}" if repair_done.stays else "")
                    )
                )
    return done, failed, status


def _show(plans: Sequence[RepairPlan], unreadable: Sequence[tuple[str, str]]) -> None:
    """Prints one line for each file that gets the same treatment in several backups."""
    for host, name in unreadable:
        print_wrapped(
            f"{printable(host)}@{name} cannot be read at all, so it cannot be repaired; it stays and is not a base of later backups"
        )
    if not plans:
        if not unreadable:
            print_wrapped("there is no damage to repair")
        return
    names_by_host: dict[str, list[str]] = {}
    for plan in plans:
        names_by_host.setdefault(plan.backup.host, []).append(plan.backup.name)
    files = sorted((_line(plan, file), plan.backup.name) for plan in plans for file in plan.files)
    rows = []
    for (host, path, source, proof), group in groupby(files, key=lambda file: file[0]):
        rows.append(
            (printable(host), printable(path), ranges((name for _, name in group), names_by_host[host]), printable(source), proof)
        )
    click.echo(table(rows, _HEADERS))


def _line(plan: RepairPlan, copy: DamagedPath) -> tuple[str, str, str, str]:
    if plan.repaired_in:
        return plan.backup.host, fsdecode(copy.path), f"repaired in {plan.repaired_in}", ""
    if copy.fate == FileFate.REPAIRED and copy.copy:
        return plan.backup.host, fsdecode(copy.path), copy.copy.name, _PROVEN[copy.copy.proof]
    return plan.backup.host, fsdecode(copy.path), "-", _LEFT[copy.fate]


def _lost_fields(host: str, name: str) -> dict[str, Any]:
    files = [{"path": WHOLE, "fate": FileFate.NO_FILE, "copy": None, "proof": None}]
    return {"host": host, "name": name, "repaired_in": None, "stays": None, "files": files}


def _fields(plan: RepairPlan, done: RepairDone | None = None) -> dict[str, Any]:
    return {
        "host": plan.backup.host,
        "name": plan.backup.name,
        "repaired_in": done.name if done else plan.repaired_in,
        "stays": done.stays or None if done else None,
        "files": [
            {
                "path": fsdecode(file.path),
                "fate": file.fate,
                "copy": file.copy.name if file.copy else None,
                "proof": file.copy.proof if file.copy else None,
            }
            for file in plan.files
        ],
    }
