"""Finds the sizes that more than one file has: only such files can be equal, so no other one is read."""

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

from backupd.repo.checksums import Key

if TYPE_CHECKING:
    from btrkeep.treescan.items import Array

_COMPACT_EVERY = 1 << 20  # files


class SizeCounter:
    """Counts files by size; a file that many snapshots share counts once. Memory: 16 bytes for each file, and 16 MiB."""

    def __init__(self) -> None:
        self._known: tuple[Array, Array] | None = None  # files, and their sizes
        self._new = array("Q")

    def add(self, host: str, key: Key, size: int) -> None:
        """Adds one file. `key` identifies it among the backups of its host."""
        self._new.append(int.from_bytes(blake2b(host.encode() + b"\0" + key, digest_size=8).digest(), "big"))
        self._new.append(size)
        if len(self._new) >= 2 * _COMPACT_EVERY:
            self._compacted()

    def _compacted(self) -> "tuple[Array, Array]":
        import numpy as np  # it takes a tenth of a second, which other commands need not wait for

        new = np.array(self._new, np.uint64)
        self._new = array("Q")
        files, sizes = self._known or (new[:0], new[:0])
        files, places = np.unique(np.concatenate((files, new[::2])), return_index=True)
        self._known = files, np.concatenate((sizes, new[1::2]))[places]
        return self._known

    def repeated(self) -> frozenset[int]:
        """Returns the sizes that at least two files have."""
        import numpy as np

        _, sizes = self._compacted()
        repeated, counts = np.unique(sizes, return_counts=True)
        return frozenset(repeated[counts > 1].tolist())
