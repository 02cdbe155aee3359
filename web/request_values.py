"""Parses values of a request's query or form other than paths: numbers, choices, moments, names of backups."""

import re
from collections.abc import Collection
from datetime import datetime

from flask import abort, request

from btrkeep.units import parse_time

_WHICH = re.compile(r"latest|\d[0-9TZ-]{3,17}", re.ASCII)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


def number(name: str, default: int | None = None, most: int = 2**63 - 1) -> int | None:
    """Returns a non-negative whole number; ignores an invalid one."""
    text = request.args.get(name, "")
    return min(int(text[:19]), most) if text.isascii() and text.isdigit() else default


def choice(name: str, known: Collection[str]) -> str | None:
    """Returns one of the known words; ignores any other."""
    text = request.args.get(name)
    return text if text in known else None


def moment(name: str, now: datetime) -> datetime | None:
    """Returns a moment from RFC 3339, or from a day, which begins in UTC; aborts with 400 if it is invalid."""
    text = request.args.get(name, "").strip()
    if not text:
        return None
    try:
        return min(parse_time(f"{text}T00:00:00Z" if len(text) == len("2026-11-20") else text), now)
    except ValueError as error:
        abort(400, str(error))


def which_of_request(name: str) -> str | None:
    """Returns the requested backup, None without one; aborts with 400 if it is invalid."""
    found = request.values.get(name)
    if not found:
        return None
    if not _WHICH.fullmatch(found):
        abort(400, "a backup is named like 2026-11-20T220003Z, or by the beginning of that, or latest")
    return found


def number_of_request(name: str, default: int) -> int:
    """Returns a whole number; aborts with 400 if it is invalid."""
    found = request.args.get(name, str(default))
    if not _WHOLE.fullmatch(found):
        abort(400, f"{name} is a whole number")
    return int(found)
