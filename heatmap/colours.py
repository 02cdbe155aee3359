"""Colours that are told apart: by most colour-blind people, on a dark page and on a light one.

They are computed in OKLab (Björn Ottosson, 2020), in which equal distances look about equal. How a dichromat sees a colour is
simulated after Viénot, Brettel and Mollon (1999) for the two kinds of red-green blindness; for the rare blue-yellow blindness the
same construction is used with the plane through white and red.
"""

from functools import cache

import numpy as np

from heatmap.state import Array

BLACK, GREY, WHITE = (0, 0, 0), (0x77, 0x77, 0x77), (0xFF, 0xFF, 0xFF)
STEPS = 256

# Linear sRGB to the cones' answers and from their cube roots to lightness and two opponent colours; as Ottosson gives them.
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
# Linear sRGB to Smith and Pokorny's cones, for the simulation.
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
    """u8[..., 3]: what u8[..., 3] looks like to somebody with this kind of colour vision."""
    if vision == "normal":
        return np.asarray(rgb, np.uint8)
    return encoded(linear(rgb) @ _blindness(vision).T)


@cache
def _blindness(vision: str) -> Array:
    """Linear RGB to linear RGB: the missing cone's answer is replaced, so that white and one primary look as they do to all."""
    missing, anchor = {"protan": (0, _BLUE), "deutan": (1, _BLUE), "tritan": (2, _RED)}[vision]
    others = [cone for cone in range(3) if cone != missing]
    kept = np.array([_TO_CONES @ np.ones(3), _TO_CONES @ anchor])
    change = np.eye(3)
    change[missing] = 0
    change[missing, others] = np.linalg.solve(kept[:, others], kept[:, missing])
    blind: Array = np.linalg.inv(_TO_CONES) @ change @ _TO_CONES
    return blind


def distances(some: Array, others: Array) -> Array:
    """f64[n, m]: how far u8[n, 3] are from u8[m, 3] to those who tell them apart worst."""
    worst = np.full((len(some), len(others)), np.inf)
    for vision in VISIONS:
        one, two = oklab(simulated(some, vision)), oklab(simulated(others, vision))
        worst = np.minimum(worst, np.sqrt(((one[:, None] - two[None]) ** 2).sum(2)))
    return worst


@cache
def sequential_colours() -> Array:
    """u8[STEPS, 3]: from little to much. Lightness grows evenly, from violet over teal to yellow.

    The darkest is lighter than the black of what is not allocated, the lightest darker than a white page. Red and green of one
    lightness never mean different things, so it reads the same without colour. Each is as colourful as a screen can show, and no
    more so than `_CHROMA`.
    """
    share = np.linspace(0, 1, STEPS)
    lightness, hue = 0.36 + 0.56 * share, np.radians(305 - 200 * share)
    chroma = np.full(STEPS, _CHROMA)
    for _ in range(400):
        chroma[~_can_be_shown(_polar(lightness, chroma, hue))] *= 0.995
    smooth = np.convolve(np.pad(chroma, 20, "edge"), np.full(41, 1 / 41), "valid")
    return encoded(_light(_polar(lightness, _WITHIN * np.minimum(smooth, chroma), hue)))


_CHROMA = 0.16
_WITHIN = 0.92  # at the very edge of what can be shown one channel is 0, and rises from there in leaps


def _polar(lightness: Array, chroma: Array, hue: Array) -> Array:
    return np.column_stack((lightness, chroma * np.cos(hue), chroma * np.sin(hue)))


def _can_be_shown(lab: Array) -> Array:
    light = _light(lab)
    return np.asarray(((light >= 0) & (light <= 1)).all(1))


def map_sequentially(share: Array) -> Array:
    """u8[n, 3]: the colours of f64[n] on the sequential map; below 0 and above 1 its ends, and grey for NaN."""
    known = ~np.isnan(share)
    step = np.rint(np.clip(np.where(known, share, 0), 0, 1) * (STEPS - 1)).astype(np.int64)
    return np.where(known[:, None], sequential_colours()[step], np.array(GREY, np.uint8)).astype(np.uint8)


@cache
def qualitative_colours(count: int, others: tuple[tuple[int, int, int], ...] = ()) -> Array:
    """u8[count, 3]: colours for things that have no order.

    Each next one is the farthest from all before it, and from black, white, the grey of "none" and `others`, to those who
    tell it apart worst. Very dark ones are left out: they would be lost on black.
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
