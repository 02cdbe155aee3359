"""The streams of a host: the request for its snapshots to btrkeep-source over ssh, and the command that writes one to its output.

The host keeps the snapshots for the next stream (docs/decisions/0094-streams-of-hosts.rst). As in rsync/snapshot_session.py, it may
answer anything: size and time are limited, and answers are parsed strictly.
"""

import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from backupd.rsync.bandwidth import Bucket, relay_command
from backupd.rsync.command import host_command
from backupd.rsync.process import RunCancellation
from backupd.rsync.snapshot_session import (
    INVALID,
    PROGRAM,
    ask_source,
    invalid_answer,
    late_answer,
    list_of,
    parsed_answer,
    refused,
)
from backupd.streams.applying import LAST_WORDS, RemoteStream
from btrkeep.config import HostConfig, SshSettings
from btrkeep.config.self_exclusion import below
from btrkeep.consistency import MOST_DUMPS, HostDump, limited_text, parse_dump
from btrkeep.pool.marker import Pool
from btrkeep.units import parse_time

_REQUEST = "send-begin"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IDENTITY = re.compile(rf"{_UUID}:\d{{1,20}}:{_UUID}", re.ASCII)
_MOST_PATHS, _MOST_NAMED, _MOST_ABOVE = 10_000, 100, 2048
_MOST = (0o7777, (1 << 32) - 2, (1 << 32) - 2, (1 << 63) - 1)  # of the attributes of a folder


def is_identity(text: str) -> bool:
    """Returns True for the identity of a snapshot as the host's program accepts it."""
    return _IDENTITY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class FolderAbove:
    """A folder above a source path, which is not in its stream."""

    path: str
    """Its path on the host."""
    mode: int
    """Its permissions."""
    uid: int
    """Its owner."""
    gid: int
    """Its group."""
    mtime: int
    """When it was changed, nanoseconds."""


@dataclass(frozen=True, slots=True)
class HostStream:
    """The snapshot of one source path, which the host can send."""

    path: str
    """The source path."""
    identity: str
    """UUID:CTRANSID:OWN of the snapshot: what its stream has, and its own UUID."""
    parent: str | None
    """The identity of the snapshot to which it can be sent as a difference, one of the requested ones; None: none is left."""
    taken: datetime
    """When it was made, by the host's clock."""
    left_out: tuple[str, ...] = ()
    """Nested subvolumes, relative to the path, of which the stream has nothing; the first ones."""
    left_out_count: int = 0
    """Number of all of them."""
    above: tuple[FolderAbove, ...] = ()
    """The folders above the path, outer ones first."""
    not_kept: int = 0
    """Number of snapshots that `keep_on_host` asks for and the host's administrator does not allow."""


@dataclass(frozen=True, slots=True)
class StreamSession:
    """The answer to the request."""

    streams: Mapping[str, HostStream]
    """By source path."""
    dumps: tuple[HostDump, ...] = ()
    """The dumps that the host made."""


def in_stream(identity: str) -> str:
    """Returns the part of an identity that is in the stream."""
    return identity.rpartition(":")[0]


def keepers_of(pool: Pool, host: str, former: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the names under which a host's snapshots are kept for its backups in a pool, 8 hexadecimal digits each: those of its
    `former` names first, its present one last.

    Otherwise two entries of one host, or two servers with the same --server in their keys, would delete each other's.
    """
    return tuple(sha256(f"{pool.id}/{name}".encode()).hexdigest()[:8] for name in (*former, host))


async def begin_streams(
    host: HostConfig,
    ssh: SshSettings,
    control: Path | None,
    keepers: Sequence[str],
    have: Sequence[str],
    cancellation: RunCancellation,
    seconds: float,
) -> StreamSession:
    """Makes the host take its snapshots. `have`: identities of those that the newest backup was made of.

    Raises NoSnapshots, and NotConnected if ssh could not connect.
    """
    words = (_REQUEST, *begin_words(host, keepers, have))
    return parse_streams(await ask_source(host, ssh, control, words, cancellation, seconds), host.paths, have)


async def begin_stream(
    host: HostConfig,
    ssh: SshSettings,
    buckets: Sequence[Bucket],
    keepers: Sequence[str],
    have: Sequence[str],
    cancellation: RunCancellation,
    seconds: float,
    *,
    plain: bool,
) -> tuple[StreamSession, RemoteStream]:
    """Does the same for a host with one path, of which the stream follows in the same request. Raises the same, ProgramFailed and
    OSError.
    """
    options = ("--send", *(("--plain",) if plain else ()))
    line = shlex.join((PROGRAM, _REQUEST, *options, *begin_words(host, keepers, have)))
    begun = time.monotonic()
    remote = RemoteStream(relay_command(buckets, host_command(host, ssh, None, (line,))))
    try:
        answer = await remote.answer(cancellation, seconds)
        if answer:
            return parse_streams(answer, host.paths, have), remote
    except TimeoutError:
        await remote.end()
        raise late_answer(seconds) from None
    except BaseException:
        await remote.end()
        raise
    status = await remote.end(LAST_WORDS)
    if status:
        raise refused(status, bytes(remote.errors), time.monotonic() - begun)
    raise invalid_answer(_REQUEST)


def begin_words(host: HostConfig, keepers: Sequence[str], have: Sequence[str]) -> tuple[str, ...]:
    """Returns the end of the request for snapshots."""
    keep = ("--keep", host.keep_on_host) if host.keep_on_host else ()
    given = [*(("--for", keeper) for keeper in keepers), *(("--have", identity) for identity in have)]
    return (*keep, *(word for words in given for word in words), "--", *host.paths)


def parse_streams(answer: bytes, paths: Sequence[str], have: Sequence[str]) -> StreamSession:
    """Parses the answer. Raises NoSnapshots."""
    try:
        fields = parsed_answer(answer)
        streams = {stream.path: stream for stream in (_stream(entry, have) for entry in list_of(fields, "paths", _MOST_PATHS))}
        dumps = tuple(parse_dump(entry) for entry in list_of(fields, "dumps", MOST_DUMPS))
        return StreamSession({path: streams[path] for path in paths}, dumps)
    except INVALID as error:
        raise invalid_answer(_REQUEST, error) from None


def _stream(entry: Mapping[str, Any], have: Sequence[str]) -> HostStream:
    identity, parent, path, count = entry["id"], entry["parent"], entry["path"], entry["left_out_count"]
    if not _IDENTITY.fullmatch(identity) or (parent is not None and parent not in have):
        raise ValueError("not a snapshot")
    not_kept = entry.get("not_kept", 0)
    if not isinstance(path, str) or any(type(number) is not int or not 0 <= number < 1 << 32 for number in (count, not_kept)):
        raise ValueError("not a path or not a number")
    left_out = tuple(limited_text(name) for name in list_of(entry, "left_out", _MOST_NAMED))
    above = tuple(_folder(each, path) for each in list_of(entry, "above", _MOST_ABOVE))
    return HostStream(path, identity, parent, parse_time(entry["taken"]), left_out, count, above, not_kept)


def _folder(entry: Any, below_it: str) -> FolderAbove:
    path, *numbers = entry
    if not isinstance(path, str) or path == below_it or not below(below_it, path) or ".." in path.split("/"):
        raise ValueError("not a folder above the path")
    if [type(number) for number in numbers] != [int] * 4 or any(
        abs(each) > most for each, most in zip(numbers, _MOST, strict=True)
    ):
        raise ValueError("not the attributes of a folder")
    mode, uid, gid, mtime = numbers
    return FolderAbove(path, mode & 0o7777, abs(uid), abs(gid), mtime)


def stream_command(
    host: HostConfig, ssh: SshSettings, control: Path | None, buckets: Sequence[Bucket], stream: HostStream, *, plain: bool
) -> tuple[str, ...]:
    """Returns the command that writes the stream to its output, limited by the buckets. A `plain` one has no compressed data."""
    parent = ("--parent", stream.parent) if stream.parent else ()
    line = shlex.join((PROGRAM, "send", *(("--plain",) if plain else ()), *parent, "--", stream.identity, stream.path))
    return relay_command(buckets, host_command(host, ssh, control, (line,)))


def set_attributes(data: Path, folders: Sequence[FolderAbove]) -> None:
    """Gives the folders above a source path their attributes, the inner ones first. Raises OSError.

    No symlink is followed: these folders were made here, or `drop_other_paths` has found them to be folders.
    """
    for above in reversed(folders):
        folder = data / above.path.strip("/")
        os.chown(folder, above.uid, above.gid, follow_symlinks=False)
        folder.chmod(above.mode)
        os.utime(folder, ns=(above.mtime, above.mtime), follow_symlinks=False)
