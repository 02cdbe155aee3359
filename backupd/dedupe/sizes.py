"""Sizes that more than one file has: only files of such a size can be equal, so no other one is read."""

from array import array
from hashlib import blake2b

import numpy as np

from backupd.repo.checksums import Key

_COMPACT_EVERY = 1 << 20  # files


class SizeCounter:
    """Counts files by size, a file that many snapshots have once. Memory: 16 bytes for each file, and 16 MiB."""

    def __init__(self) -> None:
        self._files, self._sizes = np.empty(0, np.uint64), np.empty(0, np.uint64)
        self._new = array("Q")

    def add(self, host: str, key: Key, size: int) -> None:
        """One file. `key` is what it is told by among the backups of its host."""
        self._new.append(int.from_bytes(blake2b(host.encode() + b"\0" + key, digest_size=8).digest(), "big"))
        self._new.append(size)
        if len(self._new) >= 2 * _COMPACT_EVERY:
            self._compact()

    def _compact(self) -> None:
        new = np.array(self._new, np.uint64)
        self._new = array("Q")
        files, places = np.unique(np.concatenate((self._files, new[::2])), return_index=True)
        self._sizes = np.concatenate((self._sizes, new[1::2]))[places]
        self._files = files

    def repeated(self) -> frozenset[int]:
        """The sizes that at least two files have."""
        self._compact()
        sizes, counts = np.unique(self._sizes, return_counts=True)
        return frozenset(sizes[counts > 1].tolist())
