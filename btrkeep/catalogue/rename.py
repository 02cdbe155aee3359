"""A host gets another name: its backups, their details, its runs and its progress, all at once.

A row of a backup is copied under the new name before the details move over and the old row goes, since each detail refers to its
backup by host and name all the time. The old host's own row stays: programs that run now may rely on it, and it stands for nothing.
"""

from dataclasses import replace
from pathlib import PurePosixPath

from btrkeep.catalogue import hosts
from btrkeep.catalogue.model import Backup
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import backup
from btrkeep.errors import OperatorError

_BACKUPS = f"SELECT {backup.select()} FROM backup WHERE host = :old"
_MOVES = tuple(f"UPDATE {table} SET host = :new WHERE host = :old" for table in ("backup_detail", "run", "progress"))
_DROP = "DELETE FROM backup WHERE host = :old"
_KNOWN = "SELECT 1 FROM run WHERE host = :new UNION ALL SELECT 1 FROM backup WHERE host = :new LIMIT 1"


def rename(session: Session, old: str, new: str) -> int:
    """How many backups were moved. Raises OperatorError when there are backups or runs under the new name already."""
    names = {"old": old, "new": new}
    if session.first(_KNOWN, names):
        raise OperatorError(f"the catalogue has backups or runs of {new} already", "choose a name that no host ever had")
    hosts.know(session, new)
    moved = [_moved(Backup(*row), new) for row in session.all(_BACKUPS, names)]
    session.run_many(backup.insert(), [backup.values(one) for one in moved])
    for statement in (*_MOVES, _DROP):
        session.run(statement, names)
    return len(moved)


def _moved(one: Backup, new: str) -> Backup:
    """The same backup under the new name, the folder in its path too."""
    path = PurePosixPath(one.path)
    if path.parent.name == one.host:
        path = path.parent.with_name(new) / path.name
    return replace(one, host=new, path=str(path))
