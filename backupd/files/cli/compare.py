"""`backupd compare`: shows the differences between two backups of a host."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from backupd.cli.command_context import given_now, pass_context
from backupd.cli.names import complete_name, complete_which
from backupd.files.backup_differences import (
    ADDED,
    CHANGED,
    KIND,
    REMOVED,
    DifferenceTotals,
    PathDifference,
    compare,
    difference_object,
    text_difference,
)
from backupd.files.backup_selector import NEWEST, parse_which
from backupd.files.cli.opened_backup import OpenedBackup, complete_path, opened_backup, pool_of, state_words
from backupd.files.entry_words import backup_object, shown, time_words
from backupd.files.suggestions import entry_at, path_given, path_in
from backupd.files.tree import Entry
from btrkeep.cli import json_option, print_answer, stream_object
from btrkeep.cli.output import ProgressLine, print_wrapped
from btrkeep.errors import UsageError
from btrkeep.units import counted, format_size, printable

_SIGNS = {ADDED: ("+", "green"), REMOVED: ("-", "red"), CHANGED: ("~", "yellow"), KIND: ("!", "yellow")}
_LINES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The options of `compare`."""

    content: bool
    everything: bool
    text: bool
    as_json: bool


@click.command("compare")
@click.argument("host", shell_complete=complete_which)
@click.argument("path", shell_complete=complete_path)
@click.argument("before", metavar="BACKUP", required=False, default="", shell_complete=complete_name)
@click.argument("after", metavar="[BACKUP]", required=False, default=NEWEST, shell_complete=complete_name)
@click.option("--content", is_flag=True, help="Also read files of the same size and time, unless they are known to be equal.")
@click.option("--all", "everything", is_flag=True, help="Also list all names below folders that only one of the backups has.")
@click.option("--text", is_flag=True, help="Show the lines that differ; PATH must be a text file.")
@json_option
@pass_context
def command(ctx: click.Context, host: str, path: str, before: str, after: str, **options: Any) -> int:
    """Compare the file or folder PATH in two backups of HOST. The second BACKUP is by default the newest complete one.

    BACKUP is the name of a backup, or its beginning: 2026-11-20 is the newest complete backup of that day in the pool's zone. The
    first one can also be written as HOST@BACKUP.

    Signs: + added, - removed, ~ changed, ! another file type, such as a folder instead of a file. Files with the same size and
    time count as equal, as in rsync; --content reads them. Times of folders are not compared. All folders below PATH are read,
    because the time of a folder does not show whether the folders in it changed.
    """
    given = CompareOptions(**options)
    if given.text and given.everything:
        raise UsageError("--text and --all exclude each other", "--text is for one file")
    host, which = parse_which(host)
    if which and after:
        raise UsageError(f"three backups are named: {which}, {before} and {after}", "give only two of them")
    before, after = (which, before) if which else (before, after)
    if not before:
        raise UsageError(
            "name a backup", f"`backupd compare {host} {shlex.quote(path)} BACKUP`; `backupd list {host}` shows the names"
        )
    pool, at = pool_of(ctx)[0], given_now(ctx)
    wanted = path_given(path)
    with opened_backup(pool, host, before, at) as old, opened_backup(pool, host, after, at) as new:
        wanted = path_in(old.tree, wanted) if _is_in(old, path_in(old.tree, wanted)) else path_in(new.tree, wanted)
        if not _is_in(old, wanted):
            entry_at(new.tree, wanted, host)
        if given.text:
            _show_text(old, new, wanted, given.as_json)
        elif given.as_json:
            _print_json(old, new, wanted, given.content)
        else:
            _show(old, new, wanted, given.content, given.everything)
    return 0


def _is_in(opened: OpenedBackup, path: bytes) -> bool:
    try:
        opened.tree.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _differences(
    old: OpenedBackup, new: OpenedBackup, path: bytes, content: bool, total: DifferenceTotals
) -> Iterator[PathDifference]:
    """Yields all differences, counted in `total`; shows progress on a terminal."""
    names = 0
    with ProgressLine() as line:

        def tell(name: bytes) -> None:
            nonlocal names
            names += 1
            line.go_on(lambda: f"{names:,} names compared, at {shown(name)[:100]}")

        for difference in compare(old.tree, new.tree, path, content, tell):
            total.take(difference)
            line.clear()
            yield difference


# --- JSON


def _print_json(old: OpenedBackup, new: OpenedBackup, path: bytes, content: bool) -> None:
    total = DifferenceTotals()
    differences = (difference_object(difference) for difference in _differences(old, new, path, content, total))
    stream_object({**_head(old, new, path), "content": content}, "differences", differences, lambda: {"sum": asdict(total)})


def _head(old: OpenedBackup, new: OpenedBackup, path: bytes) -> dict[str, Any]:
    return {
        "host": old.backup.host,
        "path": os.fsdecode(path),
        "before": backup_object(old.backup),
        "after": backup_object(new.backup),
    }


# --- text


def _show(old: OpenedBackup, new: OpenedBackup, path: bytes, content: bool, everything: bool) -> None:
    print_wrapped(
        f"{shown(path)} of {old.backup.host}: {old.backup.name} ({state_words(old.backup.state)}) "
        f"-> {new.backup.name} ({state_words(new.backup.state)})"
    )
    total = DifferenceTotals()
    path_differences = _differences(old, new, path, content, total)
    for line in map(_line, path_differences) if everything else _lines(path_differences):
        print_wrapped(line, "    ")
    print_wrapped(_total(total))


def _lines(differences: Iterator[PathDifference]) -> Iterator[str]:
    """Yields a line for each difference; a folder that only one backup has is one line with its total content."""
    folder: PathDifference | None = None
    inside = DifferenceTotals()
    for difference in differences:
        if folder and difference.what == folder.what and difference.path.startswith(folder.path + b"/"):
            inside.take(difference)
            continue
        if folder:
            yield _folder_line(folder, inside)
        folder, inside = (
            (difference if difference.what in (ADDED, REMOVED) and _entry(difference).kind == "folder" else None),
            DifferenceTotals(),
        )
        if not folder:
            yield _line(difference)
    if folder:
        yield _folder_line(folder, inside)


def _folder_line(difference: PathDifference, inside: DifferenceTotals) -> str:
    names, size = inside.added + inside.removed, inside.added_bytes + inside.removed_bytes
    summary = f"{counted(names, 'name')} in it, {format_size(size)}" if names else "empty"
    return f"{_line(difference)}  {summary}"


def _entry(difference: PathDifference) -> Entry:
    entry = difference.after or difference.before
    assert entry is not None
    return entry


def _line(difference: PathDifference) -> str:
    sign, colour = _SIGNS[difference.what]
    entry = _entry(difference)
    name = shown(difference.path) + ("/" if entry.kind == "folder" and difference.path != b"/" else "")
    head = f"{click.style(sign, fg=colour)} {name}"
    if difference.before and difference.after:
        return (
            f"{head}  {', '.join(_field(name, difference.before, difference.after) for name in _shown_fields(difference.fields))}"
        )
    return f"{head}  {format_size(entry.size)}" if entry.kind == "file" else head


def _shown_fields(fields: Sequence[str]) -> list[str]:
    """Leaves out the content if the size differs too."""
    return [name for name in fields if name != "content" or "size" not in fields]


def _field(name: str, before: Entry, after: Entry) -> str:
    """Formats a difference, with both values if they are short."""
    if name == "mount":
        return "another filesystem is mounted there: the files below were not compared"
    values = {
        "kind": (before.kind, after.kind),
        "size": (format_size(before.size), format_size(after.size)),
        "mtime": (time_words(before.mtime), time_words(after.mtime)),
        "mode": (f"{before.mode:04o}", f"{after.mode:04o}"),
        "owner": (f"{before.uid}:{before.gid}", f"{after.uid}:{after.gid}"),
        "target": (shown(before.target or b""), shown(after.target or b"")),
    }
    if name not in values or values[name][0] == values[name][1]:  # two sizes may print the same
        return name
    return f"{name} {values[name][0]} -> {values[name][1]}"


def _total(total: DifferenceTotals) -> str:
    if not (total.added or total.removed or total.changed):
        return "no difference"
    return (
        f"{total.added:,} added ({format_size(total.added_bytes)}), "
        f"{total.removed:,} removed ({format_size(total.removed_bytes)}), "
        f"{total.changed:,} changed ({format_size(total.changed_bytes)} in them)"
    )


def _show_text(old: OpenedBackup, new: OpenedBackup, path: bytes, as_json: bool) -> None:
    lines = text_difference(old.tree, new.tree, path)

    def show() -> None:
        if lines:
            lines[:2] = [f"--- {old.where} {os.fsdecode(path)}", f"+++ {new.where} {os.fsdecode(path)}"]
        for line in lines:
            click.echo(click.style(printable(line), fg=_LINES.get(line[:1])))
        if not lines:
            click.echo("no difference")

    print_answer({**_head(old, new, path), "text": lines}, show, as_json=as_json)
