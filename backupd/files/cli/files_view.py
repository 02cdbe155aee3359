"""Entries of backups in a terminal, as `ls -ln` shows them. Names are somebody else's, so each is made safe to show."""

import os
from collections.abc import Iterable, Sequence

import click

from backupd.files.listing import is_executable
from backupd.files.tree import Entry
from backupd.files.words import device_words, mode_words, shown, time_words
from backupd.repo.backup_json import Record
from btrkeep.cli import table
from btrkeep.decisions.lasting import condition_words
from btrkeep.units import counted, format_size

_HEADERS = ["MODE", "UID", "GID", "SIZE", "MODIFIED", "NAME"]
_MOST_LEFT_OUT = 5
_STATES = {"complete": "green", "suspect": "yellow", "failed": "red", "expired": "red"}


def state_words(state: str) -> str:
    """A backup's state, coloured."""
    return click.style(state, fg=_STATES.get(state))


def remark_lines(record: Record, paths: Iterable[bytes]) -> list[str]:
    """Returns remarks about a backup: where deletions were skipped, and what `one_file_system` has left out.

    Only those about a folder that holds one of the paths, or lies below it.
    """
    asked = [os.fsdecode(path) for path in paths]
    lines = [condition_words(one) for one in record.skipped_deletions if any(_overlap(one.key.path, path) for path in asked)]
    left_out = [condition for condition in record.left_out if any(_overlap(condition.key.name, path) for path in asked)]
    lines += map(condition_words, left_out[:_MOST_LEFT_OUT])
    if (more := len(left_out) - _MOST_LEFT_OUT) > 0:
        lines.append(f"{counted(more, 'more folder')} left out by `one_file_system`")
    return lines


def _overlap(one: str, other: str) -> bool:
    first, second = (f"{path.rstrip('/')}/" for path in (one, other))
    return first.startswith(second) or second.startswith(first)


def entries_table(entries: Sequence[Entry]) -> str:
    """Returns a table with one line for each entry."""
    rows = [
        (mode_words(one), str(one.uid), str(one.gid), size_words(one), time_words(one.mtime), name_words(one)) for one in entries
    ]
    return table(rows, _HEADERS, right=["UID", "GID", "SIZE"], spare=["UID", "GID"])


def size_words(entry: Entry) -> str:
    """Formats a file's size or a device's numbers; "" for other types."""
    return format_size(entry.size) if entry.kind == "file" else device_words(entry) or "-"


def name_words(entry: Entry) -> str:
    """The name, folders with a slash behind it, symlinks with where they point to."""
    name = shown(entry.name)
    if entry.kind == "folder":
        return click.style(name, fg="blue", bold=True) + ("" if entry.path == b"/" else "/")
    if entry.kind == "symlink":
        return f"{click.style(name, fg='cyan')} -> {shown(entry.target or b'')}"
    return click.style(name, fg="green", bold=True) if is_executable(entry) else name
