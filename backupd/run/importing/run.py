"""Makes a backup of one tree of an old history, by the steps of a night: `.working` from the backup before it, the tree's files,
the final name.

After a tree that this import has made a backup of, and for a first one, the inodes tell what is to be copied (tree_links.py). After
any other backup all names are compared by sizes and times, and by content where the inodes show that these may deceive. Each tree
is worked on by a descriptor, so that a rotation meanwhile does not put another in its place.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import NamedTuple, TypeVar

from backupd.repo.backup_json import DATA, PathOutcome, PathResult, Record
from backupd.repo.final_backups import discard, final_backups, require_own
from backupd.repo.room import require_room
from backupd.rsync.output import bounded
from backupd.rsync.version import Rsync
from backupd.run import finishing
from backupd.run import work_subvolume as working
from backupd.run.finishing import Prepared
from backupd.run.fresh_sums import NO_SUMS
from backupd.run.importing.copying import CopiedNames, Same, copy_changed, copy_tree
from backupd.run.importing.formats import OldTree
from backupd.run.importing.target_names import link_names, remove_names
from backupd.run.importing.tree_links import FolderDigests, TreeLinks, UnprovenTree, look_at, superfluous
from backupd.run.interrupted import discardable
from btrkeep import __version__
from btrkeep.backup_states import COMPLETE
from btrkeep.clock import Clock
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.pool_room import lacks_room
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import FOLDER, is_there
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.room import read_room
from btrkeep.pool.subvolume import inodes_made
from btrkeep.pool.syncfs import Syncfs, syncing
from btrkeep.process.cancellation import Cancellation, Cancelled
from btrkeep.units import backup_name, format_time, printable

_CHANGED = (errno.EAGAIN, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
"""What an attempt ends with if a name goes, or becomes another one, while the tree is copied."""
_TICK = 0.2
_TICKS = 25  # between two looks at the room
_TOLD = 5  # ticks between two words about the progress
_Result = TypeVar("_Result")
_Names = TypeVar("_Names")


class TreeNotCopied(OperatorError):
    """Nothing of this one tree was kept. `is_changed`: somebody changed it meanwhile, so another attempt may do."""

    def __init__(self, tree: OldTree, why: str, *, is_changed: bool = False) -> None:
        super().__init__(f"{tree.folder}: not all of it could be copied: {printable(why)}", "nothing of this tree was kept")
        self.is_changed = is_changed


@dataclass(frozen=True, slots=True)
class TreeProgress:
    """How far a tree is: `files` of about `of` were made. `of` is 0 while its folders are read."""

    host: str
    files: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class ImportSite:
    """The environment of an import. `delta`: files are changed in place, so that both backups share equal blocks."""

    config: Config
    pool: Pool
    rsync: Rsync
    clock: Clock
    cancellation: Cancellation
    delta: bool = False
    tell: Callable[[TreeProgress], None] = lambda _: None
    """Is called about once a second while a tree is copied."""
    tick: Callable[[], None] = lambda: None
    own: "dict[str, OwnBackup]" = field(default_factory=dict)
    """By host, the newest backup that this import has made."""

    @property
    def goes_on(self) -> bool:
        """Returns True if the import was not stopped."""
        return not self.cancellation

    @contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Imports trees of that host; at the end what was learnt of them is forgotten."""
        try:
            yield
        finally:
            own = self.own.pop(name, None)
            if own and own.ahead:
                own.ahead.stop.set()


@dataclass(frozen=True, slots=True)
class OwnBackup:
    """The name of a backup that this import has made, what the folders of its tree were then, and the look at the tree after it,
    which was begun meanwhile.
    """

    name: str
    folders: FolderDigests
    ahead: "LookAhead | None"


@dataclass(frozen=True, slots=True)
class LookAhead:
    """A look at a tree while the one before it is copied: reading its folders is mostly waiting."""

    tree: OldTree
    found: "asyncio.Task[TreeLinks]"
    stop: Event

    @classmethod
    def begin(cls, tree: OldTree, before: OldTree, known: FolderDigests) -> "LookAhead":
        """`known`: of the tree before."""
        stop = Event()

        def look() -> TreeLinks:
            with opened_tree(tree) as source, opened_tree(before) as old:
                found = look_at(source, old, lambda: not stop.is_set(), known)
            if stop.is_set():
                raise Cancelled
            return found

        task = asyncio.create_task(asyncio.to_thread(look))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # if nobody asks, nobody is to be told
        return cls(tree, task, stop)


@dataclass(frozen=True, slots=True)
class ImportedBackup:
    """A backup made of a tree. `literal`: bytes of data that were copied. `nested`: folders that stand for subvolumes in a
    snapshot, and are not in the backup.
    """

    record: Record
    subvolume_id: int
    literal: int
    nested: int = 0


def config_of(config: Config, tree: OldTree) -> HostConfig:
    """Returns the host's configuration for an import: everything in the tree, whatever its source paths are now.

    Files of the base below other paths are removed, and so is anything in the place of a folder above the tree: a symlink there
    would lead elsewhere.
    """
    own = config.hosts.get(tree.host) or HostConfig(tree.host)
    return replace(own, paths=(tree.path,), exclude=(), left_out=(), one_file_system=False)


@contextmanager
def opened_tree(tree: OldTree) -> Iterator[Path]:
    """Yields a path of the very folder whose time was read, whatever its name is now. Raises OperatorError if it is another
    one, or has another time since.
    """
    try:
        fd = os.open(tree.folder, FOLDER)
    except OSError as error:
        raise OperatorError(f"{tree.folder}: {error.strerror}: was it rotated meanwhile?", "run it again") from None
    with ClosingFd(fd):
        _require_same(tree, fd)
        yield Path(f"/proc/{os.getpid()}/fd/{fd}")
        _require_same(tree, fd)


def _require_same(tree: OldTree, fd: int) -> None:
    device, inode, stamp = tree.identity
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (device, inode) or (stamp and os.stat("..", dir_fd=fd).st_mtime_ns != stamp):
        raise OperatorError(f"{tree.folder} is another one than it was: the history was rotated meanwhile", "run it again")


def known_backups(pool: Pool, host: str) -> dict[str, Record]:
    """Returns the backups of the host, by name."""
    return {one.record.name: one.record for one in final_backups(pool, host) if one.record.name}


@contextmanager
def locked_for_import(site: ImportSite, tree: OldTree) -> Iterator[tuple[HostConfig, Path]]:
    """Locks the host of the tree, and opens the tree: yields the host's configuration and that folder. Raises OperatorError if
    nothing can be imported for the host now.
    """
    host = config_of(site.config, tree)
    with take_lock(site.pool.host_lock(tree.host), f"import of {tree.host}", format_time(site.clock.now())):
        require_own(site.pool, tree.host)
        require_room(site.pool, site.config)
        require_no_other_work(site.pool, tree.host)
        with opened_tree(tree) as folder:
            yield host, folder


async def import_tree(
    site: ImportSite, tree: OldTree, before: OldTree | None = None, after: OldTree | None = None
) -> ImportedBackup:
    """Imports one tree; `before` is the one before it in the same history, `after` the one that is imported next. Raises Cancelled,
    OperatorError, OSError.

    An incomplete backup is discarded: the next import makes it again.
    """
    with locked_for_import(site, tree) as (host, source), ExitStack() as held:
        old = held.enter_context(opened_tree(before)) if before else None
        disk = held.enter_context(syncing(site.pool.path))
        return await _made(site, _Trees(tree, before, after, source, old), host, disk)


class _Trees(NamedTuple):
    """A tree, the one before it and the one that comes next; `source` and `old` are the first two's folders, open."""

    tree: OldTree
    before: OldTree | None
    after: OldTree | None
    source: Path
    old: Path | None


async def _made(site: ImportSite, trees: _Trees, host: HostConfig, disk: Syncfs) -> ImportedBackup:
    tree, ahead = trees.tree, None
    origin = origin_of(tree)
    _, prepared = await asyncio.to_thread(
        working.recover_and_prepare,
        working.WorkRequest(site.pool, host, tree.started, disk, site.cancellation, imported=origin),
    )
    try:
        links = await _looked(site, trees, prepared)
        if trees.after:
            ahead = LookAhead.begin(trees.after, tree, links.digests)
        numbers = await _filled(site, trees, prepared, links)
        record = import_record(site, tree, working.first_record(prepared, host, tree.started, origin), numbers)
        _, final = await asyncio.to_thread(finishing.finalise, site.pool, prepared, record, disk, NO_SUMS)
    except BaseException:
        with suppress(OSError):  # then the next import begins it anew
            discard(prepared.path, prepared.uuid)
        if ahead:
            ahead.stop.set()
        raise
    assert final.name is not None
    site.own[tree.host] = OwnBackup(final.name, links.digests, ahead)
    return ImportedBackup(final, prepared.id, numbers.get("literal", 0))


def _own_base(site: ImportSite, trees: _Trees, prepared: Prepared) -> OwnBackup | None:
    """Returns the base, if this import has made it, of the tree before."""
    own = site.own.get(trees.tree.host)
    return own if own and prepared.base and own.name == prepared.base.name and _follows(trees, prepared) else None


def _follows(trees: _Trees, prepared: Prepared) -> bool:
    """Returns True if the base is the backup of the tree before."""
    return trees.before is not None and prepared.base is not None and prepared.base.name == backup_name(trees.before.started)


async def _looked(site: ImportSite, trees: _Trees, prepared: Prepared) -> TreeLinks:
    """Compares the tree with the one before it, if the base is of that one. Raises Cancelled, OperatorError."""
    site.tell(TreeProgress(trees.tree.host))
    own = _own_base(site, trees, prepared)
    try:
        if own and own.ahead and own.ahead.tree == trees.tree:
            while not (await asyncio.wait((own.ahead.found,), timeout=_TICK))[0]:
                if not site.goes_on:
                    own.ahead.stop.set()
            links = own.ahead.found.result()
        else:
            old, known = trees.old if _follows(trees, prepared) else None, own.folders if own else None
            links = await asyncio.to_thread(look_at, trees.source, old, lambda: site.goes_on, known)
    except UnprovenTree as error:
        raise named(trees.tree, error) from error
    except OSError as error:
        raise _not_all(trees.tree, error) from error
    _require_going(site)
    return links


async def _filled(site: ImportSite, trees: _Trees, prepared: Prepared, links: TreeLinks) -> dict[str, int]:
    """Copies the tree's content into `.working`. Returns the numbers, as PathResult has them.

    After a tree that this very import has copied, only the differences are copied, and of a first one all. After any other backup
    all names are compared: by size and time if that is the backup of the previous tree, else by content.
    """
    tree, base = trees.tree, prepared.base
    target = prepared.path / DATA / tree.path.strip("/")
    of = len(links.changed) if links.is_compared else links.files
    site = replace(site, tick=_Ticker(site.tell, TreeProgress(tree.host, 0, max(1, of)), prepared.path))
    if target.is_file():  # of a host whose source path it was
        target.unlink()
    target.mkdir(mode=0o755, parents=True, exist_ok=True)  # what stands above it is a folder: see config_of
    grew, gone = _follows(trees, prepared) and links.is_compared, list[bytes]()
    copy: Callable[..., CopiedNames] = copy_tree
    if base is None:
        pass
    elif grew and _own_base(site, trees, prepared):
        copy, gone = copy_changed, links.gone
    else:
        copy = partial(copy_tree, same=Same.SIZE_AND_TIME if grew else Same.CONTENT)
        gone = await _threaded(site, trees, target, partial(superfluous, seen=links.digests))
    await _in_the_target(site, tree, remove_names, target, gone)
    copied = await _threaded(site, trees, target, partial(copy, links=links, delta=site.delta))
    await _in_the_target(site, tree, link_names, target, links.groups)
    return _numbers(links, base if grew else None, copied, len(gone))


def _numbers(links: TreeLinks, base: Record | None, copied: CopiedNames, gone: int) -> dict[str, int]:
    """Returns them as rsync says them."""
    made = {"created": copied.names, "deleted": gone, "transferred": copied.names, "matched": copied.bytes - copied.written}
    before = (base.total("bytes") or 0) if base else 0
    totals = {"files": links.files, "regular": links.files, "bytes": bounded(before + links.grown)}
    return made | {"transferred_bytes": copied.bytes, "literal": copied.written} | totals


class _Ticker:
    """Tells how many files were made, by the inode numbers of the subvolume: asking costs nothing, however many there are."""

    def __init__(self, tell: Callable[[TreeProgress], None], begun: TreeProgress, path: Path) -> None:
        self._tell, self._begun, self._path, self._before = tell, begun, path, inodes_made(path)
        tell(begun)

    def __call__(self) -> None:
        made = inodes_made(self._path) - self._before
        self._tell(replace(self._begun, files=max(0, min(self._begun.of, made))))


async def _in_the_target(
    site: ImportSite, tree: OldTree, change: Callable[[Path, _Names], None], target: Path, names: _Names
) -> None:
    """Has a function of target_names.py do it. Raises OperatorError, Cancelled, PoolUnusable."""
    try:
        await asyncio.to_thread(change, target, names)
    except OSError as error:
        _require_going(site)
        require_room(site.pool, site.config)
        raise _not_all(tree, error) from error


def _require_going(site: ImportSite) -> None:
    """Raises Cancelled."""
    if not site.goes_on:
        raise Cancelled


def require_no_other_work(pool: Pool, host: str) -> None:
    """Raises OperatorError if a night has left an unfinished backup, which would be discarded for the tree."""
    path = pool.working(host)
    if is_there(path) and not discardable(path, host, lambda record: record.imported is not None):
        hint = f"`backupd run {host}` finishes it, `backupd discard {host}` gives it up"
        raise OperatorError(f"{host} has an unfinished backup", hint)


async def _threaded(site: ImportSite, trees: _Trees, target: Path, work: Callable[..., _Result]) -> _Result:
    """Has a function work in threads with the two folders, open. Raises Cancelled, PoolUnusable, OperatorError."""
    stop = Event()

    def open_both() -> _Result:
        with ExitStack() as held:
            fds = [os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for one in (trees.source, target)]
            for fd in fds:
                held.callback(os.close, fd)
            return work(*fds, goes_on=lambda: not stop.is_set())

    failed = TreeNotCopied(trees.tree, "the room of the pool came to an end")
    try:
        found = await _watched(site, asyncio.to_thread(open_both), stop.set)
        if not stop.is_set():
            return found
    except OSError as error:
        failed = _not_all(trees.tree, error)
    finally:
        stop.set()
    _require_going(site)
    require_room(site.pool, site.config)
    raise failed


async def _watched(site: ImportSite, work: Awaitable[_Result], stop: Callable[[], object]) -> _Result:
    """Waits for it, tells how far it is, and stops it when the import is to end or the room does."""
    ticks, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait((task,), timeout=_TICK)
        ticks += 1
        if ticks % _TOLD == 0:
            site.tick()
        if not site.goes_on or (ticks % _TICKS == 0 and lacks_room(read_room(site.pool.path), site.config.pool.min_free)):
            stop()
    return await task


def _not_all(tree: OldTree, error: OSError) -> TreeNotCopied:
    where = os.fsdecode(error.filename or "its root")
    return TreeNotCopied(tree, f"{where}: {error.strerror}", is_changed=error.errno in _CHANGED)


def named(tree: OldTree, error: OperatorError) -> OperatorError:
    """Returns the error with the tree that it is about."""
    return OperatorError(f"{tree.folder}: {error.message}", error.hint)


def import_record(site: ImportSite, tree: OldTree, first: Record, numbers: Mapping[str, int]) -> Record:
    """The record of a complete backup that was made of the tree. `numbers` are as PathResult has them."""
    return replace(
        first,
        state=COMPLETE,
        finished=site.clock.now().replace(microsecond=0),  # before that nothing of it was here
        attempts=1,
        paths=(PathResult(tree.path, PathOutcome.COMPLETE, exit_code=0, numbers=dict(numbers)),),
        rsync_version=site.rsync.version,
        protocol=site.rsync.protocol,
        version=__version__,
    )


def origin_of(tree: OldTree) -> str:
    """Returns the folder of the tree, for Record.imported. It stands there from the beginning: an import knows its own by it."""
    return os.fsencode(tree.folder).decode("utf-8", "replace")
