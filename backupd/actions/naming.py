"""Which backup of a host a command that changes it means. Pure.

NAME is `latest`, a full name or the time in it, or a day, as for the commands that read backups. A command that may lead to a
deletion takes a day only when it has one backup, and one that deletes takes none. Other beginnings of names may be a mistake, and
name nothing here.
"""

import re
from collections.abc import Callable, Container, Sequence
from datetime import UTC, tzinfo
from enum import Enum

from backupd.repo.final_backups import LATEST, is_meant, name_meant
from btrkeep.errors import StateConflict, UsageError, did_you_mean

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SHOWN = 10


class DayMeaning(Enum):
    """What a day means: its newest backup that fits, its only one, or nothing."""

    NEWEST = 1
    ONLY = 2
    NONE = 3


def resolve_name(
    host: str,
    name: str,
    names: Sequence[str],
    fits: Callable[[str], bool],
    kind: str,
    *,
    day: DayMeaning,
    others: Sequence[str] = (),
    zone: tzinfo = UTC,
) -> str:
    """Returns the full name. `names`: of the host's backups, the newest first. `fits`: True for one that the command can change,
    which `kind` describes: `latest` is the newest of those. `others`: names that the command knows and must leave alone. `zone`: of
    days.

    Raises UsageError, which lists the names of a day that is refused.
    """
    if name == LATEST:
        newest = next((name for name in names if fits(name)), None)
        if newest is None:
            raise UsageError(f"{host} has no {kind} backup", f"`backupd list {host}` shows what there is")
        return newest
    name = name_meant(name)
    if name in names or name in others:
        return name
    matching = [candidate for candidate in (*names, *others) if _DAY.fullmatch(name) and is_meant(candidate, name, zone)]
    listed = ", ".join(matching[:_SHOWN]) + (f" and {len(matching) - _SHOWN} more" if len(matching) > _SHOWN else "")
    if matching and day is DayMeaning.NONE:
        raise UsageError(f"{host} has no backup {name}", f"name one of that day in full: {listed}")
    if len(matching) > 1 and day is DayMeaning.ONLY:
        raise UsageError(f"{host} has {len(matching)} backups of {name}: {listed}", "name one of them in full")
    if not matching:
        raise no_backup(host, name, names)
    return next((one for one in matching if fits(one)), matching[0])


def require_readable(host: str, name: str, unread: Container[str]) -> None:
    """Raises StateConflict for a backup that the disk cannot read: nothing proves that it is that one."""
    if name in unread:
        raise StateConflict(
            f"{host} {name} cannot be read: read error", f"`backupd damaged {host}` lists the damage; it is kept as it is"
        )


def no_backup(host: str, name: str, known: Sequence[str]) -> UsageError:
    """Returns the error for a name that no backup of the host has."""
    return UsageError(f"{host} has no backup {name}", did_you_mean(name, known, f"`backupd list {host}` shows them"))
