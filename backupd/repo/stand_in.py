"""A catalogue in memory, which takes the place of one that cannot be written."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backupd.repo.remove_tree import remove_tree
from btrkeep.catalogue import Catalogue
from btrkeep.process.proc import start_time

_MEMORY = Path("/dev/shm")  # noqa: S108  each makes a folder of its own there, for root alone
_STAND_IN = "btrkeep-catalogue-"  # then the pid and start time of whoever has it, and what makes it unique


@contextmanager
def stand_in(pool_id: str) -> Iterator[Catalogue]:
    """Yields an empty catalogue in memory."""
    name = f"{_STAND_IN}{os.getpid()}-{start_time(os.getpid())}-"
    with tempfile.TemporaryDirectory(prefix=name, dir=_memory()) as folder, Catalogue.open(Path(folder), copies=False) as catalogue:
        catalogue.set_pool_id(pool_id)
        yield catalogue


def _memory() -> Path:
    return _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())


def clear_dead() -> None:
    """Removes what killed runs left in memory. Anybody may put something with such a name there: it is left alone."""
    for folder in _memory().glob(f"{_STAND_IN}*"):
        pid, _, rest = folder.name.removeprefix(_STAND_IN).partition("-")
        with suppress(OSError):
            it = folder.lstat()
            is_ours = it.st_uid == os.geteuid() and stat.S_ISDIR(it.st_mode)
            if is_ours and pid.isdecimal() and start_time(int(pid)) != rest.partition("-")[0]:
                remove_tree(folder)
