"""The allowed answers of a host to a request for the snapshots of streams, and the command that fetches a stream."""

import asyncio
import json
import os
import shlex
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from backupd.rsync.process import RunCancellation
from backupd.rsync.snapshot_session import NoSnapshots
from backupd.streams.applying import RemoteStream
from backupd.streams.host_stream import FolderAbove, StreamSession, begin_words, parse_streams, stream_command
from btrkeep.config import HostConfig, SshSettings

ONE, TWO = f"{UUID(int=1)}:7:{UUID(int=3)}", f"{UUID(int=2)}:9:{UUID(int=2)}"
ENTRY = {
    "path": "/srv/www",
    "id": TWO,
    "parent": ONE,
    "taken": "2026-11-30T12:00:00.123Z",
    "left_out": ["inner"],
    "left_out_count": 1,
    "above": [["/srv", 0o755, 1, 2, -5]],
}


def answer(**changes: Any) -> bytes:
    return json.dumps({"format": 1, "stream": 2, "dumps": [], "paths": [{**ENTRY, **changes}]}).encode()


def parse(text: bytes) -> StreamSession:
    return parse_streams(text, ("/srv/www",), (ONE,))


def test_an_answer_has_the_snapshot_its_parent_and_the_folders_above() -> None:
    stream = parse(b"a login shell's words\n" + answer()).streams["/srv/www"]
    assert (stream.identity, stream.parent, stream.left_out, stream.left_out_count) == (TWO, ONE, ("inner",), 1)
    assert stream.above == (FolderAbove("/srv", 0o755, 1, 2, -5),)
    assert parse(answer(parent=None)).streams["/srv/www"].parent is None


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "x"},
        {"id": TWO + "\n"},
        {"id": "-p"},
        {"id": None},
        {"parent": TWO},
        {"parent": "$(id)"},
        {"parent": 5},
        {"path": "/other"},
        {"path": None},
        {"taken": "yesterday"},
        {"left_out": "inner"},
        {"left_out": [5]},
        {"left_out": ["x"] * 101},
        {"left_out_count": -1},
        {"left_out_count": 1 << 40},
        {"left_out_count": True},
        {"not_kept": "1"},
        {"not_kept": -1},
        {"above": [["/etc", 0o755, 1, 2, 3]]},
        {"above": [["/srv/www", 0o755, 1, 2, 3]]},
        {"above": [["/srv/../etc", 0o755, 1, 2, 3]]},
        {"above": [["/srv", 0o755, 1, 2]]},
        {"above": [["/srv", 0o755, 1 << 40, 2, 3]]},
        {"above": [["/srv", 0o755, 1, 2, 1 << 70]]},
        {"above": [["/srv", 0.5, 1, 2, 3]]},
        {"above": [["/srv", 1, 1, 2, 3]] * 3000},
    ],
)
def test_an_answer_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NoSnapshots):
        parse(answer(**changes))


def test_the_command_is_one_quoted_line_for_the_hosts_shell() -> None:
    host, ssh = HostConfig("web1", address="root@web1", paths=("/srv/www",)), SshSettings()
    stream = parse(answer()).streams["/srv/www"]
    keep = replace(host, keep_on_host="daily=7,weekly=4")
    line = f"--keep daily=7,weekly=4 --for 0123abcd --for 4567cdef --have {ONE} -- /srv/www"
    assert shlex.join(begin_words(keep, ("0123abcd", "4567cdef"), (ONE,))) == line
    words = stream_command(host, ssh, None, (), stream, plain=True)
    assert words[-1] == f"btrkeep-source send --plain --parent {ONE} -- {TWO} /srv/www"
    assert words[-4:-1] == ("root", "--", "web1")


async def answered(script: str, seconds: float = 60.0) -> tuple[bytes, bytes, int, bytes]:
    remote = RemoteStream(("sh", "-c", script))
    try:
        answer = await remote.answer(RunCancellation(), seconds)
        rest = os.read(remote.reading, 100)
    finally:
        status = await remote.end(60.0 if seconds == 60.0 else 0.0)
    return answer, rest, status, bytes(remote.errors)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo motd; printf '{\"a\": 1}\\nstream\\nrest'", (b'{"a": 1}', b"stream\nrest", 0, b"")),
        ("echo motd; echo no >&2; exit 3", (b"", b"", 3, b"no\n")),
        ("printf '{'; exit 255", (b"", b"", 255, b"")),
    ],
)
def test_an_answer_before_a_stream_is_read_and_nothing_of_the_stream(
    script: str, expected: tuple[bytes, bytes, int, bytes]
) -> None:
    assert asyncio.run(answered(script)) == expected


def test_an_answer_that_does_not_come_or_never_ends_is_not_waited_for() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(answered("exec sleep 600", 0.2))
    assert asyncio.run(answered("exec tr '\\0' x < /dev/zero", 59.0))[0] == b""
