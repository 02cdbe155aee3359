"""Our command many hundred times: each a process of its own, forked from one that has imported everything already.

A command's start-up is mostly imports; so a year of nights takes minutes, and each command still runs, holds locks, handles
signals and ends as a process of its own. What is forked has done nothing but import.

Run as a program it reads commands from standard input, one JSON list of words a line, and answers each with one line:
[exit status, standard output, standard error].
"""

import gc
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from typing import IO

from tests.beds.cli import TOP
from tests.beds.work import explain

_MODULE = "tests.beds.preloaded"


class Preloaded:
    """`backupd(WORDS)` as tests.beds.cli has it, without the start-up."""

    def __init__(self, server: "Popen[str]") -> None:
        self._server = server

    def __call__(self, *words: str | Path, status: int | None = 0) -> "CompletedProcess[str]":
        """Runs it to its end, and expects that exit status; None: any."""
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self._server.stdin.flush()
        done = CompletedProcess(["backupd", *words], *json.loads(self._server.stdout.readline()))
        assert status in (None, done.returncode), explain(done)
        assert "Traceback" not in done.stderr, explain(done)
        return done


@contextmanager
def preloaded() -> Iterator[Preloaded]:
    """The process that everything is forked from; it ends with the block, or with us."""
    env = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    with Popen([sys.executable, "-P", "-m", _MODULE], stdin=PIPE, stdout=PIPE, text=True, env=env) as server:
        try:
            yield Preloaded(server)
        finally:
            assert server.stdin
            server.stdin.close()


def _import_everything() -> None:
    for package in ("backupd", "btrkeep"):
        path = import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith("__main__") and ".migrations" not in module.name:
                import_module(module.name)
    import_module("sqlalchemy.dialects.sqlite")
    gc.freeze()  # so that no child copies pages only to look for garbage in them


def _serve(commands: IO[str], answers: IO[str]) -> None:
    for line in commands:
        texts = [os.memfd_create("stdout"), os.memfd_create("stderr")]
        pid = os.fork()
        if pid == 0:
            _become_backupd(json.loads(line), texts)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([status, *map(_read, texts)]), file=answers, flush=True)


def _become_backupd(words: list[str], texts: list[int]) -> None:
    """Never returns: what a program's end does beyond that (flushing, waiting for threads) our commands have done by then."""
    status = 1
    try:
        from backupd.cli import main

        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, text in enumerate(texts, 1):
            os.dup2(text, number)
        sys.argv = ["backupd", *words]
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
    with open(text, encoding="utf-8", errors="replace") as file:
        file.seek(0)
        return file.read()


if __name__ == "__main__":
    _import_everything()
    # Nobody else's output may come among the answers.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _serve(sys.stdin, replies)
