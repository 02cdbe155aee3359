"""source_killed.py COUNT PROGRAM ITS-WORDS: btrkeep-source, which kills itself before its COUNTth change.

That is each ioctl, lock, program, and each file that is made, renamed or deleted: before the kernel does it. With 0 it is not
killed, and the last line of its standard error is their number. The program needs no hooks for it: Python announces these calls.
"""

import atexit
import os
import runpy
import signal
import sys
from typing import Any

CHANGES = {"fcntl.ioctl", "fcntl.flock", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen", "os.exec"}


def main() -> None:
    limit, count = int(sys.argv[1]), 0

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        makes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if event in CHANGES or makes:
            count += 1
            if count == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    del sys.argv[:2]
    sys.addaudithook(hear)
    if not limit:
        atexit.register(lambda: sys.stderr.write(f"{count}\n"))
    runpy.run_path(sys.argv[0], run_name="__main__")


main()
