"""The stylesheet's colours, measured according to WCAG 2, in both themes; and that a state is never only a colour."""

import re
from pathlib import Path

import pytest

STYLE = (Path(__file__).parents[2] / "web" / "static" / "style.css").read_text(encoding="utf-8")
LOOKS = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]]
STATES = ("good", "late", "bad", "odd", "none", "busy")


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(output: str, other: str) -> float:
    brighter, darker = sorted((luminance(output), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("look", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_and_shapes_can_be_seen(look: int) -> None:
    colours = LOOKS[look]
    pairs = [(text, ground) for text in ("text", "quiet", "link", *STATES) for ground in ("ground", "card", "none-soft")]
    pairs += [(text, f"{state}-soft") for state in STATES for text in (state, "text")] + [("on-mark", "mark")]
    assert {
        (*pair, round(contrast(colours[pair[0]], colours[pair[1]]), 2))
        for pair in pairs
        if contrast(*(colours[name] for name in pair)) < 4.5
    } == set()
    for edge in ("edge", "focus"):
        assert min(contrast(colours[edge], colours[ground]) for ground in ("ground", "card")) >= 3, edge


def test_both_looks_have_the_same_colours() -> None:
    assert set(LOOKS[0]) == set(LOOKS[1])
    assert LOOKS[0] != LOOKS[1]


def test_states_of_different_colours_have_different_shapes() -> None:
    colour = {
        name: row
        for names, row in re.findall(r"((?:\.state-\w+,? ?)+)\{ color: var\(--(\w+)\)", STYLE)
        for name in re.findall(r"state-(\w+)", names)
    }
    shape = dict.fromkeys(colour, "○")
    for names, row in re.findall(r'((?:\.state-\w+::before,? ?)+)\{ content: "(.)"', STYLE):
        shape.update(dict.fromkeys(re.findall(r"state-(\w+)", names), row))
    shapes: dict[str, set[str]] = {}
    for name, row in colour.items():
        shapes.setdefault(shape[name], set()).add(row)
    assert {mark for mark, colours in shapes.items() if len(colours) > 1} == set()
    assert {"ok", "late", "failing", "suspect", "never"} <= set(colour)


def test_motion_is_only_for_who_wants_it_and_everything_else_stands_still() -> None:
    outside = re.sub(r"@media \(prefers-reduced-motion: no-preference\) \{.*?\n\}", "", STYLE, flags=re.DOTALL)
    assert not re.search(r"animation|transition|@keyframes", outside)


def test_nothing_is_loaded_from_anywhere() -> None:
    assert not re.search(r"@import|url\((?!['\"]?data:)", STYLE)


def test_the_scripts_of_all_pages_are_small() -> None:
    """On a slow line a page with 20 kB of scripts is read at once, and one with a megabyte is not."""
    assert sum(file.stat().st_size for file in (Path(__file__).parents[2] / "web" / "static").glob("*.js")) < 20_000
