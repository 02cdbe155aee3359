"""Files that are replaced as a whole. Apart from the rest, because whoever writes notes needs no btrfs for it."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file as a whole, mode 0600; when this returns, its data and its name are on disk."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # without it a power cut brings the old file back
    finally:
        os.close(folder)
