"""Reads which filesystems a host has mounted, and which boot of a machine it runs on, with one harmless command."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backupd.rsync.host_output import output_of
from backupd.rsync.left_out import is_expected
from btrkeep.config import HostConfig, SshSettings
from btrkeep.errors import OperatorError
from btrkeep.procfs import Mount, parse_mounts

_COMMAND = ("cat", "/proc/sys/kernel/random/boot_id", "/proc/self/mountinfo")
_BOOT_ID = 36
_MOST, _LONGEST = 1000, 1000  # mounts that are compared, and bytes of a line


@dataclass(frozen=True, slots=True)
class HostMounts:
    """The answer: the id of the boot of its kernel, which a container shares with its machine, and its mounts, oldest first."""

    boot_id: str
    mounts: tuple[Mount, ...]


async def read_host_mounts(host: HostConfig, ssh: SshSettings, control: Path | None) -> HostMounts:
    """Asks the host. Raises OperatorError: its key permits rsync only, it has no /proc, or it did not answer."""
    return parse_answer(await output_of(host, ssh, control, _COMMAND), host.paths)


def parse_answer(answer: bytes, paths: Sequence[str]) -> HostMounts:
    """Parses what the command prints; a login shell may print lines before that. Leaves out mounts that no backup of `paths` needs.

    Raises OperatorError.
    """
    lines = answer.splitlines()
    for number, line in enumerate(lines):
        if len(line) == _BOOT_ID and line.count(b"-") == 4:
            try:
                mounts = parse_mounts(b"\n".join(line for line in lines[number + 1 :] if len(line) <= _LONGEST))
            except ValueError:
                break
            mounts = [mount for mount in mounts if not all(is_expected(str(mount.target), path) for path in paths)]
            if len(mounts) > _MOST:  # comparing each with each would take long
                raise OperatorError(f"the host has more than {_MOST:,} mounts")
            return HostMounts(line.decode("ascii", "replace"), tuple(mounts))
    raise OperatorError("the host has no /proc, or its answer cannot be read")
