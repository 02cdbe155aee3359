"""The beginning of a file, to look at. Whatever is in it, it comes as lines that are safe to show."""

from collections.abc import Iterable
from dataclasses import dataclass

from btrkeep.units import printable

LIMIT = 64 << 10
"""The maximum number of bytes shown."""
_LINES = 2000
_TAB = 8
_BINARY = frozenset(range(32)) - {9, 10, 12, 13, 27}


@dataclass(frozen=True, slots=True)
class Beginning:
    """Lines of text, each safe to show. `more`: the file continues."""

    lines: tuple[str, ...]
    more: bool


def beginning(pieces: Iterable[bytes], size: int, limit: int = LIMIT) -> Beginning | None:
    """Returns the first lines of a file of `size` bytes; None if it is not text: it contains bytes that no text has."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= limit:
            break
    data = bytes(held[:limit])
    if not _BINARY.isdisjoint(data):
        return None
    lines = _whole(data, size).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return Beginning(tuple(shown_line(line) for line in lines[:_LINES]), size > len(data) or len(lines) > _LINES)


def _whole(data: bytes, size: int) -> bytes:
    """Removes a character that the limit cut in half."""
    if len(data) == size:
        return data
    for back in range(1, 5):
        lead = data[-back:][:1]
        if lead and lead[0] >= 0xC0:
            return data[:-back]
    return data


def shown_line(line: bytes | str) -> str:
    """Returns one line with tabs as blanks, and all other unprintable characters as escapes."""
    text = line.decode("utf-8", "surrogateescape") if isinstance(line, bytes) else line
    return printable(text.removesuffix("\r").expandtabs(_TAB))
