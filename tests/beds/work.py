"""Running programs in tests: arguments, output, and both in full after a failure."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path


def work(
    *argv: str | bytes | Path,
    check: bool = True,
    input: str | None = None,  # noqa: A002 - subprocess's own word
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 280,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end and returns its status and outputs; fails the test, showing both outputs, if the status is not 0.

    `env` is added to the environment of this process. Messages come in English, and bytes that are not UTF-8 survive as surrogates.
    """
    done = subprocess.run(
        argv,
        check=False,
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
        cwd=cwd,
        timeout=timeout,
        encoding="utf-8",
        errors="surrogateescape",
    )
    if check:
        assert done.returncode == 0, explain(done)
    return done


def explain(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the command as a line to paste, its exit status, and its output."""
    line = shlex.join(os.fsdecode(word) for word in done.args)
    return f"{line}\nexit status {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"


def error_and_hint(done: subprocess.CompletedProcess[str], status: int) -> tuple[str, str]:
    """Returns both for a command that failed as expected: nothing on standard output, one line each, no traceback."""
    assert (done.returncode, done.stdout) == (status, ""), explain(done)
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return error.removeprefix("error: "), hint.removeprefix("hint: ")
