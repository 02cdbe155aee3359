"""A folder that a program serves (`rclone mount`, as sshfs would), and that stops answering when the program is stopped.

python served_folder.py PID NUMBER WORDS...   runs `backupd WORDS`; before its query NUMBER of a catalogue the server PID stops
"""

import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.beds.cli import TOP
from tests.beds.watch import wait_for
from tests.beds.work import work


def why_not() -> str:
    """Returns why this machine cannot do that, or ""."""
    if not (shutil.which("rclone") and shutil.which("fusermount3")):
        return "rclone, fuse3: not installed"
    return "" if Path("/dev/fuse").exists() else "no FUSE"


@contextmanager
def served(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Serves the content of the folder at its place during the block. Yields the server: SIGSTOP makes it silent."""
    behind = folder.with_name(f"{folder.name}-behind")
    folder.rename(behind)
    folder.mkdir()
    options = ("--vfs-cache-mode", "full", "--cache-dir", folder.with_name("cache"), "--attr-timeout", "0", "--config", os.devnull)
    words = ("rclone", "mount", *options, "--vfs-write-back", "0", behind, folder)
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: os.path.ismount(folder))
        yield server
    finally:
        server.send_signal(signal.SIGCONT)
        work("umount", "--lazy", folder)
        server.wait()
        folder.rmdir()
        behind.rename(folder)


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Makes the server silent. The signal reaches its threads one after the other, and the last one could still answer."""
    server.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{server.pid}/task")
    wait_for(lambda: {path.read_text().rpartition(")")[2].split()[0] for path in tasks.glob("*/stat")} == {"T"})


def _stop_before(query: int, server: int) -> None:
    from btrkeep.catalogue.sqlite import Session

    count = 0

    def counting(method: Any) -> Any:
        def call(*values: Any) -> Any:
            nonlocal count
            count += 1
            if count == query:
                os.kill(server, signal.SIGSTOP)
            return method(*values)

        return call

    for name in ("_parts", "run"):
        setattr(Session, name, counting(getattr(Session, name)))


if __name__ == "__main__":
    pid, number = int(sys.argv[1]), int(sys.argv[2])
    del sys.argv[1:3]
    _stop_before(number, pid)
    runpy.run_path(str(TOP / "tests" / "beds" / "impatient.py"), run_name="__main__")
