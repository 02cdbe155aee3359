"""Asks a host about a source path without changing anything, confined like a transfer."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from functools import partial

from backupd.rsync.command import MOUNT_LINE, mounts_command, probe_command, shell_command
from backupd.rsync.confined import ConfinedTransfer
from backupd.rsync.output import LONGEST_REST, unescape
from backupd.rsync.process import RunCancellation
from backupd.rsync.remote_end import RemoteEnd, expected_words
from btrkeep.config import Config, HostConfig
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.process.proc import become_reaper, physical_memory
from btrkeep.process.programs import Finished, ProgramFailed, run

_SECONDS = 90.0
_HEARD = 1 << 16  # bytes of what it complains about


async def probe(config: Config, host: HostConfig, path: str, *, confined: bool) -> Finished:
    """Returns rsync's exit status and its errors, without the list, for `check --connect`. Raises OperatorError."""
    if confined:
        return await _within_a_cell(config, host, lambda shell: probe_command(host, config.ssh, path, shell), lambda _: None)
    return await asyncio.to_thread(run, probe_command(host, config.ssh, path), timeout=_SECONDS, check=False)


async def left_empty(
    config: Config,
    host: HostConfig,
    path: str,
    chosen: Sequence[str] = (),
    *,
    confined: bool,
    seconds: float = _SECONDS,
    cancellation: RunCancellation | None = None,
) -> list[bytes]:
    """Returns the folders of a source path that `one_file_system` leaves empty, absolute: mount points and nested subvolumes.

    `chosen`: see mounts_command. They are the host's words: at most MOST_MOUNTS of them, and not too long. Raises OperatorError if
    it could not be found out, or if the run was stopped meanwhile.
    """
    lines = _MountLines()
    if confined:
        done = await _within_a_cell(
            config, host, lambda shell: mounts_command(host, config.ssh, path, chosen, shell), lines.feed, seconds, cancellation
        )
    else:
        command, heard = mounts_command(host, config.ssh, path, chosen), bytearray()
        group = Group.start((*ENDS_WITH_US, *command), on_stdout=lines.feed, on_stderr=partial(_hear, heard))
        status = await _end_of(group, seconds, cancellation)
        done = Finished(command, status, "", heard.decode("utf-8", "surrogateescape"))
    if done.returncode not in _LISTED:
        raise ProgramFailed(done)
    return lines.folders


_LISTED = (0, 23, 24)
MOST_MOUNTS = 1000


class _MountLines:
    """Takes rsync's output as it comes, and keeps the folders that it names."""

    def __init__(self) -> None:
        self.folders: list[bytes] = []
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST_REST:]
        for line in lines:
            if len(self.folders) < MOST_MOUNTS and (match := MOUNT_LINE.fullmatch(line)):
                self.folders.append(b"/" + unescape(match[1]).strip(b"/"))


async def _within_a_cell(
    config: Config,
    host: HostConfig,
    command_with: Callable[[Sequence[str]], Sequence[str]],
    on_stdout: Callable[[bytes], None],
    seconds: float = _SECONDS,
    cancellation: RunCancellation | None = None,
) -> Finished:
    heard = bytearray()
    become_reaper()  # the cell's first process outlives the one that we started, and a container's PID 1 may bury nobody
    remote = RemoteEnd(shell_command(host, config.ssh, ()), expected_words(host), host.max_memory.bytes_of(physical_memory()))
    with ConfinedTransfer(remote) as cell:
        command = cell.command(command_with(remote.words), None)
        group = Group.start(command, on_stdout=on_stdout, on_stderr=partial(_hear, heard), keep_open=cell.inherited, wraps=True)
        cell.started(group)
        status = await _end_of(group, seconds, cancellation)
        said = heard.decode("utf-8", "surrogateescape")
        return Finished(command, cell.exit_code(status, said.splitlines()), "", said)


def _hear(heard: bytearray, data: bytes) -> None:
    heard.extend(data[: _HEARD - len(heard)])


async def _end_of(group: Group, seconds: float, cancellation: RunCancellation | None) -> int:
    """Waits for the group, which the run's cancellation ends meanwhile. Returns its exit status. Raises ProgramFailed."""
    if cancellation:
        group.signal(signal.SIGKILL)
    if cancellation is not None:
        cancellation.group = group
    try:
        async with asyncio.timeout(seconds):
            return await group.wait()
    except TimeoutError:
        group.signal(signal.SIGKILL)
        await group.wait()
        raise ProgramFailed(Finished(("rsync",), 124, "", f"no end after {seconds:.0f} s")) from None
    except asyncio.CancelledError:
        group.signal(signal.SIGKILL)
        raise
    finally:
        if cancellation is not None:
            cancellation.group = None
