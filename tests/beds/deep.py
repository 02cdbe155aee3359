"""Folders within folders, deeper than a function calls itself and than a path is long."""

import os
from pathlib import Path


def deepen(folder: Path, levels: int) -> None:
    """Folders within folders, made by descriptors: no call takes a path of that length."""
    inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=inner)
        os.close(outer)
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
    os.close(inner)
