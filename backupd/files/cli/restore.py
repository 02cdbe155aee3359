"""`backupd restore`: restores files of a backup to a folder, to the host, or as a tar."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backupd.cli.command_context import clock_for, dry_run_option, given_now, load_config, pass_context
from backupd.cli.names import DAY, complete_which
from backupd.cli.recording import record
from backupd.files.backup_selector import Restorable
from backupd.files.cli.opened_backup import OpenedBackup, complete_path, end_of, host_and_backup, opened_backup, remark_lines
from backupd.files.cli.restore_view import (
    RestoreProgressPrinter,
    naming_copies,
    result_line,
    say_backup,
    say_plan,
    say_result,
    say_stopped,
)
from backupd.files.conflict_policy import ALL
from backupd.files.entry_words import backup_object, shown
from backupd.files.restore_types import ORIGINAL, RestoreProgress, RestoreRequest
from backupd.files.suggestions import entry_at, path_given, path_in
from backupd.repo.pool_context import open_configured
from backupd.repo.read_lock import lock_for_reading
from btrkeep.choices import OVERWRITE
from btrkeep.cli import echo_json, json_option, print_answer
from btrkeep.cli.arguments import GivenPath, from_options
from btrkeep.cli.output import say
from btrkeep.config import Config, other_pools
from btrkeep.errors import Exit, OperatorError, UsageError, report_error
from btrkeep.process.progress import Cancellation, Cancelled, signal_status
from btrkeep.units import counted, format_size, names_in_words

if TYPE_CHECKING:  # each kind of restore imports only what it needs: asyncio and ssh for a host, the writers for a folder
    from backupd.files.archive import ArchiveResult
    from backupd.files.to_folder import LocalRestore
    from backupd.files.to_host import HostRestore

_ON_HOST = "\0"  # not a possible value of an option


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """The options of `restore` that are not part of the request: the day of the backup, the destination, and the output."""

    at: date | None
    to: str | None
    to_host: str | None
    tar: str | None
    asked_by: str
    dry_run: bool
    reach: bool
    progress_lines: bool
    as_json: bool


@click.command("restore")
@click.argument("host", metavar="HOST[@BACKUP]", shell_complete=complete_which)
@click.argument("paths", nargs=-1, metavar="PATH...", shell_complete=complete_path)
@click.option(
    "--at", type=DAY, metavar="DATE", help="Use the newest complete backup that started by the end of this day, or by this time."
)
@click.option("--to", type=GivenPath(), metavar="DIR", help="Restore to this folder of this machine.")
@click.option(
    "--to-host",
    is_flag=False,
    flag_value=_ON_HOST,
    metavar="[USER@HOST:DIR]",
    help="Restore to the original paths on the host (write it after the paths); or with --to-host=USER@HOST:DIR to a folder of "
    "any machine.",
)
@click.option("--tar", type=GivenPath(allow_dash=True), metavar="FILE|-", help="Write a tar file; - writes to standard output.")
@click.option(
    "--overwrite",
    type=click.Choice(OVERWRITE),
    help="What to do with existing files that differ; all compares their contents too. [default: refuse]",
)
@click.option("--privileged", is_flag=True, help="With --to: also restore setuid and setgid bits, capabilities, and device nodes.")
@click.option("--parents", is_flag=True, help="Keep full paths: /etc/passwd becomes DIR/etc/passwd, not DIR/passwd.")
@click.option(
    "--anyway", is_flag=True, help="With --to and --tar: also write to a place where other users could redirect the files."
)
@click.option(
    "--compare",
    "content",
    type=click.Choice(("content", "metadata")),
    callback=lambda _context, _option, given: given == "content",
    default="content",
    show_default=True,
    help="What to compare afterwards: only metadata, or contents too. Files that share their data with the backup are not read.",
)
@click.option("--port", type=click.IntRange(1, 65535), metavar="NUMBER", help="The ssh port of a machine named with --to-host.")
@click.option(
    "--only-below",
    multiple=True,
    type=GivenPath(),
    metavar="DIR",
    hidden=True,
    help="For `backupd serve`: write only below this folder.",
)
@click.option("--asked-by", default="", metavar="NAME", hidden=True, help="For `backupd serve`: the user of the dashboard.")
@click.option("--reach", is_flag=True, hidden=True, help="For `backupd serve`: only check whether the host allows the restore.")
@dry_run_option("what would happen")
@click.option("--progress-lines", is_flag=True, help="Print progress every few seconds to standard error, terminal or not.")
@json_option
@pass_context
def command(ctx: click.Context, host: str, paths: tuple[str, ...], **options: Any) -> int:
    """Restore each PATH of a backup, with all files below it.

    PATH is the path on the host: /etc/passwd, or / for everything. BACKUP is a backup's name or its beginning, such as a day;
    without it the newest complete backup is used. Owners, modes, times, ACLs, attributes, hard links and holes are restored.

    Into a folder of this machine, setuid bits, capabilities and device nodes are restored only with --privileged, because they
    would work here at once. Without --anyway, a folder is refused if a user other than root owns it, can replace it or can write
    to it.

    /etc/nginx becomes DIR/nginx, as `cp -a` does it. Files in / go into DIR itself. In a tar, names are full paths.

    Nothing is ever deleted at the destination. If existing files differ, they are listed and nothing is written, unless
    --overwrite is given: never (keep them, restore the rest), older (overwrite files older than the backup's) or all. A file of the
    same size, time, owner, mode and attributes counts as equal. With all, contents are compared too; otherwise the comparison
    after the restore names files whose content differs.

    If the pool or the backup is lost, the error names replicas and offsite repositories that have the host, with the command that
    gets the files from there.

    If it is stopped, the same command continues. Exit status 1: a file could not be restored, or differs from the backup.
    """
    given = from_options(RestoreOptions, options)
    name, which = host_and_backup(host, given.at, "restore")
    where = _one_of(given)
    if not paths:
        raise UsageError("name a path", f"`backupd browse {host}` shows its files; / means all of them")
    request = RestoreRequest(name, which, tuple(map(path_given, paths)), where, **options)
    if request.privileged and given.to is None:
        raise UsageError(
            "--privileged is only for --to: --to-host and --tar always restore these attributes", "leave out --privileged"
        )
    config = load_config(ctx)
    watch = _Watch(RestoreProgressPrinter(given.progress_lines))
    try:
        with ExitStack() as held:
            with naming_copies(config, name, which, [os.fsdecode(path) for path in request.paths], given.to or ""):
                pool = open_configured(config)
                clock = clock_for(ctx, pool)
                moment = end_of(given.at, config.pool.zone) if given.at else given_now(ctx)
                backup = held.enter_context(opened_backup(pool, name, which, moment))
                held.enter_context(lock_for_reading(backup.backup.path))
            request = replace(request, paths=tuple(path_in(backup.tree, path) for path in request.paths))
            held.enter_context(watch.watching())
            why = f"{names_in_words([*map(shown, request.paths)], 3)} to {_destination(given)}"

            def recorded(action: str, words: str) -> None:
                record(pool, clock.now(), action, name, backup.backup.name, words, given.asked_by)

            begins = partial(recorded, "restore", why)
            if given.tar is not None:
                return _tar(backup, config, request, given, watch, begins)
            from backupd.files.restore_request import prepared
            from backupd.files.to_folder import LocalRestore

            restore = prepared(config, pool, backup.backup, backup.tree, request, watch)
            if not isinstance(restore, LocalRestore):
                held.enter_context(restore)
                if given.reach:
                    return _reach(restore)
            if given.dry_run:
                return _preview(backup.backup, restore, watch, given.as_json)
            return _restore(backup.backup, restore, watch, given.as_json, begins, partial(recorded, "restored"))
    except Cancelled:
        say_stopped()
        return watch.exit_status


def _reach(restore: "HostRestore") -> int:
    """Prints whether the host can be reached and allows writing, as JSON."""
    from backupd.files.restore_key import KeyRefused

    answer = {"reason": "", "error": "", "hint": ""}
    try:
        restore.require_writable()
    except OperatorError as error:
        reason = "key" if isinstance(error, KeyRefused) else "other"
        answer = {"reason": reason, "error": error.message.splitlines()[0], "hint": error.hint}
    echo_json(answer)
    return Exit.OK


def _destination(given: RestoreOptions) -> str:
    """Returns the destination for the record of actions."""
    if given.to is not None:
        return str(Path(given.to).absolute())
    if given.to_host is not None:
        return "the host" if given.to_host == _ON_HOST else given.to_host
    return "a tar on standard output" if given.tar == "-" else f"the tar {Path(given.tar or '').absolute()}"


def _one_of(given: RestoreOptions) -> str:
    """Returns the type of destination, as in RestoreRequest. Raises UsageError."""
    to, to_host = given.to, given.to_host
    destinations = [value for value in (to, to_host, given.tar) if value is not None]
    if len(destinations) != 1:
        raise UsageError(
            "give one destination: --to DIR, --to-host or --tar FILE" if destinations else "no destination given",
            "--to DIR: a folder here; --to-host: the original place, or USER@HOST:DIR; --tar FILE: an archive",
        )
    if to_host is not None:
        if to_host.startswith("/") and ":" not in to_host:
            raise UsageError(f"--to-host {to_host} names no machine", "for the host itself, write --to-host after the paths")
        return ORIGINAL if to_host == _ON_HOST else to_host or ":"
    if to == "":  # an empty shell variable must not mean the current folder
        raise UsageError("--to is empty", "name a folder, such as --to /root/restored")
    return str(Path(to).absolute()) if to else ""


def _preview(backup: Restorable, restore: "LocalRestore | HostRestore", watch: "_Watch", as_json: bool) -> int:
    from backupd.files.restore_request import preview_object

    preview = restore.preview()
    watch.clear()
    fields = preview_object(backup, restore, preview)

    def show() -> None:
        say_backup(backup, restore.request.paths)
        say_plan(restore, preview)
        if not fields["possible"]:
            say(f"the restore would be refused: {fields['why_not']}")

    print_answer(fields, show, as_json=as_json)
    return Exit.OK if fields["possible"] else Exit.ATTENTION


def _restore(
    backup: Restorable,
    restore: "LocalRestore | HostRestore",
    watch: "_Watch",
    as_json: bool,
    begins: Callable[[], None],
    ended: Callable[[str], None],
) -> int:
    from backupd.files.restore_request import result_object, result_words

    if not as_json:
        say_backup(backup, restore.request.paths)
    preview = restore.preview(content=False)
    preview.require_possible()
    begins()
    done = restore.run(preview)
    watch.clear()
    result = result_object(backup, preview, done)
    ended(result_words(result))
    if not done.good:
        report_error(OperatorError(f"not all was restored: {done.failure}"))
    if as_json:
        if watch.prints_lines:
            say(result_line(done), err=True)  # for the log of a job
        echo_json(result)
    else:
        say_result(done, restore.request.overwrite)
    return Exit.OK if done.good else Exit.ATTENTION


def _tar(
    opened: OpenedBackup,
    config: Config,
    request: RestoreRequest,
    given: RestoreOptions,
    tell: Callable[[RestoreProgress], None],
    begins: Callable[[], None],
) -> int:
    from backupd.files.destination import require_destination
    from backupd.files.to_tar import total, write_file, write_stream

    tar = given.tar or ""
    if given.as_json and tar == "-" and not given.dry_run:
        raise UsageError("the tar and the JSON cannot both go to standard output", "name a file for the tar")
    for path in request.paths:
        entry_at(opened.tree, path, opened.where)
    if given.dry_run:
        names, size = total(opened.tree, request.paths)
        return _say_tar(
            opened,
            given.as_json,
            {"tar": tar, "entries": names, "bytes": size},
            f"would contain {counted(names, 'name')}, {format_size(size)}",
        )
    if tar == "-":
        if sys.stdout.isatty():
            raise UsageError(
                "a tar cannot be written to a terminal", "write it to a program or a file, such as: ... --tar - | tar -t"
            )
        begins()
        done = write_stream(opened.tree, request.paths, 1, tell)
        _left_out(done)
        return Exit.OK
    folder = Path(tar).absolute().parent
    require_destination(opened.pool, config.pool.state, folder, other_pools(config), anyway=request.anyway, sticky=True)
    begins()
    done = write_file(opened.tree, request.paths, Path(tar).absolute(), request.overwrite == ALL, tell)
    fields = {"tar": tar, "entries": done.entries, "bytes": done.size, "left_out": done.skipped_count}
    without = f"; {counted(done.skipped_count, 'name')} skipped" if done.skipped_count else ""
    status = _say_tar(opened, given.as_json, fields, f"contains {counted(done.entries, 'name')}, {format_size(done.size)}{without}")
    _left_out(done)
    for line in remark_lines(opened.backup.record, request.paths):
        say(f"note: {line}", err=True)
    return status


def _left_out(done: "ArchiveResult") -> None:
    for path, why in done.skipped:
        say(f"note: {shown(path)} is skipped: {why}", err=True)
    if done.skipped_count > len(done.skipped):
        say(f"note: {done.skipped_count - len(done.skipped):,} more are skipped", err=True)


def _say_tar(opened: OpenedBackup, as_json: bool, fields: dict[str, object], words: str) -> int:
    answer = {"host": opened.backup.host, **backup_object(opened.backup), **fields}
    text = f"from {opened.where}, {opened.backup.state}: {fields['tar']} {words}"
    return print_answer(answer, lambda: say(text), as_json=as_json)


class _Watch:
    """Prints progress, and raises Cancelled after a signal, which ends the context cleanly."""

    def __init__(self, printer: RestoreProgressPrinter) -> None:
        self._printer = printer
        self._cancellation = Cancellation()

    def __call__(self, progress: RestoreProgress) -> None:
        self._cancellation.raise_if_cancelled()
        self._printer(progress)

    def clear(self) -> None:
        """Removes the progress line."""
        self._printer.clear()

    @property
    def prints_lines(self) -> bool:
        """Returns True with --progress-lines."""
        return self._printer.prints_lines

    @property
    def exit_status(self) -> int:
        """Returns the exit status of the first signal."""
        return signal_status(self._cancellation.signal)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Signals are only recorded within this context."""
        with self._cancellation.listening():
            try:
                yield
            finally:
                self._printer.clear()
