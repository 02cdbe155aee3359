"""One stream from a host to a folder: ssh writes it into a pipe, and the applier in its cell reads it from there.

No byte passes through this process. The applier's group holds the host's lock; ssh is started beside it, as that of a confined
rsync.
"""

import asyncio
import fcntl
import json
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backupd.rsync.cell import confined_command, filter_file
from backupd.rsync.process import RsyncEnd, RunCancellation, transfer
from backupd.streams import applier
from btrkeep.descriptors import ClosingFd
from btrkeep.pool.locks import Lock
from btrkeep.process.group import Group
from btrkeep.units import LARGEST_COUNT, printable

_FOLDER = Path(applier.__file__).absolute().parent
_START = "import sys; sys.path.insert(0, sys.argv[1]); from backupd.streams.applier import main; sys.exit(main(sys.argv[2:]))"
"""The applier's start. Only its own folder is in the cell."""
_ZSTD = 2  # linux/btrfs.h
_PYTHON = "/usr/bin/python3"
_LONGEST_LINE = 1 << 16
_MOST_ERRORS = 1 << 14
_LONGEST_TEXT = 300
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


@dataclass(slots=True)
class AppliedStream:
    """The result of a stream, or of the part that arrived."""

    ended: RsyncEnd
    """The end of the applier; its messages are the applier's."""
    ssh_status: int | None
    """The exit status of ssh; None: it was not started."""
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
    )
    python = _PYTHON if os.access(_PYTHON, os.X_OK) else os.path.realpath(sys.executable)
    command = (python, "-I", "-S", "-c", _START, str(_FOLDER.parent.parent), *words)
    if calls is None:
        return command
    shown = (str(_FOLDER), str(_FOLDER.parent / "__init__.py"), *((str(target.base),) if target.base else ()))
    return confined_command(command, str(target.folder), calls, shown=shown)


class _Remote:
    """The host's side of one transfer: ssh, its status and its errors."""

    def __init__(self, command: Sequence[str], *, confined: bool) -> None:
        self.status: int | None = None
        self.errors = bytearray()
        self.is_confined = confined
        self._command = tuple(command)
        self.calls = filter_file(applies=True) if confined else None
        self.reading, self._writing = os.pipe2(os.O_CLOEXEC)
        self._errors, self._their_errors = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._errors, False)

    def close(self) -> None:
        """Closes the descriptors."""
        asyncio.get_running_loop().remove_reader(self._errors)
        for fd in (self.calls, self.reading, self._writing, self._errors, self._their_errors):
            if fd is not None and fd >= 0:
                os.close(fd)

    @property
    def inherited(self) -> tuple[int, ...]:
        """Returns the descriptors that the applier inherits."""
        return (self.reading,) if self.calls is None else (self.calls, self.reading)

    def started(self, group: Group) -> None:
        """Starts ssh beside the applier, and leaves both ends of the pipe to them."""
        asyncio.get_running_loop().add_reader(self._errors, self.drain)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            group.start_beside(self._command, (nothing, self._writing, self._their_errors), self._end)
        finally:
            os.close(nothing)
            for name in ("reading", "_writing", "_their_errors"):
                os.close(getattr(self, name))
                setattr(self, name, -1)

    def exit_code(self, code: int, _lines: Iterable[str]) -> int:
        """Returns the applier's exit status; bubblewrap reports signals as a shell does."""
        return 128 - code if self.is_confined and 128 < code <= 192 else code

    def _end(self, status: int) -> None:
        self.status = status

    def drain(self) -> None:
        """Reads the errors that ssh has printed so far."""
        try:
            while data := os.read(self._errors, 1 << 16):
                self.errors.extend(data[: max(0, _MOST_ERRORS - len(self.errors))])
        except BlockingIOError:
            return
        asyncio.get_running_loop().remove_reader(self._errors)


def writes_encoded(folder: Path) -> bool:
    """Returns True if compressed data can be written below a folder as it is: not without checksums, and not before Linux 6.0.

    Writes one block to a file without a name. Raises OSError.
    """
    with ClosingFd(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)) as fd:
        data = array("B", b"not read by anybody")
        vector = array("Q", (data.buffer_info()[0], len(data)))
        words = applier.ENCODED_ARGUMENTS.pack(vector.buffer_info()[0], 1, 0, 0, applier.BLOCK, applier.BLOCK, 0, _ZSTD, 0)
        try:
            fcntl.ioctl(fd, applier.ENCODED_WRITE, words)
        except OSError as error:
            if error.errno in applier.NOT_AS_IT_IS:
                return False
            raise
    return True


async def apply_stream(
    remote: Sequence[str],
    target: StreamTarget,
    lock: Lock,
    cancellation: RunCancellation,
    stall: float,
    *,
    confined: bool,
    on_progress: Callable[[int, int, int], None],
) -> AppliedStream:
    """Runs the command `remote`, and applies the stream that it writes. Raises OperatorError, OSError.

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

    side = _Remote(remote, confined=confined)
    try:
        command = applier_command(target, side.reading, side.calls)
        ended = await transfer(command, lock, cancellation, stall, cell=side, take=take)
        side.drain()
    finally:
        side.close()
    done = AppliedStream(ended, side.status, bytes(side.errors), received)
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
