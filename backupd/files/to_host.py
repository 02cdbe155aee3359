"""Restores paths of a backup to a host, by rsync: what would happen, then just that, then a look whether it did.

The look before is rsync's own, without writing (--dry-run): once as if all might be overwritten, once with --ignore-existing. What
the first calls new and the second does not mention is there as another kind of file; rsync would delete it to make room.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backupd.files.deciding import ALL, ENTERED, KEPT, NEVER, NEW, OLDER, OVERWRITTEN, REFUSED, SAME
from backupd.files.restoration import Preview, Progress, Restored, Stopped, Tell
from backupd.files.target import Target
from backupd.rsync.giving import CONTENT, EXACT, LOOK, NEWER_STAYS, ONLY_NEW, Item, giving_command, parse_item
from backupd.rsync.meaning import Kind, meaning
from backupd.rsync.messages import Messages
from backupd.rsync.output import Output
from btrkeep.config import SshSettings
from btrkeep.errors import OperatorError
from btrkeep.process.group import Group
from btrkeep.process.proc import become_reaper
from btrkeep.units import printable

_PATIENCE = 10.0
_LOOK_EVERY = 0.2
_HINT = "`backupd check --connect` tries a configured host; another needs its key in known_hosts, and ours in its authorized_keys"
_FULL_HINT = "look at the room and the filesystem over there; the same command goes on with what is missing"
_FILE_ERROR = 11
_RRSYNC_KNOWS_NOT = "invalid rsync-command syntax or options"


@dataclass(slots=True)
class _Ended:
    exit_code: int
    output: Output
    messages: Messages
    folders: int = 0


class Giving:
    """One restore to a host. `paths` were seen to be in the backup, and to lead through no symlink."""

    def __init__(
        self,
        data: Path,
        paths: Sequence[bytes],
        target: Target,
        ssh: SshSettings,
        overwrite: str | None,
        *,
        parents: bool = False,
        content: bool = True,
        tell: Tell = lambda _: None,
    ) -> None:
        self.data = data
        self.paths = paths
        self.target = target
        self.ssh = ssh
        self.overwrite = overwrite
        self.whole = parents or target.original
        self.content = content
        self.progress = Progress()
        self._tell = tell
        self._kept: set[int] = set()
        self._refused: set[bytes] = set()
        self._exact: tuple[str, ...] = EXACT

    def command(self, *options: str) -> tuple[str, ...]:
        """The rsync command with some more options."""
        target, all_options = self.target, (*self._exact, *options)
        return giving_command(target.host, self.ssh, self.data, self.paths, target.folder, self.whole, all_options)

    def preview(self) -> Preview:
        """What would happen. Raises OperatorError when the host cannot be reached or does not let us write."""
        found, new, newer = Preview(str(self.target)), set[int](), set[int]()
        looks = [self._run((*LOOK, *ONLY_NEW), lambda item: new.add(hash(item.name)))]
        if self.overwrite == OLDER:
            looks.append(self._run((*LOOK, *NEWER_STAYS), lambda item: newer.add(hash(item.name))))
        ended = self._run(LOOK, lambda item: self._judge(item, found, new, newer))
        for look in (*looks, ended):
            if look.exit_code and not found.counts[REFUSED].number:  # else it is what is in the way that it stumbled over
                raise self._failed(look)
        numbers = ended.output.numbers
        total, found.files, found.folders = numbers.get("files", 0), numbers.get("regular", 0), ended.folders
        found.others, found.size = total - found.files - found.folders, numbers.get("bytes", 0)
        mentioned = sum(count.number for count in found.counts.values())
        found.counts[SAME].number = max(0, total - mentioned)
        return found

    def _judge(self, item: Item, found: Preview, new: set[int], older: set[int]) -> None:
        """`new` and `older` hold what rsync would write with --ignore-existing, and with --update."""
        what, why = NEW, ""
        if item.name.rpartition(b"/")[0] in self._refused:
            self._refused.add(item.name)
            found.counts[REFUSED].number += 1
            return
        if item.new and hash(item.name) not in new:
            self._refused.add(item.name)
            what, why = REFUSED, f"something else than a {item.kind} is there"
        elif not item.new:
            what, why = self._of_what_is_there(item, older), "differs: " + ", ".join(item.fields)
        if what == KEPT:
            self._kept.add(hash(item.name))
        found.counts[what].add(self._place(item.name), why, item.size if item.kind == "file" else 0)

    def _of_what_is_there(self, item: Item, older: set[int]) -> str:
        if item.kind == "folder" and (item.only_time or self.overwrite or item.name in (b".", b"")):
            return ENTERED  # rsync always gives folders what they should have
        if self.overwrite == OLDER:
            return OVERWRITTEN if hash(item.name) in older else KEPT
        return {ALL: OVERWRITTEN, NEVER: KEPT}.get(self.overwrite or "", REFUSED)

    def run(self, found: Preview) -> Restored:
        """Writes, and compares. Raises OperatorError, and what `tell` raises."""
        begun, result = time.monotonic(), Restored()
        result.counts = {**found.counts, REFUSED: result.counts[REFUSED]}
        self.progress.turn_to("writing", found.names, found.to_write)
        ended = self._run({ALL: (), OLDER: NEWER_STAYS}.get(self.overwrite or "", ONLY_NEW), lambda _: None)
        result.copied = ended.output.progress.bytes
        self._count_problems(result, ended)
        self.progress.turn_to("comparing", found.names, found.size if self.content else 0)
        compared = self._run((*LOOK, *(CONTENT if self.content else ())), lambda item: self._differs(item, result))
        if not ended.exit_code:
            self._count_problems(result, compared)
        result.compared = found.size if self.content else 0
        result.seconds = time.monotonic() - begun
        return result

    def _differs(self, item: Item, result: Restored) -> None:
        if hash(item.name) not in self._kept:
            why = "it is not there" if item.new else "differs: " + ", ".join(item.fields)
            result.differences.add(self._place(item.name), why)

    def _count_problems(self, result: Restored, ended: _Ended) -> None:
        if ended.exit_code:
            lines = list(ended.messages.last)
            for line in [line for line in lines if not line.startswith("rsync error:")] or lines:
                result.problems.add(str(self.target), line)

    def _place(self, name: bytes) -> str:
        folder = self.target.folder.rstrip(b"/")
        return printable(folder if name in (b".", b"") else folder + b"/" + name) or "/"

    def _run(self, options: Sequence[str], take: Callable[[Item], None]) -> _Ended:
        """One rsync to its end. It may have left names out: then its exit status is not 0. Raises OperatorError for all else."""
        become_reaper()  # an ssh that outlives its rsync would else be waited for until somebody else buries it
        ended = asyncio.run(_run(self.command(*options), take, self._moved))
        if self._exact and any(_RRSYNC_KNOWS_NOT in line for line in ended.messages.last):
            self._exact = ()
            return self._run(options, take)
        if meaning(ended.exit_code).kind is Kind.FINISHED:
            return ended
        raise self._failed(ended)

    def _moved(self, output: Output) -> None:
        progress = self.progress
        progress.size = max(progress.size, output.progress.bytes)
        progress.files = max(progress.files, output.progress.checked)
        self._tell(progress)

    def _failed(self, ended: _Ended) -> OperatorError:
        last = list(ended.messages.last)
        if any("read-only server" in line for line in last):
            return OperatorError(
                f"{self.target}: the key may only read there (rrsync -ro), so nothing can be restored to it",
                'for the time of the restore write "rrsync /" in place of "rrsync -ro /" in the host\'s authorized_keys',
            )
        words = meaning(ended.exit_code, last).words
        line = next((line for line in last if not line.startswith("rsync error:") and line not in words), "")
        hint = _FULL_HINT if ended.exit_code == _FILE_ERROR else _HINT
        return OperatorError(f"{self.target}: {words}" + (f": {line}" if line else ""), hint)


@dataclass(slots=True)
class _Reader:
    """Takes rsync's output: items one by one, progress and numbers by Output."""

    take: Callable[[Item], None]
    output: Output = field(default_factory=Output)
    folders: int = 0
    rest: bytes = b""

    def feed(self, data: bytes) -> None:
        self.output.feed(data)
        self.output.written.clear()
        *lines, self.rest = (self.rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if item := parse_item(line):
                self.take(item)
            elif line.startswith(b"Number of files: "):
                kinds = dict(part.split(b": ") for part in line.partition(b"(")[2].rstrip(b")").split(b", ") if b": " in part)
                self.folders = int(kinds.get(b"dir", 0))


async def _run(command: Sequence[str], take: Callable[[Item], None], moved: Callable[[Output], None]) -> _Ended:
    """Runs one rsync; when `moved` raises Stopped, which it may at any call, rsync is ended before that goes on."""
    reader, messages = _Reader(take), Messages()
    group = Group.start(command, on_stdout=reader.feed, on_stderr=messages.feed)
    waiting = asyncio.create_task(group.wait())
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=_LOOK_EVERY)
            moved(reader.output)
    except (Stopped, asyncio.CancelledError):
        await _end(group, waiting)
        raise
    messages.close(reader.output.complaints)
    return _Ended(waiting.result(), reader.output, messages, reader.folders)


async def _end(group: Group, waiting: "asyncio.Task[int]") -> None:
    group.signal(signal.SIGTERM)
    await asyncio.wait([waiting], timeout=_PATIENCE)
    group.signal(signal.SIGKILL)
    await waiting
