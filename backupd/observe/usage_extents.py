"""Compares all extents of a host's backups, one backup after the other: an extent of only one backup is that backup's own.

Exact for backups of one host that are based on each other. Data shared beyond the host (such as by a copy with reflinks) counts as
the host's own.
"""

from dataclasses import dataclass, field

import numpy as np

from btrkeep.treescan.items import U64, Array

_MANY = -1  # stands for more than one owner


@dataclass(slots=True)
class ExtentOwners:
    """The distinct extents so far, by address."""

    vaddr: Array = field(default_factory=lambda: np.zeros(0, U64))
    """u64[n]."""
    length: Array = field(default_factory=lambda: np.zeros(0, U64))
    """u64[n]."""
    owner: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    """i32[n], the number of the only backup that refers to it, or a mark for several."""
    referenced: list[int] = field(default_factory=list)
    """Bytes to which each backup refers."""

    def add(self, vaddr: Array, length: Array) -> None:
        """Adds the next backup's extents, each once, by address: u64[n] each."""
        number = len(self.referenced)
        self.referenced.append(int(length.sum()))
        place = np.searchsorted(self.vaddr, vaddr)
        inside = place < len(self.vaddr)
        is_known = np.zeros(len(vaddr), bool)
        is_known[inside] = self.vaddr[place[inside]] == vaddr[inside]
        self.owner[place[is_known]] = _MANY
        fresh = ~is_known
        self.vaddr = np.insert(self.vaddr, place[fresh], vaddr[fresh])
        self.length = np.insert(self.length, place[fresh], length[fresh])
        self.owner = np.insert(self.owner, place[fresh], np.int32(number))

    def sizes(self) -> list[tuple[int, int]]:
        """Returns the exclusive and the referenced bytes of each backup, in the order in which they were added."""
        own = self.owner != _MANY
        exclusive = np.zeros(len(self.referenced), U64)
        np.add.at(exclusive, self.owner[own], self.length[own])
        return list(zip(exclusive.tolist(), self.referenced, strict=True))

    @property
    def total(self) -> int:
        """All extents, each once."""
        return int(self.length.sum())
