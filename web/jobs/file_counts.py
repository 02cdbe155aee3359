"""The numbers of files in the result of a restore or of its preview, with the names of some."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from web.mapping import from_json


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One name of a preview."""

    place: str
    """Where it would be restored."""
    why: str
    """The reason for what happens to it."""


@dataclass(frozen=True, slots=True)
class CountRow:
    """A number of names."""

    number: int
    """Number of names."""
    size: int
    """Bytes of the files among them."""
    samples: tuple[SampleRow, ...]
    """Some of them."""


def count_row(fields: Mapping[str, Any]) -> CountRow:
    """Parses a number of names of a preview or a result."""
    return CountRow(fields["count"], fields["bytes"], tuple(from_json(SampleRow, sample) for sample in fields["samples"]))
