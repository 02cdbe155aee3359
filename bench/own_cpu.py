"""Runs backupd's command line in this process and writes down the CPU time that it used itself.

    python -m bench.own_cpu FILE WORDS...

FILE gets user and system seconds of this process from its very start: the interpreter and all imports, without its children
(getrusage(2), RUSAGE_SELF); and as a third number how many of them the kernel spent in the three calls that end with a
commit of the filesystem: the snapshot, the sync, and the read-only flag. In the shell's night `btrfs` and `sync` make these.
"""

import atexit
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backupd.cli import main
from backupd.run import finalisation
from backupd.run import work_subvolume as working
from btrkeep.pool.syncfs import Syncfs

_COMMITTING = ((working, "snapshot"), (Syncfs, "sync"), (finalisation, "set_read_only"))
_spent: list[float] = []


def _timed(call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*words: Any) -> Any:
        begun = time.thread_time()
        try:
            return call(*words)
        finally:
            _spent.append(time.thread_time() - begun)

    return timed


def _note(file: Path) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    file.write_text(f"{used.ru_utime} {used.ru_stime} {sum(_spent)}\n", encoding="ascii")


if __name__ == "__main__":
    atexit.register(_note, Path(sys.argv[1]))
    for owner, name in _COMMITTING:
        setattr(owner, name, _timed(getattr(owner, name)))
    sys.argv = ["backupd", *sys.argv[2:]]
    main()
