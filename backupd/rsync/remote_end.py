"""The remote shell of a confined rsync: it runs outside, on the very pipes that rsync made for it, so no byte is copied.

rsync starts a line of bash instead of ssh, which reports its start and waits for an exit status. We take its descriptors
(pidfd_getfd(2)), and they become ssh's input, output and errors. Until then the host has sent nothing, so rsync is still
trustworthy; it gets its limits at that moment. Later requests are ignored: an rsync that wants a second connection waits for ever.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Sequence

from btrkeep.config import HostConfig
from btrkeep.process.group import Group
from btrkeep.process.proc import arguments_of, bound, descriptor_of, parent_of

log = logging.getLogger(__name__)

_SCRIPT = "exec {{i}}<&0 {{o}}>&1; echo $i $o >&{0}; read -ru{0} status; exit $status"  # while it says echo, 1 is another
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_REFUSED = 126
_ADDRESS_SPACE = 1 << 30  # beyond what it may have in memory: that is counted for all of its processes, with its own words
_FIRST_TO_GO = 800  # when memory ends, the kernel ends a receiver before whatever else runs here


class RemoteEnd:
    """The remote shell of one rsync. `status` is what it ended with as a shell says it (a signal N is 128+N), None before.

    `command` is the remote shell and its options, `expected` are the first words that rsync shall add: the host, what runs there.
    `memory`: bytes that rsync may have.
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
        """Starts the remote shell beside `group` as soon as rsync asks for it."""
        self._theirs.close()
        asyncio.get_running_loop().add_reader(self._ours, self._asked, group)

    def close(self) -> None:
        """Closes it; a caller that waits for the status gets none."""
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()
        self._theirs.close()
        self._release()

    def _asked(self, group: Group) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        said, sent, _, _ = self._ours.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not said:  # rsync has ended without
            return
        files: list[int] = []
        try:
            pid = _CREDENTIALS.unpack(sent[0][2])[0]
            self._waiting = os.pidfd_open(pid)
            files += [descriptor_of(self._waiting, number) for number in (*map(int, said.split()), 2)]
            words = arguments_of(pid)[len(self.words) :]
            bound(parent_of(pid), memory=self._memory + _ADDRESS_SPACE, badness=_FIRST_TO_GO)
            if words[: len(self._expected)] != self._expected:
                self._end(_REFUSED)
            else:
                group.start_beside((*self._command, *words), files, self._end)
                self._output = files.pop(1)
        except OSError as error:  # it is gone
            log.warning("the remote shell cannot be joined: %s", error)
            self._end(_REFUSED)
        finally:
            for file in files:
                os.close(file)

    def _end(self, status: int) -> None:
        """Passes the status on. rsync asks for it once, when its input has ended: that lasts until it can be had."""
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
    """Returns what rsync adds to the remote shell of a host, up to the part that depends on its version. `gives`: the host gets."""
    user, at, machine = (host.address or "").rpartition("@")
    return (
        *(("-l", user) if at else ()),
        machine.removeprefix("[").removesuffix("]"),
        host.rsync_path or "rsync",
        "--server",
        *(() if gives else ("--sender",)),
    )
