"""Runs btrkeep's commands in the tests' process, in a tenth of the time that a process of its own takes to start.

Not for tests of signals, open descriptors, other processes, or the time that a command takes.
"""

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from backupd.cli import group
from btrkeep.cli import run_command_line
from tests.beds.nights import Nights


class Within(Nights):
    """Nights whose commands run within this process, except `run`, which starts processes and reaps all that are left."""

    def backupd(
        self, *words: str | Path, check: bool = True, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        if env or words[0] == "run":
            return super().backupd(*words, check=check, env=env)
        return within("--config", self.config, *words, check=check)


def within(*words: str | Path, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Runs `backupd WORDS` and gives its exit status and both texts, as tests.beds.cli.backupd does."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape", write_through=True) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        patch.setattr(sys, "argv", ["backupd", *map(str, words)])
        patch.setenv("NO_COLOR", "1")
        status = run_command_line(group, "backupd")
    out, err = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in streams)
    assert not check or status == 0, f"backupd {words}\nexit status {status}\n{out}{err}"
    return subprocess.CompletedProcess(words, status, out, err)


def restore(nights: Nights, *words: str | Path, status: int = 0) -> dict[str, Any]:
    """The output of `backupd restore --json`, or {"stderr": ...}, after checking the exit status."""
    done = nights.backupd("restore", "--json", *words, check=False)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return dict(json.loads(done.stdout)) if done.stdout else {"stderr": done.stderr}
