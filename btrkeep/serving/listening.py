"""The socket: systemd's, which it hands over, or one of our own."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from btrkeep.errors import OperatorError, UsageError
from btrkeep.serving.peer import WEB_USER, user_number

_FIRST = 3  # SD_LISTEN_FDS_START, see sd_listen_fds(3)
_WAITING = 64


def handed_over() -> socket.socket | None:
    """The socket that systemd gave us, None when it did not. Raises UsageError when it is not one that listens."""
    count = os.environ.pop("LISTEN_FDS", "")
    pid, _ = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDNAMES", "")
    if not count or pid != str(os.getpid()):
        return None
    if count != "1":
        raise UsageError(f"systemd handed over {count} sockets", "one socket unit has one ListenStream=")
    os.set_inheritable(_FIRST, False)
    listening = socket.socket(fileno=_FIRST)
    if listening.family != socket.AF_UNIX or not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise UsageError("systemd handed over something that is no listening Unix socket", "Accept=no, and a path")
    return listening


def bound(path: Path, allowed: tuple[str, ...]) -> tuple[socket.socket, Callable[[], None]]:
    """Returns a listening socket at `path`, and a function that removes it. Besides root, only the first of `allowed` may connect;
    without any, the dashboard's group.

    Raises UsageError if another program listens there or the path is no socket, OperatorError if it cannot be created.
    """
    _clear_away(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o117)  # never, not for a moment, may others connect
    try:
        listening.bind(str(path))
        _give(path, allowed)
    except OSError as error:
        listening.close()
        raise OperatorError(
            f"{path}: no socket can be made there: {error.strerror or error}", "name a folder that is there"
        ) from None
    finally:
        os.umask(mask)
    listening.listen(_WAITING)
    made = path.lstat()
    return listening, lambda: _remove(path, made)


def _clear_away(path: Path) -> None:
    """Removes a socket on which no program listens any more."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} is there already, and no socket", "name a path that is free")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "name another path") from None
    raise UsageError(f"somebody listens at {path} already", "one service is enough for a pool")


def _give(path: Path, allowed: tuple[str, ...]) -> None:
    if allowed:
        os.chown(path, user_number(allowed[0]), -1, follow_symlinks=False)
        return
    import grp

    try:
        os.chown(path, -1, grp.getgrnam(WEB_USER).gr_gid, follow_symlinks=False)
    except KeyError:  # no dashboard is installed: then root alone asks
        return


def _remove(path: Path, made: os.stat_result) -> None:
    """Only our own: another service may have come since."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):
        path.unlink(missing_ok=True)
