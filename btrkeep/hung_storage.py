"""Finds out whether storage answers. A read from a disk or a server that is gone waits in the kernel (state D) and cannot be ended,
and a thread that waits there prevents its process from ending. So another process reads first.
"""

import os
import select
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from btrkeep.errors import OperatorError
from btrkeep.procfs import mounts
from btrkeep.units import printable

PATIENCE = 10.0
"""Seconds: a disk may have to spin up, or an array may have to change to another path."""
_ENDING = 0.5
_QUIET = tuple((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2))
_READ, _LOOKUP = ("head", "-c1", "--"), ("stat", "-L", "--")
_SILENT_FOR = 60.0
_REMOTE = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse", "fuseblk", "gfs2", "glusterfs", "gpfs", "lustre", "nfs"),
        *("nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"),
    )
)
"""Types of filesystems whose files are on a server, or that are served by a program; without the part after a dot (fuse.sshfs)."""
_silent: dict[Path, float] = {}  # since when; another check would take as long, and leave another hung process
_answered: dict[Path, float] = {}  # when the path last answered
HINT = "check its disk, or the server behind it (dmesg): each access waits until it answers or is removed"


def answers(path: Path, trusted: float = 0) -> bool:
    """Returns True if the first byte of the file or folder at `path` can be opened and read within PATIENCE, even with an error. A
    process that hangs is left running, because nothing can end it. Also returns True if no process can be started. A path that did
    not answer is not tried again for a minute, nor is anything below it. `trusted`: an answer that is not older than that many
    seconds counts, for callers that ask all the time; not for a remote folder, which may stop answering at any time: each thread
    that trusted it would then wait for ever.
    """
    if trusted and time.monotonic() - _answered.get(path, -trusted) < trusted and not _is_silent(path):
        return True
    answered = _answers_to(_READ, path)
    if answered and trusted and not is_remote(path):
        _answered[path] = time.monotonic()
    return answered


def is_remote(path: Path) -> bool:
    """Returns True if the path is on a server, or on a filesystem that a program serves. False if that cannot be found out. Call it
    only for paths that answer.
    """
    try:
        device = path.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        return any(mount.device == number and mount.filesystem.partition(".")[0] in _REMOTE for mount in mounts())
    except (OSError, ValueError):
        return False


def require_answer(path: Path) -> None:
    """Raises OperatorError if the file or folder at `path` does not answer; see `answers`."""
    if not answers(path):
        raise OperatorError(f"{printable(str(path))} does not answer: nothing could be read within {PATIENCE:.0f} s", HINT)


def require_lookup(path: Path) -> None:
    """Raises OperatorError if the path cannot be looked up within PATIENCE, or is a folder that does not answer. A file is not
    read, because it may be a pipe or a tape.
    """
    if not _answers_to(_LOOKUP, path):
        raise OperatorError(f"{printable(str(path))} does not answer: it could not be read within {PATIENCE:.0f} s", HINT)
    with suppress(OSError):  # the name is too long, or this user may not enter the folder: the command itself reports it
        if path.is_dir():
            require_answer(path)


def _answers_to(words: tuple[str, ...], path: Path) -> bool:
    if _is_silent(path):
        return False
    answered = _ends_in_time(words, path)
    if answered:
        _silent.pop(path, None)
    else:
        _silent[path] = time.monotonic()
    return answered


def _is_silent(path: Path) -> bool:
    return any(time.monotonic() - _silent.get(above, -_SILENT_FOR) < _SILENT_FOR for above in (path, *path.parents))


def _ends_in_time(words: tuple[str, ...], path: Path) -> bool:
    try:
        pid = os.posix_spawnp(words[0], (*words, path), os.environ, file_actions=_QUIET)
    except OSError:
        return True
    process = os.pidfd_open(pid)
    ended = select.poll()
    ended.register(process, select.POLLIN)
    try:
        answered = bool(ended.poll(PATIENCE * 1000))
        if not answered:
            os.kill(pid, signal.SIGKILL)
        if answered or ended.poll(_ENDING * 1000):
            os.waitpid(pid, 0)
        else:
            with suppress(RuntimeError):  # no thread can be started: it stays a zombie until this process ends
                threading.Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()
    finally:
        os.close(process)
    return answered
