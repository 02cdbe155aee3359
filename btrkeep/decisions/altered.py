"""The words for backups that were changed after they were final. Pure."""

from collections.abc import Sequence

from btrkeep.units import counted, printable

_SHOWN = 3


def altered_words(backups: Sequence[tuple[str, str]]) -> str:
    """Formats how many there are, and names the first: "2 backups were changed after they were final: web1@NAME, web2@NAME"."""
    were = "was changed after it was" if len(backups) == 1 else "were changed after they were"
    names = ", ".join(f"{printable(host)}@{name}" for host, name in backups[:_SHOWN])
    more = f" and {len(backups) - _SHOWN:,} more" if len(backups) > _SHOWN else ""
    return f"{counted(len(backups), 'backup')} {were} final: {names}{more}"


def altered_hint(backups: Sequence[tuple[str, str]], command: str) -> str:
    """Says what to do about the first of them. `command`: how `backupd` is called for this pool."""
    host, name = backups[0]
    place = f"{host}@{name}"
    return (
        f"`{command} verify {place}` names the files; `{command} accept {place}` if the changes are right, "
        f"`{command} delete {place}` if not; a copy of another pool comes again by `replicate NAME --damaged`"
    )
