"""Bars of block characters, as far as the terminal can show them."""

import sys

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def has_blocks() -> bool:
    """Returns whether standard output takes block characters: in an old locale it takes ASCII only."""
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def bar(share: float, width: int, *, blocks: bool) -> str:
    """Returns a bar of up to `width` characters, at least one of them visible if `share` is above 0."""
    if not blocks:
        return "#" * max(round(share * width), int(share > 0))
    eighths = max(round(share * width * 8), int(share > 0))
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
