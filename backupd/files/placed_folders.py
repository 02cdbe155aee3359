"""The folders of the destination that a walk through a backup is in, from the top down."""

from collections.abc import Sequence
from dataclasses import dataclass

from backupd.files.conflict_policy import ENTERED, NEW
from backupd.files.destination import Destination
from backupd.files.placing import Names, Visit


@dataclass(slots=True)
class PlacedFolder:
    """A folder with its step. `is_fresh`: nothing was in it. `waiting`: groups that are still copied into it."""

    place: Names
    step: str
    is_fresh: bool
    waiting: int = 0


def placed_folder(visit: Visit, step: str, to: Destination) -> PlacedFolder:
    """Returns the folder that gets this step. Raises OSError."""
    place = visit.place
    return PlacedFolder(place, step, step == NEW or (step == ENTERED and not to.outside(place) and to.is_empty(place)))


def is_in_fresh(visit: Visit, folders: Sequence[PlacedFolder]) -> bool:
    """Returns True if a name goes into the last of these folders, and nothing was in that. A requested path may go elsewhere."""
    return bool(folders) and folders[-1].is_fresh and folders[-1].place == visit.place[:-1]
