"""Types the commands that our programs print, like an administrator who pastes them: with bash, in another folder."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.beds import session
from tests.beds.cli import TOP, backupd
from tests.beds.nights import Nights
from tests.beds.printed import OURS
from tests.beds.work import explain

PACKAGES = {"backupd": "backupd", "btrfs-balancer": "balancer", "btrfs-heatmap": "heatmap", "btrkeep-web": "web"}
Done = subprocess.CompletedProcess[str]
T = TypeVar("T", bound=Callable[..., Any])
_CONFIG = r"(?: --(?:config|pool|state|data|users|socket|login) (?:'[^']*'|\S+))*"


def types(*commands: str) -> Callable[[T], T]:
    """Returns the printed commands, from tests.beds.printed, that a test types; `typist` fails if it does not."""

    def named(test: T) -> T:
        test.types = commands  # type: ignore[attr-defined]
        return test

    return named


def pattern(command: str) -> str:
    """Returns a regular expression for a printed command with its parts filled in, and with the call for a pool."""
    head, _, rest = command.replace("{}", "backupd", 1).partition(" ") if command.startswith("{} ") else command.partition(" ")
    program = re.escape(head) + (_CONFIG if head in OURS else "")
    words = re.escape(rest).replace(r"\{\}", r"(?:'[^']*'|[^\s'`;,]+)")
    words = re.sub(r"\b(?:HOST|NAME|BACKUP|PATH|MOUNTPOINT)\b", lambda _: r"(?:'[^']*'|[^\s`]+)", words)
    return program + (f" {words}" if rest else "")


class Typist:
    """Finds a command in printed text, types it, and remembers that it did."""

    def __init__(self) -> None:
        self.typed: list[str] = []
        self._folder = session.folder() / "programs"
        self._folder.mkdir(exist_ok=True)
        for program, package in PACKAGES.items():
            file = self._folder / program
            file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {package} "$@"\n')
            file.chmod(0o755)

    def find(self, done: Done, command: str) -> str:
        """Returns the command as it was printed; it has to be printed once, or always in the same form."""
        text = " ".join((done.stdout + "\n" + done.stderr).split())
        fromkeys = dict.fromkeys(re.findall(pattern(command) + r"(?=$|[\s`;,.:)])", text))
        assert len(fromkeys) == 1, f"{command} is printed {len(fromkeys)} times\n{explain(done)}"
        return next(iter(fromkeys))

    def type(self, line: str, status: int | None = 0, given: str = "", more: str = "") -> Done:
        """Types it; `more`: arguments that the text before the command requires, such as --yes without a terminal."""
        self.typed.append(line)
        env = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1", "PATH": f"{self._folder}:{os.environ['PATH']}"}
        argv = ["bash", "-c", f"{line} {more}".strip()]
        done = subprocess.run(argv, cwd="/", env=env, input=given, capture_output=True, text=True, timeout=200)
        assert "Traceback" not in done.stderr, explain(done)
        assert status in (None, done.returncode), explain(done)
        return done

    def follow(self, done: Done, command: str, status: int | None = 0, more: str = "") -> Done:
        """Finds the command in the output, and types it."""
        return self.type(self.find(done, command), status, more=more)

    def has_typed(self, command: str) -> bool:
        return any(re.match(pattern(command) + r"(?=$|\s)", line) for line in self.typed)


@contextlib.contextmanager
def typing(test: Callable[..., Any]) -> Iterator[Typist]:
    """A typist for a test that has `types`."""
    typist = Typist()
    yield typist
    missing = [command for command in test.types if not typist.has_typed(command)]  # type: ignore[attr-defined]
    assert missing == [], f"the test does not type {missing}, but {typist.typed}"


def refused(nights: Nights, *words: str | Path) -> Done:
    """Returns the output of a command that refuses its request."""
    done = backupd("--config", nights.config, *words, check=False, as_printed=True)
    assert done.returncode != 0, explain(done)
    assert "Traceback" not in done.stderr, explain(done)
    return done


def prints(nights: Nights, *words: str | Path) -> Done:
    """Returns the output of a command, with any exit status."""
    done = backupd("--config", nights.config, *words, check=False, as_printed=True)
    assert "Traceback" not in done.stderr, explain(done)
    return done
