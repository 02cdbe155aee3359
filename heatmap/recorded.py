"""A state of a filesystem in a file: small, checked when it is read, and readable by every later version.

Bytes    Content (all numbers little-endian)
8        ``\\x89heatmap``: the first byte is not text, so no program regards the file as text and changes its line ends
4        format: 1. A file with a higher number is rejected. Additions of later versions do not raise it: unknown columns
         and keys are ignored
4        length of the head, and 8: length of the columns, both as they are in the file
4        CRC-32 of the twelve bytes before, the head and the columns
head     JSON: fsid, label, taken, nodesize, sectorsize, `devices`: id and total bytes of each, and `columns`: name, kind, count
         and unit of each
columns  all of them, one after the other, as one zlib stream

A column of integers is stored as differences of neighbours, counted in `unit` (the largest divisor of all; without one, 1). The
lowest bytes of all numbers come first, then all second ones and so on, because similar neighbours then make long runs of zeros.
`score` is stored as the bits of its floats, in the same way. `de_vaddr` is left out if the stripes determine it.
"""

import json
import struct
import zlib
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from btrkeep.errors import OperatorError
from btrkeep.fs.output_file import whole_file
from heatmap.filesystem_state import Array, FilesystemState

MAGIC = b"\x89heatmap"
FORMAT = 1
SUFFIX = ".heatmap"
_HEAD = struct.Struct("<8sIIQI")
_CHECKED = slice(12, 24)
_LEVEL = 6  # level 9 takes 15 times as long to save 0.1 %
_LARGEST = 1 << 30
"""Maximum bytes of columns: more than a filesystem of 100 PiB has, less than would fill the memory."""
_PLAIN = ("fsid", "label", "nodesize", "sectorsize")
_DEVICES = ("devid", "total_bytes")
_COLUMNS = [field.name for field in fields(FilesystemState) if field.name not in (*_PLAIN, "taken", *_DEVICES)]
_OPTIONAL = {field.name for field in fields(FilesystemState) if field.default is not MISSING}
_KINDS: dict[str, np.dtype[Any]] = {"u8": np.dtype("<u8"), "i8": np.dtype("<i8"), "f4": np.dtype("<f4")}
_KIND_OF = {"score": "f4", "ch_stripes": "i8", "st_chunk": "i8"}
_STRIPES = ("st_chunk", "st_devid", "st_paddr", "ch_vaddr")
_SAME_LENGTH = (
    ("de_devid", "de_paddr", "de_vaddr", "de_length"),
    ("ch_vaddr", "ch_length", "ch_type", "ch_stripes"),
    ("st_chunk", "st_devid", "st_paddr"),
    ("bg_vaddr", "bg_length", "bg_used", "bg_flags", "score", "generation"),
)


_NAME_ONE = f"name a file that was written with --record ({SUFFIX})"
_WRONG = (ValueError, KeyError, IndexError, TypeError, OverflowError, zlib.error)  # the checksum is right: it was written wrong


class Unreadable(OperatorError):
    """The file is not a recorded state, is damaged, or was written by a newer version. `why`: the message without the
    file's name.
    """

    def __init__(self, name: str, why: str, hint: str = "") -> None:
        super().__init__(f"{name} {why}", hint)
        self.why = why


@dataclass(frozen=True, slots=True, eq=False)
class StateHeader:
    """The time and the filesystem of a state. The arrays are as in FilesystemState."""

    fsid: str
    """The UUID."""
    label: str
    """The filesystem's label."""
    taken: datetime
    """When."""
    devid: Array
    total_bytes: Array


def save(state: FilesystemState, name: str) -> None:
    """Writes the state atomically. Raises OperatorError."""
    with whole_file(name, durable=True) as file:
        file.write(packed(state))


def load(path: Path) -> FilesystemState:
    """Reads the state in a file. Raises Unreadable, one line."""
    try:
        return unpacked(path.read_bytes(), str(path))
    except OSError as error:
        raise _cannot_read(path, error) from None


def _cannot_read(path: Path, error: OSError) -> Unreadable:
    return Unreadable(str(path), f"cannot be read: {error.strerror}", _NAME_ONE)


def read_header(path: Path) -> StateHeader:
    """Reads the time and the filesystem of a recorded state. Checks the whole file, but decompresses no columns. Raises
    Unreadable.
    """
    try:
        head, _ = _parts(path.read_bytes(), str(path))
        return _moment(json.loads(head))
    except OSError as error:
        raise _cannot_read(path, error) from None
    except _WRONG as error:
        raise _no_state(str(path), error) from None


def automatic_name(picture: Path) -> Path:
    """Returns the file of the state if no name is given: beside the picture, with its name."""
    return picture.with_suffix(SUFFIX)


def packed(state: FilesystemState) -> bytes:
    """The file's bytes."""
    derived = _by_stripes(**{name: getattr(state, name) for name in _STRIPES})
    derived_column = "de_vaddr" if np.array_equal(derived, state.de_vaddr) else ""
    kept = [(name, values) for name in _COLUMNS if (values := getattr(state, name)) is not None and name != derived_column]
    columns, described = [], []
    for name, values in kept:
        kind = _KIND_OF.get(name, "u8")
        data, unit = _encoded(np.asarray(values), kind)
        columns.append(data)
        described.append([name, kind, len(values), unit])
    devices = [list(pair) for pair in zip(state.devid.tolist(), state.total_bytes.tolist(), strict=True)]
    about = {name: getattr(state, name) for name in _PLAIN} | {"taken": state.taken.isoformat(), "devices": devices}
    head = json.dumps(about | {"columns": described}, separators=(",", ":")).encode()
    body = zlib.compress(b"".join(columns), _LEVEL)
    lengths = struct.pack("<IQ", len(head), len(body))
    check = zlib.crc32(body, zlib.crc32(head, zlib.crc32(lengths)))
    return b"".join((_HEAD.pack(MAGIC, FORMAT, len(head), len(body), check), head, body))


def unpacked(data: bytes, name: str) -> FilesystemState:
    """Returns the state in `data`; `name` is for messages. Raises Unreadable."""
    head, body = _parts(data, name)
    try:
        about = json.loads(head)
        moment = _moment(about)
        state_fields: dict[str, Any] = {key: about[key] for key in _PLAIN} | _columns(about["columns"], body)
        state = FilesystemState(**state_fields, taken=moment.taken, devid=moment.devid, total_bytes=moment.total_bytes)
        _require_lengths(state)
    except _WRONG as error:
        raise _no_state(name, error) from None
    return state


def _moment(about: dict[str, Any]) -> StateHeader:
    taken = datetime.fromisoformat(about["taken"])
    if taken.tzinfo is None:
        raise ValueError("its time has no zone")
    devices = np.array(about["devices"], np.uint64).reshape(-1, 2)
    return StateHeader(about["fsid"], about["label"], taken, devices[:, 0].copy(), devices[:, 1].copy())


def _no_state(name: str, error: Exception) -> Unreadable:
    return Unreadable(name, f"is not a state that can be drawn: {error!r}", "record the filesystem again")


def _parts(data: bytes, name: str) -> tuple[bytes, bytes]:
    if data[: len(MAGIC)] != MAGIC:
        raise Unreadable(name, "is not a recorded state", _NAME_ONE)
    damaged = Unreadable(name, "is damaged: its length or checksum is wrong", "use another copy of the file")
    if len(data) < _HEAD.size:
        raise damaged
    _, version, head, body, check = _HEAD.unpack_from(data)
    if version > FORMAT:
        raise Unreadable(
            name,
            f"is of format {version}; this program reads up to {FORMAT}",
            "use the version of btrfs-heatmap that wrote the file",
        )
    end = _HEAD.size + head
    if version < 1 or len(data) != end + body or zlib.crc32(data[_HEAD.size :], zlib.crc32(data[_CHECKED])) != check:
        raise damaged
    return data[_HEAD.size : end], data[end:]


def _columns(described: list[list[Any]], body: bytes) -> dict[str, Array]:
    stream = zlib.decompressobj()
    data = stream.decompress(body, _LARGEST)
    if not stream.eof:
        raise ValueError("its columns are incomplete")
    columns, at = {}, 0
    for name, kind, count, unit in described:
        size = count * _KINDS[kind].itemsize
        if size < 0 or at + size > len(data):
            raise ValueError(f"it is too short for {name}")
        if name in _COLUMNS:
            columns[name] = _decoded(data[at : at + size], kind, unit)
        at += size
    if "de_vaddr" not in columns:
        columns["de_vaddr"] = _by_stripes(**{name: columns[name] for name in _STRIPES})
    return columns


def _by_stripes(st_chunk: Array, st_devid: Array, st_paddr: Array, ch_vaddr: Array) -> Array:
    """Returns the chunk address of each stripe, by device and position: these are the addresses in the device extents, unless
    something changed while they were read.
    """
    return ch_vaddr[st_chunk[np.lexsort((st_paddr, st_devid))]]


def _encoded(values: Array, kind: str) -> tuple[bytes, int]:
    """Returns the bytes of a column and its unit."""
    if kind == "f4":
        numbers, unit = values.astype(_KINDS["f4"]).view("<u4"), 1
    else:
        plain = values.astype(_KINDS["u8"])
        unit = int(np.gcd.reduce(plain)) if len(plain) else 1
        plain = plain // np.uint64(unit or 1)
        numbers = np.diff(plain, prepend=np.zeros(1, np.uint64))  # negative ones wrap modulo 2**64, as in decoding
    return np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, numbers.itemsize).T).tobytes(), unit


def _decoded(data: bytes, kind: str, unit: int) -> Array:
    dtype = _KINDS[kind]
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1)
    numbers = np.ascontiguousarray(planes.T).reshape(-1)
    if kind == "f4":
        return numbers.view(dtype)
    return (np.cumsum(numbers.view("<u8"), dtype=np.uint64) * np.uint64(unit)).view(dtype)


def _require_lengths(state: FilesystemState) -> None:
    """Checks that arrays that belong together have the same length, and that stripes belong to existing chunks. Raises
    ValueError.
    """
    for name in _COLUMNS:
        if getattr(state, name) is None and name not in _OPTIONAL:
            raise ValueError(f"it has no {name}")
    for names in _SAME_LENGTH:
        lengths = {len(values) for name in names if (values := getattr(state, name)) is not None}
        if len(lengths) > 1:
            raise ValueError(f"{names[0]} and its other columns differ in length")
    if len(state.st_chunk) and not 0 <= int(state.st_chunk.min()) <= int(state.st_chunk.max()) < len(state.ch_vaddr):
        raise ValueError("a stripe belongs to no chunk")
