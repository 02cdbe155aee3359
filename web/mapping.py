"""Makes dataclasses from fields with the same names: from a row of the catalogue, or from an answer of the root service."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from btrkeep.units import parse_time

Shown = TypeVar("Shown")


def from_row(kind: type[Shown], row: object, /, **others: Any) -> Shown:
    """Returns a dataclass whose fields are the attributes of the row, except `others`, which are given."""
    names = [name for name, _ in _fields(kind) if name not in others]  # type: ignore[arg-type]  # a class is hashable
    return kind(**{name: getattr(row, name) for name in names}, **others)


def from_json(kind: type[Shown], answer: Mapping[str, Any], /, **others: Any) -> Shown:
    """Returns a dataclass whose fields are those of the answer, except `others`: texts become times, lists become tuples.

    Ignores fields that a newer service adds. Raises KeyError for a missing field, ValueError for an invalid time.
    """
    readers = [(name, read) for name, read in _fields(kind) if name not in others]  # type: ignore[arg-type]
    return kind(**{name: read(answer[name]) for name, read in readers}, **others)


@cache
def _fields(kind: type) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple((field.name, _reader(field.type)) for field in fields(kind))


def _reader(kind: Any) -> Callable[[Any], Any]:
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if datetime in kinds:
        return lambda text: parse_time(text) if text else None
    is_tuple = any(get_origin(kind) is tuple for kind in kinds)
    return (lambda values: None if values is None else tuple(values)) if is_tuple else (lambda value: value)
