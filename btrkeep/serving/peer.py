"""The process at the other end of a connection, as the kernel tells (SO_PEERCRED), and who may connect."""

import pwd
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from btrkeep.errors import UsageError

WEB_USER = "btrkeep"
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """The connected process, as it was when it connected."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Returns the connected process. Raises OSError."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def allowed_users(more: Sequence[str] = ()) -> frozenset[int]:
    """Returns the user ids of root, of the dashboard's user if there is one, and of those in `more`, given by name or number.

    Raises UsageError for an unknown name.
    """
    web = [one.pw_uid for one in (_known(WEB_USER),) if one]
    return frozenset((0, *web, *(user_number(name) for name in more)))


def user_number(name: str) -> int:
    """The number of a user. Raises UsageError."""
    if name.isascii() and name.isdigit():
        return int(name)
    found = _known(name)
    if not found:
        raise UsageError(f"there is no user {name}", "name one that `getent passwd` lists, or a number")
    return found.pw_uid


def _known(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except (KeyError, ValueError):  # a NUL in it
        return None
