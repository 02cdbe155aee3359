"""What the catalogue gives out and takes in about verifications. As in model.py."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """What `verified.json` keeps of a backup, but for its damages. The order of the fields is the order of the columns."""

    host: str
    name: str
    """Of the backup, 2026-11-20T220003Z."""
    begun: datetime
    """When the pass began that reads each of its files once."""
    at: datetime
    """When that ended, or its last part."""
    read: int
    """Files that could be read in that pass."""
    compared: int
    """Those of them that were compared with an earlier checksum."""
    whole: datetime | None
    """When a pass came to its end for the last time."""


@dataclass(frozen=True, slots=True)
class ComparedBackup:
    """What `compared.json` keeps of a backup. The order of the fields is the order of the columns."""

    host: str
    name: str
    at: datetime
    """When files of it were last compared with the host."""
    files: int
    alike: int
    """Those of them with the same content."""
    changed: int
    """Those that the host has changed since, or has no more."""
    differing: int
    """Those with another content, though size and time are the same."""
