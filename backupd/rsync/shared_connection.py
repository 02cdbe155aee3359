"""One ssh connection for all transfers of a host's run: a ControlMaster of btrkeep, in a private folder, for the duration of the
run.

Without it, each source path needs its own login, and a limit of a firewall, or MaxStartups or PerSourcePenalties of the host's
sshd, ends the run early. The transfers never depend on the connection: an ssh that does not reach the master connects directly, as
OpenSSH does.
"""

import asyncio
import logging
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from backupd.rsync.command import master_command
from btrkeep.config import HostConfig, SshSettings
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.errors import OperatorError
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.process.programs import environment
from btrkeep.process.progress import Cancellation

log = logging.getLogger(__name__)

_RUN = Path("/run")
_PATIENCE = 60.0  # seconds for a login; after that, each transfer connects by itself, with its own timeouts
_POLL = 0.05
_LAST_WORDS = 1.0  # seconds for the master's message about a lost connection
_MOST_HEARD = 1 << 16
_PLAIN = re.compile(r"[\w./-]{1,80}")  # ssh expands % in the path and splits it at blanks; a socket's name has 108 bytes at most
_CERTAIN = frozenset({
    ExitCause.HOST_KEY, ExitCause.KEY_REFUSED, ExitCause.NO_SUCH_NAME, ExitCause.REFUSED, ExitCause.NO_ROUTE, ExitCause.SILENT,
})  # fmt: skip
"""Errors that the ssh of the transfer itself would also get."""


def can_share(host: HostConfig, ssh: SshSettings) -> bool:
    """Returns True if the host is reached by OpenSSH itself, and its options do not set the control socket.

    A command of the administrator may be any program, and may not support masters.
    """
    path = environment()["PATH"]
    words = shlex.split(ssh.command)
    program, real = shutil.which(words[0], path=path) if words else None, shutil.which("ssh", path=path)
    if not host.address or not program or not real or Path(program).resolve() != Path(real).resolve():
        return False
    if any("control" in word.lower() or word.startswith(("-S", "-M", "-O")) for word in words[1:]):
        return False  # ssh uses the first of several options, so our socket would never appear
    return not any(option.strip().lower().startswith("control") for option in host.ssh_options)


class SharedConnection:
    """The connection of one host's run, which is made at the first use. `close` ends it."""

    def __init__(self, host: HostConfig, ssh: SshSettings, *, wanted: bool) -> None:
        self._host, self._ssh = host, ssh
        self._wanted = wanted and can_share(host, ssh)
        self._folder: Path | None = None
        self._group: Group | None = None
        self._heard = bytearray()

    async def socket(self, cancellation: Cancellation) -> Path | None:
        """Returns the master's socket, after a login if there is none yet; None: the transfer connects directly.

        Raises NotConnected if a transfer could not connect either.
        """
        if not self._wanted or cancellation:
            return None
        if self._group and self._group.running and self._socket.exists():
            return self._socket
        await self.close()
        try:
            self._start()
        except (OSError, OperatorError) as error:
            log.warning("%s: each transfer opens its own connection: %s", self._host.name, error)
            self._wanted = False
            return None
        begun = time.monotonic()
        while self._running and not self._socket.exists() and not cancellation and time.monotonic() - begun < _PATIENCE:
            await asyncio.sleep(_POLL)
        if self._running and self._socket.exists():
            return self._socket
        failed = not self._running
        await self.close()
        cause = meaning(255, self._lines).cause if failed else None
        if cause in _CERTAIN:
            raise NotConnected(bytes(self._heard), time.monotonic() - begun)
        # MaxStartups refuses only for a moment: the next transfer tries again; otherwise each one would need its own login.
        self._wanted = bool(cancellation) or cause is ExitCause.CLOSED
        return None

    async def after(self, exit_code: int) -> bytes:
        """Ends the connection if a transfer over it failed, and returns what ssh printed about that."""
        if not self._group or exit_code not in (12, 20, 30, 255):
            return b""
        end = time.monotonic() + _LAST_WORDS
        while self._running and exit_code in (12, 255) and time.monotonic() < end:
            await asyncio.sleep(_POLL)
        broke = not self._running
        await self.close()
        return bytes(self._heard) if broke else b""

    async def close(self) -> None:
        """Ends the master, and deletes its folder."""
        group, self._group = self._group, None
        if group:
            try:
                group.signal(signal.SIGTERM)
                end = time.monotonic() + _LAST_WORDS
                while group.running and time.monotonic() < end:
                    await asyncio.sleep(_POLL)
                group.signal(signal.SIGKILL)
                await group.wait()
            except OperatorError as error:  # it hangs in the kernel, but holds no lock and writes nothing
                log.warning("%s: %s", self._host.name, error)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        folder = tempfile.mkdtemp(prefix="btrkeep-ssh-", dir=_RUN if os.geteuid() == 0 and os.access(_RUN, os.W_OK) else None)
        self._folder = Path(folder)
        self._heard.clear()
        if not _PLAIN.fullmatch(folder):
            raise OperatorError(f"{folder} cannot contain the socket of ssh", "set TMPDIR to a short path of letters and digits")
        command = (*ENDS_WITH_US, *master_command(self._host, self._ssh, self._socket))
        self._group = Group.start(command, on_stdout=lambda _: None, on_stderr=self._hear)

    def _hear(self, data: bytes) -> None:
        self._heard.extend(data)
        del self._heard[:-_MOST_HEARD]

    @property
    def _running(self) -> bool:
        return self._group is not None and self._group.running

    @property
    def _socket(self) -> Path:
        assert self._folder is not None
        return self._folder / "s"

    @property
    def _lines(self) -> Sequence[str]:
        return [line.rstrip("\r") for line in self._heard.decode("utf-8", "replace").splitlines()]


class NotConnected(Exception):
    """The host could not be reached; `printed` is the output of ssh, after `seconds`."""

    def __init__(self, printed: bytes, seconds: float) -> None:
        super().__init__(printed)
        self.printed, self.seconds = printed, seconds
