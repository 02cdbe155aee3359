"""Runs btrkeep's commands many hundred times, each as a process of its own, forked from one that has already imported its package.

A command's start-up is mostly imports; so a year of nights takes minutes, and each command still runs, holds locks, handles
signals and ends as a process of its own. The forked process has only imported modules.

Run as a program, with the package's name, it reads commands from standard input, one a line as JSON: [words, environment, folder,
the action of kill_at.py and its checkpoint, if any]; and answers each with one line: [exit status, standard output, standard
error].
"""

import gc
import json
import os
import pkgutil
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from typing import IO

from tests.beds.kill_at import Deed, listener
from tests.beds.patience import PAUSES, shorten
from tests.beds.work import explain

TOP = Path(__file__).resolve().parents[2]
_PROGRAM = "from tests.beds.preloaded import main; main()"


class Preloaded:
    """`backupd(WORDS)` like tests.beds.cli, without the start-up; or another of our programs."""

    def __init__(self, server: "Popen[str]", package: str) -> None:
        self._server = server
        self._package = package

    def __call__(self, *words: str | Path, status: int | None = 0) -> "CompletedProcess[str]":
        """Runs it to its end, and expects that exit status; None: any."""
        done = self.run([str(word) for word in words], {**os.environ, **_ENVIRONMENT}, Path.cwd(), 1000)
        assert status in (None, done.returncode), explain(done)
        assert "Traceback" not in done.stderr, explain(done)
        return done

    def run(
        self, words: list[str], env: Mapping[str, str], cwd: Path, timeout: float, at: Deed | None = None
    ) -> "CompletedProcess[str]":
        """Like subprocess.run. If the answer cannot be read completely, the process from which commands are forked is ended."""
        server = self._server
        assert server.stdin
        assert server.stdout
        try:
            server.stdin.write(json.dumps([words, dict(env), str(cwd), at]) + "\n")
            server.stdin.flush()
            if not select.select([server.stdout], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([self._package, *words], timeout)
            return CompletedProcess([self._package, *words], *json.loads(server.stdout.readline()))
        except BaseException:
            server.kill()
            raise

    @property
    def is_alive(self) -> bool:
        """Returns True if it can fork."""
        return self._server.poll() is None

    def close(self) -> None:
        """Ends the process."""
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


_ENVIRONMENT = {"PYTHONPATH": str(TOP), "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


def start(package: str = "backupd") -> Preloaded:
    """Starts the process from which commands are forked; it ends when it is closed, or with this process."""
    env = {**os.environ, **_ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"}  # only one thread can be forked
    words = [sys.executable, "-P", "-c", _PROGRAM, package]
    return Preloaded(Popen(words, stdin=PIPE, stdout=PIPE, text=True, env=env), package)


@contextmanager
def preloaded() -> Iterator[Preloaded]:
    """Yields such a process for the block."""
    server = start()
    try:
        yield server
    finally:
        server.close()


def _import_everything(of: str) -> None:
    for package in (of, "btrkeep"):
        path = import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    gc.freeze()  # so that garbage collection does not copy pages in children


def _serve(package: str, commands: IO[str], answers: IO[str]) -> None:
    for line in commands:
        texts = [os.memfd_create("stdout"), os.memfd_create("stderr")]
        pid = os.fork()
        if pid == 0:
            words, env, cwd, at = json.loads(line)
            _become(package, words, env, cwd, texts, at)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([status, *map(_read, texts)]), file=answers, flush=True)


def _become(package: str, words: list[str], env: dict[str, str], cwd: str, texts: list[int], at: Deed | None) -> None:
    """Runs the program and never returns: our commands have already done the other work of a program's end (flushing, waiting for
    threads).
    """
    status = 1
    try:
        main = import_module(f"{package}.cli").main
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, text in enumerate(texts, 1):
            os.dup2(text, number)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        os.chdir(cwd)
        sys.argv = [package, *words]
        if "coverage" in sys.modules and (running := sys.modules["coverage"].Coverage.current()):
            running.switch_context(env.get("TEST_MODULE", ""))  # without recording.py the data has no contexts
        if at:
            sys.addaudithook(listener(*at))
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        raise  # not further than the next line
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _read(text: int) -> str:
    with open(text, encoding="utf-8", errors="surrogateescape") as file:
        file.seek(0)
        return file.read()


def main() -> None:
    """Runs in the process from which commands are forked."""
    package = sys.argv[1]
    _import_everything(package)
    shorten(PAUSES, package)
    # Output of other code must not mix with the answers.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _serve(package, sys.stdin, replies)
