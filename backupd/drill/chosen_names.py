"""Names of a backup that are chosen at random: each has the same chance, and the backup is walked once."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from backupd.files.tree import Tree
from backupd.files.walking import entries
from btrkeep.config.values import FileSample

_MOST = 1_000_000  # names in memory


@dataclass(frozen=True, slots=True)
class ChosenNames:
    """Paths, in the order of a walk. `of`: how many names the backup has, folders not counted; `left_out`: too large for the room.

    `allocated` are the bytes on the disk of those that were chosen.
    """

    paths: tuple[bytes, ...]
    of: int
    left_out: int
    allocated: int


def choose_names(tree: Tree, sample: FileSample, room: int, chance: Random, look: Callable[[int], None]) -> ChosenNames:
    """Chooses among all that is no folder. What does not fit into `room` bytes along with the others is left out.

    `look` is told how many names were seen so far, and may raise. Raises OSError.
    """
    found: list[tuple[bytes, int]] = []
    most = min(sample.number or _MOST, _MOST)
    seen = candidates = 0
    for entry in entries(tree, b"/"):
        if entry.kind == "folder":
            continue
        seen += 1
        if not seen % 100:
            look(seen)
        if sample.share is not None and chance.random() >= sample.share:
            continue
        one = (entry.path, entry.allocated if entry.kind == "file" else 0)
        candidates += 1
        if len(found) < most:
            found.append(one)
        elif (place := chance.randrange(candidates)) < most:
            found[place] = one
    return _fitting(found, seen, room, chance)


def _fitting(found: list[tuple[bytes, int]], seen: int, room: int, chance: Random) -> ChosenNames:
    chance.shuffle(found)
    paths: list[bytes] = []
    used = left_out = 0
    for path, size in found:
        if used + size > room:
            left_out += 1
            continue
        used += size
        paths.append(path)
    return ChosenNames(tuple(sorted(paths, key=_as_walked)), seen, left_out, used)


def _as_walked(path: bytes) -> bytes:
    return path.replace(os.sep.encode(), b"\0")
