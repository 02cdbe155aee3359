"""The colour schemes: usage, fragmentation, age, profile or type of each block group.

Only the scheme for usage shows fullness: a colour that is dimmed as well would show neither. Unallocated space is black in all of
them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.score import BAD
from btrkeep.choices import COLOURS
from btrkeep.errors import OperatorError
from heatmap.colours import GREY, STEPS, map_sequentially, qualitative_colours, sequential_colours
from heatmap.grid import MIN_BRIGHTNESS
from heatmap.overview import CellColours, Colouring, usage
from heatmap.state import DATA, METADATA, PROFILE_MASK, PROFILES, SYSTEM, TYPE_MASK, Array, FilesystemState

SCORE_TOP = 4 * BAD
"""The score at which the colour is the brightest; `BAD` is at four fifths of the scale."""

TYPES = {DATA: "data", METADATA: "metadata", SYSTEM: "system", DATA | METADATA: "data and metadata"}

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ColourKey:
    """The legend of a scheme: a ramp u8[k, 3] with ticks at positions from 0 to 1, and swatches; either may be empty."""

    title: str
    ramp: Array
    ticks: tuple[tuple[float, str], ...] = ()
    swatches: tuple[tuple[Colour, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ColourScheme:
    """A colour scheme. `paint` and `min_brightness` are arguments of `overview`. Both functions raise OperatorError."""

    name: str
    paint: Colouring
    key: Callable[[FilesystemState], ColourKey]
    min_brightness: float = 1.0


def _bare(rgb: Array) -> CellColours:
    return CellColours(rgb, np.ones(len(rgb)))


def score(state: FilesystemState) -> CellColours:
    """Colours data block groups by how fragmented their free space is; the others are grey."""
    return _bare(map_sequentially(score_share(_scores(state))))


def score_share(found: Array) -> Array:
    """f64[n] from 0 to 1 of scores: logarithmic, for most are small and what counts is which are worst."""
    share: Array = np.log1p(np.maximum(found.astype(np.float64), 0)) / np.log1p(SCORE_TOP)
    return share


def _scores(state: FilesystemState) -> Array:
    if state.score is None:
        raise OperatorError("there are no scores in what was recorded", "draw it with --colour usage, age, profile or type")
    return state.score


def age(state: FilesystemState) -> CellColours:
    """Colours block groups by when their content was written: by generation where it is known, else by virtual address.

    btrfs gives each new block group a higher virtual address than any had before, so that order is the order of their making.
    """
    return _bare(map_sequentially(_age_share(state)))


def _age_share(state: FilesystemState) -> Array:
    count = len(state.bg_vaddr)
    if state.generation is None:
        return np.linspace(0, 1, count) if count > 1 else np.ones(count)
    share = np.full(count, np.nan)
    known = state.generation > 0
    oldest, newest = _generations(state)
    share[known] = (state.generation[known].astype(np.float64) - oldest) / max(1, newest - oldest)
    return share


def _generations(state: FilesystemState) -> tuple[int, int]:
    known = np.zeros(0, np.uint64) if state.generation is None else state.generation[state.generation > 0]
    return (int(known.min()), int(known.max())) if len(known) else (0, 0)


def profile(state: FilesystemState) -> CellColours:
    """Paints one colour for each RAID profile."""
    return _bare(_by_flags(state, PROFILE_MASK, dict(zip(PROFILES, _profile_colours(), strict=True))))


def kind(state: FilesystemState) -> CellColours:
    """The colours of usage, all at their brightest."""
    return _bare(usage(state).rgb)


def _by_flags(state: FilesystemState, mask: int, colours: dict[int, Colour]) -> Array:
    flags = state.bg_flags & np.uint64(mask)
    rgb = np.full((len(flags), 3), GREY, np.uint8)
    for flag, colour in colours.items():
        rgb[flags == flag] = colour
    return rgb


def _profile_colours() -> list[Colour]:
    return [_colour(rgb) for rgb in qualitative_colours(len(PROFILES))]


def _colour(rgb: Array) -> Colour:
    red, green, blue = rgb.tolist()
    return red, green, blue


_NO_RAMP = np.zeros((0, 3), np.uint8)


def _usage_key(state: FilesystemState) -> ColourKey:
    greys = np.rint(255 * (MIN_BRIGHTNESS + (1 - MIN_BRIGHTNESS) * np.linspace(0, 1, STEPS)))[:, None]
    return ColourKey(
        "used", np.repeat(greys, 3, 1).astype(np.uint8), ((0, "0 %"), (0.5, "50 %"), (1, "100 %")), _type_swatches(state)
    )


def _type_swatches(state: FilesystemState) -> tuple[tuple[Colour, str], ...]:
    flags, rgb = state.bg_flags & np.uint64(TYPE_MASK), usage(state).rgb
    first = {flag: np.flatnonzero(flags == flag) for flag in TYPES}
    return tuple((_colour(rgb[at[0]]), TYPES[flag]) for flag, at in first.items() if len(at))


def _score_key(state: FilesystemState) -> ColourKey:
    found = _scores(state)
    ticks = tuple((float(score_share(np.array([mark]))[0]), f"{mark:g}") for mark in (0, 10, 50, BAD))
    others = ((GREY, "no data"),) if np.isnan(found).any() else ()
    return ColourKey("score of the free space", sequential_colours(), (*ticks, (1, f"{SCORE_TOP:g}+")), others)


def _age_key(state: FilesystemState) -> ColourKey:
    if state.generation is None:
        return ColourKey("age, by order of virtual addresses", sequential_colours(), ((0, "first made"), (1, "last made")))
    oldest, newest = _generations(state)
    empty = ((GREY, "empty"),) if (state.generation == 0).any() else ()
    return ColourKey("age, by generation", sequential_colours(), ((0, f"{oldest:,} (oldest)"), (1, f"{newest:,} (newest)")), empty)


def _profile_key(state: FilesystemState) -> ColourKey:
    there = set((state.bg_flags & np.uint64(PROFILE_MASK)).tolist())
    named = zip(PROFILES.items(), _profile_colours(), strict=True)
    return ColourKey("profile", _NO_RAMP, (), tuple((rgb, name) for (flag, name), rgb in named if flag in there))


def _type_key(state: FilesystemState) -> ColourKey:
    return ColourKey("type", _NO_RAMP, (), _type_swatches(state))


_SCHEMES: dict[str, tuple[Any, ...]] = {
    "usage": (usage, _usage_key, MIN_BRIGHTNESS),
    "score": (score, _score_key),
    "age": (age, _age_key),
    "profile": (profile, _profile_key),
    "type": (kind, _type_key),
}
COLOUR_SCHEMES = {name: ColourScheme(name, *_SCHEMES[name]) for name in COLOURS}
