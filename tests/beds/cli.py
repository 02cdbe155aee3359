"""Our own command as a process of its own, from the checkout that the tests are in.

A command that is run to its end in the tests' own environment is forked from a process that has imported everything already, which
saves a third of a second of processor time each (preloaded.py). What is started to be signalled, or given another environment, is
started as an operator starts it.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.beds import preloaded
from tests.beds.work import explain, work

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
    if env is not None:
        return work(*BACKUPD, *words, check=check, env=_environment(env), timeout=timeout, cwd=cwd)
    everything = {**os.environ, "LC_ALL": "C.UTF-8", **_environment(None)}
    done = _forking().run([str(word) for word in words], everything, cwd or Path.cwd(), timeout)
    if check:
        assert done.returncode == 0, explain(done)
    return done


_from: list[preloaded.Preloaded] = []


def _forking() -> preloaded.Preloaded:
    if _from and not _from[0].is_alive:
        _from.clear()
    if not _from:
        _from.append(preloaded.start())
    return _from[0]


def close() -> None:
    """Nothing is left running to fork from; the next command begins it anew."""
    while _from:
        _from.pop().close()


def backupd_start(
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    stdout: IO[str] | int = subprocess.PIPE,
    stderr: IO[str] | int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Starts `backupd WORDS` in a session of its own and leaves it running: both texts are pipes unless given.

    The fixture `backupd_running` does the same and ends what a test leaves.
    """
    return subprocess.Popen(
        [*BACKUPD, *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        env={**os.environ, **_environment(env)},
        start_new_session=True,
    )


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {"PYTHONPATH": str(TOP), "NO_COLOR": "1", **(env or {})}
