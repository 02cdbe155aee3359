"""The keys of a restore to a host, and the reasons of a host that refuses it.

The restore key is tried first: its line on the host starts `btrkeep-source restore`. A host that does not accept it gets the key
for the backups, whose line may say `rrsync /` during a restore.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from backupd.files.restore_types import Target
from backupd.rsync.snapshot_session import PROGRAM
from btrkeep.config import Config, page
from btrkeep.errors import OperatorError

RRSYNC_IS_BUSY = "Another instance of rrsync is already accessing"
_READS_ONLY = re.compile(rf"rrsync\b.*read-only server|{PROGRAM}: this key only reads")
_IS_MISSING = re.compile(rf"{PROGRAM}: (?:(?:command )?not found|No such file)")


class KeyRefused(OperatorError):
    """The host accepts no key of this server, or none that may write."""


def with_restore_key(target: Target, config: Config) -> tuple[Target, Config]:
    """Returns both with the restore key first, if this server has one."""
    key = config.ssh.key_for_restores
    if not key.exists():
        return target, config
    options = (f"IdentityFile={config.ssh.key}", *target.host.ssh_options)  # ssh tries the keys in this order
    host = replace(target.host, ssh_options=options)
    return replace(target, host=host), replace(config, ssh=replace(config.ssh, key=key))


def refusal(target: Target, config: Config, lines: Sequence[str]) -> OperatorError | None:
    """Returns the error for a host that refused an rsync with these messages; None if the messages have another reason."""
    if any(_READS_ONLY.search(line) for line in lines):
        return KeyRefused(
            f"{target}: the key for backups can only read on the host, and the host does not have the restore key",
            _add_key(target, config),
        )
    if any(RRSYNC_IS_BUSY in line for line in lines):
        return OperatorError(
            f"{target}: another rsync is running on that machine with the same key, and rrsync permits only one at a time",
            'try again when it has ended; "rrsync -no-lock /" in the host\'s authorized_keys permits several',
        )
    if any(_IS_MISSING.search(line) for line in lines):
        return OperatorError(f"{target}: {PROGRAM} is not installed on that machine", f"install it ({page('sources')})")
    reason = next((line for line in reversed(lines) if line.startswith(f"{PROGRAM}: ")), "")
    if reason:
        hint = f"[restore] in /etc/{PROGRAM}.conf on that machine limits restores ({page('restricted-keys')})"
        return OperatorError(f"{target}: {reason}", hint)
    return None


def _add_key(target: Target, config: Config) -> str:
    by_rrsync = (
        'for the time of the restore, write "rrsync /" instead of "rrsync -ro /" in the line of the key for backups; '
        "or restore into a folder of the backup server: --to DIR"
    )
    configured = config.hosts.get(target.host.name)
    if configured is None or configured.address != target.host.address:
        return by_rrsync
    add = f"`backupd setup --host {target.host.name} --no-run` prints the line of the restore key for authorized_keys"
    return f"{add}. Without {PROGRAM} on the host: {by_rrsync}"
