"""The recorded states of a pool, and the options to draw one. Files are found by listing their folder, never by name.

`btrfs-heatmap nightly` writes one state a night to STATE/pictures (heatmap/recorded.py describes its format).
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from btrkeep.choices import CURVES, SORTS
from btrkeep.units import backup_name
from heatmap.colourings import COLOUR_SCHEMES
from heatmap.overview import VIRTUAL
from heatmap.recorded import SUFFIX, StateHeader, Unreadable, read_header

FOLDER = "pictures"
SMALLEST, LARGEST, USUAL = 6, 11, 10
"""Sizes: a picture has 2**size lines."""
ORDERS = {VIRTUAL: "by virtual address", "physical": "by place on the devices"}


@dataclass(frozen=True, slots=True)
class DrawingRequest:
    """How a state is drawn. `size`: 2**size lines; `steady`: at the scale of all states, so that each place keeps its position."""

    sort: str = VIRTUAL
    curve: str = CURVES[0]
    colour: str = "usage"
    size: int = USUAL
    steady: bool = False

    def words(self) -> Mapping[str, str]:
        """Returns the query of a URL, without defaults."""
        usual = DrawingRequest()
        pairs = (("sort", self.sort), ("curve", self.curve), ("colour", self.colour))
        return {name: value for name, value in pairs if value != getattr(usual, name)}


def wish_of(words: Mapping[str, str], *, steady: bool = False) -> DrawingRequest:
    """Parses a query; replaces unknown values by the default, and too large ones by the largest."""
    usual = DrawingRequest()
    return DrawingRequest(
        _one_of(words.get("sort"), SORTS, usual.sort),
        _one_of(words.get("curve"), CURVES, usual.curve),
        _one_of(words.get("colour"), COLOUR_SCHEMES, usual.colour),
        _size(words.get("size")),
        steady,
    )


def _one_of(word: str | None, known: Sequence[str] | Mapping[str, object], usual: str) -> str:
    return word if word is not None and word in known else usual


def _size(word: str | None) -> int:
    if word is None or not word.isascii() or not word.isdigit():
        return USUAL
    return max(SMALLEST, min(LARGEST, int(word[:4])))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded state. `id` identifies it in URLs: the time it was taken, 2026-11-20T053000Z."""

    id: str
    taken: datetime
    name: str
    stamp: tuple[int, int, int]
    """inode, size and change time of its file: a changed file has another stamp."""


@dataclass(frozen=True, slots=True)
class Gallery:
    """The states of one filesystem, oldest first; `left_out`: why files are not among them, a line each."""

    recorded: tuple[Recorded, ...]
    left_out: tuple[str, ...]

    def at(self, id: str | None) -> int | None:  # noqa: A002  it is called so
        """Returns the index of the state with that id, without one the newest. None if it does not exist."""
        if id is None:
            return len(self.recorded) - 1 if self.recorded else None
        return next((place for place, one in enumerate(self.recorded) if one.id == id), None)


class RecordedStates:
    """Reads a folder of recorded states; the result for a file is cached as long as the file is unchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[tuple[int, int, int], StateHeader | str]] = {}
        self._lock = threading.Lock()

    def gallery(self, filesystem: str | None = None) -> Gallery:
        """Returns all states of `filesystem`, by default that of the newest state. Without the folder there are none."""
        with self._lock:
            try:
                files, trouble = _files(self.folder), []
            except OSError as error:
                files, trouble = {}, [f"the folder of recorded states cannot be read: {error.strerror}"]
            self._known = {name: self._looked(name, stamp) for name, stamp in files.items()}
            moments = {name: (stamp, found) for name, (stamp, found) in self._known.items() if isinstance(found, StateHeader)}
            broken = trouble + [found for _, found in self._known.values() if isinstance(found, str)]
        newest = max((moment for _, moment in moments.values()), key=lambda moment: moment.taken, default=None)
        wanted = filesystem or (newest.fsid if newest else "")
        mine = {
            backup_name(moment.taken): Recorded(backup_name(moment.taken), moment.taken, name, stamp)
            for name, (stamp, moment) in sorted(moments.items())
            if moment.fsid == wanted
        }
        others = sum(moment.fsid != wanted for _, moment in moments.values())
        notes = [*broken, *([f"{others} states are of another filesystem"] if others else [])]
        return Gallery(tuple(sorted(mine.values(), key=lambda one: one.taken)), tuple(notes))

    def moments(self, gallery: Gallery) -> list[StateHeader]:
        """Returns the headers of all states that still exist."""
        with self._lock:
            found = [self._known[one.name][1] for one in gallery.recorded if one.name in self._known]
        return [moment for moment in found if isinstance(moment, StateHeader)]

    def _looked(self, name: str, stamp: tuple[int, int, int]) -> tuple[tuple[int, int, int], StateHeader | str]:
        known = self._known.get(name)
        if known and known[0] == stamp:
            return known
        try:
            return stamp, read_header(self.folder / name)
        except Unreadable as error:
            return stamp, f"{name}: {error.why}"


def _files(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Returns the regular files of the folder that are named like recorded states, by name. Raises OSError."""
    found = {}
    try:
        for entry in os.scandir(folder):
            if entry.name.endswith(SUFFIX) and not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found[entry.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    except FileNotFoundError:  # the folder comes with the first night; a file may go while we look
        return found
    return found
