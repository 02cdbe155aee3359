"""Shared by the commands that read backups: opens the backup, and completes its name and paths.

They need only the pool, not the catalogue, so a listing appears as soon as Python has started.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import click

from backupd.cli.context import clock_for, load_config
from backupd.cli.names import completing, moment_of
from backupd.files.backup_selector import NEWEST, Restorable, find, parse_which
from backupd.files.tree import Tree
from backupd.repo.context import open_configured
from backupd.repo.final_backups import LATEST
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import Pool

_MOST_COMPLETED = 500


@dataclass(frozen=True, slots=True)
class OpenedBackup:
    """A backup that is opened for reading."""

    pool: Pool
    backup: Restorable
    tree: Tree

    @property
    def where(self) -> str:
        """Returns its name in messages: HOST@NAME."""
        return f"{self.backup.host}@{self.backup.name}"


def pool_of(ctx: click.Context) -> tuple[Pool, ZoneInfo]:
    """The pool that --pool or --config names, and its zone. Raises OperatorError of every kind."""
    config = load_config(ctx)
    pool = open_configured(config)
    clock_for(ctx, pool)
    return pool, config.pool.zone


def which_of(text: str, at: date | None, command: str) -> tuple[str, str]:
    """The host and which of its backups: HOST[@BACKUP] of a command that takes --at. Raises UsageError for both."""
    name, which = parse_which(text)
    if at and which not in (NEWEST, LATEST):
        raise UsageError(f"--at and @{which} exclude each other", f"leave one of them out: `backupd {command} {name} --at {at}`")
    return name, which


def end_of(day: date, zone: ZoneInfo) -> datetime:
    """The last moment that a day of the pool's zone has; a time as `moment_of` reads it."""
    if isinstance(day, datetime):
        return moment_of(day, zone)
    try:
        return moment_of(day + timedelta(days=1), zone) - timedelta(microseconds=1)
    except OverflowError:
        raise UsageError(f"{day} is beyond what a calendar has", "name a day of these centuries") from None


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
        hint = "is it being deleted? `backupd list` shows what there is; for errors of the disks see dmesg and `backupd scrub`"
        raise OperatorError(f"{where} cannot be read: {error.strerror or error}", hint) from error


def complete_path(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes paths of the backup named before. A single matching folder is completed with its contents, so that typing can
    go on.
    """
    pool, which = completing(ctx), ctx.params.get("host")
    if not pool or not which:
        return []
    try:
        with Tree(find(pool, *parse_which(which)).path) as tree:
            found = _beginning(tree, os.fsencode(incomplete or "/"))
            if len(found) == 1 and found[0].endswith("/"):
                found += _beginning(tree, os.fsencode(found[0]))
    except (OperatorError, OSError, ValueError):
        return []
    return found[:_MOST_COMPLETED]


def _beginning(tree: Tree, path: bytes) -> list[str]:
    """Returns the paths with this prefix, without those that a shell would need quoted or that would move the cursor."""
    above, _, beginning = path.rpartition(b"/")
    names = [name for name in tree.names(above or b"/") if name.startswith(beginning)][:_MOST_COMPLETED]
    texts = [os.fsdecode(above + b"/" + name) for name in names]
    kinds = [tree.stat(os.fsencode(text)).kind for text in texts]
    found = [text + "/" if kind == "folder" else text for text, kind in zip(texts, kinds, strict=True)]
    return [text for text in found if text.isprintable() and shlex.quote(text) == text]
