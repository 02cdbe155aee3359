"""The catalogue's data types for verification and damages. See model.py for conventions."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """The contents of `verified.json` for one backup, without its damages. The fields are in the order of the columns."""

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
    """The contents of `compared.json` for one backup. The fields are in the order of the columns."""

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


class VerificationFacts(NamedTuple):
    """What decides the verification state of a backup: `btrkeep.decisions.verification.state_of`. Times that are to come count as
    never.
    """

    is_damaged: bool
    is_in_doubt: bool
    """A crash of this server may have damaged it, and it was not read since."""
    is_empty: bool
    """It failed, and nothing came."""
    is_whole: bool
    """A scrub or `backupd verify` has read all of it."""
    is_begun: bool
    """Some of its files were read, or were equal to the host's and none was another."""


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
    """Absolute, as the host has it; surrogate escapes for bytes that are not UTF-8."""
    start: int
    """The first byte."""
    length: int
    """How many; 0: to the end of the file, or nobody knows."""
    found_by: str
    """One of FOUND_BY."""
    found_at: datetime
    fate: str | None = None
    """What became of it; None: it stands."""
