"""From frozen dataclasses to JSON, as everywhere in btrkeep: times in RFC 3339 with Z, sizes in bytes, durations in seconds.

A byte of a host that is no UTF-8 is a lone surrogate, which JSON in ASCII writes as an escape (\\udcXX); beside a text NAME that
has one is NAME_encoded, percent-encoded as in an address.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

from btrkeep.units import format_time, with_encoded


def dumped(value: object) -> bytes:
    """Returns one JSON document in ASCII, with a newline at the end."""
    return json.dumps(with_encoded(plain(value)), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def plain(value: object) -> Any:
    """Converts a value to types that json can write."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return _odd(value)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _odd(value: object) -> Any:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that the API shows")
