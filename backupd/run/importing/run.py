"""Makes a backup of one tree of an old history, by the steps of a night: `.working` from the backup before it, rsync, the final
name.

rsync compares sizes and times, and content where the inodes show that these may deceive (tree_links.py). It reads only new data,
and gets the tree by a descriptor, so that a rotation meanwhile does not put another tree in its place.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from backupd.repo.backup_json import DATA, PathOutcome, PathResult, Record, UnreadableRecord
from backupd.repo.backup_json import read as read_record
from backupd.repo.final_backups import discard, final_backups, is_unfinished_run, require_own
from backupd.rsync.output import Output, bounded
from backupd.rsync.version import Rsync
from backupd.run import work_subvolume as working
from backupd.run.fresh_sums import NO_SUMS
from backupd.run.importing.formats import OldTree
from backupd.run.importing.tree_links import TreeLinks, look_at
from backupd.run.work_subvolume import Prepared
from btrkeep import __version__
from btrkeep.backup_states import COMPLETE
from btrkeep.clock import Clock
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.pool_room import lacks_room
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.fs.openat import FOLDER
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.room import read_room
from btrkeep.pool.subvolume import describe, inodes_made
from btrkeep.pool.syncfs import Syncfs, syncing
from btrkeep.process.cancellation import Cancellation, Cancelled
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.units import backup_name, format_time, printable

_TICK = 0.2
_TICKS = 25  # between two looks at the room
_TOLD = 5  # ticks between two words about the progress
_LONGEST = 1 << 16  # bytes of messages that are kept
_CP = (
    *ENDS_WITH_US,
    "cp",
    "--recursive",
    "--no-dereference",
    "--preserve=mode,ownership,timestamps",
    "--no-target-directory",
    "--",
)


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
    own: set[str] = field(default_factory=set)
    """Names of backups that this import has made: their trees are unchanged since."""

    @property
    def goes_on(self) -> bool:
        """Returns True if the import was not stopped."""
        return not self.cancellation


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
    try:
        _require_same(tree, fd)
        yield Path(f"/proc/{os.getpid()}/fd/{fd}")
        _require_same(tree, fd)
    finally:
        os.close(fd)


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
    with take_lock(site.pool.locks / f"host-{tree.host}", f"import of {tree.host}", format_time(site.clock.now())):
        require_own(site.pool, tree.host)
        require_room(site)
        require_no_other_work(site.pool, host)
        with opened_tree(tree) as folder:
            yield host, folder


async def import_tree(site: ImportSite, tree: OldTree, before: OldTree | None) -> ImportedBackup:
    """Imports one tree; `before` is the one before it in the same history. Raises Cancelled, OperatorError, OSError.

    An incomplete backup is discarded: the next import makes it again.
    """
    with locked_for_import(site, tree) as (host, source), ExitStack() as held:
        old = held.enter_context(opened_tree(before)) if before else None
        disk = held.enter_context(syncing(site.pool.path))
        return await _made(site, tree, before, host, (source, old), disk)


async def _made(
    site: ImportSite, tree: OldTree, before: OldTree | None, host: HostConfig, folders: tuple[Path, Path | None], disk: Syncfs
) -> ImportedBackup:
    """`folders`: of the tree and of the one before it, open."""
    _, prepared = await asyncio.to_thread(working.recover_and_prepare, site.pool, host, tree.started, disk, site.cancellation)
    try:
        said = await _filled(site, tree, before, prepared, folders)
        record = import_record(site, tree, working.first_record(prepared, host, tree.started), said.numbers)
        _, final = await asyncio.to_thread(working.finalise, site.pool, prepared, record, disk, NO_SUMS)
    except BaseException:
        with suppress(OSError):  # then the next import begins it anew
            discard(prepared.path, prepared.uuid)
        raise
    site.own.add(f"{tree.host}@{final.name}")
    return ImportedBackup(final, prepared.id, said.numbers.get("literal", 0))


async def _filled(
    site: ImportSite, tree: OldTree, before: OldTree | None, prepared: Prepared, folders: tuple[Path, Path | None]
) -> Output:
    """Copies the tree's content into `.working`; returns rsync's output.

    After a tree that this very import has copied, rsync gets only the differences. After any other backup it compares all names: by
    size and time if that is the backup of the previous tree, else by content.
    """
    source, old = folders
    site.tell(TreeProgress(tree.host))
    follows = before is not None and prepared.base is not None and prepared.base.name == backup_name(before.started)
    links = await asyncio.to_thread(look_at, source, old if follows else None, lambda: site.goes_on)
    _require_going(site)
    target = prepared.path / DATA / tree.path.strip("/")
    of = len(links.changed) if links.is_compared else links.files
    site = replace(site, tick=_Ticker(site.tell, TreeProgress(tree.host, 0, max(1, of)), prepared.path))
    if target.is_file():  # of a host whose source path it was
        target.unlink()
    target.mkdir(mode=0o755, parents=True, exist_ok=True)  # what stands above it is a folder: see config_of
    grew = follows and links.is_compared
    if grew and prepared.base is not None and f"{tree.host}@{prepared.base.name}" in site.own:
        await asyncio.to_thread(_remove, target, links.gone)
        said = await _some(site, source, target, links, set(links.changed) - set(links.doubted))
        said.numbers |= _totals(prepared.base, links)
    else:
        if prepared.base is None:  # cp reads and writes some times as fast; rsync then makes all the rest as it is there
            await _copied(site, (*_CP, f"{source}/.", str(target)), lambda _: None)
        by_content = ("--checksum",) if prepared.base and not grew else ()
        said = await _rsync(site, _command(site, source, target, "--delete", *by_content))
        if prepared.base is None:
            said.numbers["transferred_bytes"] = said.numbers.get("transferred_bytes", 0) + bounded(links.new_bytes)
    if links.doubted and grew:
        again = await _some(site, source, target, links, set(links.doubted), "--checksum")
        for number in ("literal", "transferred_bytes"):
            said.numbers[number] = said.numbers.get(number, 0) + again.numbers.get(number, 0)
    if not site.delta:  # what is copied as a whole on one machine rsync does not count as literal
        said.numbers["literal"] = said.numbers.get("transferred_bytes", 0)
    await asyncio.to_thread(_link, target, links)
    return said


class _Ticker:
    """Tells how many files were made, by the inode numbers of the subvolume: asking costs nothing, however many there are."""

    def __init__(self, tell: Callable[[TreeProgress], None], begun: TreeProgress, path: Path) -> None:
        self._tell, self._begun, self._path, self._before = tell, begun, path, inodes_made(path)
        tell(begun)

    def __call__(self) -> None:
        made = inodes_made(self._path) - self._before
        self._tell(replace(self._begun, files=max(0, min(self._begun.of, made))))


def _totals(base: Record, links: TreeLinks) -> dict[str, int]:
    """Returns the totals of the whole tree, of which rsync has seen a part."""
    return {"files": links.files, "regular": links.files, "bytes": bounded((base.total("bytes") or 0) + links.grown)}


async def _some(site: ImportSite, source: Path, target: Path, links: TreeLinks, names: set[bytes], *more: str) -> Output:
    """Copies these names by rsync; folders in which something changed get their attributes and times back."""
    with tempfile.NamedTemporaryFile(prefix="btrkeep-import-") as file:
        file.writelines(name + b"\0" for name in (*sorted(links.folders), *sorted(names)))
        file.flush()
        listed = ("--no-implied-dirs", f"--files-from={file.name}", "--from0", *more)
        return await _rsync(site, _command(site, source, target, *listed))


def _remove(target: Path, names: Sequence[bytes]) -> None:
    """Raises OSError."""
    root = os.fsencode(target) + b"/"
    for name in names:
        path = Path(os.fsdecode(root + name))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _require_going(site: ImportSite) -> None:
    """Raises Cancelled."""
    if not site.goes_on:
        raise Cancelled


def require_room(site: ImportSite) -> None:
    """Raises PoolUnusable."""
    if why := lacks_room(read_room(site.pool.path), site.config.pool.min_free):
        raise PoolUnusable(why, "expire backups, or give the pool more room")


def require_no_other_work(pool: Pool, host: HostConfig) -> None:
    """Raises OperatorError if a night has left an unfinished backup, which would be discarded for the tree.

    One whose record a power cut left empty, or took away, is in nobody's way: a night would discard it as well.
    """
    path = pool.working(host.name)
    if not os.path.lexists(path):
        return
    try:
        record = read_record(path)
    except UnreadableRecord:
        record = None
    if record is None:
        subvolume = describe(path)
        is_free = subvolume is not None and not subvolume.read_only and is_unfinished_run(path, subvolume, host.name)
    else:
        is_free = record.settings == working.settings_of(host)
    if not is_free:
        hint = f"`backupd run {host.name}` finishes it, `backupd discard {host.name}` gives it up"
        raise OperatorError(f"{host.name} has an unfinished backup", hint)


def _command(site: ImportSite, source: Path, target: Path, *more: str) -> tuple[str, ...]:
    """Returns the command, without --hard-links: nearly each file has a name in another tree, so rsync would remember them all."""
    return (
        *ENDS_WITH_US,
        "rsync",
        *("--archive", "--acls", "--xattrs", "--sparse", "--numeric-ids", "--modify-window=-1", "--stats", "--no-human-readable"),
        *(("--inplace", "--no-whole-file") if site.delta else ("--whole-file",)),
        *more,
        f"{source}/",
        f"{target}/",
    )


async def _rsync(site: ImportSite, command: Sequence[str]) -> Output:
    """Returns rsync's output. Raises the exceptions of `_copied`."""
    output = Output()
    await _copied(site, command, output.feed)
    return output


async def _copied(site: ImportSite, command: Sequence[str], hear: Callable[[bytes], None]) -> None:
    """Raises Cancelled, PoolUnusable, and OperatorError with the program's first words when not all could be copied."""
    said, ticks = bytearray(), 0
    group = Group.start(command, on_stdout=hear, on_stderr=lambda data: said.extend(data[: max(0, _LONGEST - len(said))]))
    ended = asyncio.create_task(group.wait())
    while not ended.done():
        await asyncio.wait((ended,), timeout=_TICK)
        ticks += 1
        if ticks % _TOLD == 0:
            site.tick()
        if not site.goes_on or (ticks % _TICKS == 0 and lacks_room(read_room(site.pool.path), site.config.pool.min_free)):
            group.signal(signal.SIGKILL)
    status = await ended
    _require_going(site)
    if status < 0:
        require_room(site)
    if status:
        words = said.decode("utf-8", "replace").strip().splitlines() or [f"exit status {status}"]
        raise OperatorError(f"not all of it could be copied: {printable(words[0])}", "nothing of this tree was kept")


def _link(target: Path, links: TreeLinks) -> None:
    """Makes hard links of what are hard links there. Raises OSError."""
    root = os.fsencode(target) + b"/"
    for names in links.groups:
        first = root + names[0]
        inode = os.lstat(first).st_ino
        for name in names[1:]:
            if os.lstat(root + name).st_ino != inode:
                _replace_by_link(first, root + name)


def _replace_by_link(first: bytes, path: bytes) -> None:
    """The folder keeps its time."""
    folder, _, name = path.rpartition(b"/")
    fd = os.open(folder, FOLDER)
    try:
        before = os.fstat(fd)
        os.unlink(name, dir_fd=fd)
        os.link(first, name, dst_dir_fd=fd, follow_symlinks=False)
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        os.close(fd)


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
        imported=os.fsencode(tree.folder).decode("utf-8", "replace"),
    )
