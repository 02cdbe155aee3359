"""The catalogue's data type for damages. See model.py for conventions."""

from dataclasses import dataclass
from datetime import datetime

FOUND_BY = ("scrub", "verify", "source", "device")
"""scrub, device: the filesystem cannot read it. verify: that, or it has not the checksum that was recorded of it. source: the
host has another content, though nothing was changed there."""


WHOLE = "/"
"""The path of a damage that is not of one file: no file of the backup can be read, or not all that are damaged are named."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged range of a file of one backup. The fields are in the order of the columns."""

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
