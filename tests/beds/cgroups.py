"""A cgroup with one limit, for programs that should reach it. Version 1 or 2, whichever this machine has."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.beds import session

_TOP = Path("/sys/fs/cgroup")
_FILES = {"pids": "pids.max", "memory": "memory.limit_in_bytes"}
_FILES_2 = {"pids": "pids.max", "memory": "memory.max"}


def why_not(kind: str) -> str:
    """Returns why no such group can be made here, or ""."""
    if (_TOP / kind / "cgroup.procs").exists():
        return ""
    controllers = _TOP / "cgroup.subtree_control"
    return "" if controllers.exists() and kind in controllers.read_text().split() else f"no {kind} cgroup can be made here"


@contextmanager
def limited(kind: str, limit: int | str) -> Iterator[Path]:
    """Yields a new group; a process is moved into it by its number in `cgroup.procs`. The group is removed when all of them have
    ended.
    """
    first = (_TOP / kind).is_dir()
    group = (_TOP / kind if first else _TOP) / f"{session.own_name()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        (group / (_FILES if first else _FILES_2)[kind]).write_text(str(limit))
        if kind == "memory":
            _keep_from_swap(group, limit)
        yield group
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.02)


def _keep_from_swap(group: Path, limit: int | str) -> None:
    """Limits swap: otherwise memory above the limit would be moved there. A machine that does not count swap has no such files."""
    for name, value in (("memory.memsw.limit_in_bytes", limit), ("memory.swap.max", 0)):
        if (group / name).exists():
            (group / name).write_text(str(value))


def fill_up(group: Path) -> None:
    """Lets a process of the group use 400 MiB, so that the kernel kills processes of a group with a lower limit."""
    code = "text = bytearray(400 << 20); text[::4096] = bytes(len(text[::4096]))"
    subprocess.run(
        words_within(group, sys.executable, "-c", code), check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def words_within(group: Path, *words: str | Path) -> list[str]:
    """Returns the command line of a program that runs in the group from its start."""
    return ["sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(group), *map(str, words)]


def has_killed(group: Path) -> bool:
    """Returns True if the kernel has killed a process of the group for lack of memory; it may still wait for a disk."""
    file = next(path for name in ("memory.oom_control", "memory.events") if (path := group / name).exists())
    return dict(line.split() for line in file.read_text().splitlines()).get("oom_kill", "0") != "0"
