"""Draws recorded states, and maps their pixels to addresses. Pictures are cached, within bounds, for all requests."""

import gzip
import io
import threading
from collections.abc import Callable, Hashable
from pathlib import Path

import orjson

from heatmap.colourings import COLOUR_SCHEMES, ColourKey
from heatmap.grid import OVERVIEW_GRANULARITY, Grid, choose
from heatmap.overview import Drawing, common_scale, overview
from heatmap.picture import image_of
from heatmap.pixelmap import pixel_map
from heatmap.recorded import load
from heatmap.state import FilesystemState
from web.data.heat import DrawingRequest, Gallery, Recorded, RecordedStates
from web.result_cache import ResultCache

_LEVEL = 4
_PICTURES = 48 << 20
"""Bytes of cached pictures and maps."""
_STATES = 64 << 20


class Painter:
    """Draws the states of a folder. Raises Unreadable for a file that is damaged, or went meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.states = RecordedStates(folder)
        self._states = ResultCache(most=_STATES, size=_bytes_of)
        self._pictures = ResultCache(most=_PICTURES, size=len)
        self._drawing = threading.Lock()
        self._loading = threading.Lock()

    def state(self, one: Recorded) -> FilesystemState:
        """Returns the state. Loads one at a time: each takes as much memory as all cached ones."""

        def alone() -> FilesystemState:
            with self._loading:
                return load(self.states.folder / one.name)

        return self._states.get((one.name, one.stamp), alone)

    def png(self, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> bytes:
        """Returns the picture. Raises OperatorError also if the state cannot be coloured this way: it may have no scores."""
        return self._made("png", self._key(gallery, one, wish), lambda: _png(self._drawn(gallery, one, wish)))

    def map(self, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> bytes:
        """Returns the map of pixels to addresses, as JSON, compressed with gzip; heatmap/pixelmap.py describes the format."""
        return self._made("map", self._key(gallery, one, wish), lambda: self._map(gallery, one, wish))

    def key(self, one: Recorded, wish: DrawingRequest) -> ColourKey:
        """Returns the key of its colours. Raises OperatorError."""
        return COLOUR_SCHEMES[wish.colour].key(self.state(one))

    def grid(self, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> Grid:
        """Returns the grid that maps bytes to pixels."""
        total = int(self._scaled(gallery, one, wish).total_bytes.sum())
        return choose(None, wish.size, wish.curve, total, OVERVIEW_GRANULARITY)

    def _made(self, kind: str, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Returns the cached picture or map, or a new one. Makes one at a time: each takes a whole processor."""

        def alone() -> bytes:
            with self._drawing:
                return make()

        return self._pictures.get((kind, key), alone)

    def _key(self, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> tuple[Hashable, ...]:
        scale = hash(tuple(other.stamp for other in gallery.recorded)) if wish.steady else 0
        return one.name, one.stamp, wish, scale

    def _drawn(self, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> Drawing:
        state, scheme = self._scaled(gallery, one, wish), COLOUR_SCHEMES[wish.colour]
        return overview(
            state, sort=wish.sort, size=wish.size, curve=wish.curve, colouring=scheme.paint, min_brightness=scheme.min_brightness
        )

    def _scaled(self, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> FilesystemState:
        state = self.state(one)
        if not wish.steady or not (moments := self.states.moments(gallery)):
            return state
        scale = common_scale(moments)
        return scale.applied(state)

    def _map(self, gallery: Gallery, one: Recorded, wish: DrawingRequest) -> bytes:
        found = pixel_map(self.state(one), self._drawn(gallery, one, wish))
        return gzip.compress(orjson.dumps(found), 1, mtime=0)


def _png(drawn: Drawing) -> bytes:
    buffer = io.BytesIO()
    image_of(drawn.runs, drawn.grid).save(buffer, "PNG", compress_level=_LEVEL)
    return buffer.getvalue()


def _bytes_of(state: FilesystemState) -> int:
    arrays = (getattr(state, name) for name in FilesystemState.__slots__)
    return sum(array.nbytes for array in arrays if hasattr(array, "nbytes"))
