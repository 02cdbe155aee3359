"""`backupd import`: the history that another program has made becomes backups."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from backupd.cli.context import dry_run_option, now_option, opened
from backupd.drill.comparison import compare
from backupd.repo.backup_json import DATA
from backupd.repo.catalogue_row import backup_row
from backupd.repo.context import PoolContext
from backupd.repo.reconcile import reconcile
from backupd.rsync.version import rsync_version
from backupd.run.importing.formats import READERS, HostNames, OldHistory, OldTree
from backupd.run.importing.run import ImportedBackup, ImportSite, import_tree, known_names, opened_tree
from backupd.run.importing.tree_links import look_at
from btrkeep.cli import complain, echo_json, json_option, table
from btrkeep.cli.progress import prose
from btrkeep.decisions.due import latest
from btrkeep.errors import Exit, LockHeld, OperatorError, PoolUnusable, UsageError
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.cancellation import Cancellation, Cancelled, signal_status
from btrkeep.process.service import Status
from btrkeep.units import backup_name, counted, format_size, format_time, printable


@click.command("import")
@click.argument("kind", type=click.Choice(list(READERS)), metavar="rsnapshot|dirvish|tree")
@click.argument("place", type=click.Path(exists=True, path_type=Path))
@click.option("--host", "hosts", multiple=True, metavar="NAME[=OWN]", help="The host's name here. May be given several times.")
@dry_run_option("which backups would be made, and how much is new in them")
@click.option("--delta", is_flag=True, help="Change files in place: backups share what is equal in them. It takes longer.")
@click.option(
    "--verify",
    type=click.Choice(["newest", "all", "none"]),
    default="newest",
    show_default=True,
    help="Which backups are compared with their trees by content, by `rsync --dry-run --checksum`.",
)
@click.option("-j", "--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="How many hosts at once.")
@json_option
@now_option
@click.pass_context
def command(
    ctx: click.Context,
    kind: str,
    place: Path,
    hosts: tuple[str, ...],
    dry_run: bool,
    delta: bool,
    verify: str,
    jobs: int,
    as_json: bool,
    now: datetime | None,
) -> int:
    """Make backups of the history that another program has made: of a snapshot root of rsnapshot (or its configuration), of a vault
    or bank of dirvish, or of a folder with a tree for each date. Nothing is changed there.

    Oldest first, each from a snapshot of the one before it, so that only differences are written. A file that is a hard link to the
    tree before is the same file, and is not read; hard links within a tree are kept. A backup is as old as its tree. The next night
    of the host goes on from the newest one.

    It can be stopped and run again: what is here already is passed over. Without --host each host has the name that it has there;
    NAME=OWN chooses and renames. A tree needs --host NAME.

    The retention holds for imported backups as for others: `backupd retention explain HOST` says which would go.

    Exit status 0: all is here; 1: some tree could not be imported, or differs; 3: a host is being backed up; 4: this pool is
    unusable.
    """
    history = READERS[kind](place.absolute(), HostNames.parse(hosts))
    cancellation, status = Cancellation(), Status()
    with opened(ctx, now, writes=not dry_run) as site, cancellation.listening():
        todo, here, ahead = _todo(site, history)
        left_out = {**history.left_out, **ahead}
        for folder, why in left_out.items():
            prose(f"left out: {printable(folder)}: {printable(why)}", err=True)
        if dry_run:
            said = _planned(todo, cancellation)
            _say_plan(said, here, left_out, as_json=as_json)
            return int(signal_status(cancellation.signal)) if cancellation else int(Exit.OK)
        ensure_reserve(site.pool.path)
        reconcile(site.pool, site.catalogue, format_time(site.clock.now()))
        work = ImportSite(site.config, site.pool, rsync_version(), site.clock, cancellation, delta)
        done = _Import(site, work, verify, status, as_json=as_json)
        asyncio.run(done.run(todo, jobs))
    if as_json:
        found: dict[str, Any] = {"backups": done.backups, "here_already": here, "left_out": left_out, "failed": done.failed}
        echo_json(found | {"compared": done.compared})
    else:
        more = f", {here:,} were here already" if here else ""
        prose(f"{counted(len(done.backups), 'backup')} imported{more}")
    return int(signal_status(cancellation.signal)) if cancellation else done.status


def _todo(site: PoolContext, history: OldHistory) -> tuple[dict[str, list[OldTree]], int, dict[str, str]]:
    """Returns all trees by host, including those imported already; the number of the latter; and the trees that cannot be
    imported because they are stamped in the future.
    """
    found, here, ahead = dict[str, list[OldTree]](), 0, dict[str, str]()
    until = latest(site.clock.now())
    for host in history.hosts:
        known = known_names(site.pool, host)
        for one in history.of(host):
            if one.started > until:
                ahead[str(one.folder)] = "it is stamped in the future"
            else:
                found.setdefault(host, []).append(one)
                here += backup_name(one.started) in known
    return found, here, ahead


@dataclass(slots=True)
class _Import:
    """An import of all hosts and its results: backups, failed hosts with the reasons, and comparisons."""

    site: PoolContext
    work: ImportSite
    verify: str
    says: Status
    as_json: bool = field(kw_only=True)
    backups: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    compared: list[dict[str, Any]] = field(default_factory=list)
    status: int = int(Exit.OK)
    _unusable: PoolUnusable | None = None

    async def run(self, todo: dict[str, list[OldTree]], jobs: int) -> None:
        """Imports several hosts at once. A failure of one does not affect the others. Raises PoolUnusable if nothing more is
        possible.
        """
        places = asyncio.Semaphore(jobs)

        async def in_its_place(host: str, trees: Sequence[OldTree]) -> None:
            async with places:
                await self._tried(host, trees)

        await asyncio.gather(*(in_its_place(host, trees) for host, trees in todo.items()))
        if self._unusable:
            raise self._unusable

    async def _tried(self, host: str, trees: Sequence[OldTree]) -> None:
        if self._unusable or not self.work.goes_on:
            return
        try:
            await self._host(host, trees)
        except Cancelled:
            return
        except PoolUnusable as error:
            self._unusable = self._unusable or error
        except (OperatorError, OSError) as error:
            self.failed[host] = str(error)
            self.status = max(self.status, int(Exit.LOCKED if isinstance(error, LockHeld) else Exit.ATTENTION))
            complain(OperatorError(f"{host}: {error}", error.hint if isinstance(error, OperatorError) else ""))

    async def _host(self, host: str, trees: Sequence[OldTree]) -> None:
        before, known = None, known_names(self.site.pool, host)
        new = [one for one in trees if backup_name(one.started) not in known]
        for tree in trees:
            if backup_name(tree.started) not in known:
                self.says.say(f"{host}: {new.index(tree)} of {counted(len(new), 'tree')}")
                made = await import_tree(self.work, tree, before)
                self._note(tree, made)
                if self.verify == "all" or (self.verify == "newest" and tree is trees[-1]):
                    await self._compare(tree, made)
            before = tree

    def _note(self, tree: OldTree, made: ImportedBackup) -> None:
        record = made.record
        self.site.catalogue.put_backup(backup_row(self.site.pool, record, record.state, made.subvolume_id))
        said = {"host": record.host, "name": record.name, "from": str(tree.folder), "files": record.files, "bytes": made.literal}
        self.backups.append(said)
        if not self.as_json:
            prose(f"{printable(record.host)}@{record.name}: {counted(record.files or 0, 'file')}, {format_size(made.literal)} new")

    async def _compare(self, tree: OldTree, made: ImportedBackup) -> None:
        """By a program that knows nothing of us. Raises Cancelled, OperatorError."""
        record = made.record
        copy = self.site.pool.host(record.host) / (record.name or "") / DATA / tree.path.strip("/")
        with opened_tree(tree) as folder:
            found = await compare(folder, copy, None, lambda: not self.work.goes_on, lambda: False)
        if not self.work.goes_on:
            raise Cancelled
        self.compared.append({"host": record.host, "name": record.name, "differences": found.number, "samples": found.samples})
        name = f"{printable(record.host)}@{record.name}"
        if found.number:
            self.status = max(self.status, int(Exit.ATTENTION))
            complain(OperatorError(f"{name} differs from {tree.folder} in {counted(found.number, 'name')}: {found.samples[0]}"))
        elif not self.as_json:
            prose(f"{name}: compared by content with its tree, and equal")


def _planned(todo: dict[str, list[OldTree]], cancellation: Cancellation) -> list[dict[str, Any]]:
    """By host: how many trees, from when to when, and how much data is in them that is not in the tree before."""
    said = []
    for host, trees in todo.items():
        before, files, size = None, 0, 0
        for tree in trees:
            found = look_at(tree.folder, before, lambda: not cancellation)
            files, size, before = found.files, size + found.new_bytes, tree.folder
        first, last = (format_time(one.started) for one in (trees[0], trees[-1]))
        said.append({"host": host, "backups": len(trees), "first": first, "last": last, "files": files, "bytes": size})
    return said


def _say_plan(said: list[dict[str, Any]], here: int, left_out: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        echo_json({"hosts": said, "here_already": here, "left_out": left_out})
        return
    if not said:
        raise UsageError("there is nothing to import")
    rows = [
        (printable(one["host"]), f"{one['backups']:,}", one["first"], one["last"], f"{one['files']:,}", format_size(one["bytes"]))
        for one in said
    ]
    headers = ["HOST", "TREES", "OLDEST", "NEWEST", "FILES", "DATA"]
    click.echo(table(rows, headers, right=["TREES", "FILES", "DATA"], spare=["FILES"]))
    if here:
        prose(f"{counted(here, 'tree')} of these are here already")
