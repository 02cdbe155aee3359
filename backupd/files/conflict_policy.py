"""Decides how each name is restored: a pure function of the backup's entry and the existing one."""

from collections.abc import Sequence
from dataclasses import dataclass

from backupd.files.tree import Entry
from btrkeep.choices import OVERWRITE

NEW, SAME, ENTERED, OVERWRITTEN, KEPT, REFUSED = "new", "same", "entered", "overwritten", "kept", "refused"
NEVER, OLDER, ALL = OVERWRITE
CONTENT_ONLY = ("content",)
"""The fields that differ where size, time and all else are equal."""
_SECOND = 10**9


def differs_words(fields: Sequence[str]) -> str:
    """Returns the fields in which a name differs as a phrase."""
    return "differs: " + ", ".join(fields)


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """The action for one name, and its reason."""

    step: str
    """NEW, SAME (it is already the same), ENTERED (an existing folder), OVERWRITTEN, KEPT (the existing file stays) or REFUSED."""
    why: str = ""
    """Why it is refused; "" for other steps."""


def decide(entry: Entry, existing: Entry | None, differs: Sequence[str], overwrite: str | None) -> RestoreStep:
    """The step for `entry` where `existing` is what its place holds; `differs` are the fields in which they differ.

    `overwrite` None refuses whatever would be overwritten. A folder never takes the place of anything else, nor anything else the
    place of a folder: what is there would have to be deleted.
    """
    if existing is None:
        return RestoreStep(NEW)
    if entry.kind == "folder" or existing.kind == "folder":
        if entry.kind == existing.kind:
            return RestoreStep(ENTERED)
        return RestoreStep(REFUSED, f"it is a {existing.kind} there and a {entry.kind} in the backup")
    if not differs:
        return RestoreStep(SAME)
    why = differs_words(differs)
    if overwrite == ALL:
        return RestoreStep(OVERWRITTEN, why)
    if overwrite == OLDER:
        return (
            RestoreStep(OVERWRITTEN, why)
            if existing.mtime < entry.mtime
            else RestoreStep(KEPT, "it is not older than in the backup")
        )
    return RestoreStep(KEPT, why) if overwrite == NEVER else RestoreStep(REFUSED, why)


def differing(entry: Entry, existing: Entry) -> tuple[str, ...]:
    """The fields of two entries that differ, of those that a restore brings back; links and attributes are not among them."""
    if entry.kind != existing.kind:
        return ("kind",)
    differences = [name for name in ("uid", "gid", "target") if getattr(entry, name) != getattr(existing, name)]
    if entry.kind != "symlink" and entry.mode != existing.mode:
        differences.append("mode")
    if entry.kind == "file" and entry.size != existing.size:
        differences.append("size")
    if entry.kind.endswith("device") and entry.rdev != existing.rdev:
        differences.append("device")
    return (*differences, *(() if same_time(entry.mtime, existing.mtime) else ("time",)))


def same_time(mtime: int, existing_mtime: int) -> bool:
    """Returns True if two times are the same, as far as the destination can say it: some filesystems know whole seconds only."""
    return mtime == existing_mtime or (existing_mtime % _SECOND == 0 and mtime // _SECOND == existing_mtime // _SECOND)


class LinkPlacer:
    """Names of one file that are restored together become names of one file again. Has the first name that was placed, by inode.

    A file is forgotten with the last of its names.
    """

    def __init__(self) -> None:
        self._first: dict[int, tuple[tuple[bytes, ...], int, int]] = {}

    def first(self, entry: Entry) -> tuple[tuple[bytes, ...], int] | None:
        """Returns place and identity (0: not written yet) of the first name of the same inode; None if there is none."""
        return self.first_of(entry.inode) if entry.links > 1 else None

    def first_of(self, inode: int) -> tuple[tuple[bytes, ...], int] | None:
        """The same of an inode of the backup."""
        first = self._first.get(inode)
        return first[:2] if first else None

    def placed(self, entry: Entry, place: tuple[bytes, ...], copied: int) -> None:
        """Records that a name has its place now, and the identity of what is there."""
        if entry.links > 1 and entry.kind != "folder":
            self.place(entry.inode, entry.links, place, copied)

    def place(self, inode: int, links: int, place: tuple[bytes, ...], copied: int) -> None:
        """Records the same of an inode with several names: `copied` is the identity of its copy."""
        first, copied, left = self._first.pop(inode, (place, copied, links))
        if left > 1:
            self._first[inode] = (first, copied, left - 1)

    def set_copy(self, inode: int, copied: int) -> None:
        """Records the identity of a copy that was not written yet."""
        if inode in self._first:
            first, _, left = self._first[inode]
            self._first[inode] = (first, copied, left)

    def forget(self, inode: int) -> None:
        """Forgets a file of which no name has its place yet."""
        self._first.pop(inode, None)
