"""The minimum size of a soak's backups, calculated from the changes alone. Pure.

btrfs keeps a whole extent as long as any block of it is in some backup. So a file that is changed in place, some blocks a night,
keeps all of its extents until each of their blocks was replaced: the used space grows as long as files live, long after each night
deletes as many backups as it makes. Only used space beyond that has leaked.
"""

from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime
from itertools import count

from backupd.rehearse.fill import BLOCK, Change, ChangeFile, DeleteFile, WriteFile

_Blocks = tuple[int, ...]
"""Of a file: for each of its blocks the number of the extent that it is in."""


class HeldExtents:
    """The files of hosts as extents, in their present state and at each recorded moment."""

    def __init__(self) -> None:
        self._numbers = count()
        self._sizes: dict[int, int] = {}
        self._files: dict[str, dict[str, _Blocks]] = {}
        self._noted: dict[str, list[tuple[datetime, list[_Blocks]]]] = {}

    def change(self, host: str, change: Change) -> None:
        """Records the writes: each is an extent; a changed file has one for each place."""
        files = self._files.setdefault(host, {})
        match change:
            case DeleteFile():
                del files[change.name]
            case WriteFile():
                files[change.name] = self._extent(-(-change.size // BLOCK))
            case ChangeFile():
                blocks = list(files[change.name])
                for offset, length in change.pieces:
                    begin, end = offset // BLOCK, min(-(-(offset + length) // BLOCK), len(blocks))
                    blocks[begin:end] = self._extent(end - begin)
                files[change.name] = tuple(blocks)

    def note(self, host: str, moment: datetime) -> None:
        """Records the present files of a host as the content of its backups from `moment` on. Moments are in order."""
        self._noted.setdefault(host, []).append((moment, list(self._files.get(host, {}).values())))

    def bytes_of(self, host: str, moments: Iterable[datetime]) -> int:
        """Returns the bytes of all extents of which a backup of one of these moments has a block."""
        noted, held = self._noted.get(host, []), set[int]()
        for moment in moments:
            place = bisect_right(noted, moment, key=lambda note: note[0])
            held.update(*(noted[place - 1][1] if place else ()))
        return sum(self._sizes[number] for number in held)

    def _extent(self, blocks: int) -> _Blocks:
        number = next(self._numbers)
        self._sizes[number] = blocks * BLOCK
        return (number,) * blocks
