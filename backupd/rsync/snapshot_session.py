"""A session of snapshots on a host: the requests to its program btrkeep-source over ssh, and its answers.

``begin`` makes the dumps and takes the snapshots. ``rsync SESSION`` starts the host's rsync, which then sees the snapshots in their
places. ``end`` deletes them (docs/sources.rst). A host may answer anything: size and time are limited, and answers are parsed
strictly.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.rsync.command import as_pattern, host_command
from backupd.rsync.process import RunCancellation
from backupd.rsync.shared_connection import NotConnected
from btrkeep.config import HostConfig, SshSettings, page
from btrkeep.config.self_exclusion import below
from btrkeep.consistency import (
    LIVE,
    MOST_DUMPS,
    SNAPSHOT,
    HostDump,
    PathConsistency,
    limited_text,
    methods_of,
    parse_dump,
)
from btrkeep.errors import OperatorError
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.units import parse_time

PROGRAM = "btrkeep-source"
_FORMAT = 1
_LARGEST, _MOST_ERRORS = 1 << 20, 1 << 14  # bytes of an answer, and of the program's errors
_MOST_PATHS, _MOST_FILESYSTEMS, _MOST_STREAMS = 10_000, 4000, 1000
_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # bytes
_SESSION = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_MOST_HISTORY = 999
_CHECK_SECONDS = 60.0
_NOT_CONNECTED, _NOT_FOUND = 255, 127
INVALID = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What parsing an invalid answer raises."""


class TooMany(ValueError):
    """A list of an answer has more entries than this server reads."""


class NoSnapshots(OperatorError):
    """The host made no snapshots, or did not delete them."""


@dataclass(frozen=True, slots=True)
class SnapshotSession:
    """The answer to ``begin``."""

    name: str
    """The session's name on the host."""
    paths: Mapping[str, PathConsistency]
    """How each source path is read in the session."""
    mounts: tuple[str, ...] = ()
    """The mount points of the filesystems that have snapshots."""
    dumps: tuple[HostDump, ...] = ()
    """The dumps that the host made."""
    streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The files of each dump that this server has to fetch as a stream, by its name."""
    own: tuple[str, ...] = ()
    """The folders of the program's own snapshots, which are empty in the session."""
    inner: Mapping[str, int | None] | None = None
    """The mounts and nested subvolumes below the paths, with their bytes in use if known; None: the program did not list them."""

    def without(self, full: Iterable[str]) -> dict[str, PathConsistency]:
        """Returns how the source paths were read if the snapshots of these filesystems became full: a full classic LVM snapshot can
        no longer be read.
        """
        return {path: _overflowed(path, consistency, self.mounts, tuple(full)) for path, consistency in self.paths.items()}


def _overflowed(path: str, consistency: PathConsistency, mounts: Sequence[str], full: Sequence[str]) -> PathConsistency:
    lost = [mount for mount in _mounts_of(path, mounts) if mount in full]
    if consistency.is_live or not lost:
        return consistency
    return PathConsistency(LIVE, reason=limited_text(f"the snapshot of {lost[0]} became full: raise lvm_size on the host"))


def _mounts_of(path: str, mounts: Iterable[str]) -> list[str]:
    """Returns the mount points below a path, and the mount point of its own filesystem."""
    above = [mount for mount in mounts if below(path, mount)]
    return [*(mount for mount in mounts if mount != path and below(mount, path)), *([max(above, key=len)] if above else [])]


def in_session(host: HostConfig, session: str, own: Sequence[str] = ()) -> HostConfig:
    """Returns the host with a command for rsync that shows it the snapshots of a session, without the program's own folders."""
    excluded = (*host.self_excluded, *(f"{as_pattern(folder)}/" for folder in own))
    return replace(host, rsync_path=f"{PROGRAM} rsync {session}", self_excluded=excluded)


async def begin_session(
    host: HostConfig, ssh: SshSettings, control: Path | None, cancellation: RunCancellation, seconds: float
) -> SnapshotSession:
    """Makes snapshots and dumps on the host. Raises NoSnapshots, and NotConnected if ssh could not connect."""
    answer = await ask_source(host, ssh, control, ("begin", "--", *host.paths), cancellation, seconds)
    return parse_session(answer, host.paths)


async def end_session(
    host: HostConfig, ssh: SshSettings, control: Path | None, session: str, cancellation: RunCancellation, seconds: float
) -> tuple[str, ...]:
    """Deletes the snapshots. Returns the mount points of those that had become full. Raises NoSnapshots and NotConnected."""
    answer = await ask_source(host, ssh, control, ("end", session), cancellation, seconds)
    try:
        return tuple(str(mount) for mount in list_of({"full": [], **parsed_answer(answer)}, "full", _MOST_FILESYSTEMS))
    except INVALID as error:
        raise invalid_answer("end", error) from None


async def check_source(
    host: HostConfig, ssh: SshSettings, control: Path | None
) -> tuple[dict[str, PathConsistency], dict[str, str]]:
    """Returns how each source path would be read in a session, and the outputs of the dumps that no source path contains, by name.

    Changes nothing on the host. Raises NoSnapshots and NotConnected.
    """
    answer = await ask_source(host, ssh, control, ("check", "--", *host.paths), RunCancellation(), _CHECK_SECONDS)
    try:
        fields = parsed_answer(answer)
        dumps = {limited_text(dump["name"]): limited_text(dump["path"]) for dump in list_of(fields, "dumps", MOST_DUMPS)}
        outside = {name: output for name, output in dumps.items() if not any(below(output, path) for path in host.paths)}
        return _consistencies(fields, host.paths, {}), outside
    except INVALID as error:
        raise invalid_answer("check", error) from None


async def check_streams(host: HostConfig, ssh: SshSettings, control: Path | None) -> tuple[dict[str, str], int]:
    """Returns the source paths that the host cannot send as a stream, each with the reason; and how many snapshots it may keep as
    local history. Changes nothing on the host. Raises NoSnapshots and NotConnected.
    """
    answer = await ask_source(host, ssh, control, ("check", "--", *host.paths), RunCancellation(), _CHECK_SECONDS)
    try:
        fields = parsed_answer(answer)
        reasons = {str(path): reason for path, reason in list_of(fields, "streams", _MOST_PATHS)}
        history = max(0, min(int(fields.get("history", 0)), _MOST_HISTORY))
        return {path: limited_text(reasons[path]) for path in host.paths if reasons[path] is not None}, history
    except INVALID as error:
        raise invalid_answer("check", error) from None


async def ask_source(
    host: HostConfig,
    ssh: SshSettings,
    control: Path | None,
    words: Sequence[str],
    cancellation: RunCancellation,
    seconds: float,
) -> bytes:
    """Returns the output of one request. Raises NoSnapshots and NotConnected.

    `cancellation` may end it, whether it is cancelled already or not: the end of a session is requested after a cancelled run too.
    """
    output, errors = bytearray(), bytearray()

    def take(data: bytes) -> None:
        output.extend(data)
        if len(output) > _LARGEST:
            group.signal(signal.SIGKILL)

    begun = time.monotonic()
    line = shlex.join((PROGRAM, *words))
    command = (*ENDS_WITH_US, *host_command(host, ssh, control, (line,)))
    group = Group.start(command, on_stdout=take, on_stderr=lambda data: errors.extend(data[: _MOST_ERRORS - len(errors)]))
    cancellation.group = group
    try:
        async with asyncio.timeout(seconds):
            status = await group.wait()
    except TimeoutError:
        group.signal(signal.SIGKILL)
        await group.wait()
        raise late_answer(seconds) from None
    except asyncio.CancelledError:
        group.signal(signal.SIGKILL)
        raise
    finally:
        cancellation.group = None
    if len(output) > _LARGEST:
        raise NoSnapshots(f"the answer of {PROGRAM} is larger than {_LARGEST >> 20} MiB", _install())
    if status:
        raise refused(status, bytes(errors), time.monotonic() - begun)
    return bytes(output)


def late_answer(seconds: float) -> NoSnapshots:
    """Returns the error of a request without an answer in that time."""
    hint = f"on the host: `ps -ef | grep {PROGRAM}`, and `dmesg` for a disk that hangs"
    return NoSnapshots(f"{PROGRAM} did not answer within {seconds:.0f} seconds", hint)


def refused(status: int, errors: bytes, seconds: float) -> NoSnapshots | NotConnected:
    """Returns the error of a request that ended with a status after `seconds`."""
    if status == _NOT_CONNECTED:
        return NotConnected(errors, seconds)
    return NoSnapshots(*_refusal(status, errors.decode("utf-8", "replace")))


def _refusal(status: int, errors: str) -> tuple[str, str]:
    """Returns why a request failed, and what to do."""
    lines = [line for line in errors.splitlines() if line.strip()]
    own = [line.removeprefix(f"{PROGRAM}: ") for line in lines if line.startswith(f"{PROGRAM}: ")]
    if own:  # btrkeep-source prints its own advice
        return limited_text(own[-1]), ""
    if status == _NOT_FOUND:
        return f"{PROGRAM} is not installed on the host", _install()
    return limited_text(f"the host does not run {PROGRAM}: {lines[-1] if lines else f'exit status {status}'}"), _install()


def parse_session(answer: bytes, paths: Sequence[str]) -> SnapshotSession:
    """Parses the answer to ``begin``. Raises NoSnapshots. A path that it does not have is LIVE."""
    try:
        fields = parsed_answer(answer)
        name = fields["session"]
        if not _SESSION.fullmatch(name) or name.startswith("-"):
            raise ValueError("not the name of a session")
        taken = dict(_filesystem(entry) for entry in list_of(fields, "filesystems", _MOST_FILESYSTEMS))
        dumps = tuple(parse_dump(entry) for entry in list_of(fields, "dumps", MOST_DUMPS))
        streams = {entry["name"]: _streams(entry, paths) for entry in fields["dumps"] if "streams" in entry}
        own = tuple(map(_folder, list_of({"own": [], **fields}, "own", _MOST_FILESYSTEMS)))
        return SnapshotSession(name, _consistencies(fields, paths, taken), tuple(taken), dumps, streams, own, _inner(fields))
    except INVALID as error:
        raise invalid_answer("begin", error) from None


def _install() -> str:
    return f"install {PROGRAM} on the host ({page('sources')})"


def invalid_answer(request: str, error: Exception | None = None) -> NoSnapshots:
    """Returns the error of an answer that could not be parsed: `error` is why."""
    if isinstance(error, TooMany):
        hint = f"a dump without `stream = yes` may have any number of files ({page('sources')})"
        return NoSnapshots(f"the answer of {PROGRAM} to `{request}` has {error}", hint)
    return NoSnapshots(f"the answer of {PROGRAM} to `{request}` is invalid", f"update {PROGRAM} on the host ({page('sources')})")


def parsed_answer(answer: bytes) -> dict[str, Any]:
    """Returns the JSON object in the last line: a login shell may print lines before it. Raises ValueError, KeyError, TypeError."""
    lines = answer.decode("utf-8").splitlines()
    fields = json.loads(lines[-1] if lines else "")
    if not isinstance(fields, dict) or type(fields["format"]) is not int or fields["format"] != _FORMAT:
        raise ValueError("another format")
    return fields


def list_of(fields: Mapping[str, Any], name: str, most: int) -> list[Any]:
    entries = fields[name]
    if not isinstance(entries, list):
        raise ValueError("not a list")
    if len(entries) > most:
        raise TooMany(f"{len(entries):,} {name}, and at most {most:,} are supported")
    return entries


def _filesystem(entry: Mapping[str, Any]) -> tuple[str, datetime]:
    mount = entry["mount"]
    if not isinstance(mount, str) or not mount.startswith("/"):
        raise ValueError("not a mount point")
    return mount, parse_time(entry["taken"])


def _inner(fields: Mapping[str, Any]) -> dict[str, int | None] | None:
    """Parses the mounts and subvolumes below the paths. Raises ValueError."""
    if fields.get("inner") is None:
        return None
    return dict(_inner_filesystem(entry) for entry in list_of(fields, "inner", _MOST_FILESYSTEMS))


def _inner_filesystem(entry: Mapping[str, Any]) -> tuple[str, int | None]:
    folder, size = entry["path"], entry["bytes"]
    if not isinstance(folder, str) or not folder.startswith("/"):
        raise ValueError("not a path")
    if size is not None and (type(size) is not int or not 0 <= size < 1 << 63):
        raise ValueError("not a number of bytes")
    return os.fsdecode(folder.encode("utf-8", "surrogateescape")), size


def _streams(entry: Mapping[str, Any], paths: Sequence[str]) -> tuple[str, ...]:
    """Returns the files of a dump that is a stream. Raises ValueError: the host decides where this server writes them."""
    files = [os.fsdecode(str(path).encode("utf-8", "surrogateescape")) for path in list_of(entry, "streams", _MOST_STREAMS)]
    for file in files:
        names = file.split("/")
        if names[0] or not all(names[1:]) or {".", ".."} & set(names) or "\0" in file or not below(file, entry["path"]):
            raise ValueError("not the path of a file")
        if len(os.fsencode(file)) > _LONGEST_PATH or max(len(os.fsencode(name)) for name in names) > _LONGEST_NAME:
            raise ValueError("longer than a path can be")  # each walk of the backup would need memory for each folder's path
        if not any(below(file, path) and file != path for path in paths):
            raise ValueError("not below a source path")
    return tuple(dict.fromkeys(files))


def _folder(folder: Any) -> str:
    """Returns the path of a folder of the program. Raises ValueError."""
    if not isinstance(folder, str) or not folder.startswith("/") or not folder.endswith("/.btrkeep-source"):
        raise ValueError("not a folder of the program")
    return folder


def _consistencies(fields: Mapping[str, Any], paths: Sequence[str], taken: Mapping[str, datetime]) -> dict[str, PathConsistency]:
    entries = {entry["path"]: entry for entry in list_of(fields, "paths", _MOST_PATHS)}
    return {path: _consistency(path, entries.get(path), taken) for path in paths}


def _consistency(path: str, entry: Mapping[str, Any] | None, taken: Mapping[str, datetime]) -> PathConsistency:
    if entry is None:
        return PathConsistency(LIVE, reason=f"{PROGRAM} did not report this path")
    if entry["consistency"] == LIVE:
        return PathConsistency(LIVE, reason=limited_text(entry["reason"]))
    if entry["consistency"] != SNAPSHOT:
        raise ValueError("not a consistency")
    moments = [taken[mount] for mount in _mounts_of(path, taken)]
    return PathConsistency(SNAPSHOT, methods_of(entry["methods"]), min(moments, default=None))
