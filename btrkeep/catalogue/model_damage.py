"""What the catalogue gives out and takes in about damages. As in model.py."""

from dataclasses import dataclass
from datetime import datetime

FOUND_BY = ("scrub", "verify", "source", "device")
"""scrub, device: the filesystem cannot read it. verify: that, or it has not the checksum that was recorded of it. source: the
host has another content, though nothing was changed there."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A place of a file of one backup that is not what it was. The order of the fields is the order of the catalogue's columns."""

    host: str
    name: str
    """Of the backup, 2026-11-20T220003Z."""
    path: str
    """Absolute, as the host has it; surrogate escapes for bytes that are no UTF-8."""
    start: int
    """The first byte."""
    length: int
    """How many; 0: to the end of the file, or nobody knows."""
    found_by: str
    """One of FOUND_BY."""
    found_at: datetime
    fate: str | None = None
    """What became of it; None: it stands."""
