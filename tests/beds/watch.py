"""Watches a pool and its processes during a fault: with btrfs-progs, SQLite and /proc, without btrkeep's code."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.beds import session
from tests.beds.cli import TOP, command
from tests.beds.kill_at import Deed
from tests.beds.nights import Nights
from tests.beds.work import explain, work

KILL_AT = Path(__file__).resolve().parent / "kill_at.py"
KILLED = -9
# As sitecustomize.py: the kernel's clocks after a suspend: CLOCK_BOOTTIME includes the time asleep, CLOCK_MONOTONIC does not.
ASLEEP = """
import os, time
real = time.clock_gettime
def slept(clock):
    return real(clock) + ({hours} * 3600 if clock == time.CLOCK_BOOTTIME and os.path.exists({flag!r}) else 0)
time.clock_gettime = slept
"""
ENVIRONMENT = {"PYTHONPATH": str(TOP), "NO_COLOR": "1"}


def watched(nights: Nights, action: str, when: str, checkpoint: str, count: int, *words: str) -> list[str | Path]:
    """Returns the command line of `backupd WORDS` with an action at a checkpoint (see kill_at.py)."""
    # -P: the folder of beds must not shadow python-btrfs
    return [sys.executable, "-P", KILL_AT, action, when, checkpoint, str(count), "--config", nights.config, *words]


def killed(nights: Nights, when: str, checkpoint: str, *words: str, count: int = 1) -> None:
    """Runs `backupd WORDS`, which must be killed before or after that checkpoint, or at the `count`th of `any`."""
    done = _done_at(nights, ("die", when, checkpoint, count), *words)
    assert done.returncode == KILLED, f"{when} {checkpoint} was never reached:\n{done.stdout}\n{done.stderr}"


def checkpoints(nights: Nights, *words: str) -> list[str]:
    """Runs `backupd WORDS`; returns the checkpoints that it passed, such as `before subvolume created`."""
    file = nights.top / f"checkpoints-{time.monotonic_ns()}"
    done = _done_at(nights, (f"list:{file}", "any", "any", 0), *words)
    assert done.returncode == 0, explain(done)
    return file.read_text().splitlines()


def does_at(
    nights: Nights, command: str, when: str, checkpoint: str, *words: str, count: int = 1
) -> "subprocess.CompletedProcess[str]":
    """Runs `backupd WORDS`, with that shell line before or after the checkpoint."""
    return _done_at(nights, (f"does:{command}", when, checkpoint, count), *words)


def _done_at(nights: Nights, at: Deed, *words: str) -> "subprocess.CompletedProcess[str]":
    return command("backupd", "--config", nights.config, *words, check=False, at=at)


@contextmanager
def held_at(nights: Nights, when: str, checkpoint: str, *words: str, count: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """Yields `backupd WORDS` as a process that has reached the checkpoint; it continues at the end of the block."""
    flag = session.folder() / f"held-{time.monotonic_ns()}"  # the pool may be frozen, full or read-only
    argv = watched(nights, f"held:{flag}", when, checkpoint, count, *words)
    env = {**os.environ, **ENVIRONMENT}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    wait_for(lambda: flag.exists() or process.poll() is not None)
    assert flag.exists(), process.communicate()
    try:
        yield process
    finally:
        flag.unlink()


def rows(nights: Nights, query: str) -> list[tuple[Any, ...]]:
    """Returns the rows that SQLite finds in the catalogue."""
    with closing(sqlite3.connect(f"file:{nights.state / 'catalogue.sqlite'}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def subvolumes(nights: Nights) -> dict[str, int]:
    """Returns every subvolume below the pool's own, by its path there, and its id; `btrfs subvolume list` gives others longer
    paths.
    """
    lines = work("btrfs", "subvolume", "list", nights.pool).stdout.splitlines()
    by_name = {line.split(" path ", 1)[1]: int(line.split()[1]) for line in lines}
    return {path: number for path, number in by_name.items() if path.startswith(("hosts/", ".btrkeep/"))}


def is_writable(path: Path) -> bool:
    return work("btrfs", "property", "get", "-ts", path, "ro").stdout.strip() == "ro=false"


def writable_finals(nights: Nights) -> list[str]:
    """Returns writable backups with a final name: there must never be one."""
    return [path for path in subvolumes(nights) if path.split("/")[-1][0].isdigit() and is_writable(nights.pool / path)]


def disagreements(nights: Nights) -> list[str]:
    """Returns differences between the catalogue's rows and the pool's subvolumes, by path or id, and rows of running jobs."""
    answer = dict(rows(nights, "select path, subvolume_id from backup"))
    by_name = {path: number for path, number in subvolumes(nights).items() if path.startswith("hosts/")}
    lines = [f"{path}: only in the catalogue" for path in answer.keys() - by_name.keys()]
    lines += [f"{path}: only in the pool" for path in by_name.keys() - answer.keys()]
    lines += [
        f"{path}: id {answer[path]} in the catalogue, {by_name[path]} in the pool"
        for path in answer.keys() & by_name.keys()
        if answer[path] != by_name[path]
    ]
    lines += [f"{path} is said to run" for (path,) in rows(nights, "select path from backup where state = 'running'")]
    lines += [f"run {number} has no end" for (number,) in rows(nights, "select id from run where outcome is null")]
    lines += [f"progress of {host}" for (host,) in rows(nights, "select host from progress")]
    return lines


def processes(*words: str | Path) -> dict[int, list[str]]:
    """Returns living processes whose command line contains all of `words`, without this one: number and words."""
    by_name = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if line and all(str(word) in line for word in words):
            by_name[int(entry.name)] = line.split("\0")[:-1]
    return by_name


def receivers(nights: Nights) -> list[int]:
    """Returns this side's rsync processes that work on the pool: generators and receivers."""
    actual_processes = processes("rsync", nights.pool)
    return [pid for pid, words in actual_processes.items() if Path(words[0]).name == "rsync" and "--server" not in words]


def transferring(nights: Nights) -> list[int]:
    """Returns all processes of a transfer into the pool or from its sources: rsync, remote shells, relays."""
    return [
        pid for pid, words in processes("rsync").items() if any(str(nights.top) in word for word in words) and "-m" not in words
    ]


def wait_for(true: Callable[[], object], seconds: float = 60, why: str = "it did not happen in time", pause: float = 0.02) -> float:
    """Returns how long it took until `true()`; fails after `seconds`."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds, why
        time.sleep(pause)
    return time.monotonic() - start


def ended(process: subprocess.Popen[str], seconds: float = 100) -> tuple[int, str, str]:
    """Waits for a program's end; returns its status and both outputs."""
    stdout, stderr = process.communicate(timeout=seconds)
    assert "Traceback" not in stderr, stderr
    return process.returncode, stdout, stderr


def results(text: str) -> dict[str, dict[str, Any]]:
    """Returns the results of `run --json`, by host."""
    return {result["host"]: result for result in json.loads(text)}


def newest_of(names: Iterable[str]) -> str:
    return max(names)


def hold(nights: Nights, count: int = 700_000) -> Path:
    """Makes transfers stop after `count` bytes from the host, as long as the returned file exists; they create it."""
    flag = nights.top / f"held-{time.monotonic_ns()}"
    nights.in_the_middle(count, f"touch {flag}; while test -e {flag}; do sleep 0.05; done")
    return flag


def group_of(pid: int) -> int | None:
    """Returns a process's group; None if it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def is_locked(path: Path) -> bool:
    """Returns True if a process holds the lock, according to flock(1)."""
    return work("flock", "--nonblock", path, "true", check=False).returncode != 0
