"""Removes folders that a host or another server has filled."""

import errno
import os

from btrkeep.units import printable


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Removes a folder with all in it, by rm: who fills it nests folders deeper than a function may call itself or a process may
    have descriptors. It follows no symlink and enters neither a subvolume nor a mount; raises OSError when there is one.
    """
    from btrkeep.process.programs import ProgramFailed, run  # with subprocess, which few commands need

    try:
        run(("rm", "--recursive", "--force", "--one-file-system", "--", os.fspath(folder)), timeout=None)
    except ProgramFailed as error:
        said = error.finished.stderr.strip().splitlines() or [f"exit status {error.finished.returncode}"]
        raise OSError(errno.ENOTEMPTY, f"it cannot be removed: {printable(said[0].removeprefix('rm: '))}", str(folder)) from None
