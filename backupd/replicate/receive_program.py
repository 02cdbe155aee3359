"""The program `btrfs receive`, and its cell.

The cell has programs and libraries, read-only, no process but its own, only system calls that it needs (no socket, no mount), and
below /pool nothing but the folder of this host, in which nothing can be written or renamed but in `.receiving`: a stream may say
"../", or make a symlink and then write through it, and `btrfs receive` follows.
"""

import os
import re
from functools import cache
from pathlib import Path

from backupd.repo.received import RECEIVING
from backupd.rsync.cell import PROGRAM, shown_programs
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.send import NEWEST
from btrkeep.pool.subvolume import ROOT_FOLDER, opened
from btrkeep.process.programs import run

_TOP = "/pool"
_CAPABILITIES = ("SYS_ADMIN", "CHOWN", "FOWNER", "FSETID", "DAC_OVERRIDE", "SETFCAP", "MKNOD")
_KNOWS_NEWEST = 6  # btrfs-progs 6.0 and later


@cache
def newest_received() -> int:
    """The newest version of the stream that the program `btrfs` receives here, whatever the kernel sends."""
    said = re.search(r" v(\d+)\.", run(("btrfs", "--version"), check=False).stdout)
    return NEWEST if said and int(said[1]) >= _KNOWS_NEWEST else 1


def receive_command(pool: Pool, host: str, calls: int | None) -> tuple[str, ...]:
    """`btrfs receive` into the host's `.receiving`, in a cell when `calls` is the descriptor of the list of its system calls."""
    top = _subvolume_of(pool.path)
    receiving = pool.host(host) / RECEIVING
    if calls is None:
        return ("btrfs", "receive", "-m", str(top), str(receiving))
    within = pool.host(host).relative_to(top)
    skeleton = pool.path / MARKER / "cell"
    (skeleton / within).mkdir(mode=0o700, parents=True, exist_ok=True)
    inside = f"{_TOP}/{within}"
    return (
        PROGRAM,
        *("--unshare-pid", "--die-with-parent", "--as-pid-1"),
        *shown_programs(),
        *("--ro-bind", str(skeleton), _TOP),
        *("--ro-bind", str(pool.host(host)), inside),
        *("--bind", str(receiving), f"{inside}/{RECEIVING}"),
        *("--remount-ro", "/"),
        *("--cap-drop", "ALL"),
        *(word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")),
        *("--seccomp", str(calls)),
        "--",
        *("btrfs", "receive", "-m", _TOP, f"{inside}/{RECEIVING}"),
    )


def _subvolume_of(path: Path) -> Path:
    """The root of the subvolume that a folder lies in, or of what of it is mounted."""
    top = path
    while True:
        with opened(top) as fd:
            if os.fstat(fd).st_ino == ROOT_FOLDER or top.is_mount():
                return top
        top = top.parent
