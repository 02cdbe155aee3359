"""The words of an expiry."""

from collections.abc import Mapping, Sequence

from backupd.expire.report import Deleted
from btrkeep.process.proc import Standing
from btrkeep.units import counted


def names_in_words(names: Sequence[str], most: int = 5) -> str:
    """ "a, b and 17 more"."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def held_words(deleted: Mapping[int, Deleted], held: Mapping[int, Standing | None]) -> str:
    """Which deleted backups the cleaner cannot take, and who has a file open or stands in them."""
    told = []
    for id_, who in sorted(held.items()):
        by = f"process {who.pid} ({who.name})" if who else "nobody who is seen (a mount?)"
        told.append(f"{deleted[id_].host} {deleted[id_].name} by {by}")
    count, inside = counted(len(held), "deleted backup"), "it" if len(held) == 1 else "them"
    return f"{count} cannot be dropped as long as something in {inside} is open: {names_in_words(told)}"


def stuck_words(waiting: int) -> str:
    """Why nothing more is deleted when nothing leaves the queue."""
    return (
        f"nothing more is deleted: {counted(waiting, 'deleted subvolume')} fill the queue (max_orphans) and nothing moves; "
        "somebody has files open in them, or stands in them"
    )
