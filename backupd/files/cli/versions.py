"""`backupd versions`: lists every version of a file or folder over all backups."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime

import click

from backupd.cli.command_context import given_now, pass_context
from backupd.cli.names import complete_which
from backupd.files.backup_selector import NEWEST, Restorable, find, parse_which, restorable
from backupd.files.cli.opened_backup import complete_path, opened_backup, pool_of, reading, remark_lines, size_words
from backupd.files.entry_words import history_object, left_out_object, shown, skipped_deletions_object, time_words
from backupd.files.suggestions import missing, nearest_paths, path_given, path_in
from backupd.files.tree import Tree
from backupd.files.versions import THERE, UNREADABLE, Absence, PathHistory, Version, versions
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.listings import table
from btrkeep.cli.output import ProgressLine, print_wrapped
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import Pool
from btrkeep.units import counted

_HEADERS = ["FIRST SEEN", "LAST SEEN", "BACKUPS", "SIZE", "MODIFIED", "REMARK"]


@click.command("versions")
@click.argument("host", shell_complete=complete_which)
@click.argument("path", shell_complete=complete_path)
@click.option("--content", is_flag=True, help="Distinguish versions by content, not by size, time, mode and owner.")
@json_option
@pass_context
def command(ctx: click.Context, host: str, path: str, content: bool, as_json: bool) -> int:
    """List every version of the file or folder at PATH over all backups of HOST: in which backups it is, and where it is missing.

    Versions differ in size, time of modification, mode, owner, ACL or attributes, as for rsync. A ~ in BACKUPS means that the file
    was written again with the same size and time; --content compares the contents, and reads files where needed.

    A folder has a new version when a name directly in it is added or removed. With --content, it has one when any file below it
    changes its name, size or time.

    FIRST SEEN and LAST SEEN are names of backups: `backupd browse HOST@BACKUP PATH` shows one, `backupd restore HOST@BACKUP PATH`
    restores it.
    """
    pool, _ = pool_of(ctx)
    name, which = parse_which(host)
    if which != NEWEST:
        raise UsageError(
            f"`versions` reads all backups of the host, not only {which}", f"`backupd versions {name} {shlex.quote(path)}`"
        )
    now = given_now(ctx)
    history = _history(pool, name, path_given(path), content, now)
    newest = find(pool, name, NEWEST, now).record
    if as_json:
        skipped = skipped_deletions_object(newest)
        echo_json(history_object(name, history) | ({"deletions_skipped": skipped} if skipped else {}) | left_out_object(newest))
    else:
        _show(name, history)
        for line in remark_lines(newest, [history.path]):
            print_wrapped(click.style("note: ", fg="yellow") + line)
    return 0


def _history(pool: Pool, host: str, path: bytes, content: bool, now: datetime | None) -> PathHistory:
    backups = [backup for backup in restorable(pool, host) if now is None or backup.started <= now]
    if b"\\" in path:
        path = _as_written(backups, path)
    with ProgressLine() as line, reading(host):
        history = versions(backups, path, content, lambda done, of: line.go_on(lambda: f"backup {done + 1} of {of}"))
    if not history.versions:
        if any(backup.found == UNREADABLE for backup in history.backups):
            raise OperatorError(f"{shown(path)} of {host} cannot be read", "check dmesg, and run `backupd scrub`")
        with opened_backup(pool, host, NEWEST, now) as opened:
            raise missing(opened.tree, path, host)
    return history


def _as_written(backups: Sequence[Restorable], path: bytes) -> bytes:
    """Returns the path as written in the newest backup that has it."""
    for backup in backups:
        with suppress(OSError), Tree(backup.path) as tree:
            written = path_in(tree, path)
            if nearest_paths(tree, written) == []:
                return written
    return path


def _show(host: str, history: PathHistory) -> None:
    kind = history.versions[-1].entry.kind
    count, backups = counted(len(history.versions), "version"), counted(len(history.backups), "backup")
    print_wrapped(f"{shown(history.path)} of {host}, {kind}: {count} in {backups}")
    click.echo(table(sorted([*map(_row, history.versions), *map(_gone_row, history.gone)]), _HEADERS, right=["BACKUPS", "SIZE"]))
    for line in _notes(history):
        print_wrapped(line)


def _row(version: Version) -> tuple[str, ...]:
    count = f"{version.backups}" if version.certain else f"~{version.backups}"
    return (
        version.first,
        version.last,
        count,
        size_words(version.entry),
        time_words(version.entry.mtime),
        "; ".join(_remarks(version)),
    )


def _remarks(version: Version) -> Iterator[str]:
    if version.changed:
        yield "other " + ", ".join(name for name in version.changed if name != "content" or "size" not in version.changed)
    if version.same_content_as:
        yield "same content as before"
    if "complete" not in version.states:
        yield f"only in {' and '.join(version.states)} backups"
    if version.entry.target is not None:
        yield f"-> {shown(version.entry.target)}"


def _gone_row(gone: Absence) -> tuple[str, ...]:
    back = f"again in {gone.came_back}" if gone.came_back else "no longer there"
    doubt = click.style("; only suspect or failed backups show this", fg="yellow") if gone.doubtful else ""
    return gone.first, gone.last, f"{gone.backups}", "-", "-", click.style("gone", fg="red") + f", {back}{doubt}"


def _notes(history: PathHistory) -> Iterator[str]:
    if any(not version.certain for version in history.versions):
        yield "~: same size and time, but written again: --content compares the contents"
    if history.versions[-1].entry.kind == "folder" and not history.by_content:
        yield "only the names directly in the folder are compared; with --content, all files below"
    silent: dict[str, list[str]] = {}
    for backup in history.backups:
        if backup.version is None and backup.found not in (THERE, "missing"):
            silent.setdefault(backup.found, []).append(backup.name)
    for reason, names in silent.items():
        names_range = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        yield f"{reason} in {counted(len(names), 'backup')}: {names_range}"
