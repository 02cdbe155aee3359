"""The socket, the identity of the caller, the loop that answers, and a connection: the request, its answer, and their time limits.

Each connection has its own thread. The server ends when it has been idle for long enough. The socket comes from systemd, or is made
here. The kernel reports which process is connected (SO_PEERCRED).
"""

import logging
import os
import pwd
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from btrkeep.errors import OperatorError, UsageError
from btrkeep.serving.protocol import FAILED, HEAD, LONGEST_REQUEST, Request, RequestRefused, error_line, read_request
from btrkeep.trusted_path import WEB_USER

log = logging.getLogger("btrkeep.serving")

AT_ONCE = 16
"""Maximum number of connections; further ones get the answer that the service is busy."""
_LOOK = 0.5
_BUSY = error_line(RequestRefused("too many requests at once", "try again in a moment", "busy"))
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that is connected, at the time of its connection."""

    pid: int
    """The process."""
    uid: int
    """Its user."""


def peer_of(connection: socket.socket) -> Peer:
    """Returns the connected process. Raises OSError."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def allowed_users(more: Sequence[str] = ()) -> frozenset[int]:
    """Returns the user ids of root, of the dashboard's user if there is one, and of those in `more`, given by name or number.

    Raises UsageError for an unknown name.
    """
    web = [struct_passwd.pw_uid for struct_passwd in (_user_or_none(WEB_USER),) if struct_passwd]
    return frozenset((0, *web, *(user_number(name) for name in more)))


def user_number(name: str) -> int:
    """Returns the number of a user. Raises UsageError."""
    if name.isascii() and name.isdigit():
        return int(name)
    struct_passwd = _user_or_none(name)
    if not struct_passwd:
        raise UsageError(f"there is no user {name}", "name one that `getent passwd` lists, or a number")
    return struct_passwd.pw_uid


def _user_or_none(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except (KeyError, ValueError):  # it contains a NUL
        return None


_FIRST = 3  # SD_LISTEN_FDS_START, see sd_listen_fds(3)
_WAITING = 64


def handed_over() -> socket.socket | None:
    """Returns the socket that systemd has passed, None without one. Raises UsageError if it does not listen."""
    count = os.environ.pop("LISTEN_FDS", "")
    pid, _ = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDNAMES", "")
    if not count or pid != str(os.getpid()):
        return None
    if count != "1":
        raise UsageError(f"systemd passed {count} sockets", "one socket unit has one ListenStream=")
    os.set_inheritable(_FIRST, False)
    listening = socket.socket(fileno=_FIRST)
    if listening.family != socket.AF_UNIX or not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise UsageError(
            "systemd passed a descriptor that is not a listening Unix socket", "set Accept=no and a path in the socket unit"
        )
    return listening


def bound(path: Path, allowed: tuple[str, ...]) -> tuple[socket.socket, Callable[[], None]]:
    """Returns a listening socket at `path`, and a function that removes it. Besides root, only the first of `allowed` may connect;
    without any, the dashboard's group.

    Raises UsageError if another program listens there or the path is not a socket, OperatorError if it cannot be made.
    """
    _clear_away(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o117)  # other users must never be able to connect, not even for a moment
    try:
        listening.bind(str(path))
        _give(path, allowed)
    except OSError as error:
        listening.close()
        raise OperatorError(f"{path}: no socket can be made there: {error.strerror or error}", "name an existing folder") from None
    finally:
        os.umask(mask)
    listening.listen(_WAITING)
    made = path.lstat()
    return listening, lambda: _remove(path, made)


def _clear_away(path: Path) -> None:
    """Removes a socket on which no program listens any longer."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} exists already and is not a socket", "name a path that is free")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "name another path") from None
    raise UsageError(f"another process listens at {path} already", "one service is enough for a pool")


def _give(path: Path, allowed: tuple[str, ...]) -> None:
    if allowed:
        os.chown(path, user_number(allowed[0]), -1, follow_symlinks=False)
        return
    import grp

    try:
        os.chown(path, -1, grp.getgrnam(WEB_USER).gr_gid, follow_symlinks=False)
    except KeyError:  # no dashboard is installed, so only root connects
        return


def _remove(path: Path, made: os.stat_result) -> None:
    """Removes only our own socket: another service may have made a new one."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if (status.st_dev, status.st_ino) == (made.st_dev, made.st_ino):
        path.unlink(missing_ok=True)


class Server:
    """`answer` is called in a thread for each connection, and closes it. `idle`: seconds without a connection after which the
    server ends. `longest`: seconds after which it ends at the first moment without a connection; None: never. While `busy` it does
    not end.
    """

    def __init__(
        self,
        answer: Callable[[socket.socket], None],
        listening: socket.socket,
        idle: float | None = None,
        longest: float | None = None,
        busy: Callable[[], bool] = lambda: False,
        at_once: int = AT_ONCE,
    ) -> None:
        self._answer_it, self._listening, self._busy, self._at_once = answer, listening, busy, at_once
        self._idle, self._longest = idle, longest
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._under_way = 0
        self._last = time.monotonic()
        self._stop = threading.Event()

    def run(self) -> str:
        """Answers requests; returns why it ended. A connection that arrives while it ends waits in the socket for the
        next service.
        """
        self._listening.setblocking(False)
        while not self._stop.is_set():
            if reason := self._done():
                return reason
            if select.select([self._listening], [], [], _LOOK)[0]:
                self._accept()
        return "received a stop signal"

    def stop(self) -> None:
        """Stops soon, without finishing the requests in progress."""
        self._stop.set()

    def _done(self) -> str:
        now = time.monotonic()
        with self._lock:
            if self._under_way or self._busy():
                return ""
            if self._idle is not None and now - self._last >= self._idle:
                return f"no request for {self._idle:.0f} s"
            return "the maximum lifetime is reached" if self._longest is not None and now - self._begun >= self._longest else ""

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # for example too many open files: new connections wait
            log.warning("a connection cannot be accepted: %s", error.strerror)
            time.sleep(_LOOK)
            return
        with self._lock:
            free = self._under_way < self._at_once
            self._under_way += free
        if free:
            try:
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            except RuntimeError:
                why = "no further thread can be started: the limit of processes is reached"
                with self._lock:
                    self._under_way -= 1
            else:
                return
        else:
            why = f"{self._at_once} connections are open"
        log.warning("busy: %s", why)
        with connection, suppress(OSError):
            connection.send(_BUSY, socket.MSG_DONTWAIT)

    def _answer(self, connection: socket.socket) -> None:
        try:
            self._answer_it(connection)
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = time.monotonic()


ASKING = 10.0
"""Maximum seconds until the whole request has arrived."""
TAKING = 600.0
"""Maximum seconds until the client has read a frame: a browser may have a slow connection, or its user may have paused the
download.
"""
USUAL_FRAME = 256 << 10
"""Number of bytes for that time limit; a larger frame has more time. The dashboard reads no frame before its client has received
the last one, and accepts a client that reads 64 KiB in two minutes.
"""
STALLED = 10.0
"""Seconds without a byte after which it is checked whether the client still has the right to a stream."""
READING = 60.0
"""Maximum seconds until the client has read an answer, which is in memory until then."""
_TAIL = 256 << 10


class ClientGone(Exception):
    """The client has disconnected or reads nothing: the work ends. This is not an error."""


class Wire:
    """The connection, its time limits and whether anything has been answered yet."""

    def __init__(self, connection: socket.socket, asking: float = ASKING, taking: float = TAKING) -> None:
        self._socket, self._asking, self._taking = connection, asking, taking
        self.answered = self.streaming = False
        self.sent = 0

    def request(self) -> Request:
        """Reads the request. Raises RequestRefused, of kind usage, and ClientGone."""
        end, line = time.monotonic() + self._asking, bytearray()
        while b"\n" not in line[-_TAIL:]:
            if len(line) >= LONGEST_REQUEST:
                raise RequestRefused(f"a request is a line of {LONGEST_REQUEST} bytes at most", kind="usage")
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                piece = self._socket.recv(LONGEST_REQUEST - len(line))
            except TimeoutError:
                raise RequestRefused(f"no request came within {self._asking:.0f} s", kind="usage") from None
            except OSError as error:
                raise ClientGone from error
            if not piece:
                raise ClientGone
            line += piece
        return read_request(bytes(line))

    def send(self, data: bytes | bytearray | memoryview, within: float | None = None) -> None:
        """Sends data. `within`: seconds for all of it, instead of those for a frame. Raises ClientGone."""
        self._socket.settimeout(within or self._taking)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ClientGone from error
        self.sent += len(data)

    def send_while(self, data: bytes | bytearray | memoryview, require: Callable[[], None], interval: float = STALLED) -> None:
        """Sends a part of a stream. Calls `require` after each `interval` seconds in which the client reads nothing. Raises
        ClientGone, also if `require` raises OperatorError, because an error cannot be sent within a frame.
        """
        end = time.monotonic() + self._taking * max(1.0, len(data) / USUAL_FRAME)
        with memoryview(data) as whole:
            rest = whole
            while rest:
                self._socket.settimeout(max(0.001, min(interval, end - time.monotonic())))
                try:
                    count = self._socket.send(rest)
                except TimeoutError as error:
                    if time.monotonic() >= end:
                        raise ClientGone from error
                    self._require(require)
                    continue
                except OSError as error:
                    raise ClientGone from error
                rest = rest[count:]
        self.sent += len(data)

    def _require(self, require: Callable[[], None]) -> None:
        try:
            require()
        except OperatorError as error:
            raise ClientGone from error

    def answer(self, line: bytes) -> None:
        """Sends the only line, or the one before the frames. Raises ClientGone."""
        self.answered = True
        self.send(line, min(READING, self._taking))

    def fail(self, error: OperatorError) -> None:
        """Sends an error, even in the middle of a stream. Raises ClientGone."""
        if self.streaming:
            self.streaming = False
            self.send(HEAD.pack(FAILED) + error_line(error))
        elif not self.answered:
            self.answer(error_line(error))

    def gone(self) -> bool:
        """Returns True if the client has closed the connection."""
        hung_up = select.poll()
        hung_up.register(self._socket, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in hung_up.poll(0))
