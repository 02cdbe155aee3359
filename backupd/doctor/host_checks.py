"""The checks of `backupd check --connect`: every host is reached, and asked for its source paths."""

import asyncio
import os
import re

from backupd.hosts.keys import files_with_key, other_key_hint
from backupd.rsync.confined import confinement, require_harmless
from backupd.rsync.left_out import is_expected, left_out_words
from backupd.rsync.probe import HostAccess, left_empty, probe
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.rsync.version import rsync_version
from btrkeep.config import Config, HostConfig, page
from btrkeep.config.reading import backupd_command
from btrkeep.decisions.absence import is_absent
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import HOSTS
from btrkeep.process.cancellation import Cancellation
from btrkeep.process.programs import Finished
from btrkeep.units import counted, printable


async def check_hosts(config: Config) -> list[Finding]:
    """Checks the paths of every enabled host by `rsync --list-only`, a few at a time, confined as in a transfer."""
    try:
        found = await asyncio.to_thread(confinement, config)
        require_harmless(rsync_version(), found, config)
    except OperatorError as error:
        return [Finding("confinement", "error", error.message, error.hint)]
    gate = asyncio.Semaphore(max(4, config.backup.concurrency))
    hosts = [host for host in config.hosts.values() if host.enabled and host.address]
    return [
        finding
        for each in await asyncio.gather(*(_probe(gate, config, host, not found.missing) for host in hosts))
        for finding in each
    ]


async def _probe(gate: asyncio.Semaphore, config: Config, host: HostConfig, confined: bool) -> list[Finding]:
    found = list[Finding]()
    async with gate:
        connection = SharedConnection(host, config.ssh, wanted=True)
        try:
            for path in host.paths:
                if not (finding := await _probe_path(config, host, path, confined, connection)):
                    continue
                found.append(finding)
                if finding.cause in _OF_THE_HOST:  # each further path would only say so again
                    break
            if host.one_file_system and not found:
                found += [note for path in host.paths if (note := await _left_out(config, host, path, confined, connection))]
        finally:
            await connection.close()
    reached = Finding("host", "ok", f"reached, {counted(len(host.paths), 'path')} can be listed", subject=host.name)
    return found if any(finding.level in ("warning", "error") for finding in found) else [reached, *found]


async def _left_out(config: Config, host: HostConfig, path: str, confined: bool, connection: SharedConnection) -> Finding | None:
    """Returns a note of what `one_file_system` leaves out of a source path, None if that is nothing."""
    hint = "`exclude` it, fetch it as a host of its own, or set one_file_system = false"
    try:
        access = HostAccess(confined, await connection.socket(Cancellation()))
        folders = await left_empty(config, host, path, access=access)
    except (OperatorError, NotConnected) as error:
        why = error.message if isinstance(error, OperatorError) else "the host could not be reached again"
        text = f"{printable(path)}: it is not known what `one_file_system` leaves out: {why}"
        return Finding("host", "unknown", text, "the next backup tries it again", subject=host.name)
    names = [name for folder in folders if not is_expected(name := os.fsdecode(folder), path)]
    return Finding("host", "note", left_out_words(path, names, 0), hint, subject=host.name) if names else None


async def _probe_path(config: Config, host: HostConfig, path: str, confined: bool, connection: SharedConnection) -> Finding | None:
    try:
        done = await probe(config, host, path, HostAccess(confined, await connection.socket(Cancellation())))
    except NotConnected as error:
        done = Finished(("ssh",), 255, "", error.printed.decode("utf-8", "surrogateescape"))
    except OperatorError as error:
        return Finding("host", "error", f"{printable(path)}: {error.message}", "is the host up?", subject=host.name)
    if done.returncode == 0:
        return None
    lines = [printable(line) for line in done.stderr.splitlines() if line.strip()]
    means = meaning(done.returncode, lines)
    if host.before and means.cause is ExitCause.NOT_TRANSFERRED:
        return made_by_hook(host, path)
    said = means.line.strip("@ ")  # ssh's largest warning has a frame of @
    has_resolved = (config.pool.path / HOSTS / host.name).is_dir()
    level = "warning" if host.optional and means.unreachable and is_absent(means.cause, has_resolved=has_resolved) else "error"
    what = "" if means.cause in _OF_THE_HOST else f"{printable(path)}: "
    message = f"{what}{means.words}" + (f": {said}" if said else "")
    hint = _NO_PYTHON if _RRSYNC_DOES_NOT_START.search(said) else _HINTS.get(means.cause, "")
    if means.cause is ExitCause.HOST_KEY:
        files = await asyncio.to_thread(files_with_key, host, config.ssh)
        hint = other_key_hint(host, files, backupd_command(config.name, config.file))
    return Finding("host", level, message, hint, subject=host.name, cause=means.cause)


def made_by_hook(host: HostConfig, path: str) -> Finding:
    """Returns a note about a source path that is not there, of a host with a `before`."""
    text = f"{printable(path)} is not there now: only a run can tell whether `before` makes it"
    return Finding("source", "note", text, f"`backupd run {host.name}` tries it", subject=host.name)


_OF_THE_HOST = frozenset({
    ExitCause.HOST_KEY, ExitCause.KEY_REFUSED, ExitCause.NO_SUCH_NAME, ExitCause.REFUSED, ExitCause.NO_ROUTE, ExitCause.SILENT,
    ExitCause.CLOSED, ExitCause.NOT_CONNECTED, ExitCause.NO_RSYNC, ExitCause.NOT_RUNNABLE, ExitCause.SUDO_PASSWORD,
    ExitCause.SUDO_REFUSED, ExitCause.NO_START, ExitCause.WRONG_USAGE,
})  # fmt: skip
"""Whatever the path is."""
# A shell's words when the program is not there, or when its interpreter is not: they do not say which.
_RRSYNC_DOES_NOT_START = re.compile(r"rrsync: .*(?:not found|cannot execute|bad interpreter|No such file)")
_NO_PYTHON = "rrsync does not start there: it comes with rsync, and needs python3; install both on the host"
_HINTS: dict[ExitCause | None, str] = {
    ExitCause.KEY_REFUSED: f"add the public key to the host's authorized_keys; {page('restricted-keys')} has the line",
    ExitCause.NOT_TRANSFERRED: "does the path exist there, and may the user read it?",
    ExitCause.NO_RSYNC: "install rsync there, or set rsync_path",
    ExitCause.SUDO_PASSWORD: "let the user run rsync without a password (NOPASSWD in sudoers)",
    ExitCause.SUDO_REFUSED: "allow the user to run rsync in sudoers, without a password and without a terminal",
    ExitCause.WRONG_USAGE: "is that rsync? macOS and OpenBSD call openrsync so: install rsync there, and set rsync_path",
}
