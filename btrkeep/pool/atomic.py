"""Files that are replaced as a whole. Apart from the rest, because whoever writes notes needs no btrfs for it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole, mode 0600; when this returns, its data and its name are on disk."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # without it a power cut brings the old file back
    finally:
        os.close(folder)


def with_reserve(pool: Path, write: Callable[[], None]) -> None:
    """Calls `write`, and once more with the pool's reserve given back when it finds no room. Raises OSError as `write` does."""
    try:
        write()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        from btrkeep.pool.reserve import give_back

        give_back(pool)
        write()
