"""SHA256SUMS beside backup.json: the checksums of some files of a backup, made when they had just been fetched.

As `sha256sum` writes it, so `sha256sum -c SHA256SUMS` in the backup's folder compares without us. It lies in the subvolume, and so
travels with it to another pool, where inode numbers are others.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from backupd.repo.backup_json import DATA
from btrkeep.checkpoints import Checkpoint
from btrkeep.fs.fiemap import settle

SUMS = "SHA256SUMS"
_DATA = DATA.encode()
_LINE = re.compile(rb"(\\?)([0-9a-f]{64})  " + re.escape(_DATA) + rb"(/.*)", re.DOTALL)
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
_MEANT = {escaped: plain for plain, escaped in _ESCAPES.items()}
_LARGEST = 64 << 20  # bytes; ours has 100,000 lines at the most

LONGEST_HOLE = 64 << 20
"""Bytes of holes that a file may have to be among them: reading zeros has an end, whoever wrote the list."""


@Checkpoint("SHA256SUMS replaced")
def write_sums(subvolume: Path, sums: Mapping[bytes, bytes]) -> None:
    """Replaces the file inherited from the base. Paths are absolute, as on the host. Raises OSError.

    Not synced, which would cost more than computing the sums: after a power cut within seconds it may be empty, which is harmless.
    """
    (subvolume / SUMS).unlink(missing_ok=True)
    if not sums:
        return
    try:
        fd = os.open(subvolume / SUMS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.writelines(_line(path, digest) for path, digest in sorted(sums.items()))
            file.flush()
            settle(fd)  # what is written out later would change the subvolume after its seal
    except OSError:
        (subvolume / SUMS).unlink(missing_ok=True)
        raise


def read_sums(subvolume: Path) -> dict[bytes, bytes]:
    """Returns SHA-256 by path; nothing if the file is missing or cannot be read. Skips invalid lines."""
    found: dict[bytes, bytes] = {}
    with suppress(OSError):
        fd = os.open(subvolume / SUMS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            for line in file.read(_LARGEST).split(b"\n"):
                if parts := _LINE.fullmatch(line):
                    escaped, digest, path = parts.groups()
                    meant = re.sub(rb"\\[\\nr]", lambda one: _MEANT[one[0]], path) if escaped else path
                    found[meant] = bytes.fromhex(digest.decode())
    return found


def _line(path: bytes, digest: bytes) -> bytes:
    escaped = re.sub(rb"[\\\n\r]", lambda one: _ESCAPES[one[0]], path)
    return (b"\\" if escaped != path else b"") + digest.hex().encode() + b"  " + _DATA + escaped + b"\n"
