"""What a restore is asked for, would do, is doing and has done: plain data, which the command and the dashboard show."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from backupd.files.conflict_policy import ENTERED, KEPT, NEW, OVERWRITTEN, REFUSED, SAME
from backupd.files.tree import Entry

SAMPLES = 20
STEPS = (NEW, SAME, ENTERED, OVERWRITTEN, KEPT, REFUSED)


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What somebody wants back. `overwrite`: None refuses, or one of deciding.OVERWRITE. `parents`: keep whole paths.

    `content`: read what was written once more, and compare it. `spared`: folders beneath `to` to which and in which
    nothing is done: the pool and the catalogue's. `privileged`: setuid bits, capabilities and device nodes come back too, and the
    destination itself may get owner and mode of the backup's root. `only_below`: folders outside of which nothing is written.
    """

    paths: tuple[bytes, ...]
    to: Path
    overwrite: str | None = None
    parents: bool = False
    content: bool = True
    spared: tuple[Path, ...] = ()
    privileged: bool = False
    only_below: tuple[Path, ...] = ()


@dataclass(slots=True)
class RestoreCount:
    """How many names, the bytes of those that are files, and up to SAMPLES of their places with a reason each."""

    number: int = 0
    size: int = 0
    samples: list[tuple[bytes, str]] = field(default_factory=list)

    def add(self, place: bytes, why: str = "", size: int = 0) -> None:
        """One more."""
        self.number += 1
        self.size += size
        if len(self.samples) < SAMPLES:
            self.samples.append((place, why))


@dataclass(slots=True)
class Withheld:
    """What is not given back because nobody asked for it: device nodes, setuid and setgid bits of files, and attributes of files
    that give power, capabilities above all.
    """

    devices: RestoreCount = field(default_factory=RestoreCount)
    setuid: RestoreCount = field(default_factory=RestoreCount)
    capabilities: RestoreCount = field(default_factory=RestoreCount)

    @property
    def number(self) -> int:
        """How many things."""
        return self.devices.number + self.setuid.number + self.capabilities.number


@dataclass(slots=True)
class RestorePreview:
    """What a restore would do. `counts` by deciding's words, folders that are there (ENTERED) among them. Sizes are bytes.

    `free` and `needed` are None where they cannot be known: on another machine.
    """

    to: str
    counts: dict[str, RestoreCount] = field(default_factory=lambda: {what: RestoreCount() for what in STEPS})
    files: int = 0
    folders: int = 0
    others: int = 0
    size: int = 0
    needed: int | None = None
    free: int | None = None
    reflinks: bool = False
    withheld: Withheld = field(default_factory=Withheld)

    def see(self, entry: Entry) -> None:
        """Counts a name of the backup by its kind."""
        self.files += entry.kind == "file"
        self.folders += entry.kind == "folder"
        self.others += entry.kind not in ("file", "folder")
        self.size += entry.size if entry.kind == "file" else 0

    @property
    def names(self) -> int:
        """All of them."""
        return self.files + self.folders + self.others

    @property
    def to_write(self) -> int:
        """Bytes of the files that would be written or linked."""
        return self.counts[NEW].size + self.counts[OVERWRITTEN].size


@dataclass(slots=True)
class RestoreProgress:
    """How far a restore is: `files` of `all_files`, `size` of `all_size` bytes.

    `phase`: looking, writing, syncing (what was written goes to the disk) or comparing.
    """

    phase: str = "looking"
    files: int = 0
    size: int = 0
    all_files: int = 0
    all_size: int = 0
    place: bytes = b""
    begun: float = field(default_factory=time.monotonic)

    def turn_to(self, phase: str, files: int, size: int) -> None:
        """The next phase begins, with so much to do."""
        self.phase, self.all_files, self.all_size = phase, files, size
        self.files, self.size, self.begun = 0, 0, time.monotonic()


@dataclass(slots=True)
class Restored:
    """What came of it. `problems`: what could not be written, or not with all that belongs to it; `differences`: what is not as in
    the backup. `compared` counts bytes that were read on both sides.
    """

    counts: dict[str, RestoreCount] = field(default_factory=lambda: {what: RestoreCount() for what in STEPS})
    problems: RestoreCount = field(default_factory=RestoreCount)
    differences: RestoreCount = field(default_factory=RestoreCount)
    reflinked: int = 0
    copied: int = 0
    compared: int = 0
    seconds: float = 0.0
    withheld: Withheld = field(default_factory=Withheld)

    @property
    def good(self) -> bool:
        """Whether all is there and as it was."""
        return not self.problems.number and not self.differences.number


class RestoreStopped(Exception):
    """Somebody asked for an end."""


Tell = Callable[[RestoreProgress], None]
"""Called again and again while something happens; may raise RestoreStopped."""
