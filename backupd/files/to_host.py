"""Restores paths of a backup to a host, by rsync: finds out what would happen, does it, and checks the result.

The check before is rsync's own, without writing (--dry-run): once as if everything might be overwritten, once with
--ignore-existing. Names that are new in the first output and missing in the second exist as another file type; rsync would delete
them to make room. Before that, rsync checks only the requested paths themselves: if none exists, as usual after a loss, nothing
below them has to be checked.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self

from backupd.files.conflict_policy import (
    ALL,
    CONTENT_ONLY,
    ENTERED,
    KEPT,
    NEVER,
    NEW,
    OLDER,
    OVERWRITTEN,
    REFUSED,
    SAME,
    differs_words,
)
from backupd.files.host_rsync import HostRsyncEnd, LimitExceeded, NameAllowance, run_rsync
from backupd.files.placing import placed
from backupd.files.restore_key import RRSYNC_IS_BUSY, KeyRefused, refusal, with_restore_key
from backupd.files.restore_types import RestorePreview, RestoreProgress, RestoreRequest, RestoreResult, Target, Tell
from backupd.files.tree import Tree, components, joined
from backupd.files.walking import PlainFiles, WalkEntry, walk, walk_grouped
from backupd.repo.backup_json import DATA
from backupd.rsync.command import rsync_version, shell_command
from backupd.rsync.comparing import HostSession
from backupd.rsync.confined import ConfinedTransfer, RemoteEnd, confinement, expected_words, require_harmless
from backupd.rsync.messages import Messages, Output
from backupd.rsync.process import StallWatch
from backupd.rsync.restore_command import (
    ABOVE_STAYS,
    CONTENT,
    EXACT,
    FOLDERS_ALONE,
    ITEMS,
    LOOK,
    NEWER_STAYS,
    NO_ATTRIBUTES,
    NO_HOLES,
    NOT_BELOW,
    ONLY_NEW,
    Item,
    restore_command,
)
from backupd.rsync.shared_connection import NotConnected
from btrkeep.config import Config
from btrkeep.decisions.rsync_meaning import ExitCause, ExitKind, meaning
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import by_descriptor
from btrkeep.process.proc import become_reaper, physical_memory
from btrkeep.process.progress import Cancellation
from btrkeep.units import format_duration

_HINT = (
    "for a configured host, run `backupd check --connect`; another machine needs its host key in known_hosts here, and this "
    "server's public key in its authorized_keys"
)
_FULL_HINT = "check the free space and the filesystem of the destination; the same command continues with the missing files"
_FILE_ERROR = 11
_FOR_EACH_NAME, _FOR_EACH_BYTE = 1024, 8  # an item, progress and an error message; rsync may escape each byte of a name as four
_RRSYNC_KNOWS_NOT = "invalid rsync-command syntax or options"
_RRSYNC_PATIENCE, _RRSYNC_PAUSE = 10.0, 0.3  # seconds
_LOOK_EVERY = 0.2


class HostRestore:
    """A restore to a host. The paths of the request exist in the backup `subvolume` and lead through no symlink.

    All its rsyncs share one login, which ends with the context.
    """

    def __init__(
        self, subvolume: Path, request: RestoreRequest, target: Target, config: Config, tell: Tell = lambda _: None
    ) -> None:
        target, config = with_restore_key(target, config)
        self.request = request
        self.to = os.fsdecode(target.folder)
        self._whole = request.parents or target.original
        self.roots = placed(request.paths, self._whole)
        self._paths = tuple(root.path for root in self.roots)
        self.progress = RestoreProgress()
        self._subvolume = subvolume
        self._target = target
        self._config = config
        self._base = b""  # the deepest common folder of all paths that exists on the host
        self._above = _above(self._paths) if self._whole else frozenset()
        self._tell = tell
        self._kept: set[int] = set()
        self._overwritten: set[int] = set()
        self._other_content: set[int] = set()
        self._refused: set[bytes] = set()
        self._exact: tuple[str, ...] = EXACT
        self._spared: tuple[str, ...] | None = None  # the options needed for a restore into an empty place
        self._end = math.inf
        self._session = HostSession(target.host, config.ssh)

    def __enter__(self) -> Self:
        self._session.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._session.__exit__(kind, error, trace)

    def _command(self, options: Sequence[str], above: bool, shell: Sequence[str]) -> tuple[str, ...]:
        """Returns the rsync command; with `above` it also lists the folders above what is restored. `shell` replaces ssh."""
        stays = ABOVE_STAYS if self._whole and not above else ()
        host, ssh, folder = self._target.host, self._config.ssh, self._target.folder
        all_options = (*stays, *self._exact, *options)
        # rsync follows a symlink that a user of the host has just put in place of a folder, but (since 3.5) not out of its
        # destination. So the destination is not / if possible. Comparisons start at /, to check the folders above.
        base = b"" if LOOK[0] in options else self._base
        data, paths = self._subvolume / DATA, self._paths
        return restore_command(host, ssh, data, paths, folder, self._whole, all_options, shell, base)

    @cached_property
    def _is_confined(self) -> bool:
        """Returns whether rsync, which parses the output of the host, can only read the backup. Raises OperatorError."""
        support = confinement(self._config)
        require_harmless(rsync_version(), support, self._config)
        return not support.missing

    @contextmanager
    def _within_a_cell(
        self, options: Sequence[str], above: bool, control: Path | None
    ) -> Iterator[tuple[Sequence[str], ConfinedTransfer | None]]:
        """Yields the command, and its cell: None if confinement does not work. Called in a loop. `control`: as in shell_command."""
        host, shell = self._target.host, shell_command(self._target.host, self._config.ssh, (), control)
        if not self._is_confined:
            yield self._command(options, above, shell), None
            return
        memory = host.max_memory.bytes_of(physical_memory())
        remote = RemoteEnd(shell, expected_words(host, gives=True), memory)
        with ConfinedTransfer(remote) as cell:
            yield cell.command(self._command(options, above, remote.words), None, shown=(str(self._subvolume / DATA),)), cell

    def require_writable(self) -> None:
        """Connects, and compares the requested paths without what is below them. Raises OperatorError if the host cannot be reached
        or does not allow writing, KeyRefused if the key is the reason.
        """
        ended = self._run((*LOOK, *ONLY_NEW, *NOT_BELOW), above=True)
        if ended.exit_code:
            raise self._failed(ended)

    def preview(self, *, content: bool = True) -> RestorePreview:
        """Returns what would happen. Without `content` a file that differs only in its content counts as the same; `run` finds it.

        Takes no longer than the host's deadline, because users who may not restore anything can also request it. Raises
        OperatorError if the host cannot be reached or does not allow writing.
        """
        self._end = time.monotonic() + self._target.host.deadline
        try:
            return self._preview(content)
        except LimitExceeded as beyond:
            raise self._limit_error(beyond) from beyond
        finally:
            self._end = math.inf

    def _limit_error(self, beyond: LimitExceeded) -> OperatorError:
        return OperatorError(f"{self._target}: {beyond}", beyond.hint)

    def _preview(self, content: bool) -> RestorePreview:
        self._spared = None
        if self._is_all_absent() and (preview := self._preview_of_absent()):
            return preview
        result, new, newer = RestorePreview(str(self._target)), set[int](), set[int]()
        missing = set[bytes]()

        def take(item: Item) -> None:
            new.add(hash(item.name))
            if item.new and item.name in self._above:
                missing.add(item.name)

        comparisons = [self._run((*LOOK, *ONLY_NEW), take, above=True)]
        self._base = _common_folder(self._paths, self._above - missing)
        if self.request.overwrite == OLDER:
            comparisons.append(self._run((*LOOK, *NEWER_STAYS), lambda item: newer.add(hash(item.name)), above=True))
        compares = CONTENT if content and self.request.overwrite == ALL else ()
        ended = self._run((*LOOK, *compares), lambda item: self._judge(item, result, new, newer), above=True)
        for comparison in (*comparisons, ended):
            if comparison.exit_code and not result.counts[REFUSED].number:  # otherwise rsync failed because of the refused entries
                raise self._failed(comparison)
        numbers, above = ended.output.numbers, len(self._above)
        total, result.files = numbers.get("files", 0) - above, numbers.get("regular", 0)
        result.folders = ended.folders - above
        result.others, result.size = total - result.files - result.folders, numbers.get("bytes", 0)
        mentioned = sum(count.number for count in result.counts.values())
        result.counts[SAME].number = max(0, total - mentioned)
        return result

    def _roots(self) -> dict[bytes, bytes]:
        """Returns rsync's names for the requested paths, with the paths."""
        return {b"/".join(root.names): root.path for root in self.roots if root.names}

    def _is_all_absent(self) -> bool:
        """Returns True if no requested path exists there, and each folder above is a folder or missing: then everything is new, and
        rsync need not check it. False also if that is uncertain.
        """
        roots = self._roots()
        if len(roots) < len(self.roots):
            return False  # the whole backup
        new, mentioned = set[bytes](), set[bytes]()

        def take(names: set[bytes], item: Item) -> None:
            if item.new and (item.name in roots or item.name in self._above):
                names.add(item.name)

        ended = self._run((*LOOK, *ONLY_NEW, *NOT_BELOW), partial(take, new), above=True)
        self._base = _common_folder(self._paths, self._above - new)
        if ended.exit_code or not roots.keys() <= new:
            return False
        if not self._above:
            return True
        ended = self._run((*LOOK, *NOT_BELOW), partial(take, mentioned), above=True)
        return not ended.exit_code and mentioned == new  # if not, one of the folders above is not a folder

    def _preview_of_absent(self) -> RestorePreview | None:
        """Returns what would happen if nothing exists there; None if the backup cannot be read, which rsync will report."""
        preview, is_plain, has_holes = RestorePreview(str(self._target)), True, False
        try:
            with Tree(self._subvolume) as tree:
                for root, path in self._roots().items():
                    start = len(joined(components(path)))
                    for walk_entry in walk_grouped(tree, path):
                        is_plain = is_plain and not _has_attributes(walk_entry)
                        if isinstance(walk_entry, PlainFiles):
                            preview.files += len(walk_entry.files)
                            preview.size += sum(file.size for file in walk_entry.files)
                            folder = self._place(root + walk_entry.above[start:]) + b"/"
                            for file in walk_entry.files:
                                preview.counts[NEW].add(folder + file.name, "", file.size)
                        elif not walk_entry.left:
                            has_holes = has_holes or (
                                walk_entry.entry.kind == "file" and walk_entry.entry.allocated < walk_entry.entry.size
                            )
                            preview.count(walk_entry.entry)
                            size = walk_entry.entry.size if walk_entry.entry.kind == "file" else 0
                            preview.counts[NEW].add(self._place(root + walk_entry.entry.path[start:]), "", size)
                        self._require_time()
                        self._tell(self.progress)
        except OSError:
            return None
        self._spared = (*(NO_ATTRIBUTES if is_plain else ()), *(() if has_holes else NO_HOLES))
        return preview

    def _judge(self, item: Item, preview: RestorePreview, new: set[int], older: set[int]) -> None:
        """Counts an item of rsync in the preview. `new`, `older`: the files that rsync would write with --ignore-existing, and with
        --update.
        """
        step, why = NEW, ""
        if item.name in self._above and (not item.new or hash(item.name) in new):
            return  # it exists, or will be created
        if item.name.rpartition(b"/")[0] in self._refused:
            self._refused.add(item.name)
            preview.counts[REFUSED].number += 1
            return
        if item.new and hash(item.name) not in new:
            self._refused.add(item.name)
            step, why = REFUSED, f"it is not a {item.kind} there"
        elif not item.new:
            step, why = self._decide_existing(item, older), differs_words(item.fields)
        if item.fields == CONTENT_ONLY:
            self._other_content.add(hash(item.name))
        if step == KEPT:
            self._kept.add(hash(item.name))
        if step == OVERWRITTEN:
            self._overwritten.add(hash(item.name))
        preview.counts[step].add(self._place(item.name), why, item.size if item.kind == "file" else 0)

    def _decide_existing(self, item: Item, older: set[int]) -> str:
        if item.kind == "folder" and (item.only_time or self.request.overwrite or item.name in (b".", b"")):
            return ENTERED  # rsync always sets the attributes of folders
        if self.request.overwrite == OLDER:
            return OVERWRITTEN if hash(item.name) in older else KEPT
        return {ALL: OVERWRITTEN, NEVER: KEPT}.get(self.request.overwrite or "", REFUSED)

    def run(self, preview: RestorePreview) -> RestoreResult:
        """Writes, and compares. Raises OperatorError, also if the preview forbids it, and the errors of `tell`."""
        preview.require_possible()
        begun, result = time.monotonic(), RestoreResult()
        result.counts = {**preview.counts, REFUSED: result.counts[REFUSED]}
        self.progress.turn_to("writing", preview.names, preview.to_write)
        ended = self._write_new(result)
        overwrites = {ALL: CONTENT, OLDER: NEWER_STAYS}.get(self.request.overwrite or "")
        if overwrites and self._spared is None:
            if self._is_anything_in_the_way():
                why = "a file has appeared since the preview, so nothing was overwritten: run the same command again"
                result.problems.add(os.fsencode(str(self._target)), why)
            else:
                ended = self._overwrite(overwrites, result)
        self.progress.turn_to("comparing", preview.names, preview.size if self.request.content else 0)
        compared = self._run((*LOOK, *(CONTENT if self.request.content else ())), lambda item: self._differs(item, result))
        if not ended.exit_code:
            self._count_problems(result, compared)
        result.compared = preview.size if self.request.content else 0
        result.seconds = time.monotonic() - begun
        return result

    def _write_new(self, result: RestoreResult) -> HostRsyncEnd:
        """Writes missing files; existing ones are not changed, whatever their type."""
        options: tuple[str, ...] = ONLY_NEW
        # First only the requested folders, with their ACLs, so that new entries do not inherit other ACLs.
        if self._spared and not self._run((*ONLY_NEW, *NOT_BELOW)).exit_code:
            options = (*options, *self._spared)
        ended = self._run(options)
        result.copied = ended.output.progress.bytes
        self._count_problems(result, ended)
        return ended

    def _is_anything_in_the_way(self) -> bool:
        """Returns True if an entry of another type has the name of a folder or file, or if that could not be checked: an rsync that
        overwrites would delete it. To be called after all new files have been written.
        """
        missing, absent = set[int](), set[int]()
        comparisons = [self._run(LOOK, lambda item: missing.add(hash(item.name)) if item.new else None)]
        if missing:  # some could not be written
            comparisons.append(self._run((*LOOK, *ONLY_NEW), lambda item: absent.add(hash(item.name))))
        return bool(missing - absent) or any(comparison.exit_code for comparison in comparisons)

    def _overwrite(self, options: Sequence[str], result: RestoreResult) -> HostRsyncEnd:
        ended = self._run(options, partial(self._count_content, result) if self.request.overwrite == ALL else None)
        result.copied += ended.output.progress.bytes
        if self.request.overwrite == OLDER and not ended.exit_code:
            ended = self._run(FOLDERS_ALONE)  # its time window did not correct folder times that differ by less than 1 s
        self._count_problems(result, ended)
        return ended

    def _count_content(self, result: RestoreResult, item: Item) -> None:
        """Counts a file as overwritten that has equal size and time and other content: a preview without contents counted it as
        equal.
        """
        name = self._base + b"/" + item.name if self._base else item.name
        if item.fields == CONTENT_ONLY and hash(name) not in self._other_content:
            result.counts[SAME].number -= 1
            result.counts[OVERWRITTEN].add_difference(self._place(name), item.fields, item.size)
            self._overwritten.add(hash(name))

    def _differs(self, item: Item, result: RestoreResult) -> None:
        if hash(item.name) not in self._kept:
            place = self._place(item.name)
            size = item.size if item.kind == "file" else 0
            if item.new:
                result.differences.add(place, "it is missing")
                result.counts[NEW].take_back(place, size)
            else:
                result.differences.add_difference(place, item.fields)
                if hash(item.name) in self._overwritten:
                    result.counts[OVERWRITTEN].take_back(place, size)

    def _count_problems(self, result: RestoreResult, ended: HostRsyncEnd) -> None:
        if ended.exit_code:
            lines = list(ended.messages.last)
            for line in [line for line in lines if not line.startswith("rsync error:")] or lines:
                result.problems.add(os.fsencode(str(self._target)), line)

    def _place(self, name: bytes) -> bytes:
        folder = self._target.folder.rstrip(b"/")
        return (folder if name in (b".", b"") else folder + b"/" + name) or b"/"

    def _run(self, options: Sequence[str], take: Callable[[Item], None] | None = None, *, above: bool = False) -> HostRsyncEnd:
        """Runs one rsync, which prints items only for `take`. Raises OperatorError.

        Its exit status may be non-zero if names were skipped. rrsync allows one rsync at a time, and the previous one may take a
        moment to end on the host, so this waits for it.
        """
        busy_until = time.monotonic() + _RRSYNC_PATIENCE
        while True:
            ended = self._run_once(options, take, above=above)
            last = ended.messages.last
            if self._exact and any(_RRSYNC_KNOWS_NOT in line for line in last):
                self._exact = ()
            elif any(RRSYNC_IS_BUSY in line for line in last) and time.monotonic() < busy_until:
                self._tell(self.progress)
                time.sleep(_RRSYNC_PAUSE)
            elif meaning(ended.exit_code).kind is ExitKind.FINISHED:
                return ended
            else:
                raise self._failed(ended)

    def _run_once(self, options: Sequence[str], take: Callable[[Item], None] | None, *, above: bool) -> HostRsyncEnd:
        become_reaper()  # otherwise this would wait until another process reaps an ssh that outlives its rsync
        # While a host reads a file for its checksum, no data arrives, so a stall cannot be detected.
        watch = StallWatch(math.inf if set(CONTENT) <= set(options) else self._target.host.stall)
        names = self._allowed()
        try:
            return self._session.run(self._connected(options, take, watch, NameAllowance(names), above=above))
        except LimitExceeded as beyond:
            raise self._limit_error(beyond) from beyond
        finally:
            names.close()

    async def _connected(
        self,
        options: Sequence[str],
        take: Callable[[Item], None] | None,
        watch: StallWatch,
        allowance: NameAllowance,
        *,
        above: bool,
    ) -> HostRsyncEnd:
        """Runs an rsync over the shared connection, if there is one. Raises the errors of run_rsync."""
        connection = self._session.connection
        connecting = asyncio.create_task(connection.socket(Cancellation()))
        try:
            while not connecting.done():
                await asyncio.wait([connecting], timeout=_LOOK_EVERY)
                self._tell(self.progress)
            control = connecting.result()
        except NotConnected as error:
            messages = Messages()
            messages.feed(error.printed)
            messages.close()
            return HostRsyncEnd(255, Output(), messages)
        finally:
            connecting.cancel()
        ended = await run_rsync(
            self._within_a_cell((*options, *(ITEMS if take else ())), above, control), take, self._moved, watch, allowance
        )
        if printed := await connection.after(ended.exit_code):
            ended.messages.feed(printed)
            ended.messages.close()
        return ended

    def _allowed(self) -> Generator[int]:
        """Yields the number of bytes of output that are allowed for each restored name."""
        with suppress(OSError), Tree(self._subvolume) as tree:
            for path in self._paths:
                for entry in walk(tree, path, lambda _path, _error: None):
                    yield 0 if entry.left else _FOR_EACH_NAME + _FOR_EACH_BYTE * len(entry.entry.path)

    def _require_time(self) -> None:
        """Raises LimitExceeded if the check before has taken longer than allowed."""
        if time.monotonic() > self._end:
            why = f"comparing with the existing files takes longer than {format_duration(self._target.host.deadline)}"
            raise LimitExceeded(why, "`deadline` of the host sets this time")

    def _moved(self, output: Output) -> None:
        self._require_time()
        progress = self.progress
        progress.size = max(progress.size, output.progress.bytes)
        progress.files = max(progress.files, output.progress.checked)
        self._tell(progress)

    def _failed(self, ended: HostRsyncEnd) -> OperatorError:
        last = list(ended.messages.last)
        if refused := refusal(self._target, self._config, last):
            return refused
        means = meaning(ended.exit_code, last)
        hint = _FULL_HINT if ended.exit_code == _FILE_ERROR else _HINT
        kind = KeyRefused if means.cause is ExitCause.KEY_REFUSED else OperatorError
        return kind(f"{self._target}: {means.words}" + (f": {means.line}" if means.line else ""), hint)


def _has_attributes(walk_entry: PlainFiles | WalkEntry) -> bool:
    """Returns True if any of these names has an ACL or an extended attribute. Raises OSError."""
    names = (file.name for file in walk_entry.files) if isinstance(walk_entry, PlainFiles) else (walk_entry.name,)
    return any(os.listxattr(by_descriptor(walk_entry.folder, name), follow_symlinks=False) for name in names)


def _above(paths: Sequence[bytes]) -> frozenset[bytes]:
    """Returns the names, in rsync's form, of folders above paths that are not requested themselves."""
    asked = {tuple(components(path)) for path in paths}
    return frozenset(b"/".join(names[:depth]) for names in asked for depth in range(1, len(names)))


def _common_folder(paths: Sequence[bytes], existing: AbstractSet[bytes]) -> bytes:
    """Returns the deepest folder above all paths that is one of the `existing` ones, in rsync's form; b"" if there is none."""
    common = frozenset.intersection(*(_above([path]) for path in paths))
    return max(common & existing, key=len, default=b"")
