"""Decisions that commands and dashboard share: functions of plain data and an explicit `now`, which return a reason with every
answer.

They use no clock, database, process or filesystem. This module imports none of them, so that each caller loads only the decision it
needs.

Facts of the catalogue, in which decisions are stored, are texts by name. Missing or invalid JSON counts as no fact.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")


class FactReader(Protocol):
    """The catalogue, as far as reading facts needs it."""

    def get_fact(self, name: str) -> str | None:
        """Returns a fact by its name."""


class FactWriter(FactReader, Protocol):
    """The catalogue, as far as writing facts needs it."""

    def set_fact(self, name: str, value: str | None) -> None:
        """Stores a fact; None deletes it."""


def parse_fact(text: str | None, parse: Callable[[Any], Value], otherwise: Value) -> Value:
    """Returns the result of `parse` for the JSON of a fact; `otherwise` if there is none, or if another version wrote it
    differently.
    """
    try:
        return parse(json.loads(text)) if text else otherwise
    except (ValueError, TypeError, KeyError, AttributeError):
        return otherwise
