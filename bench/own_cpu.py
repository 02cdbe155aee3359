"""Runs backupd's command line in this process and writes down the CPU time that it used itself.

    python -m bench.own_cpu FILE WORDS...

FILE gets user and system seconds of this process from its very start: the interpreter and all imports, without its children
(getrusage(2), RUSAGE_SELF).
"""

import atexit
import resource
import sys
from pathlib import Path

from backupd.cli import main


def _note(file: Path) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    file.write_text(f"{used.ru_utime} {used.ru_stime}\n", encoding="ascii")


if __name__ == "__main__":
    atexit.register(_note, Path(sys.argv[1]))
    sys.argv = ["backupd", *sys.argv[2:]]
    main()
