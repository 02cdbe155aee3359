"""The catalogue's data types for verification and damages. See model_backup.py for conventions."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """The contents of `verified.json` for one backup, without its damages. The fields are in the order of the columns."""

    host: str
    """The host's name in the configuration."""
    name: str
    """The backup's name, such as 2026-11-20T220003Z."""
    begun: datetime
    """When the pass over all its files started."""
    at: datetime
    """When that pass, or its last part, ended."""
    read: int
    """Number of files that this pass could read."""
    compared: int
    """Number of those that were compared with a recorded checksum."""
    whole: datetime | None
    """When a pass was last finished; None: never."""


@dataclass(frozen=True, slots=True)
class ComparedBackup:
    """The contents of `compared.json` for one backup. The fields are in the order of the columns."""

    host: str
    """The host's name in the configuration."""
    name: str
    """The backup's name, such as 2026-11-20T220003Z."""
    at: datetime
    """When files of it were last compared with the host."""
    files: int
    """Number of compared files."""
    alike: int
    """Number of files with the same content."""
    changed: int
    """Number of files that the host has changed or deleted since."""
    differing: int
    """Number of files with another content although size and time are the same."""


class VerificationFacts(NamedTuple):
    """The facts that decide the verification state of a backup: `btrkeep.decisions.verification.state_of`. Times in the future
    count as never.
    """

    is_damaged: bool
    is_in_doubt: bool
    """A crash of this server may have damaged it, and it has not been read since."""
    is_empty: bool
    """It failed, and no file was received."""
    is_whole: bool
    """A scrub or `backupd verify` has read all of it."""
    is_begun: bool
    """Some of its files were read, or compared with the host without a difference."""


FOUND_BY = ("scrub", "verify", "source", "device")
"""scrub, device: the filesystem cannot read it. verify: the same, or it does not have its recorded checksum. source: the content on
the host is different, although size and time are the same.
"""


WHOLE = "/"
"""The path of a damage that is not about one file: no file of the backup can be read, or not all damaged files are named."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged range of a file of one backup. The fields are in the order of the columns."""

    host: str
    """The host's name in the configuration."""
    name: str
    """The backup's name, such as 2026-11-20T220003Z."""
    path: str
    """Absolute path on the host; surrogate escapes for bytes that are not UTF-8."""
    start: int
    """The offset of the first damaged byte."""
    length: int
    """Number of bytes; 0: up to the end of the file, or unknown."""
    found_by: str
    """One of FOUND_BY."""
    found_at: datetime
    """When it was found."""
    fate: str | None = None
    """How the damage was resolved; None: not yet."""
