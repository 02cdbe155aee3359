"""Decides how each name is restored: a pure function of the backup's entry and the existing one."""

from collections.abc import Sequence
from dataclasses import dataclass

from backupd.files.tree import Entry
from btrkeep.choices import OVERWRITE

NEW, SAME, ENTERED, OVERWRITTEN, KEPT, REFUSED = "new", "same", "entered", "overwritten", "kept", "refused"
NEVER, OLDER, ALL = OVERWRITE
CONTENT_ONLY = ("content",)
"""The field that differs if size, time and everything else are equal."""
_SECOND = 10**9


def differs_words(fields: Sequence[str]) -> str:
    """Formats the fields in which a name differs."""
    return "differs: " + ", ".join(fields)


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """The action for one name, and its reason."""

    step: str
    """NEW, SAME (already equal), ENTERED (an existing folder), OVERWRITTEN, KEPT (the existing file stays) or REFUSED."""
    why: str = ""
    """The reason for a refusal; "" for other steps."""


def decide(entry: Entry, existing: Entry | None, differs: Sequence[str], overwrite: str | None) -> RestoreStep:
    """Returns the step for `entry` if `existing` is in its place; `differs` are the fields in which they differ. `overwrite` None
    refuses whatever would be overwritten.

    A folder never replaces anything else, and nothing else replaces a folder: the existing entry would have to be deleted.
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
    """Returns the fields that differ in two entries, of those that a restore restores, except hard links and attributes."""
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
    """Returns True if two times are equal, as far as the destination can store them: some filesystems store only whole seconds."""
    return mtime == existing_mtime or (existing_mtime % _SECOND == 0 and mtime // _SECOND == existing_mtime // _SECOND)


class LinkPlacer:
    """Makes names of one file that are restored together names of one file again. Maps each inode to the first name that was
    placed.

    A file is forgotten with the last of its names.
    """

    def __init__(self) -> None:
        self._first: dict[int, tuple[tuple[bytes, ...], int, int]] = {}

    def first(self, entry: Entry) -> tuple[tuple[bytes, ...], int] | None:
        """Returns place and identity (0: not written yet) of the first name of the same inode; None if there is none."""
        return self.first_of(entry.inode) if entry.links > 1 else None

    def first_of(self, inode: int) -> tuple[tuple[bytes, ...], int] | None:
        """Returns place and identity of the first name of an inode of the backup."""
        first = self._first.get(inode)
        return first[:2] if first else None

    def placed(self, entry: Entry, place: tuple[bytes, ...], copied: int) -> None:
        """Records that a name is in its place now, and the identity of the file there."""
        if entry.links > 1 and entry.kind != "folder":
            self.place(entry.inode, entry.links, place, copied)

    def place(self, inode: int, links: int, place: tuple[bytes, ...], copied: int, names: int = 1) -> bool:
        """Records an inode with several names, `names` of which are placed now; `copied`: the identity of its copy.

        Returns True if `place` is that of the first name.
        """
        first = self._first.get(inode)
        kept, kept_copied, left = first or (place, copied, links)
        if left > names:
            self._first[inode] = (kept, kept_copied, left - names)
        elif first:
            del self._first[inode]
        return first is None

    def set_copy(self, inode: int, copied: int) -> None:
        """Records the identity of a copy that was not written yet."""
        if inode in self._first:
            first, _, left = self._first[inode]
            self._first[inode] = (first, copied, left)

    def forget(self, inode: int) -> None:
        """Forgets a file of which no name is in its place yet."""
        self._first.pop(inode, None)
