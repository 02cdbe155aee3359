"""Counts what a restore into a folder of this machine would do, name by name and group by group."""

from contextlib import suppress

from backupd.files.conflict_policy import ENTERED, NEW, OVERWRITTEN, SAME, RestoreStep
from backupd.files.place_comparer import PlaceComparer
from backupd.files.placed_folders import PlacedFolder, is_in_fresh, placed_folder
from backupd.files.placing import Names, PlainVisits, Visit
from backupd.files.restore_types import RestorePreview
from backupd.files.tree import Entry
from backupd.files.writing import unfinished_size

_NEW = RestoreStep(NEW)


class PreviewCounter:
    """Counts in `preview`, and the bytes that are needed on disk. `unfinished`: bytes that a killed restore has left there."""

    def __init__(self, preview: RestorePreview, comparer: PlaceComparer) -> None:
        self._preview = preview
        self._comparer = comparer
        self._links = comparer.links
        self._folders: list[PlacedFolder] = []
        self._needed = self._largest = self.unfinished = 0

    @property
    def needed(self) -> int:
        """Bytes that are needed at the most while it goes on."""
        return max(0, self._needed + self._largest)

    @property
    def is_in_fresh(self) -> bool:
        """Returns True if nothing is in the folder where the walk is."""
        return self._folders[-1].is_fresh

    def add_group(self, plain: PlainVisits) -> None:
        """Counts a group of files in whose places nothing is."""
        self._preview.count_new(plain)
        for file in plain.group.files:
            if file.links > 1:
                if self._links.first_of(file.inode) is None:
                    self._needed += file.allocated
                self._links.place(file.inode, file.links, (*plain.place, file.name), 0)
            else:
                self._needed += file.allocated

    def leave(self) -> None:
        """The walk has left a folder."""
        self._folders.pop()

    def add(self, visit: Visit) -> None:
        """Counts a name; the walk is in it if it is a folder. Raises OSError."""
        entry, to = visit.entry, self._comparer.to
        step, there = (_NEW, None) if is_in_fresh(visit, self._folders) else self._comparer.step(visit)
        self._preview.count(entry)
        size = entry.size if entry.kind == "file" else 0
        self._preview.counts[step.what].add_at(self._preview.to, visit.place, step.why, size)
        self._place(visit, step, there, size)
        if step.what == ENTERED:
            self.add_unfinished(visit.place)
        if entry.kind == "folder":
            self._folders.append(placed_folder(visit, step.what, to))

    def add_unfinished(self, place: Names) -> None:
        """Counts what the restore deletes in a folder that is there."""
        with suppress(OSError):  # whoever restores into it meets the same, and names it
            self.unfinished += unfinished_size(self._comparer.to.folder(place))

    def _place(self, visit: Visit, step: RestoreStep, there: Entry | None, size: int) -> None:
        first = self._links.first(visit.entry)
        if step.what in (NEW, OVERWRITTEN):
            self._links.placed(visit.entry, visit.place, 0)
            if not first and size:
                replaced = there.allocated if there and there.links == 1 else 0
                self._needed, self._largest = self._needed + visit.entry.allocated - replaced, max(self._largest, replaced)
        elif step.what == SAME and there:
            self._links.placed(visit.entry, visit.place, there.identity)
