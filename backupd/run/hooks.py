"""`before` and `after`: programs of the administrator, run on this machine around a host's backup."""

import asyncio
import os
import signal
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from backupd.rsync.process import RunCancellation
from btrkeep.config import HostConfig
from btrkeep.decisions.cause_words import cause_words
from btrkeep.pool.marker import Pool
from btrkeep.process.group import Group, UnkillableProcess
from btrkeep.process.programs import ProgramFailed
from btrkeep.trusted_path import remedy, untrusted_config
from btrkeep.units import printable

SKIP = 75  # EX_TEMPFAIL of sysexits.h: no backup tonight


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A failed hook."""

    message: str
    """What happened, in words."""
    skip: bool
    """True if the hook requested that the host is skipped in this night."""


async def run(
    which: str, host: HostConfig, pool: Pool, cancellation: RunCancellation, *, state: str, config_file: Path
) -> HookFailure | None:
    """Runs the hook, if there is one; None if it succeeded. When this returns, its processes have ended, or cannot be ended."""
    words = host.hook_words(host.before if which == "before" else host.after)
    if not words:
        return None
    if cancellation.reason:
        return HookFailure(f"hook {which}: {cause_words(cancellation.reason)}", skip=False)
    if refused := _refused(config_file):
        return HookFailure(f"hook {which}: {refused}", skip=False)
    last: deque[str] = deque(maxlen=1)

    def keep(data: bytes) -> None:
        last.extend(line for line in data.decode("utf-8", "replace").splitlines() if line.strip())

    env = {
        **os.environ,
        "BTRKEEP_HOST": host.name,
        "BTRKEEP_ADDRESS": host.address or "",
        "BTRKEEP_POOL": str(pool.path),
        "BTRKEEP_STATE": state,
    }
    try:
        group = Group.start(words, on_stdout=keep, on_stderr=keep, env=env)
    except ProgramFailed as error:
        return HookFailure(f"hook {which}: {error.message}", skip=False)
    cancellation.group = group
    try:
        status = await group.wait()
    except UnkillableProcess as error:
        return HookFailure(
            f"hook {which}: {cause_words(cancellation.reason)}; {error.message}"
            if cancellation.reason
            else f"hook {which}: {error.message}",
            skip=False,
        )
    except asyncio.CancelledError:  # as for a transfer: no started process may outlive the loop
        group.signal(signal.SIGKILL)
        raise
    finally:
        cancellation.group = None
    detail = f": {printable(last[0])}" if last else ""
    if status == 0:
        return None  # even if it was stopped: its effects remain, so `after` has to run
    if cancellation.reason:
        return HookFailure(f"hook {which}: {cause_words(cancellation.reason)}", skip=False)
    return HookFailure(
        f"hook {which} {'requested to skip this run' if status == SKIP else f'failed (exit status {status})'}{detail}",
        skip=status == SKIP and which == "before",
    )


def _refused(config_file: Path) -> str | None:
    """Returns why hooks of this configuration are not run."""
    try:
        step = untrusted_config(config_file)
    except OSError as error:
        return f"not run: {config_file} cannot be checked: {error.strerror}"
    if not step:
        return None
    return f"not run: {printable(str(step.place))} {step.reason}, who could run any command as root: {printable(remedy(step))}"
