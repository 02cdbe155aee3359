"""A user without rights: a state folder whose group it is in, and a process of it that holds each lock it can get there."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.beds import TOP, session
from tests.beds.anyone import readable

STRANGER = 61234
HOLDER = Path("tests/beds/lock_holder.py")


@contextmanager
def entered_state(prefix: str) -> Iterator[Path]:
    """Yields a state folder that the stranger's group may enter, as the dashboard's may."""
    top = Path(tempfile.mkdtemp(prefix=prefix, dir=session.folder()))
    top.chmod(0o755)
    folder = top / "state"
    folder.mkdir(mode=0o750)
    if os.geteuid() == 0:
        os.chown(folder, 0, STRANGER)
    yield folder
    shutil.rmtree(top)


@contextmanager
def holding(state: Path, user: int) -> Iterator[subprocess.Popen[str]]:
    """Yields the process as soon as it holds a lock. As root (0) it has the files open since before their modes were restricted."""
    code = readable()
    words = code.run_as(user, code.top / HOLDER, state) if user else (sys.executable, TOP / HOLDER, state)
    process = subprocess.Popen(words, env={**os.environ, **code.environment}, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        while (line := process.stdout.readline()) != "begins\n":
            assert line, "it ended"
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def writing_once_gone(state: Path, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yields a process that starts to write in the catalogue when `path` is deleted, and then blocks all other writers."""
    words = (sys.executable, TOP / "tests/beds/late_writer.py", state / "catalogue.sqlite", path)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
