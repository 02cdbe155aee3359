"""Finds the line of a key in the text of a TOML file, which tomllib does not give."""

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_HEADER = re.compile(r"\s*\[{1,2}([^\]]*)\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_.\s-]|"[^"]*"|'[^']*')+?)\s*=""", re.ASCII)


def line_of(text: str, where: tuple[str, ...]) -> int | None:
    """Returns the line of the key at this path, or of the nearest section or key above it; None if there is none."""
    lines = _lines(text)
    return next((lines[where[:end]] for end in range(len(where), 0, -1) if where[:end] in lines), None)


@lru_cache(maxsize=4)
def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Returns the first line of every section and key."""
    lines: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = _path(header[1])
            path = section
        elif key := _KEY.match(line):
            path = (*section, *_path(key[1]))
        else:
            continue
        for end in range(1, len(path) + 1):
            lines.setdefault(path[:end], number)
    return lines


def _path(dotted: str) -> tuple[str, ...]:
    """Parses host."my host".paths; () if it is no key."""
    try:
        table: Any = tomllib.loads(f"{dotted} = 0")
    except (ValueError, RecursionError):
        return ()
    return tuple(_keys(table))


def _keys(table: Any) -> Iterator[str]:
    while isinstance(table, dict):
        (key,) = table
        yield key
        table = table[key]


def headers(text: str) -> Iterator[tuple[str, ...]]:
    """Yields the path of everything that looks like the header of a section, also in a text that is no TOML, and of the keys above
    the first header.

    A bracket that was forgotten on one side does not hide a header; a text in quotes and a bracket are the end of a list. One that
    cannot be parsed has one part, its text.
    """
    is_top = True
    for line in text.splitlines():
        bare = line.split("#", 1)[0].strip()
        if bare.startswith("["):
            is_top = False
            yield _path(bare.strip("[] \t")) or (bare,)
        elif bare.endswith("]") and bare[0] not in "\"'" and (path := _path(bare.rstrip("] \t"))):
            is_top = False
            yield path
        elif is_top and (key := _KEY.match(bare)) and (path := _path(key[1])):
            yield path
