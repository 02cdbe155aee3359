"""Our own command as a process of its own, from the checkout that the tests are in."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.beds.work import work

TOP = Path(__file__).resolve().parents[2]
BACKUPD = (sys.executable, "-m", "backupd")


def backupd(
    *words: str | Path,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    timeout: float = 100,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `backupd WORDS` to its end; `check` expects exit status 0."""
    return work(*BACKUPD, *words, check=check, env=_environment(env), timeout=timeout, cwd=cwd)


def backupd_start(
    *words: str | Path, env: Mapping[str, str] | None = None, stderr: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Starts `backupd WORDS` in a session of its own and leaves it running: both texts are pipes.

    The fixture `backupd_running` does the same and ends what a test leaves.
    """
    return subprocess.Popen(
        [*BACKUPD, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **_environment(env)},
        start_new_session=True,
    )


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {"PYTHONPATH": str(TOP), "NO_COLOR": "1", **(env or {})}
