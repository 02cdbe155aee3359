"""`backupd import`: makes backups of a history that another program has made.

With --dry-run it also prints, as TOML, a possible configuration for the hosts of a rsnapshot.conf.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from backupd.cli.command_context import dry_run_option, opened, pass_context
from backupd.drill.comparison import compare, write_exclusions
from backupd.repo.backup_json import DATA, Record
from backupd.repo.catalogue_row import backup_row
from backupd.repo.final_backups import sync_names
from backupd.repo.pool_context import PoolContext
from backupd.repo.read_lock import lock_for_reading
from backupd.repo.reconcile import reconcile
from backupd.rsync.command import rsync_version
from backupd.run.importing.cli.import_view import ImportDisplay, planned, say_plan
from backupd.run.importing.copy_processes import CopyProcesses
from backupd.run.importing.copying import copy_batch
from backupd.run.importing.filling import TreeNotCopied
from backupd.run.importing.formats import READERS, TAKEN_OVER, HostNames, OldHistory, OldTree
from backupd.run.importing.import_context import ComparedTrees, ImportContext, known_backups, opened_tree
from backupd.run.importing.import_tree import ImportedBackup, import_tree
from backupd.run.importing.rsnapshot_conf import BackupPoint, RsnapshotConf, read_conf
from backupd.run.importing.takeover import skipped_subvolumes, take_over
from btrkeep.cli import json_option, print_answer, print_error
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.output import has_live_terminal, print_wrapped
from btrkeep.config.sources import name_fault
from btrkeep.decisions.due import latest
from btrkeep.errors import Exit, LockHeld, OperatorError, PoolUnusable, UsageError
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.process.progress import Cancellation, Cancelled, Status
from btrkeep.process.threads import running_threads
from btrkeep.units import backup_name, counted, format_size, format_time, names_in_words, printable

_ATTEMPTS = 3  # for a tree that changes during the import
_AGAIN = (
    "run the same command again. If a program changes files in the history, stop it, or make the history read-only during "
    "the import"
)
_DIFFERS = (
    "if a file of the history was changed in place after it was imported with an older tree, the backup has the old content. To "
    "import the tree as it is now, run `backupd delete --now-without-grace {}`, then this command again"
)
_THREADS = 2  # of a host: a tree is imported while the next one is read
_PROCESSES = 2  # of a host, to copy files: more would make a rotating disk seek


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The arguments and options of `import`."""

    kind: str
    """The format of the history."""
    place: Path
    """The folder or configuration file of the history."""
    hosts: tuple[str, ...]
    """The values of --host."""
    path: str
    """The path of a snapshot's files on their host."""
    dry_run: bool
    delta: bool
    verify: str
    jobs: int
    as_json: bool


@click.command("import")
@click.argument("kind", type=click.Choice(list(READERS)), metavar="|".join(READERS))
@click.argument("place", type=GivenPath(exists=True, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME[=OLDNAME]",
    help="Only this host: its name in btrkeep, and its name in the history if that differs. May be given several times.",
)
@click.option(
    "--path",
    default="/",
    show_default=True,
    metavar="PATH",
    help="For btrbk and snapper: the path on the host that the snapshots contain.",
)
@dry_run_option("which backups would be made, and their new data")
@click.option(
    "--delta", is_flag=True, help="Write only the changed parts of a file, so that backups share its equal parts. It takes longer."
)
@click.option(
    "--verify",
    type=click.Choice(["newest", "all", "none"]),
    default="newest",
    show_default=True,
    help="Which backups are compared with their trees by content, by `rsync --dry-run --checksum`.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="How many hosts to import at the same time."
)
@json_option
@pass_context
def command(ctx: click.Context, **options: Any) -> int:
    """Import the backups of another program: a snapshot root of rsnapshot (or its configuration), a vault or bank of dirvish, or a
    folder with a tree for each date. The history is not changed. Snapshots of btrbk or snapper on the pool's filesystem are
    imported without copying.

    The oldest tree comes first; each backup starts from a snapshot of the one before it, so that only differences are written.
    A file that is a hard link to the previous tree is not read again; hard links within a tree are kept. A backup has the time
    of its tree. The next run of the host continues from the newest backup.

    A tree that changes while it is copied is tried three times, then listed and skipped; the others are imported.

    It can be stopped and run again: trees already imported are skipped, or compared if that was not done yet. Without --host each
    host keeps its name in the history; --host NAME=OLDNAME imports only the host OLDNAME, as NAME. A folder of dated trees needs
    --host NAME.

    The retention also applies to imported backups: `backupd retention explain HOST` shows which would be deleted.

    Exit status 0: all trees are imported; 1: a tree could not be imported, or differs; 3: a host is being backed up; 4: this
    pool is unusable.
    """
    given = ImportOptions(**options)
    names = HostNames.parse(given.hosts)
    history = _with_path(READERS[given.kind](given.place.absolute(), names), given)
    names.require_found(history, given.place)
    cancellation, status = Cancellation(), Status()
    with opened(ctx, writes=not given.dry_run) as context, cancellation.listening():
        todo, names_by_host, ahead = _todo(context, history)
        here = sum(backup_name(tree.started) in names_by_host[host] for host, trees in todo.items() for tree in trees)
        skipped = {**history.skipped, **ahead}
        for folder, why in skipped.items():
            print_wrapped(f"skipped: {printable(folder)}: {printable(why)}", err=True)
        if given.dry_run:
            conf = read_conf(given.place) if given.kind == "rsnapshot" and given.place.is_file() else None
            name_of = history.names.get if names.are_chosen else str
            suggestion = suggested(conf, name_of, context.config.hosts) if conf else None
            reads = given.kind not in TAKEN_OVER
            plan = planned(todo, names_by_host, cancellation, reads=reads)
            say_plan(plan, here, skipped, suggestion, reads=reads, as_json=given.as_json)
            return cancellation.exit_status()
        ensure_reserve(context.pool.path)
        reconcile(context.pool, context.catalogue, format_time(context.clock.now()))
        display = ImportDisplay(is_shown=not given.as_json and has_live_terminal())
        work = ImportContext(context.config, context.pool, rsync_version(), context.clock, cancellation, given.delta, display.note)
        make = _take_over if given.kind in TAKEN_OVER else import_tree
        done = _Import(context, work, given, status, display, make)
        with ExitStack() as held:
            places = min(given.jobs, len(todo)) if make is import_tree else 0
            processes = [held.enter_context(CopyProcesses(copy_batch, _PROCESSES)) for _ in range(places)]  # before any thread
            held.enter_context(display)
            asyncio.run(done.run(todo, processes))
        sync_names(context.pool)
    _print_result(done, here, skipped)
    return cancellation.exit_status(done.status)


def _print_result(done: "_Import", here: int, skipped: Mapping[str, str]) -> None:
    """Prints what was imported. `here`: number of backups before the import."""
    answer: dict[str, Any] = {"backups": done.backups, "here_already": here, "left_out": skipped, "failed": done.failed}
    text = [f"{counted(len(done.backups), 'backup')} imported" + (f", {here:,} were imported already" if here else "")]
    if lost := done.not_imported:
        text.append(f"{counted(len(lost), 'tree')} not imported; {_AGAIN}")
    if strange := sorted({backup["host"] for backup in done.backups} - done.context.config.every_host.keys()):
        names = names_in_words(strange)
        text.append(f"not configured yet: {names}. After `backupd host add NAME`, the next run continues from the imported backups")
    print_answer(answer | {"not_imported": done.not_imported, "compared": done.compared}, text, as_json=done.given.as_json)


def _with_path(history: OldHistory, given: ImportOptions) -> OldHistory:
    """Returns the snapshots with that path on their host. Raises UsageError."""
    path = given.path
    if path == "/":
        return history
    if given.kind not in TAKEN_OVER or not path.startswith("/") or ".." in path.split("/"):
        raise UsageError(f"--path {path}: the path must be absolute, and is only for btrbk and snapper")
    return replace(history, trees=tuple(replace(tree, path=path.rstrip("/") or "/") for tree in history.trees))


def _todo(context: PoolContext, history: OldHistory) -> tuple[dict[str, list[OldTree]], dict[str, set[str]], dict[str, str]]:
    """Returns all trees by host, also those that already have a backup; the names of the backups of each host; and the trees that
    cannot be imported, with the reason: they have a time in the future, or their backup cannot be read. Raises UsageError.
    """
    trees_by_host, names_by_host, ahead = dict[str, list[OldTree]](), dict[str, set[str]](), dict[str, str]()
    until = latest(context.clock.now())
    for host in history.hosts:
        unread = list[str]()
        here = known_backups(context.pool, host, unread)
        names_by_host[host] = {*here, *unread}
        for old_tree in history.of(host):
            if backup_name(old_tree.started) in unread:
                ahead[str(old_tree.folder)] = f"its backup cannot be read (`backupd damaged {host}`)"
            elif old_tree.started > until:
                ahead[str(old_tree.folder)] = "its time is in the future"
            else:
                trees_by_host.setdefault(host, []).append(old_tree)
        _require_paths(host, trees_by_host.get(host, ()), here)
    return trees_by_host, names_by_host, ahead


def _require_paths(host: str, trees: Sequence[OldTree], here: Mapping[str, Record]) -> None:
    """Raises UsageError if there are imported backups with other paths than the trees: if they were mixed, each backup would have
    none of the files of the backup before it.
    """
    paths = {tree.path for tree in trees}
    others = {path.path for record in here.values() if record.imported is not None for path in record.paths} - paths
    if others and any(backup_name(tree.started) not in here for tree in trees):
        message = (
            f"{host} has imported backups of {names_in_words(sorted(others))}, but these trees contain "
            f"{names_in_words(sorted(paths))}"
        )
        raise UsageError(message, f"import them under another name: --host NAME={trees[0].host}")


async def _take_over(context: ImportContext, tree: OldTree, _before: OldTree | None, _after: OldTree | None) -> ImportedBackup:
    return await take_over(context, tree)


@dataclass(slots=True)
class _Import:
    """The import of all hosts, and its results. `failed`: the reason by host. `compared`: the result of each comparison."""

    context: PoolContext
    work: ImportContext
    given: ImportOptions
    says: Status
    display: ImportDisplay
    make: Callable[[ImportContext, OldTree, OldTree | None, OldTree | None], Awaitable[ImportedBackup]]
    backups: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_imported: list[dict[str, str]] = field(default_factory=list)
    compared: list[dict[str, Any]] = field(default_factory=list)
    status: int = int(Exit.OK)
    _unusable: PoolUnusable | None = None

    async def run(self, todo: dict[str, list[OldTree]], processes: Sequence[CopyProcesses]) -> None:
        """Imports several hosts at the same time, each with one of the `processes`. An error of one does not affect the others.
        Raises PoolUnusable if nothing else is possible, and NoThread.
        """
        places, free = asyncio.Semaphore(self.given.jobs), list(processes)
        executor = running_threads(_THREADS * min(self.given.jobs, max(1, len(todo))), "import")
        asyncio.get_running_loop().set_default_executor(executor)

        async def in_its_place(host: str, trees: Sequence[OldTree]) -> None:
            async with places:
                mine = free.pop() if free else None
                await self._tried(host, trees, mine)
                if mine:
                    free.append(mine)

        await asyncio.gather(*(in_its_place(host, trees) for host, trees in todo.items()))
        executor.shutdown()  # the loop's own shutdown would need another thread
        if self._unusable:
            raise self._unusable

    async def _tried(self, host: str, trees: Sequence[OldTree], processes: CopyProcesses | None) -> None:
        if self._unusable or not self.work.goes_on:
            return
        try:
            with self.display.host(host), self.work.host(host, processes):
                await self._host(host, trees)
        except Cancelled:
            return
        except PoolUnusable as error:
            self._unusable = self._unusable or error
        except (OperatorError, OSError) as error:
            self._note_failure(host, error)

    def _note_failure(self, host: str, error: OperatorError | OSError) -> None:
        self.failed[host] = f"{self.failed[host]}; {error}" if host in self.failed else str(error)
        self.status = max(self.status, int(Exit.LOCKED if isinstance(error, LockHeld) else Exit.ATTENTION))
        print_error(OperatorError(f"{host}: {error}", error.hint if isinstance(error, OperatorError) else ""))

    async def _host(self, host: str, trees: Sequence[OldTree]) -> None:
        newest, before, by_name = None, None, known_backups(self.context.pool, host, [])
        new = [tree for tree in trees if backup_name(tree.started) not in by_name]
        for tree, after in zip_longest(trees, trees[1:]):
            if here := by_name.get(backup_name(tree.started)):
                record = here
            else:
                self.says.say(f"{host}: {new.index(tree)} of {counted(len(new), 'tree')}")
                self.display.begin(host, new.index(tree) + 1, len(new))
                made = await self._made(tree, before, after if after in new else None)
                if made is None:
                    continue
                self._note(tree, made)
                record = made.record
                if made.nested:
                    self._say_nested(tree, made)
            if self.given.verify == "all" and self._is_unproven(record):
                await self._compare(tree, record)
            newest, before = record, tree
        if self.given.verify == "newest" and newest and before and self._is_unproven(newest):
            await self._compare(before, newest)

    async def _made(self, tree: OldTree, before: OldTree | None, after: OldTree | None) -> ImportedBackup | None:
        """Makes the backup of a tree; None if that fails repeatedly. Such a tree must not prevent the import of the others: a user
        who owns a folder of the history may change it all the time.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await self.make(self.work, tree, before, after)
            except TreeNotCopied as error:
                if left and error.is_changed:
                    continue
                self.not_imported.append({"host": tree.host, "tree": str(tree.folder), "why": str(error)})
                self._note_failure(tree.host, error)
                return None
        raise AssertionError

    def _say_nested(self, tree: OldTree, made: ImportedBackup) -> None:
        folders = f"{counted(made.nested, 'empty folder')} instead of the omitted subvolumes"
        print_wrapped(f"{printable(str(tree.folder))}: {folders}", err=True)

    def _is_unproven(self, record: Record) -> bool:
        """Returns True if the backup is from an import and was not compared yet, perhaps because that import was killed."""
        return record.imported is not None and not ComparedTrees(self.context.config.pool.state).has(record)

    def _note(self, tree: OldTree, made: ImportedBackup) -> None:
        record = made.record
        self.context.catalogue.put_backup(backup_row(self.context.pool, record, record.state, made.subvolume_id))
        fields = {"host": record.host, "name": record.name, "from": str(tree.folder), "files": record.files, "bytes": made.literal}
        self.backups.append(fields)
        if not self.given.as_json:
            self.display.say(
                f"{printable(record.host)}@{record.name}: {counted(record.files or 0, 'file')}, {format_size(made.literal)} new"
            )

    async def _compare(self, tree: OldTree, record: Record) -> None:
        """Compares the backup and the tree with rsync, an independent program. Raises Cancelled, OperatorError."""
        backup = self.context.pool.host(record.host) / (record.name or "")
        self.display.compares(record.host)
        with opened_tree(tree) as folder, lock_for_reading(backup), TemporaryDirectory(prefix="btrkeep-import-") as place:
            copy, exclusions = backup / DATA / tree.path.strip("/"), Path(place) / "skipped"
            nested = await asyncio.to_thread(skipped_subvolumes, folder, copy) if self.make is _take_over else []
            write_exclusions(exclusions, nested)
            found_differences = await compare(folder, copy, None, lambda: not self.work.goes_on, lambda: False, exclusions)
        if not self.work.goes_on:
            raise Cancelled
        self.compared.append(
            {
                "host": record.host,
                "name": record.name,
                "differences": found_differences.number,
                "samples": found_differences.samples,
            }
        )
        name = f"{printable(record.host)}@{record.name}"
        if found_differences.number:
            self.status = max(self.status, int(Exit.ATTENTION))
            message = (
                f"{name} differs from {tree.folder} in {counted(found_differences.number, 'name')}: {found_differences.samples[0]}"
            )
            print_error(OperatorError(message, _DIFFERS.format(name)))
            return
        ComparedTrees(self.context.config.pool.state).add(record)
        if not self.given.as_json:
            self.display.say(f"{name} is equal to its tree (compared by content)")


def suggested(conf: RsnapshotConf, name_of: Callable[[str], str | None], configured: Iterable[str]) -> str:
    """Returns TOML for the hosts that are not configured yet; "" if there are none. `name_of` returns the name of a host in this
    pool; None if it was not chosen.

    Lines of rsnapshot.conf without an equivalent become comments.
    """
    points_by_name: dict[str, list[BackupPoint]] = {}
    for point in conf.points:
        if (name := name_of(point.host)) and not name_fault(name) and name not in set(configured):
            points_by_name.setdefault(name, []).append(point)
    blocks = ["\n".join(_host(name, points, conf)) for name, points in points_by_name.items()]
    if not blocks:
        return ""
    rest = [f"# not translated: {printable(line)}" for line in conf.untranslated]
    return "\n\n".join([*blocks, *(["\n".join(rest)] if rest else [])]) + "\n"


def _host(name: str, points: list[BackupPoint], conf: RsnapshotConf) -> Iterator[str]:
    address = points[0].address
    mine = [point for point in points if point.address == address]
    section = f"host.{name if name.isascii() and '.' not in name else _quoted(name)}"
    yield f"[{section}]"
    if address:
        yield f"address = {_quoted(address)}"
    yield f"paths = [{', '.join(_quoted(path) for path in dict.fromkeys(backup_point.path for backup_point in mine))}]"
    if conf.exclude:
        yield f"exclude = [{', '.join(map(_quoted, conf.exclude))}]"
    for point in points:
        if point not in mine:
            yield f"# another machine in the same folder: {printable(point.address or 'this one')}:{printable(point.path)}"
    if conf.retain:
        yield f"\n[{section}.retention]"
        yield from (f"{rule} = {number}" for rule, number in conf.retain.items())


def _quoted(text: str) -> str:
    """Quotes the text for TOML, which requires DEL to be escaped, too; the result contains no control sequences for a terminal."""
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in json.dumps(text, ensure_ascii=False))
