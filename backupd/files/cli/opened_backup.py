"""Shared by the commands that read backups: opens the backup, completes its name and paths, and shows its entries and remarks.

They need only the pool, not the catalogue, so a listing appears as soon as Python has started. Entries are shown like those of `ls
-ln`; their names come from a host, so each is made safe to show.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import click

from backupd.cli.command_context import clock_for, load_config
from backupd.cli.names import completing, moment_of
from backupd.files.backup_selector import NEWEST, Restorable, find, parse_which
from backupd.files.entry_words import device_words, mode_words, shown, time_words
from backupd.files.listing import is_executable
from backupd.files.tree import Entry, Tree
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import LATEST
from backupd.repo.pool_context import open_configured
from btrkeep.cli.listings import Column, listing
from btrkeep.consistency import consistency_words, do_overlap
from btrkeep.decisions.lasting import condition_words
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import Pool
from btrkeep.units import counted, format_size

_MOST_COMPLETED = 500
_MOST_LEFT_OUT = 5
_STATES = {"complete": "green", "suspect": "yellow", "failed": "red", "expired": "red"}


@dataclass(frozen=True, slots=True)
class OpenedBackup:
    """An open backup."""

    pool: Pool
    """The pool that has it."""
    backup: Restorable
    """The backup."""
    tree: Tree
    """Its files."""

    @property
    def where(self) -> str:
        """Returns its name for messages: HOST@NAME."""
        return f"{self.backup.host}@{self.backup.name}"


def pool_of(ctx: click.Context) -> tuple[Pool, ZoneInfo]:
    """Returns the pool that --pool or --config names, and its zone. Raises any OperatorError."""
    config = load_config(ctx)
    pool = open_configured(config)
    clock_for(ctx, pool)
    return pool, config.pool.zone


def host_and_backup(text: str, at: date | None, command: str) -> tuple[str, str]:
    """Returns the host and the selected backup: HOST[@BACKUP] of a command that has --at. Raises UsageError if @BACKUP and --at are
    both given.
    """
    name, which = parse_which(text)
    if at and which not in (NEWEST, LATEST):
        raise UsageError(f"--at and @{which} exclude each other", f"leave one of them out: `backupd {command} {name} --at {at}`")
    return name, which


def end_of(day: date, zone: ZoneInfo) -> datetime:
    """Returns the last moment of a day of the pool's zone; for a time, see `moment_of`."""
    if isinstance(day, datetime):
        return moment_of(day, zone)
    try:
        return moment_of(day + timedelta(days=1), zone) - timedelta(microseconds=1)
    except OverflowError:
        raise UsageError(f"{day} is out of range", "give a date such as 2026-11-19") from None


@contextmanager
def opened_backup(pool: Pool, host: str, which: str, at: datetime | None) -> Iterator[OpenedBackup]:
    """Yields the requested backup, open. Raises UsageError; OperatorError for read errors within the context."""
    backup = find(pool, host, which, at)
    with reading(f"{backup.host}@{backup.name}"), Tree(backup.path) as tree:
        yield OpenedBackup(pool, backup, tree)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turns an OSError from within into an OperatorError, except for a closed output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        hint = "check with `backupd list` whether it was deleted; for disk errors check dmesg and `backupd scrub`"
        raise OperatorError(f"{where} cannot be read: {error.strerror or error}", hint) from error


def complete_path(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes paths of the backup that was named before. A single matching folder is completed with its contents, so that typing
    can continue.
    """
    pool, which = completing(ctx), ctx.params.get("host")
    if not pool or not which:
        return []
    try:
        with Tree(find(pool, *parse_which(which)).path) as tree:
            completions = _beginning(tree, os.fsencode(incomplete or "/"))
            if len(completions) == 1 and completions[0].endswith("/"):
                completions += _beginning(tree, os.fsencode(completions[0]))
    except (OperatorError, OSError, ValueError):
        return []
    return completions[:_MOST_COMPLETED]


def _beginning(tree: Tree, path: bytes) -> list[str]:
    """Returns the paths with this prefix, without those that a shell would have to quote or that would move the cursor."""
    above, _, beginning = path.rpartition(b"/")
    names = [name for name in tree.names(above or b"/") if name.startswith(beginning)][:_MOST_COMPLETED]
    texts = [os.fsdecode(above + b"/" + name) for name in names]
    kinds = [tree.stat(os.fsencode(text)).kind for text in texts]
    completions = [text + "/" if kind == "folder" else text for text, kind in zip(texts, kinds, strict=True)]
    return [text for text in completions if text.isprintable() and shlex.quote(text) == text]


def state_words(state: str) -> str:
    """A backup's state, coloured."""
    return click.style(state, fg=_STATES.get(state))


def remark_lines(record: Record, paths: Iterable[bytes]) -> list[str]:
    """Returns remarks about a backup: where deletions were skipped, which folders `one_file_system` excluded, and how source paths
    were read. Only remarks about a folder that contains, or is below, one of the paths.
    """
    asked = [os.fsdecode(path) for path in paths]
    lines = [
        condition_words(skipped_deletion)
        for skipped_deletion in record.skipped_deletions
        if any(do_overlap(skipped_deletion.key.path, path) for path in asked)
    ]
    conditions = [condition for condition in record.left_out if any(do_overlap(condition.key.name, path) for path in asked)]
    lines += map(condition_words, conditions[:_MOST_LEFT_OUT])
    if (more := len(conditions) - _MOST_LEFT_OUT) > 0:
        lines.append(f"{counted(more, 'more folder')} excluded by `one_file_system`")
    for result in record.paths:
        if result.consistency and any(do_overlap(result.path, path) for path in asked):
            lines.append(consistency_words(result.path, result.consistency))
    return lines


def entries_table(entries: Sequence[Entry]) -> str:
    """Returns a table with one line for each entry."""
    columns: tuple[Column[Entry], ...] = (
        Column(header="MODE", cell=mode_words),
        Column("", lambda entry: entry.uid, "UID", right=True, spare=True),
        Column("", lambda entry: entry.gid, "GID", right=True, spare=True),
        Column(header="SIZE", cell=size_words, right=True),
        Column("", lambda entry: entry.mtime, "MODIFIED", time_words),
        Column(header="NAME", cell=name_words),
    )
    return listing(columns, entries)


def size_words(entry: Entry) -> str:
    """Formats a file's size or a device's numbers; "" for other types."""
    return format_size(entry.size) if entry.kind == "file" else device_words(entry) or "-"


def name_words(entry: Entry) -> str:
    """Formats the name: folders with a slash at the end, symlinks with their target."""
    name = shown(entry.name)
    if entry.kind == "folder":
        return click.style(name, fg="blue", bold=True) + ("" if entry.path == b"/" else "/")
    if entry.kind == "symlink":
        return f"{click.style(name, fg='cyan')} -> {shown(entry.target or b'')}"
    return click.style(name, fg="green", bold=True) if is_executable(entry) else name
