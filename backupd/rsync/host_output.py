"""Runs one harmless command on a host and returns what it prints; a key that permits rsync only rejects it."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from backupd.rsync.command import host_command
from btrkeep.config import HostConfig, SshSettings
from btrkeep.errors import OperatorError
from btrkeep.process.group import ENDS_WITH_US, Group

_SECONDS = 30.0
_LARGEST = 4 << 20  # bytes of its answer


async def output_of(host: HostConfig, ssh: SshSettings, control: Path | None, words: Sequence[str]) -> bytes:
    """Raises OperatorError: the key permits rsync only, the host does not have the program, or it did not answer."""
    heard = bytearray()
    command = (*ENDS_WITH_US, *host_command(host, ssh, control, words))
    group = Group.start(command, on_stdout=lambda data: heard.extend(data[: _LARGEST - len(heard)]), on_stderr=lambda _: None)
    try:
        async with asyncio.timeout(_SECONDS):
            status = await group.wait()
    except TimeoutError:
        group.signal(signal.SIGKILL)
        await group.wait()
        raise OperatorError("the host did not answer") from None
    except asyncio.CancelledError:
        group.signal(signal.SIGKILL)
        raise
    if status or len(heard) >= _LARGEST:
        raise OperatorError(f"the host does not run `{words[0]}`: its key permits rsync only, perhaps")
    return bytes(heard)
