"""Draws the difference of two recorded states: where block groups filled, emptied, appeared and disappeared."""

import numpy as np
from PIL import Image

from heatmap.colourings import Colour, ColourKey, qualitative_colours
from heatmap.diff import EMPTIER, FULLER, GONE, NEW, Changes, changes_between, more_used
from heatmap.filesystem_state import Array, FilesystemState
from heatmap.grid import Grid
from heatmap.whole_filesystem import PHYSICAL, CellColours, Drawing, common_scale, overview

_UNCHANGED: Colour = (0x3A, 0x3A, 0x3A)
_FAINTEST = 0.35
"""Minimum strength of the colour of a block group that changed very little."""


def colours() -> dict[str, Colour]:
    """The colour of each kind of change."""
    warm, cold, deep, dark = ((red, green, blue) for red, green, blue in qualitative_colours(4, (_UNCHANGED,)).tolist())
    return {FULLER: warm, EMPTIER: deep, NEW: cold, GONE: dark}


def key() -> ColourKey:
    """Returns the legend of the picture."""
    swatches = [(colour, kind) for kind, colour in colours().items()] + [(_UNCHANGED, "unchanged")]
    return ColourKey("changes; the stronger the colour, the more", np.zeros((0, 3), np.uint8), (), tuple(swatches))


def picture(
    before: FilesystemState,
    after: FilesystemState,
    *,
    sort: str = PHYSICAL,
    order: int | None = None,
    size: int | None = None,
    curve: str = "hilbert",
) -> tuple[Array, Grid]:
    """Draws the later state, u8[edge, edge, 3], coloured by change; both states have the scale of the larger one.

    A block group that has disappeared is drawn in its old place, unless another one is there now; in the order of virtual addresses
    it is not drawn.
    """
    scale = common_scale((before, after))
    changes = changes_between(before, after)

    def drawn(state: FilesystemState, *, only_gone: bool) -> Drawing:
        return overview(
            scale.applied(state),
            sort=sort,
            order=order,
            size=size,
            curve=curve,
            colouring=lambda state: _paint(state, changes, only_gone=only_gone),
            min_brightness=1.0,
        )

    later = drawn(after, only_gone=False)
    image: Array = later.image
    if sort == PHYSICAL:
        earlier = drawn(before, only_gone=True).image
        is_black: Array = np.asarray(image.max(2) == 0)
        image[is_black] = earlier[is_black]
    return image, later.grid


def _paint(state: FilesystemState, changes: Changes, *, only_gone: bool) -> CellColours:
    base = (0, 0, 0) if only_gone else _UNCHANGED
    rgb = np.full((len(state.bg_vaddr), 3), base, np.uint8)
    kinds = (GONE,) if only_gone else (FULLER, EMPTIER, NEW)
    chosen: Array = np.isin(changes.kind, kinds)
    at = np.searchsorted(state.bg_vaddr, changes.vaddr[chosen])
    table = colours()
    full = np.array([table[kind] for kind in changes.kind[chosen].tolist()], np.float64).reshape(-1, 3)
    share: Array = np.abs(more_used(changes)[chosen]) / changes.length[chosen].astype(np.float64)
    whole: Array = np.isin(changes.kind[chosen], (NEW, GONE))
    weight: Array = np.where(whole, 1.0, _FAINTEST + (1 - _FAINTEST) * np.sqrt(np.minimum(share, 1)))
    rgb[at] = np.rint(np.array(_UNCHANGED) * (1 - weight[:, None]) + full * weight[:, None]).astype(np.uint8)
    return CellColours(rgb, np.ones(len(rgb)))


def image_of(rgb: Array, grid: Grid) -> Image.Image:
    """The picture of 2**size lines."""
    return Image.fromarray(rgb).resize((grid.edge * grid.scale,) * 2, Image.Resampling.NEAREST)
