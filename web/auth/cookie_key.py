"""The key that signs the dashboard's cookies: 32 random bytes in a separate file."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from btrkeep.errors import OperatorError

FILE = "cookie.key"
_LENGTH = 32


def cookie_key(data: Path) -> bytes:
    """Returns the same bytes each time. Makes the file from random bytes if it is missing. Raises OperatorError."""
    path = data / FILE
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            _write(path, secrets.token_bytes(_LENGTH))
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = file.read(_LENGTH + 1)
    except OSError as error:
        raise OperatorError(f"{path} cannot be used: {error.strerror}", "it belongs to the dashboard's user; see --data") from error
    if len(found) != _LENGTH:
        raise OperatorError(f"{path} is no key of {_LENGTH} bytes", "remove it, and everybody logs in again")
    return found


def _write(path: Path, key: bytes) -> None:
    """Writes the key in one step: a process that starts at the same moment finds the whole key, or none."""
    part = path.with_name(f".{FILE}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(key)
    try:
        os.link(part, path)
    finally:
        part.unlink()
