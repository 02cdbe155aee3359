"""Words of a request's address that pages of the pool have in common: numbers within bounds, and choices."""

from collections.abc import Collection
from datetime import datetime

from flask import abort, request

from btrkeep.units import parse_time


def number(name: str, default: int | None = None, most: int = 2**63 - 1) -> int | None:
    """A whole number, not negative; what is none is as if it were not there."""
    text = request.args.get(name, "")
    return min(int(text[:19]), most) if text.isascii() and text.isdigit() else default


def choice(name: str, known: Collection[str]) -> str | None:
    """One of some words; anything else is as if it were not there."""
    text = request.args.get(name)
    return text if text in known else None


def moment(name: str, now: datetime) -> datetime | None:
    """A moment: RFC 3339, or a day, which begins in UTC; 400 when it is none."""
    text = request.args.get(name, "").strip()
    if not text:
        return None
    try:
        return min(parse_time(f"{text}T00:00:00Z" if len(text) == len("2026-11-20") else text), now)
    except ValueError as error:
        abort(400, str(error))
