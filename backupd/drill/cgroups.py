"""Cgroups of one boot drill, in which all that the booted system starts is: limited, and ended with them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from btrkeep.procfs import mounts

_NAME = "btrkeep-drill-"
_MOST_PROCESSES = 4096
_PATIENCE = 10.0  # seconds


@contextmanager
def boot_cgroups(pool: str) -> Iterator[list[Path]]:
    """Makes them, below the tops of the hierarchies that systemd uses; whatever is in them at the end is killed. Raises OSError.

    `pool`: its id, which their name has: another pool may have a drill of its own. What a killed one left in them is killed first.

    A system of 4,096 processes at the most, with half of the memory, where the kernel limits these.
    """
    groups = [top / f"{_NAME}{pool}" for top in _tops()]
    for group in groups:
        _remove(group)
    try:
        for group in groups:
            group.mkdir()
        for group in groups:
            _limit(group, "pids.max", _MOST_PROCESSES)
            _limit(group, "memory.max", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
        yield groups
    finally:
        for group in groups:
            _remove(group)


def _tops() -> list[Path]:
    """Returns where systemd's own hierarchy is mounted: cgroup2, or the named one of version 1, or both."""
    return [
        one.target
        for one in mounts()
        if one.filesystem == "cgroup2" or (one.filesystem == "cgroup" and "name=systemd" in one.super_options)
    ]


def _limit(group: Path, name: str, value: int) -> None:
    if (group / name).exists():
        (group / name).write_text(str(value))


def _remove(top: Path) -> None:
    """Kills what is in a group and those below it, and removes them. One that cannot be is left to the next drill."""
    end = time.monotonic() + _PATIENCE
    while top.is_dir():
        for folder, _, files in os.walk(top, topdown=False):
            if "cgroup.procs" in files:
                _kill(Path(folder))
            with suppress(OSError):
                Path(folder).rmdir()
        if time.monotonic() > end:
            return
        time.sleep(0.02)


def _kill(group: Path) -> None:
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            if int(pid) > 0:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
