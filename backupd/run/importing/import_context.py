"""The context of an import; its trees, opened by a descriptor, so that a rotation cannot exchange them; and which of their backups
were compared.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from backupd.repo.backup_json import Record
from backupd.repo.final_backups import final_backups, require_not_replica
from backupd.repo.pool_context import require_room
from backupd.repo.pool_files import NOT_UNDERSTOOD, text_of_file
from backupd.rsync.command import Rsync
from backupd.run.importing.copy_processes import CopyProcesses
from backupd.run.importing.formats import OldTree
from backupd.run.importing.tree_links import TreeLinks, scan_links
from backupd.run.importing.tree_walk import FolderDigests
from backupd.run.interrupted import discardable
from btrkeep.clock import Clock
from btrkeep.config import Config, HostConfig
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import FOLDER, is_there
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancellation, Cancelled
from btrkeep.units import format_time

_COMPARED = "imports.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TreeProgress:
    """The progress of a tree."""

    host: str
    """The host's name."""
    files: int = 0
    """Number of files made so far."""
    of: int = 0
    """Approximate total; 0 while its folders are read."""


@dataclass(frozen=True, slots=True)
class ImportContext:
    """Everything an import needs."""

    config: Config
    """The configuration."""
    pool: Pool
    """The pool."""
    rsync: Rsync
    """The rsync of this server."""
    clock: Clock
    """The clock."""
    cancellation: Cancellation
    """Ends it early."""
    delta: bool = False
    """True if files are changed in place, so that both backups share equal blocks."""
    tell: Callable[[TreeProgress], None] = lambda _: None
    """Called about once a second while a tree is copied."""
    tick: Callable[[], None] = lambda: None
    """Called between small steps."""
    own: "dict[str, OwnBackup]" = field(default_factory=dict)
    """The newest backup of each host that this import has made."""
    processes: dict[str, CopyProcesses] = field(default_factory=dict)
    """The processes that copy, by host, if there are any."""

    @property
    def goes_on(self) -> bool:
        """Returns True if the import was not stopped."""
        return not self.cancellation

    @contextmanager
    def host(self, name: str, processes: CopyProcesses | None = None) -> Iterator[None]:
        """Imports trees of that host with these processes; at the end the data about them is removed."""
        if processes:
            self.processes[name] = processes
        try:
            yield
        finally:
            self.processes.pop(name, None)
            own = self.own.pop(name, None)
            if own and own.ahead:
                own.ahead.stop.set()


@dataclass(frozen=True, slots=True)
class OwnBackup:
    """A backup that this import has made."""

    name: str
    """The backup's name."""
    folders: FolderDigests
    """The digests of the folders of its tree when the backup was made."""
    ahead: "LookAhead | None"
    """The reading of the next tree that has already started; None: none."""


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Reads a tree's folders while the previous tree is copied, because reading is mostly waiting."""

    tree: OldTree
    """The tree."""
    links: "asyncio.Task[TreeLinks]"
    """Its hard links, after they were read."""
    stop: Event
    """Ends it early."""

    @classmethod
    def begin(cls, tree: OldTree, before: OldTree, digests: FolderDigests) -> "LookAhead":
        """Starts to read the tree. `digests`: those of the previous tree."""
        stop = Event()

        def look() -> TreeLinks:
            with opened_tree(tree) as source, opened_tree(before) as old:
                tree_links = scan_links(source, old, lambda: not stop.is_set(), digests)
            if stop.is_set():
                raise Cancelled
            return tree_links

        task = asyncio.create_task(asyncio.to_thread(look))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # if it is not needed, its error is not reported
        return cls(tree, task, stop)


def config_of(config: Config, tree: OldTree) -> HostConfig:
    """Returns the host's configuration for an import: everything in the tree, whatever its present source paths are.

    Files of the base below other paths are removed, and so is any entry that is not a folder in the path of the tree: a symlink
    there would redirect the import.
    """
    own = config.hosts.get(tree.host) or HostConfig(tree.host)
    return replace(own, paths=(tree.path,), exclude=(), self_excluded=(), one_file_system=False)


@contextmanager
def opened_tree(tree: OldTree) -> Iterator[Path]:
    """Yields a path of the folder whose time was read, whatever its present name is. Raises OperatorError if the folder was
    replaced, or if its time has changed.
    """
    try:
        fd = os.open(tree.folder, FOLDER)
    except OSError as error:
        raise OperatorError(
            f"{tree.folder}: {error.strerror}; it was probably rotated during the import", "run the import again"
        ) from None
    with ClosingFd(fd):
        _require_same(tree, fd)
        yield Path(f"/proc/{os.getpid()}/fd/{fd}")
        _require_same(tree, fd)


def _require_same(tree: OldTree, fd: int) -> None:
    device, inode, stamp = tree.identity
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (device, inode) or (stamp and os.stat("..", dir_fd=fd).st_mtime_ns != stamp):
        raise OperatorError(f"{tree.folder} was replaced: the history was rotated during the import", "run the import again")


def known_backups(pool: Pool, host: str, unread: list[str]) -> dict[str, Record]:
    """Returns the backups of the host, by name. Adds the names of backups that the disk cannot read to `unread`."""
    return {backup.record.name: backup.record for backup in final_backups(pool, host, unread) if backup.record.name}


@contextmanager
def locked_for_import(context: ImportContext, tree: OldTree) -> Iterator[tuple[HostConfig, Path]]:
    """Locks the host of the tree, and opens the tree; yields the host's configuration and that folder. Raises OperatorError if
    nothing can be imported for the host now.
    """
    host = config_of(context.config, tree)
    with take_lock(context.pool.host_lock(tree.host), f"import of {tree.host}", format_time(context.clock.now())):
        require_not_replica(context.pool, tree.host)
        require_room(context.pool, context.config)
        require_no_other_work(context.pool, tree.host)
        with opened_tree(tree) as folder:
            yield host, folder


def require_going(context: ImportContext) -> None:
    """Raises Cancelled if the import was stopped."""
    if not context.goes_on:
        raise Cancelled


def require_no_other_work(pool: Pool, host: str) -> None:
    """Raises OperatorError if a night has left an unfinished backup, which the import would discard."""
    path = pool.working(host)
    if is_there(path) and not discardable(path, host, lambda record: record.imported is not None):
        hint = f"`backupd run {host}` finishes it, `backupd discard {host}` deletes it"
        raise OperatorError(f"{host} has an unfinished backup", hint)


def with_folder(tree: OldTree, error: OperatorError) -> OperatorError:
    """Returns the error with the tree to which it belongs."""
    return OperatorError(f"{tree.folder}: {error.message}", error.hint)


@dataclass(frozen=True, slots=True)
class ComparedTrees:
    """imports.json in the state folder: the imported backups that were compared with their trees and were equal. They are listed by
    UUID, because a host may be renamed.

    A backup is compared after it has its name. After a kill between these two steps the backup is not listed, and the next import
    compares it. If the file is lost, everything is compared again.
    """

    state: Path

    def has(self, record: Record) -> bool:
        """Returns True if that backup was equal to its tree."""
        return record.uuid in self._read()

    def add(self, record: Record) -> None:
        """Adds a backup that was equal. Raises OSError."""
        equal = {**self._read(), record.uuid: f"{record.host}@{record.name}"}
        write_atomically(self.state / _COMPARED, json.dumps({"format": _FORMAT, "equal": equal}, indent=1) + "\n")

    def _read(self) -> dict[str, str]:
        """Returns the names of backups by UUID; empty if the file is missing or cannot be read."""
        try:
            fields = json.loads(text_of_file(self.state / _COMPARED))
            return {str(uuid): str(name) for uuid, name in fields["equal"].items()} if fields["format"] == _FORMAT else {}
        except (OSError, *NOT_UNDERSTOOD):
            return {}
