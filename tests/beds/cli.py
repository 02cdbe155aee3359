"""btrkeep's commands as separate processes, from the checkout that contains the tests.

A command that is run to its end is forked from a process that has imported everything already, which saves a third of a second of
processor time each (preloaded.py). A command that gets signals, or variables that Python itself reads, is started as an
operator starts it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.beds import preloaded
from tests.beds.kill_at import Deed
from tests.beds.work import explain, work

TOP = Path(__file__).resolve().parents[2]
BACKUPD = (sys.executable, "-m", "backupd")


def backupd(
    *words: str | Path,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    timeout: float = 280,
    cwd: Path | None = None,
    as_printed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs `backupd WORDS` to its end; `check` expects exit status 0. `as_printed`: see `command`."""
    return command("backupd", *words, check=check, env=env, timeout=timeout, cwd=cwd, as_printed=as_printed)


def command(
    package: str,
    *words: str | Path,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    timeout: float = 280,
    cwd: Path | None = None,
    at: Deed | None = None,
    as_printed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m PACKAGE WORDS`, one of our programs, to its end. `at`: the action of kill_at.py at a checkpoint.

    Commands in backquotes that it prints are given without `--config FILE`, unless `as_printed`: most tests are about the rest of
    them; tests/test_remedies.py types them as they are printed.
    """
    own = _environment(env)
    if not at and any(name.startswith(_PYTHON_READS) for name in env or ()):
        return work(sys.executable, "-m", package, *words, check=check, env=own, timeout=timeout, cwd=cwd)
    everything = {**os.environ, "LC_ALL": "C.UTF-8", **own}
    done = _forking(package).run([str(word) for word in words], everything, cwd or Path.cwd(), timeout, at)
    if not as_printed:
        done.stdout, done.stderr = _CONFIGURATION.sub("`backupd ", done.stdout), _CONFIGURATION.sub("`backupd ", done.stderr)
    if check:
        assert done.returncode == 0, explain(done)
    return done


_CONFIGURATION = re.compile(r"`backupd --config (?:'[^'`]*'|[^' `]+) ")
_PYTHON_READS = ("PYTHON", "LC_", "LANG", "LD_")  # when it starts
_from: dict[str, preloaded.Preloaded] = {}


def _forking(package: str) -> preloaded.Preloaded:
    if package not in _from or not _from[package].is_alive:
        _from[package] = preloaded.start(package)
    return _from[package]


def close() -> None:
    """Ends the process from which commands are forked; the next command starts it again."""
    while _from:
        _from.popitem()[1].close()


def backupd_start(
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    stdout: IO[str] | int = subprocess.PIPE,
    stderr: IO[str] | int = subprocess.PIPE,
    program: Sequence[str | Path] = BACKUPD,
) -> subprocess.Popen[str]:
    """Starts `backupd WORDS` in a separate session and does not wait for it: both outputs are pipes unless given.

    The fixture `backupd_running` does the same and ends the remaining processes of a test.
    """
    return subprocess.Popen(
        [*program, *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        env={**os.environ, **_environment(env)},
        start_new_session=True,
    )


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {"PYTHONPATH": str(TOP), "NO_COLOR": "1", **(env or {})}
