"""Whether another copy of a damaged file is proven to be good, by checksums that were recorded of both: nothing is read for it.

Of a damaged file the checksum stays that it had when it was last read well; and the run that fetched it may have made one. A copy
counts as proven if it was read well, and one of the two is the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from backupd.files.tree import Entry
from backupd.repo.checksums import NO_DIGEST, Checksums, key_of
from backupd.repo.sums import read_sums


@dataclass(frozen=True, slots=True)
class RecordedContent:
    """The recorded content of a file. `digest`: when it was last read without error; `summed`: when it was fetched. None: not
    recorded.
    """

    digest: bytes | None = None
    summed: bytes | None = None
    is_damaged: bool = False
    """When it was last read."""


class RecordedContents:
    """The recorded contents of the host with this folder. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._folder, self._known = folder, Checksums(folder)
        self._sums = cache(lambda name: read_sums(folder / name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._known.__exit__(kind, error, trace)

    def of(self, name: str, entry: Entry) -> RecordedContent:
        """Returns the recorded content of a file of that backup."""
        before = self._known.find(key_of(entry.inode, entry.changed, entry.size))
        digest = before.digest if before and before.digest != NO_DIGEST else None
        return RecordedContent(digest, self._sums(name).get(entry.path), before is not None and before.damaged)


def is_proven(copy: RecordedContent, damaged: Iterable[RecordedContent]) -> bool:
    """Returns True if the copy's last recorded content equals that of the damaged file."""
    if copy.is_damaged or copy.digest is None:
        return False
    return any(copy.digest == one.digest or (copy.summed is not None and copy.summed == one.summed) for one in damaged)
