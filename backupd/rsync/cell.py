"""The cell of a confined program: the arguments for bubblewrap. docs/decisions/0028-confined.rst gives the reasons.

rsync's cell contains only programs and libraries, read-only, and the folder `data` of the run, in which device nodes and setuid
bits have no effect. There is no /etc, /dev, /run, no other backup, and no process but its own: /proc shows those, and exists
because rsync 3.5 changes the modes of sockets and device nodes through /proc/self/fd, and reports no error if it cannot. rsync has
the capabilities that files need and the system calls of allowed_calls.py.
"""

import os
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from backupd.rsync.allowed_calls import seccomp_filter
from btrkeep.process.programs import environment, found_program

PROGRAM = "bwrap"
_CAPABILITIES = ("CHOWN", "FOWNER", "FSETID", "DAC_OVERRIDE", "SETFCAP", "MKNOD", "SYS_ADMIN")
_SHOWN = ("/usr/bin", "/usr/lib", "/usr/lib64", "/bin", "/lib", "/lib64")
_ADDED = ("/usr/local/bin", "/usr/local/lib")  # when rsync itself is there


def confinement_hint() -> str:
    """Returns what to do where nothing can be confined: install bubblewrap if it is missing, else allow what it needs."""
    if not shutil.which(PROGRAM, path=environment()["PATH"]):
        return "apt install bubblewrap"
    return (
        "allow namespaces and pidfd_getfd(2): of a container in its configuration; of this system, sysctl user.max_user_namespaces"
    )


def filter_file(*, receives: bool = False) -> int:
    """Returns a descriptor from which bubblewrap reads the filter, of rsync or of a program that `receives`. Raises OSError."""
    found = seccomp_filter(receives=receives)
    assert found is not None
    file = os.memfd_create("seccomp")
    os.write(file, found)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def confined_command(command: Sequence[str], data: str | None, calls: int, *, shown: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns `command` in a cell that can write only `data`, and can also read `shown`; `calls`: the descriptor of filter_file().

    The root of the cell is made read-only last: it is in memory, which could be filled otherwise. It does not die with its parent,
    which ends together with rsync's first process, while the receiver still has to keep the arrived data.
    """
    program = found_program(command[0], environment()["PATH"])
    return (
        PROGRAM,
        "--unshare-pid",
        *shown_programs(program),
        *(("--bind", data, data) if data else ()),
        *(word for path in shown for word in ("--ro-bind", path, path)),
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        "--remount-ro",
        "/",
        "--chdir",
        "/",
        "--cap-drop",
        "ALL",
        *(word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")),
        "--seccomp",
        str(calls),
        "--",
        program,
        *command[1:],
    )


@cache
def shown_programs(program: str = "/usr/bin") -> tuple[str, ...]:
    """The folders of programs and libraries, as they are on this machine; a program that is elsewhere is shown by itself."""
    folders = [Path(name) for name in (*_SHOWN, *(_ADDED if program.startswith("/usr/local/") else ())) if os.path.lexists(name)]
    words = [
        ("--symlink", str(folder.readlink()), str(folder)) if folder.is_symlink() else ("--ro-bind", str(folder), str(folder))
        for folder in folders
    ]
    if not any(Path(program).is_relative_to(folder) for folder in folders):
        words.append(("--ro-bind", program, program))
    return tuple(word for each in words for word in each)
