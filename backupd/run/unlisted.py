"""Counts what is missing in rsync's numbers: files below folders that it could not read, and bytes of a source path without holes.
Those files are from an earlier backup, and were not compared in this night. rsync prints one line for such a folder, lists nothing
below it and deletes nothing. So its content from the base is still in `.working`, where it is counted.

The paths come from the host: they are only counted, and the search for them is limited, because a host can send paths with many
possible meanings.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backupd.files.tree import Entry, Tree, components, joined
from backupd.files.walking import entries
from btrkeep.process.progress import Cancellation

MOST_LOOKS = 1_000_000
"""Maximum number of names that are examined to find all these folders after one rsync: some seconds of work. A normal path takes
about ten.
"""


class _NoMoreLooks(Exception):
    """The remaining paths are not searched for."""


def files_below(
    subvolume: Path, source: str, unlisted: Iterable[bytes], enough: int, cancelled: Cancellation | None = None
) -> tuple[int, int]:
    """Returns how many names of any kind the backup has below the `unlisted` paths, each counted once, at most `enough`; and the
    number of paths for which that is unknown, because the search takes too long or was `cancelled`. Raises OSError.

    `source`: the source path. `unlisted`: paths in the sender's notation; missing ones count as empty.
    """
    with Tree(subvolume) as tree:
        folders, unknown = _Look(tree, source, cancelled).folders(list(unlisted))
        count, counted = 0, None
        for number, names in enumerate(folders):
            if counted is not None and names[: len(counted)] == counted:
                continue
            counted = names
            below = entries(tree, joined(list(names)))
            next(below, None)
            for _ in below:
                if cancelled:
                    return count, unknown + len(folders) - number
                count += 1
                if count >= enough:
                    return count, unknown
    return count, unknown


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of folders."""

    files: int = 0
    """Number of names of any kind."""
    bytes: int = 0
    """Their size."""
    stored: int = 0
    """Their size without holes."""


NOTHING = Contents()


def contents_of(subvolume: Path, source: str, patterns: Iterable[str], cancelled: Cancellation | None = None) -> Contents:
    """Returns the content of the folders of a source path in a backup that `patterns` name; patterns with wildcards are skipped.
    Raises OSError.
    """
    top = source.rstrip("/") + "/"
    plain = sorted({pattern.rstrip("/") for pattern in patterns if pattern.startswith(top) and not set(pattern) & set("*?[\\")})
    folders = [folder for folder in plain if folder and not any(folder.startswith(f"{other}/") for other in plain)]
    files = size = stored = 0
    with Tree(subvolume) as tree:
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in entries(tree, os.fsencode(folder)):
                    if cancelled:
                        return NOTHING
                    files += 1
                    size += entry.size if entry.kind == "file" else 0
                    stored += stored_size(entry)
    return Contents(files, size, stored)


def stored_bytes(subvolume: Path, source: str, cancelled: Cancellation | None = None) -> int | None:
    """Returns the bytes of the files of a source path on the disk, before compression and without holes; None if cancelled.

    Each hard link counts, as in rsync's total of sizes. Raises OSError.
    """
    total = 0
    with Tree(subvolume) as tree:
        for entry in entries(tree, b"/" + source.encode("utf-8", "surrogateescape").strip(b"/")):
            if cancelled:
                return None
            total += stored_size(entry)
    return total


def stored_size(entry: Entry) -> int:
    """Returns the bytes of a file on the disk, before compression and without holes; 0 for any other type."""
    return min(entry.size, entry.allocated) if entry.kind == "file" else 0


class _Look:
    """Searches for folders of a backup, up to a limit."""

    def __init__(self, tree: Tree, source: str, cancelled: Cancellation | None) -> None:
        self._tree = tree
        self._source = source
        self._cancelled = cancelled
        self._left = MOST_LOOKS

    def folders(self, paths: list[bytes]) -> tuple[list[tuple[bytes, ...]], int]:
        """Returns the paths that are folders in the backup, in order and without duplicates; and how many paths were not "
        "searched."""
        chosen = set[tuple[bytes, ...]]()
        for number, path in enumerate(paths):
            try:
                if names := self._in_backup(path):
                    chosen.add(tuple(names))
            except _NoMoreLooks:
                return sorted(chosen), len(paths) - number
        return sorted(chosen), 0

    def _in_backup(self, path: bytes) -> list[bytes] | None:
        """Returns the folder of the backup that the sender could not list; None if the backup does not have it.

        A sender behind rrsync adds its own folder in front. The parents of a listed path are in the backup, so the first
        interpretation of the path with an existing parent is correct.
        """
        try:
            top = components(b"/" + self._source.encode("utf-8", "surrogateescape").strip(b"/"))
            names = components(b"/" + path)
        except ValueError:
            return None
        for start in range(len(names) - len(top) + 1):
            names_below = names[start:]
            if names_below and names_below[: len(top)] == top and self._is_folder(names_below[:-1]):
                return names_below if self._is_folder(names_below) else None
        return None

    def _is_folder(self, names: list[bytes]) -> bool:
        """Returns True if the backup has it. Raises _NoMoreLooks."""
        self._left -= len(names) + 1
        if self._left < 0 or self._cancelled:
            raise _NoMoreLooks
        try:
            return self._tree.stat(joined(names)).kind == "folder"
        except OSError:  # missing, or below a symlink or a file
            return False
