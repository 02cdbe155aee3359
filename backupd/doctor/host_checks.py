"""The checks of `backupd check --connect`: each host is reached, and its source paths and the limits of its sshd are read.

Without a connection, `crowded` finds addresses to which a run opens more connections than an sshd with default settings accepts.
"""

import asyncio
import os
import re
import shlex
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from backupd.doctor.mounted_twice import hidden_mounts, is_excluded, mounted_twice, places_of
from backupd.hosts.ssh_keys import files_with_key, other_key_hint
from backupd.rsync.command import rsync_version
from backupd.rsync.confined import confinement, require_harmless
from backupd.rsync.host_answers import (
    NotAvailable,
    is_expected,
    left_out_words,
    own_address,
    read_host_mounts,
    read_sshd_limits,
    sshd_advice,
    unfit_rsync,
)
from backupd.rsync.probe import HostAccess, left_empty, probe
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.rsync.snapshot_session import NoSnapshots, check_source, check_streams
from btrkeep.config import Config, HostConfig, page
from btrkeep.config.reading import backupd_command
from btrkeep.config.self_exclusion import below
from btrkeep.config.sources import literal_pattern
from btrkeep.decisions.findings import NOTE, UNKNOWN, Finding
from btrkeep.decisions.host_state import is_absent
from btrkeep.decisions.rsync_meaning import ExitCause, meaning
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import HOSTS, MARKER
from btrkeep.pool.mounts import mount_of
from btrkeep.process.programs import ProgramResult
from btrkeep.process.progress import Cancellation
from btrkeep.procfs import Mount, boot_id
from btrkeep.units import counted, printable


async def check_hosts(config: Config) -> list[Finding]:
    """Checks the paths of every enabled host by `rsync --list-only`, a few at a time, confined as in a transfer."""
    try:
        support = await asyncio.to_thread(confinement, config)
        require_harmless(rsync_version(), support, config)
    except OperatorError as error:
        return [Finding("confinement", "error", error.message, error.hint)]
    gate = asyncio.Semaphore(max(4, config.backup.concurrency))
    hosts = [host for host in config.hosts.values() if host.enabled and host.address and not host.calls]
    calling = [host.name for host in config.hosts.values() if host.enabled and host.calls]
    text = "the host calls this server, so this server does not test it"
    return [Finding("host", NOTE, text, "`btrkeep-source call` on the host tests it", subject=name) for name in calling] + [
        finding
        for each in await asyncio.gather(*(_probe(gate, config, host, not support.missing) for host in hosts))
        for finding in each
    ]


async def _probe(gate: asyncio.Semaphore, config: Config, host: HostConfig, confined: bool) -> list[Finding]:
    findings = list[Finding]()
    async with gate:
        connection = SharedConnection(host, config.ssh, wanted=True)
        try:
            for path in host.paths:
                if not (finding := await _probe_path(config, host, path, confined, connection)):
                    continue
                findings.append(finding)
                if finding.cause in _OF_THE_HOST:  # every further path would report the same
                    break
            is_reached = not any(finding.cause in _UNREACHED for finding in findings)
            if is_reached and (unfit := await _unfit_rsync(config, host, connection)):
                return [unfit]
            if host.one_file_system and not findings:
                findings += [note for path in host.paths if (note := await _left_out(config, host, path, confined, connection))]
            if all(finding.level in ("note", "unknown") for finding in findings):
                findings += await _snapshots(config, host, connection)
                findings += await _mounts(config, host, confined, connection)
                findings += await sshd_findings(config, host, connection)
        finally:
            await connection.close()
    reached = Finding("host", "ok", f"reached, {counted(len(host.paths), 'path')} can be listed", subject=host.name)
    return findings if any(finding.level in ("warning", "error") for finding in findings) else [reached, *findings]


_ADD = "add the folder of the dumps to its paths, or remove the section from /etc/btrkeep-source.conf on the host"


async def _unfit_rsync(config: Config, host: HostConfig, connection: SharedConnection) -> Finding | None:
    """Returns an error if the host's rsync cannot do what a backup needs: the run would fail with a less clear message.

    None also if that is unknown: the host cannot be reached, or the key permits only transfers.
    """
    with suppress(OperatorError, NotConnected):
        if name := await unfit_rsync(host, config.ssh, await connection.socket(Cancellation())):
            text = f"the host's rsync is {name}, which lacks options that a backup needs"
            hint = f"install rsync 3 on the host, and set rsync_path: {page('many-hosts')}"
            return Finding("host", "error", text, hint, subject=host.name, cause=ExitCause.WRONG_USAGE)
    return None


async def _snapshots(config: Config, host: HostConfig, connection: SharedConnection) -> list[Finding]:
    """Returns the source paths of a host with `snapshots` that a run would not read from snapshots, and why; and the dumps that it
    would not make.
    """
    if host.engine == "send":
        return await _streams(config, host, connection)
    if host.snapshots == "off":
        return []
    level = "warning" if host.snapshots == "required" else "note"
    try:
        paths, outside = await check_source(host, config.ssh, await connection.socket(Cancellation()))
    except (NoSnapshots, NotConnected) as error:
        message, hint = (
            (error.message, error.hint) if isinstance(error, NoSnapshots) else ("the host could not be reached again", "")
        )
        return [Finding("host", "warning", f"the host makes no snapshots: {message}", hint, subject=host.name)]
    hint = f'{page("sources")} lists the filesystems with snapshots; with snapshots = "auto" such a path is read live'
    return [
        Finding("host", level, f"{printable(path)}: no snapshot: {consistency.reason}", hint, subject=host.name)
        for path, consistency in paths.items()
        if consistency.is_live
    ] + [
        Finding("host", "warning", f"the dump {name} is not made: no source path contains {output}", _ADD, subject=host.name)
        for name, output in outside.items()
    ]


async def _streams(config: Config, host: HostConfig, connection: SharedConnection) -> list[Finding]:
    """Returns the source paths of a host with `engine = "send"` that it cannot send, and why; and what `keep_on_host` comes to."""
    try:
        paths, history = await check_streams(host, config.ssh, await connection.socket(Cancellation()))
    except (NoSnapshots, NotConnected) as error:
        message, hint = (
            (error.message, error.hint) if isinstance(error, NoSnapshots) else ("the host could not be reached again", "")
        )
        return [Finding("host", "error", f"the host sends no streams: {message}", hint, subject=host.name)]
    hint = f'make it a subvolume, or set engine = "rsync" ({page("sources")})'
    findings = [Finding("host", "error", printable(reason), hint, subject=host.name) for reason in paths.values()]
    if host.keep_on_host and not history:
        text = f"the host keeps no local history (keep_on_host = {host.keep_on_host})"
        hint = f"write history = 20 in [snapshots] of /etc/btrkeep-source.conf on the host ({page('sources')})"
        return [*findings, Finding("host", "warning", text, hint, subject=host.name)]
    if host.keep_on_host:
        text = f"keeps {host.keep_on_host} as local history, at most {counted(history, 'snapshot')} of each path"
        findings.append(Finding("host", NOTE, text, subject=host.name))
    return findings


async def _mounts(config: Config, host: HostConfig, confined: bool, connection: SharedConnection) -> list[Finding]:
    """Returns paths that are backed up twice, and the pool and the state folder where they appear in the host's backups."""
    try:
        answer = await read_host_mounts(host, config.ssh, await connection.socket(Cancellation()))
    except (OperatorError, NotConnected) as error:
        reason = error if isinstance(error, OperatorError) else OperatorError("the host could not be reached again")
        unknown = _unknown_mounts(host, reason)
        own = await _own_folders_by_name(config, host, confined, connection)
        return [unknown, *(_own_folder(config, host, folder_name, place) for folder_name, place in own)]
    findings = await asyncio.to_thread(mount_findings, config, host, answer.mounts)
    if answer.boot_id == boot_id():  # this machine, or a container on it: device numbers are the same
        findings += [
            _own_folder(config, host, folder_name, place)
            for folder_name, folder in _own_folders(config)
            for place in places_of(str(folder), mount_of(folder), answer.mounts, host)
        ]
    return findings


def _own_folders(config: Config) -> list[tuple[str, Path]]:
    folders = (("the pool", config.pool.path), ("the state folder", config.pool.state))
    return [(folder_name, folder.resolve()) for folder_name, folder in folders if folder.is_dir()]


async def _own_folders_by_name(
    config: Config, host: HostConfig, confined: bool, connection: SharedConnection
) -> list[tuple[str, str]]:
    """Returns the pool and the state folder if the host's address is one of this machine's and the same pool is at that
    path there.
    """
    folders = [
        (folder_name, str(folder))
        for folder_name, folder in _own_folders(config)
        if any(
            below(str(folder), path) and not is_excluded(str(folder), path, (*host.exclude, *host.self_excluded))
            for path in host.paths
        )
    ]
    if not folders or not await asyncio.to_thread(is_own_address, host.address or ""):
        return []
    with suppress(OperatorError, NotConnected):
        marker = f"{config.pool.path.resolve()}/{MARKER}/pool.json"
        done = await probe(config, host, marker, HostAccess(confined, await connection.socket(Cancellation())))
        if done.returncode == 0:
            return folders
    return []


def is_own_address(address: str) -> bool:
    """Returns True if an address is one of this machine's: only those can be bound. Uses the name service."""
    name = address.rpartition("@")[2].removeprefix("[").removesuffix("]")
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, place in socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as trial:
                trial.bind(place)
                return True
    return False


def mount_findings(config: Config, host: HostConfig, mounts: Sequence[Mount]) -> list[Finding]:
    """Returns the problems that a host's mounts cause for its backups: files that are backed up twice, and mounts that a later
    mount hides.
    """
    hidden = [
        Finding(
            "host",
            "warning",
            f"{printable(mount.place)} cannot be read: a later mount at {printable(mount.above)} hides it",
            f"`findmnt` on the host lists both; unmount {shlex.quote(mount.above)} there, or mount the hidden one again",
            subject=host.name,
        )
        for mount in hidden_mounts(mounts, host)
    ]
    return [*twice_findings(config, host, mounts), *hidden]


def twice_findings(config: Config, host: HostConfig, mounts: Sequence[Mount]) -> list[Finding]:
    """Returns a warning for each folder that is backed up twice, according to the host's mounts."""
    try:
        pairs = mounted_twice(mounts, host)
    except OperatorError as error:
        return [_unknown_mounts(host, error)]
    return [
        Finding(
            "host",
            "warning",
            f"{printable(pair.again)} has the same files as {printable(pair.folder)}, as with a bind mount: they are backed up "
            "twice",
            _exclude_hint(config, host, pair.again),
            subject=host.name,
        )
        for pair in pairs
    ]


def _unknown_mounts(host: HostConfig, reason: OperatorError) -> Finding:
    """Returns a note if asking again does not help, as with a key that permits only rsync."""
    text = f"it is unknown whether files are backed up twice, such as through a bind mount: {reason.message}"
    level = NOTE if isinstance(reason, NotAvailable) else UNKNOWN
    return Finding("host", level, text, "`findmnt` on the host lists what is mounted", subject=host.name)


def _own_folder(config: Config, host: HostConfig, folder_name: str, place: str) -> Finding:
    text = f"{folder_name} of this server is at {printable(place)} of this host: each backup would contain all other backups"
    return Finding("host", "error", text, _exclude_hint(config, host, place), subject=host.name)


def _exclude_hint(config: Config, host: HostConfig, folder: str) -> str:
    pattern = literal_pattern(folder)
    if any(below(path, folder) for path in host.paths):
        return "remove that folder from `paths`"
    command = backupd_command(config.name, config.file)
    return f"exclude it: {command} host set {shlex.quote(host.name)} {shlex.quote(f'exclude+={pattern}')}"


async def _left_out(config: Config, host: HostConfig, path: str, confined: bool, connection: SharedConnection) -> Finding | None:
    """Returns a note about the files that `one_file_system` excludes from a source path, None if there are none."""
    hint = "`exclude` these folders, back them up as a separate host, or set one_file_system = false"
    try:
        access = HostAccess(confined, await connection.socket(Cancellation()))
        folders = await left_empty(config, host, path, access=access)
    except (OperatorError, NotConnected) as error:
        why = error.message if isinstance(error, OperatorError) else "the host could not be reached again"
        text = f"{printable(path)}: could not list the folders that `one_file_system` excludes: {why}"
        return Finding("host", "unknown", text, "the next backup tries again", subject=host.name)
    names = [name for folder in folders if not is_expected(name := os.fsdecode(folder), path)]
    return Finding("host", "note", left_out_words(path, names, 0), hint, subject=host.name) if names else None


async def _probe_path(config: Config, host: HostConfig, path: str, confined: bool, connection: SharedConnection) -> Finding | None:
    try:
        done = await probe(config, host, path, HostAccess(confined, await connection.socket(Cancellation())))
    except NotConnected as error:
        done = ProgramResult(("ssh",), 255, "", error.printed.decode("utf-8", "surrogateescape"))
    except OperatorError as error:
        return Finding("host", "error", f"{printable(path)}: {error.message}", "check that the host is running", subject=host.name)
    if done.returncode == 0:
        return None
    lines = [printable(line) for line in done.stderr.splitlines() if line.strip()]
    means = meaning(done.returncode, lines)
    if host.before and means.cause is ExitCause.NOT_TRANSFERRED:
        return made_by_hook(host, path)
    message_line = means.line.strip("@ ")  # ssh's largest warning has a frame of @
    has_resolved = (config.pool.path / HOSTS / host.name).is_dir()
    level = "warning" if host.optional and means.unreachable and is_absent(means.cause, has_resolved=has_resolved) else "error"
    subject = "" if means.cause in _OF_THE_HOST else f"{printable(path)}: "
    message = f"{subject}{means.words}" + (f": {message_line}" if message_line else "")
    hint = _NO_PYTHON if _RRSYNC_DOES_NOT_START.search(message_line) else _HINTS.get(means.cause, "")
    if means.cause is ExitCause.HOST_KEY:
        files = await asyncio.to_thread(files_with_key, host, config.ssh)
        hint = other_key_hint(host, files, backupd_command(config.name, config.file))
    return Finding("host", level, message, hint, subject=host.name, cause=means.cause)


def made_by_hook(host: HostConfig, path: str) -> Finding:
    """Returns a note about a missing source path of a host with a `before` hook."""
    text = f"{printable(path)} does not exist now: only a run can show whether `before` creates it"
    return Finding("source", "note", text, f"`backupd run {host.name}` tries it", subject=host.name)


_UNREACHED = frozenset({
    ExitCause.HOST_KEY, ExitCause.KEY_REFUSED, ExitCause.NO_SUCH_NAME, ExitCause.REFUSED, ExitCause.NO_ROUTE, ExitCause.SILENT,
    ExitCause.CLOSED, ExitCause.NOT_CONNECTED,
})  # fmt: skip
"""Causes for which no program was started on the host."""
_OF_THE_HOST = _UNREACHED | {
    ExitCause.NO_RSYNC, ExitCause.NOT_RUNNABLE, ExitCause.SUDO_PASSWORD, ExitCause.SUDO_REFUSED, ExitCause.NO_START,
    ExitCause.WRONG_USAGE,
}  # fmt: skip
"""Causes that are the same for all paths of a host."""
# A shell prints the same message for a missing program and for a missing interpreter.
_RRSYNC_DOES_NOT_START = re.compile(r"rrsync: .*(?:not found|cannot execute|bad interpreter|No such file)")
_NO_PYTHON = "rrsync does not start on the host: install rsync, which contains it, and python3"
_NOT_REACHED = (
    "check that the host is on, that `address` and `port` are right, and whether a firewall in between drops the connection"
)
_HINTS: dict[ExitCause | None, str] = {
    ExitCause.NO_SUCH_NAME: "correct `address`, or add the name to DNS or /etc/hosts",
    ExitCause.REFUSED: "check that sshd runs on the host, and that `address` and `port` are right",
    ExitCause.NO_ROUTE: _NOT_REACHED,
    ExitCause.SILENT: _NOT_REACHED,
    ExitCause.KEY_REFUSED: f"add the public key to the host's authorized_keys; {page('restricted-keys')} has the line",
    ExitCause.CLOSED: (
        "sshd refuses connections after too many at once or after failed logins: `sshd -T` on the host prints MaxStartups and, "
        "since 9.8, PerSourcePenalties. `PerSourcePenaltyExemptList ADDRESS-OF-THIS-SERVER` in its sshd_config exempts this server"
    ),
    ExitCause.NOT_TRANSFERRED: "check that the path exists on the host, and that the user may read it",
    ExitCause.NO_RSYNC: "install rsync on the host, or set rsync_path",
    ExitCause.SUDO_PASSWORD: "let the user run rsync without a password (NOPASSWD in sudoers)",
    ExitCause.SUDO_REFUSED: "allow the user to run rsync in sudoers, without a password and without a terminal",
    ExitCause.WRONG_USAGE: (
        "check which rsync the host has: on macOS and OpenBSD it is openrsync; install rsync 3 on the host, and set rsync_path"
    ),
}


SSHD_STARTUPS = 10
"""The default of MaxStartups in sshd_config: from this many connections that have not logged in, sshd refuses further ones at
random.
"""


def connections_at_once(config: Config) -> dict[str, int]:
    """Returns each address, with its port, and how many connections a run may open there at once.

    The paths of one host are transferred one after the other, so only hosts count.
    """
    by_group = Counter((address_of(host), host.group) for host in config.hosts.values() if host.enabled and host.address)
    at_once = Counter[str]()
    for (address, group), count in by_group.items():
        limit = config.groups[group].concurrency if group else None
        at_once[address] += min(count, limit or count)
    return {address: min(count, config.backup.concurrency) for address, count in at_once.items()}


def address_of(host: HostConfig) -> str:
    """Returns the address of a host, without its user, and its port."""
    return f"{(host.address or '').rpartition('@')[2]}:{host.port or 22}"


def crowded(config: Config) -> Iterator[Finding]:
    """Yields a note for each address at which sshd refuses some connections, if it has OpenSSH's defaults."""
    for address, count in connections_at_once(config).items():
        if count > SSHD_STARTUPS:
            text = f"a run can open {count} connections to this address at once; sshd refuses some of more than {SSHD_STARTUPS}"
            yield Finding("ssh", "note", f"{address}: {text}", _hint(f"MaxStartups {2 * count}"))


async def sshd_findings(config: Config, host: HostConfig, connection: SharedConnection) -> list[Finding]:
    """Returns how the sshd at an address of several hosts limits a run, according to its own settings, which are read from the
    first host.

    Returns nothing if that is not permitted: `crowded` then uses the defaults.
    """
    address = address_of(host)
    at_once = connections_at_once(config).get(address, 0)
    first = next(other for other in config.hosts.values() if other.enabled and other.address and address_of(other) == address)
    if at_once < 2 or first.name != host.name:
        return []
    try:
        limits = await read_sshd_limits(host, config.ssh, await connection.socket(Cancellation()))
    except (OperatorError, NotConnected):
        return []
    own = await asyncio.to_thread(own_address, host)
    return [
        Finding("ssh", "note", f"{address}: {text}", _hint(line), subject=host.name)
        for text, line in sshd_advice(limits, at_once, own)
    ]


def _hint(line: str) -> str:
    option = line.partition(" ")[0]
    other = "" if option == "PerSourcePenaltyExemptList" else ", or give these hosts a group with a lower `concurrency`"
    return f"set {line} in its sshd_config, and reload sshd{other}"
