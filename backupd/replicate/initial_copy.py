"""An initial copy: the newest backup of each host as files on a disk that is transported to the second server. FOLDER/seed.json
names the pool; FOLDER/HOST/seed.json, written last, lists the parts beside it: a stream of `btrfs send` in pieces, each with its
length and its SHA-256. An interrupted copy is continued: existing parts are compared with the stream, and written again only from
the first difference.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from backupd.replicate.sender import Verbs
from backupd.replicate.wire import LONGEST_PIECE, PIECE, PROTOCOL, frame, object_frame, write_all
from btrkeep import __version__
from btrkeep.config.sources import name_fault
from btrkeep.errors import OperatorError
from btrkeep.pool.atomic import write_atomically

DESCRIPTION = "seed.json"
STREAM = 1
"""The version of the kernel's stream that every receiving kernel supports."""
_FORMAT = 1
_LONGEST = 16 << 20  # bytes of a seed.json


class InitialCopyDamaged(OperatorError):
    """An initial copy differs from the written data."""


@dataclass(frozen=True, slots=True)
class InitialCopyPart:
    """One file of an initial copy. Its name is its number, from 1."""

    length: int
    """Bytes."""
    sha256: str
    """Hexadecimal digits."""


def part_file(folder: Path, number: int) -> Path:
    """Returns the path of the part with that number, from 1."""
    return folder / f"{number:06}.part"


def read_description(folder: Path) -> dict[str, Any]:
    """Reads a seed.json. Raises InitialCopyDamaged, FileNotFoundError."""
    path = folder / DESCRIPTION
    try:
        with _opened(path) as file:
            document = json.loads(file.read(_LONGEST))
        if document["format"] > _FORMAT:
            raise InitialCopyDamaged(f"{path} was written by a newer btrkeep", "use the same version on both servers")
        return dict(document)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InitialCopyDamaged(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InitialCopyDamaged(f"{path} is invalid: {error!r}", "write the initial copy again") from None


def _opened(path: Path) -> BinaryIO:
    """Opens a regular file: another user may have put a pipe or a link there. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(fd, "rb")


# --- written on the first server


def begin_initial_copy(folder: Path, pool: str) -> None:
    """Creates the folder, or continues in it. Raises InitialCopyDamaged for an initial copy of another pool, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        before = read_description(folder)
    except FileNotFoundError:
        if any(folder.iterdir()):
            raise InitialCopyDamaged(f"{folder} has other files in it", "name a new folder") from None
        write_atomically(folder / DESCRIPTION, json.dumps({"format": _FORMAT, "pool": pool, "version": __version__}) + "\n")
        return
    if before.get("pool") != pool:
        raise InitialCopyDamaged(f"{folder} has an initial copy of another pool", "name a new folder")


def write_parts(folder: Path, pieces: Iterable[bytes], length: int, tell: Callable[[int], None]) -> list[InitialCopyPart]:
    """Writes a stream in parts of at most that many bytes; `tell` is called with the number of parts so far. Raises OSError."""
    parts, done = list[InitialCopyPart](), 0
    part: _Part | None = None
    try:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                part = part or _Part(part_file(folder, len(parts) + 1))
                block = left[: length - part.length]
                part.write(block)
                left = left[len(block) :]
                if part.length == length:
                    parts.append(part.whole())
                    part = None
            done += len(piece)
            tell(done)
        if part:
            parts.append(part.whole())
    finally:
        if part:
            part.close()
    number = len(parts) + 1
    while (late := part_file(folder, number)).exists():  # parts of an earlier, interrupted one
        late.unlink()
        number += 1
    return parts


class _Part:
    """Writes a part. An existing part is compared, and written from the first difference."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._digest = hashlib.sha256()
        self._is_same = True
        self.length = 0

    def write(self, piece: memoryview) -> None:
        """Adds a piece of the stream."""
        self._digest.update(piece)
        if self._is_same and os.read(self._fd, len(piece)) != piece:
            self._is_same = False
            os.ftruncate(self._fd, self.length)
            os.lseek(self._fd, self.length, os.SEEK_SET)
        if not self._is_same:
            write_all(self._fd, piece)
        self.length += len(piece)

    def whole(self) -> InitialCopyPart:
        """Ends the part: nothing follows the added data, and all of it is on the disk."""
        if os.fstat(self._fd).st_size != self.length:
            os.ftruncate(self._fd, self.length)
        os.fsync(self._fd)
        self.close()
        return InitialCopyPart(self.length, self._digest.hexdigest())

    def close(self) -> None:
        """Closes the file; may be called more than once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def end_host(folder: Path, listed: Mapping[str, Any], announced: Mapping[str, Any], parts: Iterable[InitialCopyPart]) -> None:
    """Writes the list of a host's parts when they are complete. `listed`: the host's entry in the sender's list, `announced`: its
    announcement.
    """
    document = {"format": _FORMAT, "listed": listed, "announced": announced, "parts": [asdict(part) for part in parts]}
    write_atomically(folder / DESCRIPTION, json.dumps(document) + "\n")


def has_host(folder: Path, uuid: str) -> bool:
    """Returns True if the folder contains the backup completely, judging by lengths, and no other backup."""
    try:
        document = _read_host(folder)
        return bool(document["listed"]["backups"][0][1] == uuid) and all(
            part_file(folder, number).stat().st_size == part["length"] for number, part in enumerate(document["parts"], 1)
        )
    except (OSError, InitialCopyDamaged):
        return False


def _read_host(folder: Path) -> dict[str, Any]:
    """Reads the seed.json of a host, and checks its fields. Raises InitialCopyDamaged, FileNotFoundError."""
    document = read_description(folder)
    try:
        host, backup = dict(document["listed"]), document["listed"]["backups"][0]
        is_known = host and isinstance(backup[1], str) and dict(document["announced"])
        parts = [InitialCopyPart(int(part["length"]), str(part["sha256"])) for part in document["parts"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InitialCopyDamaged(f"{folder / DESCRIPTION} is invalid: {error!r}", "write the initial copy again") from None
    if not (is_known and parts):
        raise InitialCopyDamaged(f"{folder / DESCRIPTION} is invalid", "write the initial copy again")
    return document


def unusable_hosts(folder: Path) -> dict[str, str]:
    """Returns the hosts that cannot be fetched from an initial copy, with the reasons: they are incomplete or damaged."""
    unusable = {}
    for host in _hosts(folder):
        try:
            _read_host(host)
        except FileNotFoundError:
            unusable[host.name] = "it is incomplete: run the same `--seed-to` on the first server again"
        except InitialCopyDamaged as error:
            unusable[host.name] = error.message
    return unusable


def _hosts(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not name_fault(path.name)]


# --- read on the second one


class InitialCopySender:
    """Answers for an initial copy in the way `send-only` answers for a pool. `out`: a descriptor."""

    def __init__(self, folder: Path, out: int) -> None:
        self._folder, self._out = folder, out
        try:
            pool_id = read_description(folder).get("pool")
        except FileNotFoundError:
            raise InitialCopyDamaged(
                f"{folder} is not an initial copy", "write the initial copy on the first server: `backupd replicate --seed-to`"
            ) from None
        if not isinstance(pool_id, str):
            raise InitialCopyDamaged(
                f"{folder / DESCRIPTION}: the UUID of the pool is missing",
                "write the initial copy again: `backupd replicate --seed-to`",
            )
        self._pool = pool_id
        self.verbs: Verbs = {
            "hello": self._hello,
            "list": self._list,
            "send": self._send,
            "common": lambda _: None,
        }

    def _hello(self, _: Mapping[str, Any]) -> None:
        answer = {"protocol": PROTOCOL, "version": __version__, "pool": self._pool, "stream": STREAM}
        write_all(self._out, object_frame(answer))

    def _list(self, _: Mapping[str, Any]) -> None:
        without = unusable_hosts(self._folder)
        for folder in _hosts(self._folder):
            if folder.name not in without:
                write_all(self._out, object_frame({**_read_host(folder)["listed"], "host": folder.name}))

    def _send(self, asked: Mapping[str, Any]) -> None:
        host = str(asked["host"])
        if name_fault(host):
            raise InitialCopyDamaged("there is no such host")
        folder = self._folder / host
        document = _read_host(folder)
        if document["listed"]["backups"][0][1] != asked["uuid"] or asked.get("parent"):
            raise InitialCopyDamaged(f"the initial copy has another backup of {host}")
        write_all(self._out, object_frame(document["announced"]))
        for number, part in enumerate(document["parts"], 1):
            for piece in _checked(part_file(folder, number), part):
                write_all(self._out, frame(PIECE, piece))


def _checked(path: Path, part: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the part's bytes. Raises InitialCopyDamaged at its end if they differ from the written ones."""
    digest, length = hashlib.sha256(), 0
    try:
        with _opened(path) as file:
            while piece := file.read(LONGEST_PIECE):
                digest.update(piece)
                length += len(piece)
                yield piece
    except OSError as error:
        raise InitialCopyDamaged(f"{path}: {error.strerror}", "copy it again from the first server") from None
    if (length, digest.hexdigest()) != (part["length"], part["sha256"]):
        raise InitialCopyDamaged(
            f"{path} is damaged: copy the file again, or delete the folder {path.parent.name} of the initial copy and write it "
            "again with --seed-to"
        )
