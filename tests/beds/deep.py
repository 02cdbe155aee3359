"""Nested folders, deeper than the call stack allows and with longer paths than the kernel accepts."""

import os
from pathlib import Path


def deepen(folder: Path, levels: int) -> None:
    """Makes nested folders by descriptors, because no call accepts a path of that length."""
    inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=inner)
        os.close(outer)
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
    os.close(inner)
