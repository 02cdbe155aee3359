"""Bash, with the completion that one of our programs prints."""

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.beds.cli import TOP


def completing_bash(folder: Path, program: str, argv: Sequence[str], script: str) -> Callable[[str], set[str]]:
    """Returns bash's completions of the last word of a line. `argv` runs the program, which is found by its name in the folder."""
    (folder / program).write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
    (folder / program).chmod(0o755)
    (folder / "script").write_text(script)

    def complete(line: str) -> set[str]:
        words = line.split(" ")
        array = " ".join(f"'{word}'" for word in words)
        text = f"source script; COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; "
        done = subprocess.run(
            ["bash", "--norc", "-c", text + f"_{program.replace('-', '_')}_completion {program}; echo ${{COMPREPLY[@]}}"],
            cwd=folder,
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(TOP)},
            capture_output=True,
            text=True,
            check=True,
        )
        return set(done.stdout.split())

    return complete
