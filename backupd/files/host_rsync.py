"""Starts the rsync of a restore to a host, sends names to it, reads its output, and ends it."""

import asyncio
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from backupd.rsync.confined import ConfinedTransfer
from backupd.rsync.messages import LONGEST_REST, Messages, Output
from backupd.rsync.process import StallWatch
from backupd.rsync.restore_command import Item, parse_item
from btrkeep.decisions.cause_words import cause_words
from btrkeep.process.group import Group
from btrkeep.process.progress import Cancelled

_PATIENCE = 10.0
_LOOK_EVERY = 0.2
_OUTPUT_LIMIT = 64 << 20
"""Maximum bytes of one rsync's output, even if few names are restored; the output for names is counted in addition."""
_LINE = 100  # bytes: reading them takes as long as the fixed cost of a line


class LimitExceeded(Exception):
    """The host has exceeded a limit; `hint` contains what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


@dataclass(slots=True)
class HostRsyncEnd:
    """How an rsync of a restore to a host ended."""

    exit_code: int
    """Its exit status; negative for a signal."""
    output: Output
    """Its output."""
    messages: Messages
    """Its messages."""
    folders: int = 0
    """Number of folders in its list."""


_FOLDERS = re.compile(rb"Number of files: \d{1,18} \((?:[a-z]+: \d{1,18}, )*dir: (\d{1,18})")


@dataclass(slots=True)
class _Reader:
    """Takes rsync's output: items one by one, if there are any, progress and numbers by Output."""

    take: Callable[[Item], None] | None
    """Takes each item; None: there are none."""
    output: Output = field(default_factory=Output)
    """Progress and numbers."""
    folders: int = 0
    """Number of folders so far."""
    rest: bytes = b""
    """The start of a line whose end has not arrived."""

    def feed(self, data: bytes) -> None:
        self.output.feed(data)
        if self.take is None:
            return
        *lines, rest = (self.rest + data).replace(b"\r", b"\n").split(b"\n")
        self.rest = rest[-LONGEST_REST:]
        for line in lines:
            if item := parse_item(line):
                self.take(item)
            elif match := _FOLDERS.match(line):
                self.folders = int(match[1])


class NameAllowance:
    """How much output a host may cause: it controls the output, without limit, and items are kept in memory.

    The names that raise the limit are enumerated only as more is printed.
    """

    def __init__(self, names: Iterator[int]) -> None:
        self._names = names
        self._left = _OUTPUT_LIMIT

    def takes(self, data: bytes) -> bool:
        """Returns True if the data is within the allowance."""
        self._left -= len(data) + _LINE * data.count(b"\n")
        while self._left < 0 and (more := next(self._names, None)) is not None:
            self._left += more
        return self._left >= 0


async def run_rsync(
    within: AbstractContextManager[tuple[Sequence[str], ConfinedTransfer | None]],
    take: Callable[[Item], None] | None,
    moved: Callable[[Output], None],
    watch: StallWatch,
    allowance: NameAllowance,
) -> HostRsyncEnd:
    """Runs one rsync, the command with its cell, and ends it if `moved` raises Cancelled or LimitExceeded, at any call. Raises
    LimitExceeded also if there is no more progress, and if more is printed than allowed. Raises OperatorError if it could not be
    confined.
    """
    with within as (command, cell):
        return await _run_in(command, cell, take, moved, watch, allowance)


async def _run_in(
    command: Sequence[str],
    cell: ConfinedTransfer | None,
    take: Callable[[Item], None] | None,
    moved: Callable[[Output], None],
    watch: StallWatch,
    allowance: NameAllowance,
) -> HostRsyncEnd:
    reader, messages = _Reader(take), Messages()
    beyond = False

    def within_limits(feed: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def guarded(data: bytes) -> None:
            nonlocal beyond
            watch.moved()
            beyond = beyond or not allowance.takes(data)
            if not beyond:
                feed(data)

        return guarded

    group = Group.start(
        command,
        on_stdout=within_limits(reader.feed),
        on_stderr=within_limits(messages.feed),
        keep_open=cell.inherited if cell else (),
        wraps=cell is not None,
    )
    if cell:
        cell.started(group)
    waiting, watching = asyncio.create_task(group.wait()), asyncio.create_task(watch.run(group))
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=_LOOK_EVERY)
            moved(reader.output)
            if beyond:
                break
    except (Cancelled, LimitExceeded, asyncio.CancelledError):
        await _end(group, waiting)
        raise
    finally:
        watching.cancel()
    if beyond:
        await _end(group, waiting)
        raise LimitExceeded(
            "the host sends output without end, so btrkeep stopped reading",
            "on the host, check which program `rsync` is: command -v rsync",
        )
    if watch.verdict:
        raise LimitExceeded(cause_words(watch.verdict), "`stall` of the host sets this time")
    messages.close(reader.output.complaints)
    status = cell.exit_code(waiting.result(), messages.last) if cell else waiting.result()
    return HostRsyncEnd(status, reader.output, messages, reader.folders)


async def _end(group: Group, waiting: "asyncio.Task[int]") -> None:
    group.signal(signal.SIGTERM)
    await asyncio.wait([waiting], timeout=_PATIENCE)
    group.signal(signal.SIGKILL)
    await waiting
