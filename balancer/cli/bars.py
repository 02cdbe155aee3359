"""What of block characters this terminal can show."""

import sys

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def has_blocks() -> bool:
    """Whether standard output takes block characters: in an old locale it takes ASCII only."""
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def bar(share: float, width: int, *, blocks: bool) -> str:
    """A bar of up to `width` characters. What is not nothing shows."""
    if not blocks:
        return "#" * max(round(share * width), int(share > 0))
    eighths = max(round(share * width * 8), int(share > 0))
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
