"""The colour schemes: usage, fragmentation, age, profile or type of each block group; and colours that are easy to distinguish.

Only the scheme for usage shows fullness: a colour that also changes its brightness would show neither. Unallocated space is black
in all of them. Colours are computed in OKLab (Björn Ottosson, 2020), in which equal distances look about equal. How a colour-blind
person sees a colour is simulated after Viénot, Brettel and Mollon (1999) for the two kinds of red-green blindness; for the rare
blue-yellow blindness the same construction is used with the plane through white and red.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from balancer.score import BAD
from btrkeep.choices import COLOURS
from btrkeep.errors import OperatorError
from heatmap.filesystem_state import DATA, METADATA, PROFILE_MASK, PROFILES, SYSTEM, TYPE_MASK, Array, FilesystemState
from heatmap.grid import MIN_BRIGHTNESS
from heatmap.whole_filesystem import CellColours, Colouring, usage

BLACK, GREY, WHITE = (0, 0, 0), (0x77, 0x77, 0x77), (0xFF, 0xFF, 0xFF)
STEPS = 256

# Matrices of Ottosson: linear sRGB to cone responses, and their cube roots to lightness and two opponent colours.
_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
# Linear sRGB to Smith and Pokorny's cones, to simulate colour blindness.
_TO_CONES = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])
_BLUE, _RED = np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0])
VISIONS = ("normal", "protan", "deutan", "tritan")


def linear(rgb: Array) -> Array:
    """f64[..., 3], proportional to light, from 0 to 1, of u8[..., 3]."""
    share: Array = np.asarray(rgb, np.float64) / 255
    return np.asarray(np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4))


def encoded(light: Array) -> Array:
    """The inverse of `linear`: u8[..., 3]."""
    light = np.clip(light, 0, 1)
    share: Array = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(share * 255), np.uint8)


def oklab(rgb: Array) -> Array:
    """f64[..., 3]: lightness from 0 to 1, green to red, blue to yellow."""
    return np.asarray(np.cbrt(np.maximum(linear(rgb), 0) @ _TO_LMS.T) @ _TO_LAB.T)


def _light(lab: Array) -> Array:
    return np.asarray((lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_LMS).T)


def simulated(rgb: Array, vision: str) -> Array:
    """u8[..., 3]: what u8[..., 3] looks like to a viewer with this kind of colour vision."""
    if vision == "normal":
        return np.asarray(rgb, np.uint8)
    return encoded(linear(rgb) @ _blindness(vision).T)


@cache
def _blindness(vision: str) -> Array:
    """Linear RGB to linear RGB: the signal of the missing cone is replaced, so that white and one primary look the same as to all
    others.
    """
    missing, anchor = {"protan": (0, _BLUE), "deutan": (1, _BLUE), "tritan": (2, _RED)}[vision]
    others = [cone for cone in range(3) if cone != missing]
    kept = np.array([_TO_CONES @ np.ones(3), _TO_CONES @ anchor])
    change = np.eye(3)
    change[missing] = 0
    change[missing, others] = np.linalg.solve(kept[:, others], kept[:, missing])
    blind: Array = np.linalg.inv(_TO_CONES) @ change @ _TO_CONES
    return blind


def distances(colours: Array, others: Array) -> Array:
    """f64[n, m]: the distances of u8[n, 3] from u8[m, 3], as seen by the people who can distinguish them worst."""
    worst = np.full((len(colours), len(others)), np.inf)
    for vision in VISIONS:
        first, two = oklab(simulated(colours, vision)), oklab(simulated(others, vision))
        worst = np.minimum(worst, np.sqrt(((first[:, None] - two[None]) ** 2).sum(2)))
    return worst


@cache
def sequential_colours() -> Array:
    """u8[STEPS, 3]: from little to much. Lightness increases evenly, from violet over teal to yellow.

    The darkest colour is lighter than the black of unallocated space, the lightest one darker than a white page. No red and green
    have the same lightness, so the map can be read without colour. Each colour is as saturated as a screen can show, up to
    `_CHROMA`.
    """
    share = np.linspace(0, 1, STEPS)
    lightness, hue = 0.36 + 0.56 * share, np.radians(305 - 200 * share)
    chroma = np.full(STEPS, _CHROMA)
    for _ in range(400):
        chroma[~_can_be_shown(_polar(lightness, chroma, hue))] *= 0.995
    smooth = np.convolve(np.pad(chroma, 20, "edge"), np.full(41, 1 / 41), "valid")
    return encoded(_light(_polar(lightness, _WITHIN * np.minimum(smooth, chroma), hue)))


_CHROMA = 0.16
_WITHIN = 0.92  # at the very edge of the gamut one channel is 0, and would then rise in steps


def _polar(lightness: Array, chroma: Array, hue: Array) -> Array:
    return np.column_stack((lightness, chroma * np.cos(hue), chroma * np.sin(hue)))


def _can_be_shown(lab: Array) -> Array:
    light = _light(lab)
    return np.asarray(((light >= 0) & (light <= 1)).all(1))


def map_sequentially(share: Array) -> Array:
    """u8[n, 3]: the colours of f64[n] on the sequential map; its ends for values below 0 and above 1, and grey for NaN."""
    is_known = ~np.isnan(share)
    step = np.rint(np.clip(np.where(is_known, share, 0), 0, 1) * (STEPS - 1)).astype(np.int64)
    return np.where(is_known[:, None], sequential_colours()[step], np.array(GREY, np.uint8)).astype(np.uint8)


@cache
def qualitative_colours(count: int, others: tuple[tuple[int, int, int], ...] = ()) -> Array:
    """u8[count, 3]: colours for unordered things.

    Each one is the farthest from all earlier ones, and from black, white, the grey of "none" and `others`, as seen by the people
    who can distinguish it worst. Very dark ones are left out, because they would be invisible on black.
    """
    levels = np.linspace(0, 255, 10).round().astype(np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    grid = grid[oklab(grid)[:, 0] > 0.42]
    nearest = distances(grid, np.array([BLACK, GREY, WHITE, *others], np.uint8)).min(1)
    chosen = []
    for _ in range(count):
        best = grid[int(nearest.argmax())]
        chosen.append(best)
        nearest = np.minimum(nearest, distances(grid, best[None])[:, 0])
    return np.array(chosen, np.uint8)


SCORE_TOP = 4 * BAD
"""The score with the brightest colour; `BAD` is at four fifths of the scale."""

TYPES = {DATA: "data", METADATA: "metadata", SYSTEM: "system", DATA | METADATA: "data and metadata"}

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ColourKey:
    """The legend of a scheme."""

    title: str
    """Its title."""
    ramp: Array
    """u8[k, 3], may be empty."""
    ticks: tuple[tuple[float, str], ...] = ()
    """Positions on the ramp, 0 to 1, with their labels."""
    swatches: tuple[tuple[Colour, str], ...] = ()
    """Colours with their labels, may be empty."""


@dataclass(frozen=True, slots=True)
class ColourScheme:
    """A colour scheme. Both functions raise OperatorError."""

    name: str
    """Its name."""
    paint: Colouring
    """The same as in `overview`."""
    key: Callable[[FilesystemState], ColourKey]
    """Returns its legend."""
    min_brightness: float = 1.0
    """The same as in `overview`."""


def _bare(rgb: Array) -> CellColours:
    return CellColours(rgb, np.ones(len(rgb)))


def score(state: FilesystemState) -> CellColours:
    """Colours data block groups by the fragmentation of their free space; the others are grey."""
    return _bare(map_sequentially(score_share(_scores(state))))


def score_share(scores: Array) -> Array:
    """f64[n] from 0 to 1 for scores: logarithmic, because most scores are small and the worst ones are important."""
    share: Array = np.log1p(np.maximum(scores.astype(np.float64), 0)) / np.log1p(SCORE_TOP)
    return share


def _scores(state: FilesystemState) -> Array:
    if state.score is None:
        *others, last = (name for name in COLOURS if name != "score")
        raise OperatorError("the recorded state has no scores", f"draw it with --colour {', '.join(others)} or {last}")
    return state.score


def age(state: FilesystemState) -> CellColours:
    """Colours block groups by the time when their content was written: by generation if known, else by virtual address. btrfs gives
    each new block group a higher virtual address than any before, so addresses are in the order of creation.
    """
    return _bare(map_sequentially(_age_share(state)))


def _age_share(state: FilesystemState) -> Array:
    count = len(state.bg_vaddr)
    if state.generation is None:
        return np.linspace(0, 1, count) if count > 1 else np.ones(count)
    share = np.full(count, np.nan)
    is_known = state.generation > 0
    oldest, newest = _generations(state)
    share[is_known] = (state.generation[is_known].astype(np.float64) - oldest) / max(1, newest - oldest)
    return share


def _generations(state: FilesystemState) -> tuple[int, int]:
    generations = np.zeros(0, np.uint64) if state.generation is None else state.generation[state.generation > 0]
    return (int(generations.min()), int(generations.max())) if len(generations) else (0, 0)


def profile(state: FilesystemState) -> CellColours:
    """Gives each RAID profile a colour."""
    return _bare(_by_flags(state, PROFILE_MASK, dict(zip(PROFILES, _profile_colours(), strict=True))))


def kind(state: FilesystemState) -> CellColours:
    """The colours of usage, all at full brightness."""
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
    scores = _scores(state)
    ticks = tuple((float(score_share(np.array([mark]))[0]), f"{mark:g}") for mark in (0, 10, 50, BAD))
    others = ((GREY, "no data"),) if np.isnan(scores).any() else ()
    return ColourKey("score of the free space", sequential_colours(), (*ticks, (1, f"{SCORE_TOP:g}+")), others)


def _age_key(state: FilesystemState) -> ColourKey:
    if state.generation is None:
        return ColourKey("age, by order of virtual addresses", sequential_colours(), ((0, "first made"), (1, "last made")))
    oldest, newest = _generations(state)
    empty = ((GREY, "empty"),) if (state.generation == 0).any() else ()
    return ColourKey("age, by generation", sequential_colours(), ((0, f"{oldest:,} (oldest)"), (1, f"{newest:,} (newest)")), empty)


def _profile_key(state: FilesystemState) -> ColourKey:
    flags = set((state.bg_flags & np.uint64(PROFILE_MASK)).tolist())
    named = zip(PROFILES.items(), _profile_colours(), strict=True)
    return ColourKey("profile", _NO_RAMP, (), tuple((rgb, name) for (flag, name), rgb in named if flag in flags))


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
