"""The recorded states of a pool: finds and draws them, and maps their pixels to addresses. Pictures are cached for all requests.

`btrfs-heatmap nightly` writes one state a night to STATE/pictures (heatmap/recorded.py describes its format). Files are found by
listing their folder, never by name.
"""

import gzip
import io
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from btrkeep.choices import CURVES, SORTS
from btrkeep.units import backup_name
from heatmap.colourings import COLOUR_SCHEMES, ColourKey
from heatmap.filesystem_state import FilesystemState
from heatmap.grid import OVERVIEW_GRANULARITY, Grid, choose_grid
from heatmap.picture import image_of
from heatmap.recorded import SUFFIX, StateHeader, Unreadable, load, read_header
from heatmap.whole_filesystem import VIRTUAL, Drawing, common_scale, overview, pixel_map
from web.result_cache import ResultCache

FOLDER = "pictures"
SMALLEST, LARGEST, USUAL = 6, 11, 10
"""Sizes: a picture has 2**size lines."""
ORDERS = {VIRTUAL: "by virtual address", "physical": "by position on the devices"}


@dataclass(frozen=True, slots=True)
class DrawingRequest:
    """How a state is drawn."""

    sort: str = VIRTUAL
    """The order of block groups."""
    curve: str = CURVES[0]
    """The curve."""
    colour: str = "usage"
    """The colour scheme."""
    size: int = USUAL
    """The picture has 2**size lines."""
    steady: bool = False
    """True if it has the scale of all states, so that each position has the same meaning in all."""

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


def _one_of(word: str | None, words: Sequence[str] | Mapping[str, object], usual: str) -> str:
    return word if word is not None and word in words else usual


def _size(word: str | None) -> int:
    if word is None or not word.isascii() or not word.isdigit():
        return USUAL
    return max(SMALLEST, min(LARGEST, int(word[:4])))


@dataclass(frozen=True, slots=True)
class RecordedState:
    """One recorded state."""

    id: str
    """Its id in URLs: the time at which it was recorded, 2026-11-20T053000Z."""
    taken: datetime
    """When."""
    name: str
    """The name of its file."""
    stamp: tuple[int, int, int]
    """Inode, size and change time of its file, which change with the file."""


@dataclass(frozen=True, slots=True)
class Gallery:
    """The states of one filesystem."""

    recorded: tuple[RecordedState, ...]
    """Oldest first."""
    skipped_states: tuple[str, ...]
    """Why some files are not among them, a line each."""

    def at(self, id: str | None) -> int | None:  # noqa: A002  it is called so
        """Returns the index of the state with that id, without an id the newest. None if it does not exist."""
        if id is None:
            return len(self.recorded) - 1 if self.recorded else None
        return next((place for place, recorded in enumerate(self.recorded) if recorded.id == id), None)


class RecordedStates:
    """Reads a folder of recorded states; the result for a file is cached as long as the file is unchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._headers: dict[str, tuple[tuple[int, int, int], StateHeader | str]] = {}
        self._lock = threading.Lock()

    def gallery(self, filesystem: str | None = None) -> Gallery:
        """Returns all states of `filesystem`, by default that of the newest state. Without the folder there are none."""
        with self._lock:
            try:
                files, problems = _files(self.folder), []
            except OSError as error:
                files, problems = {}, [f"the folder of recorded states cannot be read: {error.strerror}"]
            self._headers = {name: self._looked(name, stamp) for name, stamp in files.items()}
            moments = {name: (stamp, header) for name, (stamp, header) in self._headers.items() if isinstance(header, StateHeader)}
            broken = problems + [header for _, header in self._headers.values() if isinstance(header, str)]
        newest = max((moment for _, moment in moments.values()), key=lambda moment: moment.taken, default=None)
        wanted = filesystem or (newest.fsid if newest else "")
        mine = {
            backup_name(moment.taken): RecordedState(backup_name(moment.taken), moment.taken, name, stamp)
            for name, (stamp, moment) in sorted(moments.items())
            if moment.fsid == wanted
        }
        others = sum(moment.fsid != wanted for _, moment in moments.values())
        notes = [*broken, *([f"{others} states belong to another filesystem"] if others else [])]
        return Gallery(tuple(sorted(mine.values(), key=lambda recorded: recorded.taken)), tuple(notes))

    def moments(self, gallery: Gallery) -> list[StateHeader]:
        """Returns the headers of all states that still exist."""
        with self._lock:
            headers = [self._headers[recorded.name][1] for recorded in gallery.recorded if recorded.name in self._headers]
        return [moment for moment in headers if isinstance(moment, StateHeader)]

    def _looked(self, name: str, stamp: tuple[int, int, int]) -> tuple[tuple[int, int, int], StateHeader | str]:
        cached = self._headers.get(name)
        if cached and cached[0] == stamp:
            return cached
        try:
            return stamp, read_header(self.folder / name)
        except Unreadable as error:
            return stamp, f"{name}: {error.why}"


def _files(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Returns the regular files of the folder with names of recorded states, by name. Raises OSError."""
    stamps = {}
    try:
        for entry in os.scandir(folder):
            if entry.name.endswith(SUFFIX) and not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                stamps[entry.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    except FileNotFoundError:  # the folder is created in the first night; a file may be deleted while it is read
        return stamps
    return stamps


_LEVEL = 4
_PICTURES = 48 << 20
"""Bytes of cached pictures and maps."""
_STATES = 64 << 20


class Painter:
    """Draws the filesystem states recorded in a folder. Raises Unreadable for a state that is damaged, or was just deleted."""

    def __init__(self, folder: Path) -> None:
        self.states = RecordedStates(folder)
        self._states = ResultCache(most=_STATES, size=_bytes_of)
        self._pictures = ResultCache(most=_PICTURES, size=len)
        self._drawing = threading.Lock()
        self._loading = threading.Lock()

    def state(self, recorded: RecordedState) -> FilesystemState:
        """Returns the state. Loads one at a time, because each takes as much memory as all cached ones."""

        def alone() -> FilesystemState:
            with self._loading:
                return load(self.states.folder / recorded.name)

        return self._states.get((recorded.name, recorded.stamp), alone)

    def png(self, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> bytes:
        """Returns the picture. Raises OperatorError also if the state cannot have these colours: it may have no scores."""
        return self._made("png", self._key(gallery, recorded, wish), lambda: _png(self._drawn(gallery, recorded, wish)))

    def map(self, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> bytes:
        """Returns the map of pixels to addresses, as JSON, compressed with gzip. Its format is in heatmap/whole_filesystem.py."""
        return self._made("map", self._key(gallery, recorded, wish), lambda: self._map(gallery, recorded, wish))

    def key(self, recorded: RecordedState, wish: DrawingRequest) -> ColourKey:
        """Returns the key of its colours. Raises OperatorError."""
        return COLOUR_SCHEMES[wish.colour].key(self.state(recorded))

    def grid(self, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> Grid:
        """Returns the grid that maps bytes to pixels."""
        total = int(self._scaled(gallery, recorded, wish).total_bytes.sum())
        return choose_grid(None, wish.size, wish.curve, total, OVERVIEW_GRANULARITY)

    def _made(self, kind: str, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Returns the cached picture or map, or a new one. Makes one at a time, because each uses one processor completely."""

        def alone() -> bytes:
            with self._drawing:
                return make()

        return self._pictures.get((kind, key), alone)

    def _key(self, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> tuple[Hashable, ...]:
        scale = hash(tuple(other.stamp for other in gallery.recorded)) if wish.steady else 0
        return recorded.name, recorded.stamp, wish, scale

    def _drawn(self, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> Drawing:
        state, scheme = self._scaled(gallery, recorded, wish), COLOUR_SCHEMES[wish.colour]
        return overview(
            state, sort=wish.sort, size=wish.size, curve=wish.curve, colouring=scheme.paint, min_brightness=scheme.min_brightness
        )

    def _scaled(self, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> FilesystemState:
        state = self.state(recorded)
        if not wish.steady or not (moments := self.states.moments(gallery)):
            return state
        scale = common_scale(moments)
        return scale.applied(state)

    def _map(self, gallery: Gallery, recorded: RecordedState, wish: DrawingRequest) -> bytes:
        document = pixel_map(self.state(recorded), self._drawn(gallery, recorded, wish))
        return gzip.compress(orjson.dumps(document), 1, mtime=0)


def _png(drawn: Drawing) -> bytes:
    buffer = io.BytesIO()
    image_of(drawn.runs, drawn.grid).save(buffer, "PNG", compress_level=_LEVEL)
    return buffer.getvalue()


def _bytes_of(state: FilesystemState) -> int:
    arrays = (getattr(state, name) for name in FilesystemState.__slots__)
    return sum(array.nbytes for array in arrays if hasattr(array, "nbytes"))
