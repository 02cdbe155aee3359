"""Parses the kernel's log for damaged data: addresses that a scrub could not correct, and ranges of files that could not be read.

The messages are those of fs/btrfs/scrub.c and inode.c. Older kernels write no "scrub: " and no physical address. Older kernels give
the address of the error; since Linux 6.4 it is that of the surrounding 64 KiB, so the exact block must be found by reading. The
kernel rate-limits messages of all btrfs together and overwrites the oldest, so lines are counted, to be compared with the number of
errors.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from btrkeep.pool.marker import SYSFS, filesystem_uuid

SPAN = 64 << 10
"""Number of aligned bytes that one address in a message may represent."""
_KMSG = "/dev/kmsg"
_LONGEST = 8192  # bytes of a record; a smaller buffer gives EINVAL
_HEAD = r"BTRFS \w+ \(device (\S+?)(?: state \w+)?\): (?:scrub: )?"
_UNFIXED = re.compile(_HEAD + r"unable to fixup \(\w+\) error at logical (\d+) on dev ")
_READ = re.compile(_HEAD + r"csum failed root (\d+) ino (\d+) off (\d+) ")
_ADDRESS, _FAILED = " at logical ", "csum failed root "
_TREE = re.compile(
    _HEAD + r"[\w /]+ at logical (\d+) on dev .+, physical \d+: metadata (?:leaf|node) \(level (\d+)\) in tree (\d+)"
)


@dataclass(frozen=True, slots=True)
class TreeBlock:
    """Metadata that a scrub could not read. Since Linux 6.4 `tree` and `level` are those of the first block in the 64 KiB, which
    need not be the damaged one.
    """

    vaddr: int
    """Its logical address."""
    tree: int
    """The id of its tree."""
    level: int
    """0 for a leaf."""


@dataclass(frozen=True, slots=True)
class ScrubFaults:
    """The errors in the log."""

    vaddrs: tuple[int, ...] = ()
    """Their logical addresses, ascending, including those of `trees`."""
    trees: tuple[TreeBlock, ...] = ()
    """The damaged metadata."""
    lines: int = 0
    """Number of uncorrectable errors, counted per device."""


def faults(messages: Iterable[str], devices: frozenset[str]) -> ScrubFaults:
    """Returns the errors of a filesystem on these devices, given by the kernel's names (sda, dm-0)."""
    vaddrs, trees, lines = set[int](), dict[int, TreeBlock](), 0
    for message in messages:
        if (match := _UNFIXED.match(message)) and match[1] in devices:
            vaddrs.add(int(match[2]))
            lines += 1
        elif (match := _TREE.match(message)) and match[1] in devices:
            trees[int(match[2])] = TreeBlock(*(int(match[number]) for number in (2, 4, 3)))
    return ScrubFaults(
        tuple(sorted(vaddrs)), tuple(tree_block for vaddr, tree_block in sorted(trees.items()) if vaddr in vaddrs), lines
    )


class ReadFailure(NamedTuple):
    """A block of a file whose checksum was wrong when it was read, in at least one of its copies."""

    subvolume: int
    inode: int
    offset: int


def read_failures(messages: Iterable[str], devices: frozenset[str]) -> list[ReadFailure]:
    """Returns one failure for each line about a filesystem on these devices. Another filesystem may have used a device of that name
    before.
    """
    matches = (match for message in messages if (match := _READ.match(message)) and match[1] in devices)
    return [ReadFailure(int(match[2]), int(match[3]), int(match[4])) for match in matches]


def filesystem_devices(path: Path) -> frozenset[str]:
    """Returns the kernel's names for the devices of the btrfs of the folder `path`. Raises OSError."""
    return frozenset(device.name for device in (SYSFS / filesystem_uuid(path) / "devices").iterdir())


class KernelLog:
    """Collects the kernel's messages from now on, until the context ends; with `after`, also all earlier ones that are still
    available and have a higher number. Numbers restart at each boot.
    """

    def __init__(self, after: int | None = None) -> None:
        self._fd, self._after = -1, after
        self.last = after or 0
        """The highest number that was read."""
        self._messages: list[str] = []
        self.why = ""
        """Why it cannot be read; "": it can."""

    def __enter__(self) -> Self:
        try:
            self._fd = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self._after is None:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.why = f"{_KMSG}: {error.strerror}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self) -> list[str]:
        """Returns all messages of btrfs about an address or a file since the last call, except those overwritten in between."""
        while self._fd >= 0:
            try:
                record = os.read(self._fd, _LONGEST)
            except BlockingIOError:
                break
            except BrokenPipeError:  # some records were overwritten; the next read returns the oldest that is left
                continue
            prefix, _, text = record.decode("utf-8", "replace").partition(";")
            number, message = int(prefix.split(",")[1]), text.partition("\n")[0]
            self.last = max(self.last, number)
            is_new = self._after is None or number > self._after
            if is_new and message.startswith("BTRFS") and (_ADDRESS in message or _FAILED in message):
                self._messages.append(message)
        return self._messages
