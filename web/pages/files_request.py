"""What a request about files asks for, besides the path."""

import re

from flask import abort, request

_WHICH = re.compile(r"latest|\d[0-9TZ-]{3,17}", re.ASCII)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


def which_of_request(name: str) -> str | None:
    """The backup that is asked for, None without one; 400 when it can be none."""
    found = request.values.get(name)
    if not found:
        return None
    if not _WHICH.fullmatch(found):
        abort(400, "a backup is named like 2026-11-20T220003Z, or by the beginning of that, or latest")
    return found


def number_of_request(name: str, default: int) -> int:
    """A whole number that is asked for; 400 when it is none."""
    found = request.args.get(name, str(default))
    if not _WHOLE.fullmatch(found):
        abort(400, f"{name} is a whole number")
    return int(found)
