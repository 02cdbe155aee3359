"""A host gets another name: its backups, their details, its runs and its progress, all at once.

A row of a backup is copied under the new name before the details move over and the old row goes, since each detail refers to its
backup by host and name all the time. The old host's own row stays: programs that run now may rely on it, and it stands for nothing.
"""

from dataclasses import replace
from pathlib import PurePosixPath

from sqlalchemy import BindParameter, Connection, bindparam, delete, insert, select, update

from btrkeep.catalogue import hosts
from btrkeep.catalogue.backups import row_of
from btrkeep.catalogue.model import Backup
from btrkeep.catalogue.tables import backup, backup_detail, progress, run
from btrkeep.errors import OperatorError

_OLD: BindParameter[str] = bindparam("old")
_NEW: BindParameter[str] = bindparam("new")
_BACKUPS = select(backup).where(backup.c.host == _OLD)
_MOVE_DETAILS, _MOVE_RUNS, _MOVE_PROGRESS = (
    update(table).where(table.c.host == _OLD).values(host=_NEW) for table in (backup_detail, run, progress)
)
_DROP = delete(backup).where(backup.c.host == _OLD)
_RUN = select(run.c.id).where(run.c.host == _NEW).limit(1)
_BACKUP = select(backup.c.name).where(backup.c.host == _NEW).limit(1)


def rename(connection: Connection, old: str, new: str) -> int:
    """How many backups were moved. Raises OperatorError when there are backups or runs under the new name already."""
    names = {"old": old, "new": new}
    if any(connection.execute(query, {"new": new}).first() for query in (_RUN, _BACKUP)):
        raise OperatorError(f"the catalogue has backups or runs of {new} already", "choose a name that no host ever had")
    hosts.know(connection, new)
    moved = [_moved(Backup(*row), new) for row in connection.execute(_BACKUPS, {"old": old})]
    if moved:
        connection.execute(insert(backup), [row_of(one) for one in moved])
    for statement in (_MOVE_DETAILS, _MOVE_RUNS, _MOVE_PROGRESS):
        connection.execute(statement, names)
    connection.execute(_DROP, {"old": old})
    return len(moved)


def _moved(one: Backup, new: str) -> Backup:
    """The same backup under the new name, the folder in its path too."""
    path = PurePosixPath(one.path)
    if path.parent.name == one.host:
        path = path.parent.with_name(new) / path.name
    return replace(one, host=new, path=str(path))
