"""Gives `.working` the content of one tree.

After a tree that this import has copied, and for a first one, the inodes show what to copy (tree_links.py). After any other backup
all names are compared by sizes and times, and by content if the inodes show that sizes and times may be wrong.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import NamedTuple, TypeVar

from backupd.repo.backup_json import DATA, Record
from backupd.repo.pool_context import require_room
from backupd.run.finalisation import WorkSubvolume
from backupd.run.importing.copy_processes import SharedStop
from backupd.run.importing.copying import CopiedNames, FileMatch, copy_changed, copy_tree
from backupd.run.importing.formats import OldTree
from backupd.run.importing.import_context import ImportContext, OwnBackup, TreeProgress, require_going, with_folder
from backupd.run.importing.target_names import link_names, remove_names
from backupd.run.importing.tree_links import TreeLinks, scan_links, superfluous
from backupd.run.importing.tree_walk import UnprovenTree
from btrkeep.decisions.pool_health import lacks_room
from btrkeep.errors import OperatorError, is_damage
from btrkeep.pool.allocation import read_room
from btrkeep.pool.subvolume import inodes_made
from btrkeep.units import backup_name, bounded, printable

_CHANGED = (errno.EAGAIN, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
"""The error of an attempt during which a name of the tree was deleted or changed."""
_TICK = 0.2
_TICKS = 25  # between two checks of free space
_TOLD = 5  # ticks between two reports of the progress
_Result = TypeVar("_Result")
_Names = TypeVar("_Names")


class TreeNotCopied(OperatorError):
    """This tree was not imported. `is_changed`: it was changed during the import, so another attempt may succeed."""

    def __init__(self, tree: OldTree, why: str, *, is_changed: bool = False) -> None:
        super().__init__(
            f"{tree.folder}: some of its files could not be copied: {printable(why)}",
            "the incomplete backup of this tree was deleted",
        )
        self.is_changed = is_changed


class OpenTrees(NamedTuple):
    """Three successive trees of a history, two of them open."""

    tree: OldTree
    """The tree to import."""
    before: OldTree | None
    """The previous tree; None: none."""
    after: OldTree | None
    """The next tree; None: none."""
    source: Path
    """The open folder of `tree`."""
    old: Path | None
    """The open folder of `before`; None: there is no previous tree."""


def _own_base(context: ImportContext, trees: OpenTrees, prepared: WorkSubvolume) -> OwnBackup | None:
    """Returns the base if this import has made it from the previous tree and no damaged files were removed from it, because the
    removed files would be missing.
    """
    own = context.own.get(trees.tree.host) if not prepared.dropped else None
    return own if own and prepared.base and own.name == prepared.base.name and _base_is_previous(trees, prepared) else None


def _base_is_previous(trees: OpenTrees, prepared: WorkSubvolume) -> bool:
    """Returns True if the base is the backup of the previous tree."""
    return trees.before is not None and prepared.base is not None and prepared.base.name == backup_name(trees.before.started)


async def scan_tree(context: ImportContext, trees: OpenTrees, prepared: WorkSubvolume) -> TreeLinks:
    """Compares the tree with the previous tree, if the base is the backup of the previous tree. Raises Cancelled, OperatorError."""
    context.tell(TreeProgress(trees.tree.host))
    own = _own_base(context, trees, prepared)
    try:
        if own and own.ahead and own.ahead.tree == trees.tree:
            while not (await asyncio.wait((own.ahead.links,), timeout=_TICK))[0]:
                if not context.goes_on:
                    own.ahead.stop.set()
            links = own.ahead.links.result()
        else:
            old, folder_digests = trees.old if _base_is_previous(trees, prepared) else None, own.folders if own else None
            links = await asyncio.to_thread(scan_links, trees.source, old, lambda: context.goes_on, folder_digests)
    except UnprovenTree as error:
        raise with_folder(trees.tree, error) from error
    except OSError as error:
        raise _not_all(trees.tree, error, "it cannot be read in the tree") from error
    require_going(context)
    return links


async def fill(context: ImportContext, trees: OpenTrees, prepared: WorkSubvolume, links: TreeLinks) -> dict[str, int]:
    """Copies the tree's content into `.working`. Returns the numbers of a PathResult.

    After a tree that this import has copied, only the differences are copied; of a first tree, everything. After any other backup
    all names are compared: by size and time if it is the backup of the previous tree, else by content.
    """
    tree, base = trees.tree, prepared.base
    target = prepared.path / DATA / tree.path.strip("/")
    of = len(links.changed) if links.is_compared else links.files
    context = replace(context, tick=_Ticker(context.tell, TreeProgress(tree.host, 0, max(1, of)), prepared.path))
    if target.is_file():  # the source path of a host may be a single file
        target.unlink()
    target.mkdir(mode=0o755, parents=True, exist_ok=True)  # every entry above it is a folder: see config_of
    grew, gone = _base_is_previous(trees, prepared) and links.is_compared, list[bytes]()
    copy: Callable[..., CopiedNames] = copy_tree
    if base is None:
        pass
    elif grew and _own_base(context, trees, prepared):
        copy, gone = copy_changed, links.gone
    else:
        copy = partial(copy_tree, same=FileMatch.SIZE_AND_TIME if grew else FileMatch.CONTENT)
        gone = await _threaded(context, trees, target, partial(superfluous, seen=links.digests), Event())
    await _in_the_target(context, tree, remove_names, target, gone)
    processes = context.processes.get(tree.host)
    stop: Event | SharedStop = processes.stop if processes else Event()
    copied = await _threaded(context, trees, target, partial(copy, links=links, delta=context.delta, processes=processes), stop)
    await _in_the_target(context, tree, link_names, target, links.groups)
    return _numbers(links, base if grew else None, copied, len(gone))


def _numbers(links: TreeLinks, base: Record | None, copied: CopiedNames, gone: int) -> dict[str, int]:
    """Returns the numbers under rsync's names."""
    made = {"created": copied.names, "deleted": gone, "transferred": copied.names, "matched": copied.bytes - copied.written}
    before = (base.total("bytes") or 0) if base else 0
    totals = {"files": links.files, "regular": links.files, "bytes": bounded(before + links.grown)}
    return made | {"transferred_bytes": copied.bytes, "literal": copied.written} | totals


class _Ticker:
    """Reports how many files were made, by the inode numbers of the subvolume, which takes the same time for any number
    of files.
    """

    def __init__(self, tell: Callable[[TreeProgress], None], begun: TreeProgress, path: Path) -> None:
        self._tell, self._begun, self._path, self._before = tell, begun, path, inodes_made(path)
        tell(begun)

    def __call__(self) -> None:
        made = inodes_made(self._path) - self._before
        self._tell(replace(self._begun, files=max(0, min(self._begun.of, made))))


async def _in_the_target(
    context: ImportContext, tree: OldTree, change: Callable[[Path, _Names], None], target: Path, names: _Names
) -> None:
    """Calls a function of target_names.py. Raises OperatorError, Cancelled, PoolUnusable."""
    try:
        await asyncio.to_thread(change, target, names)
    except OSError as error:
        require_going(context)
        require_room(context.pool, context.config)
        raise _not_all(tree, error, "it cannot be read or written in the pool") from error


async def _threaded(
    context: ImportContext, trees: OpenTrees, target: Path, work: Callable[..., _Result], stop: Event | SharedStop
) -> _Result:
    """Calls `work` in a thread with the two open folders; `stop` ends it early. Raises Cancelled, PoolUnusable, OperatorError."""
    stop.clear()

    def open_both() -> _Result:
        with ExitStack() as held:
            fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in (trees.source, target)]
            for fd in fds:
                held.callback(os.close, fd)
            return work(*fds, goes_on=lambda: not stop.is_set())

    failed = TreeNotCopied(trees.tree, "the pool became full")
    try:
        opened = await _watched(context, asyncio.to_thread(open_both), stop.set)
        if not stop.is_set():
            return opened
    except OSError as error:
        failed = _not_all(trees.tree, error)
    finally:
        stop.set()
    require_going(context)
    require_room(context.pool, context.config)
    raise failed


async def _watched(context: ImportContext, work: Awaitable[_Result], stop: Callable[[], object]) -> _Result:
    """Waits for the thread, reports its progress, and stops it if the import is cancelled or the pool has too little free space."""
    ticks, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait((task,), timeout=_TICK)
        ticks += 1
        if ticks % _TOLD == 0:
            context.tick()
        if not context.goes_on or (ticks % _TICKS == 0 and lacks_room(read_room(context.pool.path), context.config.pool.min_free)):
            stop()
    return await task


def _not_all(tree: OldTree, error: OSError, side: str = "") -> TreeNotCopied:
    """Returns the error for a name that could not be copied. `side`: the message for a damaged file, if the error has none."""
    where, why = os.fsdecode(error.filename or "its root"), error.strerror
    why = f"{side}: {why}" if side and is_damage(error) else why
    return TreeNotCopied(tree, f"{where}: {why}", is_changed=error.errno in _CHANGED)
