"""Carries out one round of power cuts after the other: each in a process of its own, forked from one that has imported everything.

    python -m bench.cut_worker IMAGE-DIR

An order is a line of JSON on standard input, and the answer to each is a line on standard output: the result of the round, or its
error. All commands of all rounds are forked from one process too (tests/beds/preloaded.py), which saves half of the processor time
of a round.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from bench import cut_scenarios
from bench.common import own_folder
from bench.cut_disks import CutDisks
from bench.cut_machine import KilledRound, LoggedRound
from bench.cut_round import Found, Round
from tests.beds import TOP, backupd, session, work

UNSYNCED = TOP / "bench" / "unsynced.py"
_ROUNDS = {"killed": KilledRound, "logged": LoggedRound}
_CLONE_NEWNS = 0x20000
_BYTECODE = "PYTHONPYCACHEPREFIX"


@dataclass(frozen=True, slots=True)
class Order:
    """`wanted` cuts of a scenario. `files`: the number of files in scenarios with many; `unsynced`: with a backupd without its last
    sync.
    """

    scenario: str
    seed: int
    disks: str
    wanted: int
    files: int = cut_scenarios.MANY
    unsynced: bool = False


class Worker:
    """The process that takes orders, one at a time, until the block ends."""

    def __init__(self, image_dir: Path) -> None:
        words = [sys.executable, "-m", "bench.cut_worker", str(image_dir)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TOP)
        self._busy = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the process, even if it still executes the order of a caller that was interrupted."""
        assert self._process.stdin
        if self._busy:
            self._process.terminate()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def carry_out(self, order: Order) -> dict[str, Any]:
        """Returns the result of the round, in the form of Found. Raises ChildProcessError if it failed."""
        assert self._process.stdin
        assert self._process.stdout
        self._busy = True
        with suppress(BrokenPipeError):  # then there is no answer
            self._process.stdin.write(json.dumps(asdict(order)) + "\n")
            self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise ChildProcessError("the worker is gone")
        self._busy = False
        answer = json.loads(line)
        if "broke" in answer:
            raise ChildProcessError(answer["broke"])
        return dict(answer)


def main() -> None:
    """Executes orders until there are no more."""
    image_dir = Path(sys.argv[1])
    _unshare_mounts()
    with own_folder(argparse.Namespace(image_dir=image_dir)):
        backupd("--version")  # begins the process that the commands of all rounds are forked from
        for line in sys.stdin:
            print(json.dumps(_in_a_fork(Order(**json.loads(line)), image_dir)), flush=True)


def _in_a_fork(order: Order, image_dir: Path) -> dict[str, Any]:
    """Runs the round in a process whose folders, mounts and loop devices end with it."""
    answer = os.memfd_create("answer")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            report = asdict(_round(order, image_dir))
            status = 0
        except BaseException:  # noqa: BLE001 - the caller gets any error
            report = {"broke": traceback.format_exc()[-3000:]}
        os.write(answer, json.dumps(report).encode())
        os._exit(status)
    try:
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:  # a signal to us: the round takes its mounts away
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    with os.fdopen(answer, "rb") as file:
        file.seek(0)
        return dict(json.loads(file.read() or json.dumps({"broke": f"ended with {ended}"})))


def _round(order: Order, image_dir: Path) -> Found:
    bytecode = os.environ.get(_BYTECODE)
    with own_folder(argparse.Namespace(image_dir=image_dir)):
        if bytecode:  # that of all rounds together
            os.environ[_BYTECODE] = bytecode
        cut_scenarios.MANY = order.files
        files = order.files if order.scenario in cut_scenarios.OF_MANY_FILES else 0
        disks, program = CutDisks(order.disks, order.seed, files), UNSYNCED if order.unsynced else None
        kind = _ROUNDS.get(order.disks, Round)
        return kind(disks, order.scenario, order.seed, order.wanted, program).run()


def _unshare_mounts() -> None:
    """From now on, new mount namespaces of other processes contain no copies of this session's mounts, which would keep them
    mounted; and this process keeps no mounts of other sessions.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    work("mount", "--make-rprivate", "/")
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([point for point in points if session.PREFIX in point]):
        work("umount", "--lazy", point, check=False)


if __name__ == "__main__":
    main()
