"""Replaces files atomically. Needs no btrfs, for programs that only write notes."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file, mode 0600; when this returns, its data and its name are on disk."""
    write_pieces_atomically(path, (content.encode() if isinstance(content, str) else content,))


def write_pieces_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Does the same with pieces, which need not all be in memory."""
    with Checkpoint(f"{path.name} replaced"):
        _replace(path, pieces)


def _replace(path: Path, pieces: Iterable[bytes]) -> None:
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    with ClosingFd(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as folder:
        os.fsync(folder)  # without it, a power cut can restore the old file


def link_atomically(link: Path, target: str | None) -> None:
    """Makes the symlink point to `target`, or removes it if that is None. Anything but a symlink is not touched.

    An outdated link is removed even if a new one cannot be made on a full disk. Raises OSError.
    """
    before = str(link.readlink()) if link.is_symlink() else None
    if before == target or (before is None and os.path.lexists(link)):
        return
    temporary = link.with_name(f".{link.name}.new")
    with Checkpoint(f"{link.name} pointed"):
        try:
            temporary.unlink(missing_ok=True)
            if target is not None:
                temporary.symlink_to(target)
                temporary.replace(link)
                before = None
        finally:
            if before is not None:
                link.unlink()
