"""What the files of a host are, and what changes in a night: plain data, the same for the same seed whatever the settings. Pure.

Two settings that are compared so meet the same changes, and what differs in the end comes of the settings.
"""

import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import log

from backupd.rehearse.model import HostModel

BLOCK = 4096
PIECE = 16384
"""Bytes of a place within a file that changes."""
_MOST_PIECES = 64
_IN_FOLDER = 50


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A new file."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file that changes at these places: offset and length of each, which do not overlap."""

    name: str
    size: int
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that goes."""

    name: str


Change = WriteFile | ChangeFile | DeleteFile


class HostFiles:
    """The files of one host as they are after the nights so far. `largest`: no file has more bytes."""

    def __init__(self, model: HostModel, seed: int, largest: int) -> None:
        self._model, self._largest = model, max(largest, BLOCK)
        self._random = random.Random(f"{seed} {model.name}")  # noqa: S311  no secret
        self._files: dict[str, int] = {}
        self._made = 0

    @property
    def bytes(self) -> int:
        """Returns the bytes of all files."""
        return sum(self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def first(self) -> list[Change]:
        """The first copy."""
        return [self._new(self._model.mean_size) for _ in range(self._model.files)]

    def night(self) -> list[Change]:
        """The next night."""
        model, factor = self._model, self._random.choice(self._model.nightly)
        gone = self._drawn(self._number(model.deleted * factor), 0.0)
        changed = [name for name in self._drawn(self._number(model.changed * factor), model.bias) if name not in gone]
        changes: list[Change] = [self._change(name) for name in changed]
        changes += [self._delete(name) for name in gone]
        changes += [self._new(model.created_size) for _ in range(self._number(model.created * factor))]
        self._random.shuffle(changes)
        return changes

    def _number(self, expected: float) -> int:
        """A whole number that is `expected` on average."""
        whole = int(expected)
        return whole + (self._random.random() < expected - whole)

    def _new(self, mean: float) -> WriteFile:
        sigma = self._model.sigma
        size = min(max(int(self._random.lognormvariate(log(max(mean, 1)) - sigma * sigma / 2, sigma)), 1), self._largest)
        name = f"folder{self._made // _IN_FOLDER:04}/file{self._made:06}"
        self._made += 1
        self._files[name] = size
        return WriteFile(name, size)

    def _delete(self, name: str) -> DeleteFile:
        del self._files[name]
        return DeleteFile(name)

    def _drawn(self, count: int, bias: float) -> list[str]:
        """Draws up to that many files, each once; larger ones are more likely, by size to the power `bias`."""
        names = list(self._files)
        if count >= len(names):
            return names
        weights = list(accumulate(size**bias for size in self._files.values()))
        found: dict[str, None] = {}
        for _ in range(4 * count):
            if len(found) == count:
                break
            found[names[bisect(weights, self._random.random() * weights[-1], hi=len(names) - 1)]] = None
        return list(found)

    def _change(self, name: str) -> ChangeFile:
        size = self._files[name]
        return ChangeFile(name, size, tuple(self._pieces(size)))

    def _pieces(self, size: int) -> Iterator[tuple[int, int]]:
        wanted = max(size * self._model.rewritten, 1)
        if wanted >= size * 0.95 or size <= BLOCK:
            yield 0, size
            return
        length = max(PIECE, -(-round(wanted / _MOST_PIECES) // BLOCK) * BLOCK)
        length = min(length, max(round(wanted) // BLOCK * BLOCK, BLOCK))
        places = -(-size // length)
        for place in sorted(self._random.sample(range(places), min(max(round(wanted / length), 1), places))):
            yield place * length, min(length, size - place * length)


def new_bytes(change: Change) -> int:
    """Returns the bytes of new data."""
    match change:
        case WriteFile():
            return change.size
        case ChangeFile():
            return sum(length for _, length in change.pieces)
    return 0
