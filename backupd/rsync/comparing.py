"""Compares the content of a backup's files with the host's present files: the rsync command, and one run of it. Nothing is written.

``--dry-run --checksum``: both sides read the files, and only checksums are transferred. ``--info=name2`` also lists equal files, so
that a file without a line is known not to have been compared. The output depends on the host: names that were not requested are
ignored.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from backupd.rsync.bandwidth import Bucket
from backupd.rsync.command import remote_shell, shell_command, source
from backupd.rsync.confined import ConfinedTransfer, RemoteEnd, expected_words
from backupd.rsync.messages import LONGEST_REST, Messages
from backupd.rsync.restore_command import Item, parse_item
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.rsync.snapshot_session import PROGRAM
from btrkeep.config import Config, HostConfig, SshSettings, page
from btrkeep.decisions.rsync_meaning import meaning
from btrkeep.errors import OperatorError
from btrkeep.process.group import PATIENCE, Group
from btrkeep.process.proc import physical_memory
from btrkeep.process.progress import Cancellation

_OPTIONS = (
    "--dry-run",
    "--checksum",
    "--times",
    "--modify-window=-1",
    "--from0",
    "--no-human-readable",
    "--outbuf=L",
    "--info=name2",
    "--out-format=%i|%l|%n",
    "--timeout=0",  # no data is sent while the host reads a large file; ssh itself detects a dead connection
)
Answer = TypeVar("Answer")
_ENDED_WELL = (0, 23, 24)  # some files are missing or cannot be read: they are not listed then
_OUTPUT_LIMIT = 1 << 20
_FOR_EACH_BYTE = 16  # for names: in a line of output and in an error message, with every byte escaped
_FOR_EACH_NAME = 512
_LOOK_EVERY = 0.2


class ContentVerdict(StrEnum):
    """The state of a file compared with the host. `DIFFERS`: other content with the same size and time."""

    ALIKE = "alike"
    CHANGED = "changed"
    DIFFERS = "differs"


def judged(item: Item | None) -> ContentVerdict:
    """Interprets rsync's output for a file; None if there was none, so it is missing or unreadable on the host."""
    if item is None or item.new or item.kind != "file" or "size" in item.fields:
        return ContentVerdict.CHANGED
    if "content" not in item.fields:
        return ContentVerdict.ALIKE
    return ContentVerdict.CHANGED if "time" in item.fields else ContentVerdict.DIFFERS


class OutOfTime(OperatorError):
    """A comparison did not finish within its time limit."""


class HostSession:
    """One connection to a host for several comparisons, with the event loop in which it is used."""

    def __init__(self, host: HostConfig, ssh: SshSettings) -> None:
        self.connection = SharedConnection(host, ssh, wanted=True)
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Runs the coroutine to its end."""
        return self._runner.run(coroutine)

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._runner:
            self.run(self.connection.close())


@dataclass(frozen=True, slots=True)
class HostFolder:
    """A folder of the host and of its backup that are compared."""

    config: Config
    """The configuration."""
    host: HostConfig
    """The host."""
    path: str
    """Its path on the host."""
    data: Path
    """The folder that contains the backup's files."""
    session: HostSession
    """The connection to the host."""
    buckets: Sequence[Bucket] = ()
    """The bandwidth budgets of the host."""
    confined: bool = True
    """True if rsync is confined."""


def comparing_command(
    folder: HostFolder, names: str, buckets: Sequence[Bucket] = (), shell: Sequence[str] = (), options: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the command that compares files. `names`: a file with their names below the path, each followed by a NUL. `shell`: as
    in rsync_command.
    """
    host, path = folder.host, folder.path
    return (
        "rsync",
        *_OPTIONS,
        *options,
        f"--files-from={names}",
        *remote_shell(host, folder.config.ssh, buckets, shell),
        source(host, path, through_shell=bool(host.address or buckets)).replace("/./", "/", 1),
        f"{folder.data}/{path.strip('/')}".rstrip("/") + "/",
    )


def compare(
    folder: HostFolder, names: Collection[bytes], cancellation: Cancellation, *, seconds: float
) -> dict[bytes, ContentVerdict] | None:
    """Compares each of `names`, which are files; returns None when cancelled.

    Raises OperatorError if the host cannot be reached or prints too much; OutOfTime after its time limit.
    """
    items = _items(folder, names, cancellation, seconds)
    return None if items is None else {name: judged(items.get(name)) for name in names}


def real_folders(folder: HostFolder, names: Collection[bytes], cancellation: Cancellation, *, seconds: float) -> set[bytes] | None:
    """Returns those of `names` that are real folders on the host, not symlinks, which rsync would follow.

    Otherwise like `compare`. Without `--no-implied-dirs` each folder above a name is also included.
    """
    items = _items(folder, names, cancellation, seconds, "--no-implied-dirs")
    return None if items is None else {name for name, item in items.items() if item.kind == "folder"}


def _items(
    folder: HostFolder, names: Collection[bytes], cancellation: Cancellation, seconds: float, *options: str
) -> dict[bytes, Item] | None:
    with tempfile.NamedTemporaryFile(prefix="btrkeep-names-") as listed:  # rsync cannot open a file without a name
        listed.writelines(name + b"\0" for name in names)
        listed.flush()
        return folder.session.run(_run(folder, names, listed.name, cancellation, time.monotonic() + seconds, options))


async def _run(
    folder: HostFolder,
    names: Collection[bytes],
    listed: str,
    cancellation: Cancellation,
    end: float,
    options: Sequence[str],
) -> dict[bytes, Item] | None:
    reader, messages = Reader(names), Messages()
    host, connection = folder.host, folder.session.connection
    try:
        control = await connection.socket(cancellation)
    except NotConnected as error:
        messages.feed(error.printed)
        messages.close()
        raise _not_compared(host, 255, messages) from None
    shell = shell_command(host, folder.config.ssh, folder.buckets, control)
    with ExitStack() as held:
        cell = None
        if folder.confined:
            memory = host.max_memory.bytes_of(physical_memory())
            remote = RemoteEnd(shell, expected_words(host), memory)
            cell = held.enter_context(ConfinedTransfer(remote))
            inner = comparing_command(folder, listed, shell=remote.words, options=options)
            command = cell.command(inner, None, shown=(str(folder.data), listed))
        else:
            command = comparing_command(folder, listed, folder.buckets, shell, options)
        group = Group.start(
            command,
            on_stdout=reader.counted(reader.feed),
            on_stderr=reader.counted(messages.feed),
            keep_open=cell.inherited if cell else (),
            wraps=cell is not None,
        )
        if cell:
            cell.started(group)
        waiting = asyncio.create_task(group.wait())
        while not waiting.done() and not cancellation and reader.left >= 0 and time.monotonic() < end:
            await asyncio.wait([waiting], timeout=_LOOK_EVERY)
        by_itself = waiting.done()
        if not by_itself:
            group.signal(signal.SIGTERM)
            await asyncio.wait([waiting], timeout=PATIENCE)
            group.signal(signal.SIGKILL)
        status = await waiting
        if printed := await connection.after(status if by_itself else 20):
            messages.feed(printed)
        messages.close()
        if cell and by_itself:
            status = cell.exit_code(status, messages.last)
    if cancellation:
        return None
    if reader.left < 0:
        raise OperatorError(
            f"{host.name} sends output without end, so btrkeep stopped reading",
            "on the host, check which program `rsync` is: command -v rsync",
        )
    if not by_itself:
        raise OutOfTime(f"{host.name} did not answer in time", "compare fewer files: --sample")
    if status not in _ENDED_WELL:
        raise _not_compared(host, status, messages)
    return reader.items


def _not_compared(host: HostConfig, status: int, messages: Messages) -> OperatorError:
    means = meaning(status, messages.last)
    line = f": {means.line}" if means.line else ""
    if "--files-from" in means.line and PROGRAM in means.line:
        return OperatorError(f"{host.name} could not be compared{line}", f"update {PROGRAM} on the host ({page('sources')})")
    return OperatorError(f"{host.name} could not be compared: {means.words}{line}", f"`backupd host test {host.name}` shows why")


class Reader:
    """Reads rsync's lines about `names`. `left`: bytes of output still allowed; below 0: there was too much."""

    def __init__(self, names: Collection[bytes]) -> None:
        self.items: dict[bytes, Item] = {}
        self._names = frozenset(names)
        self.left = _OUTPUT_LIMIT + sum(_FOR_EACH_NAME + _FOR_EACH_BYTE * len(name) for name in self._names)
        self._rest = b""

    def counted(self, feed: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Returns a version of `feed` that gets nothing more after too much output."""

        def hear(data: bytes) -> None:
            self.left -= len(data)
            if self.left >= 0:
                feed(data)

        return hear

    def feed(self, data: bytes) -> None:
        """Parses the next bytes of its output."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LONGEST_REST:]
        for line in lines:
            if (item := parse_item(line)) and item.name in self._names:
                first_item = self.items.setdefault(item.name, item)
                if judged(first_item) is ContentVerdict.ALIKE:  # a host can add lines, but cannot cancel earlier ones
                    self.items[item.name] = item
