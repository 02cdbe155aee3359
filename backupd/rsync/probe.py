"""Asks a host about a source path without changing anything, confined like a transfer."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from backupd.rsync.bandwidth import Bucket
from backupd.rsync.command import LISTED_FILE, MOUNT_LINE, mounts_command, probe_command, shell_command, size_command
from backupd.rsync.confined import ConfinedTransfer, RemoteEnd, expected_words
from backupd.rsync.messages import LONGEST_REST, unescape
from backupd.rsync.process import RunCancellation, StallWatch
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.cause_words import cause_words
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.process.proc import become_reaper, physical_memory
from btrkeep.process.programs import ProgramFailed, ProgramResult, run
from btrkeep.units import bounded

_SECONDS = 90.0
_SIZE_SECONDS = 30.0
_HEARD = 1 << 16  # bytes of its error messages


@dataclass(frozen=True, slots=True)
class HostAccess:
    """How a host is asked. `confined`: whether rsync is confined. `control`: the socket of a shared connection; `buckets`: the
    bandwidth budgets.
    """

    confined: bool
    control: Path | None = None
    buckets: Sequence[Bucket] = ()

    def shell(self, config: Config, host: HostConfig) -> tuple[str, ...]:
        """Returns the remote shell; () if this machine is the source, which has no bandwidth budget here."""
        return shell_command(host, config.ssh, self.buckets, self.control) if host.address else ()


async def probe(config: Config, host: HostConfig, path: str, access: HostAccess) -> ProgramResult:
    """Returns rsync's exit status and its errors, without the list, for `check --connect`. Raises OperatorError."""

    def command_with(shell: Sequence[str]) -> tuple[str, ...]:
        return probe_command(host, config.ssh, path, shell)

    if access.confined:
        return await _within_a_cell(config, host, access, command_with, lambda _: None)
    return await asyncio.to_thread(run, command_with(access.shell(config, host)), timeout=_SECONDS, check=False)


async def size_on_host(config: Config, host: HostConfig, file: str, access: HostAccess) -> int | None:
    """Returns the length of a regular file of the host, an absolute path; None if there is none. The host may lie. Raises
    OperatorError.
    """
    heard = bytearray()

    def command_with(shell: Sequence[str]) -> tuple[str, ...]:
        return size_command(host, config.ssh, file, shell)

    if access.confined:
        await _within_a_cell(config, host, access, command_with, partial(_hear, heard), _SIZE_SECONDS)
    else:
        command = (*ENDS_WITH_US, *command_with(access.shell(config, host)))
        group = Group.start(command, on_stdout=partial(_hear, heard), on_stderr=lambda _: None)
        await _end_of(group, _SIZE_SECONDS, None, StallWatch(host.stall))
    sizes = [int(match[1]) for line in heard.splitlines() if (match := LISTED_FILE.fullmatch(line))]
    return bounded(sizes[0]) if len(sizes) == 1 else None


async def left_empty(
    config: Config,
    host: HostConfig,
    path: str,
    chosen: Sequence[str] = (),
    *,
    access: HostAccess,
    seconds: float = _SECONDS,
    cancellation: RunCancellation | None = None,
) -> list[bytes]:
    """Returns the folders of a source path that `one_file_system` leaves empty, absolute: mount points and nested subvolumes.

    `chosen`: see mounts_command. The host may lie, so there are at most MOST_MOUNTS of limited length. Raises OperatorError if the
    folders could not be listed, if the run was stopped, or if the host made no progress for its `stall`.
    """
    lines = _MountLines()

    def command_with(shell: Sequence[str]) -> tuple[str, ...]:
        return mounts_command(host, config.ssh, path, chosen, shell)

    if access.confined:
        done = await _within_a_cell(config, host, access, command_with, lines.feed, seconds, cancellation)
    else:
        command, heard = command_with(access.shell(config, host)), bytearray()
        watch = StallWatch(host.stall)
        group = Group.start((*ENDS_WITH_US, *command), on_stdout=_noted(watch, lines.feed), on_stderr=partial(_hear, heard))
        status = await _end_of(group, seconds, cancellation, watch)
        done = ProgramResult(command, status, "", heard.decode("utf-8", "surrogateescape"))
    if done.returncode not in _LISTED:
        raise ProgramFailed(done)
    return lines.folders


_LISTED = (0, 23, 24)
MOST_MOUNTS = 1000


class _MountLines:
    """Parses rsync's output as it arrives, and keeps the folders in it."""

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
    access: HostAccess,
    command_with: Callable[[Sequence[str]], Sequence[str]],
    on_stdout: Callable[[bytes], None],
    seconds: float = _SECONDS,
    cancellation: RunCancellation | None = None,
) -> ProgramResult:
    heard, watch = bytearray(), StallWatch(host.stall)
    become_reaper()  # the cell's first process outlives the started one, and PID 1 of a container may not reap it
    remote = RemoteEnd(access.shell(config, host), expected_words(host), host.max_memory.bytes_of(physical_memory()))
    with ConfinedTransfer(remote) as cell:
        command = cell.command(command_with(remote.words), None)
        on_stderr = partial(_hear, heard)
        group = Group.start(command, on_stdout=_noted(watch, on_stdout), on_stderr=on_stderr, keep_open=cell.inherited, wraps=True)
        cell.started(group)
        status = await _end_of(group, seconds, cancellation, watch)
        text = heard.decode("utf-8", "surrogateescape")
        return ProgramResult(command, cell.exit_code(status, text.splitlines()), "", text)


def _hear(heard: bytearray, data: bytes) -> None:
    heard.extend(data[: _HEARD - len(heard)])


def _noted(watch: StallWatch, feed: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Returns a version of `feed` that also records progress."""

    def take(data: bytes) -> None:
        watch.moved()
        feed(data)

    return take


async def _end_of(group: Group, seconds: float, cancellation: RunCancellation | None, watch: StallWatch) -> int:
    """Waits for the group, which the run's cancellation may end. Returns its exit status. Raises ProgramFailed."""
    if cancellation:
        group.signal(signal.SIGKILL)
    if cancellation is not None:
        cancellation.group = group
    watching = asyncio.create_task(watch.run(group))
    try:
        async with asyncio.timeout(seconds):
            status = await group.wait()
        if watch.verdict:
            raise ProgramFailed(ProgramResult(("rsync",), status, "", cause_words(watch.verdict)))
        return status
    except TimeoutError:
        group.signal(signal.SIGKILL)
        await group.wait()
        raise ProgramFailed(ProgramResult(("rsync",), 124, "", f"did not end within {seconds:.0f} s")) from None
    except asyncio.CancelledError:
        group.signal(signal.SIGKILL)
        raise
    finally:
        watching.cancel()
        if cancellation is not None:
            cancellation.group = None
