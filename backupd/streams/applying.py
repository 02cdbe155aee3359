"""One stream from a host to a folder: ssh writes it into a pipe, and the applier in its cell reads it from there.

No byte of the stream passes through this process. The applier's group holds the host's lock; ssh has a group of its own, because it
may bring an answer of the host before, on which the applier's arguments depend.
"""

import asyncio
import fcntl
import json
import os
import signal
import struct
import sys
import termios
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backupd.rsync.cell import confined_command, filter_file
from backupd.rsync.process import RsyncEnd, RunCancellation, transfer
from backupd.streams import applier, file_writer
from btrkeep.descriptors import ClosingFd
from btrkeep.pool.locks import Lock
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.units import LARGEST_COUNT, printable

_FOLDER = Path(applier.__file__).absolute().parent
_START = "import sys; sys.path.insert(0, sys.argv[1]); from backupd.streams.applier import main; sys.exit(main(sys.argv[2:]))"
"""The applier's start. Only its own folder is in the cell."""
_PYTHON = "/usr/bin/python3"
_LONGEST_LINE = 1 << 16
_MOST_ERRORS = 1 << 14
_LARGEST_ANSWER = 1 << 20
_LONGEST_TEXT = 300
LAST_WORDS = 10.0
"""Seconds for ssh to end after its output."""
_NUMBERS = ("files", "regular", "bytes", "created", "deleted", "transferred", "transferred_bytes", "literal", "matched")


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Where and how a stream is applied."""

    folder: Path
    """The writable folder, which has what the parent has."""
    base: Path | None = None
    """The same folder in the previous backup, from which data may be shared; None: the stream is complete."""
    parent: str | None = None
    """The identity of the snapshot to which the stream must be a difference; None: it is complete."""
    most_files: int | None = None
    """Limit for new names; None: no limit."""
    most_bytes: int | None = None
    """Limit for new bytes; None: no limit."""
    compression: str | None = None
    """The property of the pool's folder, for new files; None: it has none."""


@dataclass(slots=True)
class AppliedStream:
    """The result of a stream, or of the part that arrived."""

    ended: RsyncEnd
    """The end of the applier; its messages are the applier's."""
    ssh_status: int
    """The exit status of ssh."""
    ssh_errors: bytes = b""
    """What ssh and the host's program printed as errors."""
    received: int = 0
    """Bytes of the stream, as far as the applier has reported."""
    own: str = ""
    """The identity of the applied snapshot; "": the stream was not applied completely."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Statistics with the names of rsync's; `files`, `regular` and `bytes` are differences to the parent."""
    not_kept: int = 0
    """Number of attributes that could not be stored here."""
    samples: tuple[str, ...] = ()
    """Some of them."""


def applier_command(target: StreamTarget, stream: int, calls: int | None) -> tuple[str, ...]:
    """Returns the command that applies the stream of a descriptor, in a cell if `calls` is the descriptor of its system calls."""
    words = (
        str(stream),
        str(target.folder),
        str(target.base or "-"),
        target.parent or "-",
        *("-" if limit is None else str(limit) for limit in (target.most_files, target.most_bytes)),
        target.compression or "-",
    )
    own = os.path.realpath(sys.executable)
    python = own if own.startswith("/usr/") or not os.access(_PYTHON, os.X_OK) else _PYTHON  # the cell shows /usr
    command = (python, "-I", "-S", "-c", _START, str(_FOLDER.parent.parent), *words)
    if calls is None:
        return command
    shown = (str(_FOLDER), str(_FOLDER.parent / "__init__.py"), *((str(target.base),) if target.base else ()))
    return confined_command(command, str(target.folder), calls, shown=shown)


class RemoteStream:
    """ssh, which writes a stream into a pipe, perhaps after an answer. `end` has to be called."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises ProgramFailed, OSError."""
        self.errors = bytearray()
        self.reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            self._group = Group.start((*ENDS_WITH_US, *command), on_stdout=writing, on_stderr=self._take_errors)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(writing)

    def _take_errors(self, data: bytes) -> None:
        self.errors.extend(data[: max(0, _MOST_ERRORS - len(self.errors))])

    async def answer(self, cancellation: RunCancellation, seconds: float) -> bytes:
        """Returns the first line that is a JSON object, b"" if the output ends without one. The stream follows it.

        Raises TimeoutError after `seconds`; `cancellation` ends it.
        """
        loop, line = asyncio.get_running_loop(), bytearray()
        answer: asyncio.Future[bytes] = loop.create_future()

        def take() -> None:
            """Reads byte by byte, because what follows is for another process. No thread waits: there is one for each host."""
            (available,) = struct.unpack("i", fcntl.ioctl(self.reading, termios.FIONREAD, bytes(4)))
            for _ in range(max(1, available)):
                byte = os.read(self.reading, 1)
                if not byte or len(line) == _LARGEST_ANSWER:
                    line.clear()
                elif byte != b"\n":
                    line.extend(byte)
                    continue
                elif not line.startswith(b"{"):  # a login shell may print lines before it
                    line.clear()
                    continue
                loop.remove_reader(self.reading)
                if not answer.done():
                    answer.set_result(bytes(line))
                return

        cancellation.group = self._group
        loop.add_reader(self.reading, take)
        try:
            return await asyncio.wait_for(answer, seconds)
        finally:
            loop.remove_reader(self.reading)
            cancellation.group = None

    def close(self) -> None:
        """Closes our end of the pipe."""
        if self.reading >= 0:
            os.close(self.reading)
            self.reading = -1

    async def end(self, patience: float = 0.0) -> int:
        """Returns the exit status of ssh, which may take some seconds to end by itself. Raises UnkillableProcess."""
        try:
            async with asyncio.timeout(patience):
                return await self._group.wait()
        except TimeoutError:
            self._group.signal(signal.SIGKILL)
            return await self._group.wait()
        finally:
            self.close()


class _Cell:
    """The applier's side of one transfer."""

    def __init__(self, remote: RemoteStream, *, confined: bool) -> None:
        self.is_confined = confined
        self.calls = filter_file(applies=True) if confined else None
        self._remote = remote

    def close(self) -> None:
        """Closes the descriptor of the filter."""
        if self.calls is not None:
            os.close(self.calls)

    @property
    def inherited(self) -> tuple[int, ...]:
        """Returns the descriptors that the applier inherits."""
        return (self._remote.reading,) if self.calls is None else (self.calls, self._remote.reading)

    def started(self, _: Group) -> None:
        """Leaves the pipe to the applier: ssh ends when it does."""
        self._remote.close()

    def exit_code(self, code: int, _lines: Iterable[str]) -> int:
        """Returns the applier's exit status; bubblewrap reports signals as a shell does."""
        return 128 - code if self.is_confined and 128 < code <= 192 else code


def writes_encoded(folder: Path) -> bool:
    """Returns True if compressed data can be written below a folder as it is: not without checksums, and not before Linux 6.0.

    Writes one block to a file without a name. Raises OSError.
    """
    with ClosingFd(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)) as fd:
        data = array("B", b"not read by anybody")
        vector = array("Q", (data.buffer_info()[0], len(data)))
        words = file_writer.ENCODED_ARGUMENTS.pack(
            vector.buffer_info()[0], 1, 0, 0, file_writer.BLOCK, file_writer.BLOCK, 0, file_writer.ZSTD, 0
        )
        try:
            fcntl.ioctl(fd, file_writer.ENCODED_WRITE, words)
        except OSError as error:
            if error.errno in file_writer.NOT_AS_IT_IS:
                return False
            raise
    return True


def compression_of(folder: Path) -> str | None:
    """Returns the property that new files in a folder of the pool inherit. The folders of the stream may have that of the host."""
    try:
        return os.getxattr(folder, applier.COMPRESSION).decode("ascii")
    except (OSError, UnicodeError):
        return None


async def apply_stream(
    remote: RemoteStream,
    target: StreamTarget,
    lock: Lock,
    cancellation: RunCancellation,
    stall: float,
    *,
    confined: bool,
    on_progress: Callable[[int, int, int], None],
) -> AppliedStream:
    """Applies the stream, and ends `remote`. Raises OperatorError, OSError.

    `on_progress` is called from time to time with the bytes of the stream, the bytes of files, and the number of names so far.
    """
    answer: dict[str, Any] = {}
    rest = bytearray()
    received = 0

    def take(data: bytes) -> None:
        nonlocal received
        rest.extend(data)
        *lines, left = rest.split(b"\n")
        rest[:] = left[:_LONGEST_LINE]
        for line in lines:
            fields = _fields(bytes(line))
            answer.update(fields)
            if "received" in fields:
                received = _count(fields, "received")
                on_progress(received, _count(fields, "literal"), _count(fields, "names"))

    cell = _Cell(remote, confined=confined)
    try:
        command = applier_command(target, remote.reading, cell.calls)
        ended = await transfer(command, lock, cancellation, stall, cell=cell, take=take)
    except BaseException:
        await remote.end()
        raise
    finally:
        cell.close()
    status = await remote.end(0.0 if ended.stopped else LAST_WORDS)
    done = AppliedStream(ended, status, bytes(remote.errors), received)
    if not ended.exit_code and isinstance(answer.get("own"), str) and isinstance(answer.get("numbers"), dict):
        done.own = answer["own"]
        done.numbers = {name: _count(answer["numbers"], name) for name in _NUMBERS}
        done.not_kept = _count(answer, "not_kept")
        done.samples = tuple(printable(str(text))[:_LONGEST_TEXT] for text in list(answer.get("samples", ()))[:3])
    return done


def _fields(line: bytes) -> dict[str, Any]:
    """Returns a JSON object that the applier printed. A host has no influence on its form, unless the applier was taken over."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if type(value) is int and abs(value) <= LARGEST_COUNT else 0
