"""Lists a source path of a host without changing anything, confined like a transfer: used by `check --connect`."""

import asyncio
import signal

from backupd.rsync.command import probe_command, shell_command
from backupd.rsync.confined import ConfinedTransfer
from backupd.rsync.remote_end import RemoteEnd, expected_words
from btrkeep.config import Config, HostConfig
from btrkeep.process.group import Group
from btrkeep.process.proc import become_reaper, physical_memory
from btrkeep.process.programs import Finished, ProgramFailed, run

_SECONDS = 90.0
_HEARD = 1 << 16  # bytes of what it complains about


async def probe(config: Config, host: HostConfig, path: str, *, confined: bool) -> Finished:
    """Returns rsync's exit status and its errors, without the list. Raises OperatorError."""
    if confined:
        return await _within_a_cell(config, host, path)
    return await asyncio.to_thread(run, probe_command(host, config.ssh, path), timeout=_SECONDS, check=False)


async def _within_a_cell(config: Config, host: HostConfig, path: str) -> Finished:
    heard = bytearray()

    def hear(data: bytes) -> None:
        heard.extend(data[: _HEARD - len(heard)])

    become_reaper()  # the cell's first process outlives the one that we started, and a container's PID 1 may bury nobody
    remote = RemoteEnd(shell_command(host, config.ssh, ()), expected_words(host), host.max_memory.bytes_of(physical_memory()))
    with ConfinedTransfer(remote) as cell:
        command = cell.command(probe_command(host, config.ssh, path, remote.words), None)
        group = Group.start(command, on_stdout=lambda _: None, on_stderr=hear, keep_open=cell.inherited, wraps=True)
        cell.started(group)
        try:
            async with asyncio.timeout(_SECONDS):
                status = await group.wait()
        except TimeoutError:
            group.signal(signal.SIGKILL)
            await group.wait()
            raise ProgramFailed(Finished(("rsync",), 124, "", f"no end after {_SECONDS:.0f} s")) from None
        said = heard.decode("utf-8", "surrogateescape")
        return Finished(command, cell.exit_code(status, said.splitlines()), "", said)
