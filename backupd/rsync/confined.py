"""A confined rsync (cell.py) with its remote shell outside, and a check that confinement works on this machine.

The remote shell uses the pipes that rsync made for it, so no byte is copied. Instead of ssh, rsync starts a line of bash, which
reports its start and waits for an exit status. backupd takes its descriptors (pidfd_getfd(2)), and they become ssh's input, output
and errors. Until then the host has sent nothing, so rsync can still be trusted; it gets its limits at that moment. Later requests
are ignored: an rsync that wants a second connection waits for ever.
"""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backupd.rsync.cell import PROGRAM, confined_command, confinement_hint, filter_file, seccomp_filter
from backupd.rsync.command import SAFE, Rsync
from btrkeep.config import Config, HostConfig
from btrkeep.errors import OperatorError
from btrkeep.pool.mounts import read_only_view
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.process.proc import arguments_of, bound, descriptor_of, parent_of, why_no_descriptors
from btrkeep.process.programs import ProgramFailed, environment, run

log = logging.getLogger(__name__)

_SCRIPT = "exec {{i}}<&0 {{o}}>&1; echo $i $o >&{0}; read -ru{0} status; exit $status"  # stdout is redirected only for echo
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_REFUSED = 126
_ADDRESS_SPACE = 1 << 30  # in addition to its memory limit, which is counted for all its processes and has its own error message
_FIRST_TO_GO = 800  # when memory runs out, the kernel kills a receiver before anything else here
_TRIALS = 3
_TIMED_OUT, _KILLED = 124, 137
_FOR_NOW = tuple(map(os.strerror, (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)))


class RemoteEnd:
    """The remote shell of one rsync. `status`: its exit status in the form of a shell (signal N is 128+N), None before its end.

    `command`: the remote shell and its options. `expected`: the first words that rsync must add: the host and the program to run
    there. `memory`: bytes that rsync may use.
    """

    def __init__(self, command: Sequence[str], expected: tuple[str, ...], memory: int) -> None:
        self.status: int | None = None
        self._memory = memory
        self._command = tuple(command)
        self._expected = expected
        self._ours, self._theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.inherited = self._theirs.fileno()
        self._waiting = self._output = -1

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the command that rsync starts as its remote shell."""
        number = self.inherited
        return ("bash", "-c", _SCRIPT.format(number), "remote-end")

    def wait_for(self, group: Group) -> None:
        """Starts the remote shell beside `group` when rsync asks for it."""
        self._theirs.close()
        asyncio.get_running_loop().add_reader(self._ours, self._asked, group)

    def close(self) -> None:
        """Closes the connection to rsync, which then gets no exit status."""
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()
        self._theirs.close()
        self._release()

    def _asked(self, group: Group) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        message, sent, _, _ = self._ours.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not message:  # rsync has ended without a message
            return
        files: list[int] = []
        try:
            pid = _CREDENTIALS.unpack(sent[0][2])[0]
            self._waiting = os.pidfd_open(pid)
            files += [descriptor_of(self._waiting, number) for number in (*map(int, message.split()), 2)]
            words = arguments_of(pid)[len(self.words) :]
            bound(parent_of(pid), memory=self._memory + _ADDRESS_SPACE, badness=_FIRST_TO_GO)
            if words[: len(self._expected)] != self._expected:
                self._end(_REFUSED)
            else:
                group.start_beside((*self._command, *words), files, self._end)
                self._output = files.pop(1)
        except OSError as error:  # the process is gone
            log.warning("the remote shell cannot be joined: %s", error)
            self._end(_REFUSED)
        finally:
            for file in files:
                os.close(file)

    def _end(self, status: int) -> None:
        """Passes the status on. rsync asks for it once, after the end of its input; the input stays open until the
        status is known.
        """
        self.status = status if status >= 0 else 128 - status
        with contextlib.suppress(OSError):
            self._ours.send(b"%d\n" % self.status)
        if self._waiting >= 0:
            asyncio.get_running_loop().add_reader(self._waiting, self._release)

    def _release(self) -> None:
        if self._waiting >= 0:
            asyncio.get_running_loop().remove_reader(self._waiting)
            os.close(self._waiting)
        if self._output >= 0:
            os.close(self._output)
        self._waiting = self._output = -1


def expected_words(host: HostConfig, *, gives: bool = False) -> tuple[str, ...]:
    """Returns what rsync adds to the remote shell of a host, up to the part that depends on its version. `gives`: files are written
    to the host.
    """
    user, at, machine = (host.address or "").rpartition("@")
    return (
        *(("-l", user) if at else ()),
        machine.removeprefix("[").removesuffix("]"),
        host.rsync_path or "rsync",
        "--server",
        *(() if gives else ("--sender",)),
    )


@dataclass(frozen=True, slots=True)
class Confinement:
    """Whether rsync is confined when it talks to a host. `missing`: the reason if not, "" if it is."""

    missing: str = ""


def require_harmless(rsync: Rsync, support: Confinement, config: Config) -> None:
    """Raises OperatorError if a host could use known security holes of this rsync against this server.

    A confined rsync prevents that; with ``confine = "never"`` the administrator accepts the risk.
    """
    if support.missing and config.backup.confine == "auto" and rsync.numbers < SAFE:
        raise OperatorError(
            f"rsync {rsync.version} may not connect to hosts: a hostile host could attack this server through the "
            f"vulnerabilities of this version, and rsync cannot be confined here ({support.missing}); `backupd check` shows what "
            "to do",
            f"{confinement_hint()}. Or update rsync to {'.'.join(map(str, SAFE))}. "
            'confine = "never" in [backup] permits this version, for example if the distribution has fixed its vulnerabilities',
        )


class _NotNow(Exception):
    """A test failed because of a temporary limit of the machine, or was killed, so it is unknown whether confinement works on this
    machine.
    """


class ConfinedTransfer:
    """One confined rsync, from the preparation of its start to its end."""

    is_confined = True

    def __init__(self, remote: RemoteEnd) -> None:
        self.remote = remote
        self._calls = filter_file()

    def __enter__(self) -> "ConfinedTransfer":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._calls)
        self.remote.close()

    @property
    def inherited(self) -> tuple[int, ...]:
        """Returns the descriptors that the confined command inherits."""
        return (self._calls, self.remote.inherited)

    def command(self, rsync: Sequence[str], data: str | None, *, shown: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the rsync command confined to `data`; None: it can write nothing. `shown`: other files that it can read."""
        return confined_command(rsync, data, self._calls, shown=shown)

    def started(self, group: Group) -> None:
        """Records the process group of the confined command."""
        self.remote.wait_for(group)

    def exit_code(self, code: int, lines: Iterable[str]) -> int:
        """Returns rsync's exit status, negative for a signal, from the status of the cell. Raises OperatorError if rsync was not
        started.
        """
        if self.remote.status is None and (why := [line for line in lines if line.startswith(f"{PROGRAM}: ")]):
            raise OperatorError(f"rsync could not be confined: {why[-1]}", confinement_hint())
        return 128 - code if 128 < code <= 192 and code != self.remote.status else code


def confinement(config: Config, *, pause: float = 2.0) -> Confinement:
    """Finds out by a test whether a transfer would be confined now; for `pause` see why_not().

    Raises OperatorError if the configuration requires confinement and it does not work.
    """
    if config.backup.confine == "never":
        return Confinement('the configuration has confine = "never"')
    missing = why_not(pause)
    if missing and config.backup.confine == "always":
        raise OperatorError(f'rsync cannot be confined: {missing}, and confine is "always"', confinement_hint())
    return Confinement(missing)


def why_not(pause: float) -> str:
    """Returns why this process cannot confine rsync; "" if it can. Tries up to three times, `pause` seconds apart.

    A limit that is reached only for a moment, perhaps because of another run, is no reason to run rsync unconfined: confinement
    then counts as possible, and a transfer that cannot be confined fails.
    """
    if seccomp_filter() is None:
        return f"the system calls of {os.uname().machine} are not known"
    for program, package in ((PROGRAM, "bubblewrap"), (ENDS_WITH_US[0], "util-linux")):
        if not shutil.which(program, path=environment()["PATH"]):
            return f"{package} is not installed"
    for number in range(_TRIALS):
        try:
            return _tried()
        except _NotNow as error:
            log.warning("could not test now whether rsync can be confined: %s", error)
            time.sleep(pause * (number < _TRIALS - 1))
    return ""


def _tried() -> str:
    """Runs a confined rsync once; returns why it cannot be confined, or "". Raises _NotNow."""
    try:
        if why := why_no_descriptors() or _why_not_sealed():
            return _lasting(why)
        calls = filter_file()
    except OSError as error:
        raise _NotNow(error.strerror) from error
    try:
        done = run((*ENDS_WITH_US, *confined_command(("rsync", "--version"), None, calls)), keep_open=(calls,), check=False)
    except ProgramFailed as error:
        done = error.finished
    finally:
        os.close(calls)
    if not done.returncode:
        return ""
    lasting_error = (done.stderr.strip().splitlines() or [f"{PROGRAM} failed with exit status {done.returncode}"])[-1]
    if done.returncode < 0 or done.returncode in (_TIMED_OUT, _KILLED):
        raise _NotNow(lasting_error)
    return _lasting(lasting_error)


def _lasting(why: str) -> str:
    if why.endswith(_FOR_NOW):
        raise _NotNow(why)
    return why


def _why_not_sealed() -> str:
    """Returns why a lock cannot be passed on read-only; "" if it can. Raises OSError."""
    folder = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(read_only_view(folder))
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(folder)
    return ""
