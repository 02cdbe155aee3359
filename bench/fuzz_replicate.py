"""Fuzz targets of replication: the answers and the requests of another server, and streams of `btrfs send`."""

import json
import os
import struct
from collections.abc import Callable
from uuid import UUID

from bench.fuzz_target import Seeds, Target, scratch_folder
from btrkeep.errors import OperatorError

_OURS, _PARENT = (str(UUID(int=number)) for number in (1, 2))
_NAME = "2026-03-01T220000Z"


def _frame(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">cI", kind, len(content)) + content


def _object_frame(**fields: object) -> bytes:
    return _frame(b"o", json.dumps(fields).encode())


def _answer_seeds() -> Seeds:
    end = _frame(b"e", b"{}")
    hello = _object_frame(protocol=1, version="0.1", pool="p", stream=2, now="2026-03-01T22:00:00Z") + end
    hosts = _object_frame(host="web1", was=["old"], backups=[[_NAME, _OURS, "complete", [None, "audit"]]], copy_of="q")
    announced = _object_frame(notes={"hold": {"why": "x"}}, bytes=5, total=7, stream=1)
    yield hello + hosts + end + announced + _frame(b"p", b"x" * 40) + end
    yield hello + hosts + end + _object_frame(waits="a night") + announced + end + end
    yield hello + _frame(b"e", b'{"error": "no"}')


def _answers() -> Callable[[bytes], object]:
    """The input is all answers of another server. They are accepted, or refused with OperatorError."""
    from backupd.replicate.remote_pool import OwnStreams, RemotePool
    from btrkeep.config.sources import name_fault
    from btrkeep.decisions.replication import Fetch, RemoteBackup
    from btrkeep.units import parse_backup_name

    nowhere = os.open(os.devnull, os.O_WRONLY)
    fetch = Fetch(RemoteBackup(_NAME, _OURS, "complete"), None)

    def run(data: bytes) -> None:
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        try:
            far = RemotePool(OwnStreams(nowhere, reading), lambda: None)
            for host in far.hosts():
                assert not name_fault(host.name)
                assert all(parse_backup_name(backup.name) for backup in host.backups)
            announced, pieces = far.fetch("web1", fetch, 2)
            assert announced.stream in (1, 2)
            assert (announced.total or 0) >= 0
            assert sum(map(len, pieces)) <= len(data)
            far.note_end("", {})
        except OperatorError:
            return
        finally:
            os.close(reading)

    return run


def _request_seeds() -> Seeds:
    yield b'{"verb": "hello"}\n{"verb": "list"}\n'
    asked = {"verb": "send", "host": "web1", "name": _NAME, "uuid": _OURS, "parent": _NAME, "parent_uuid": _PARENT, "stream": 2}
    yield json.dumps(asked).encode() + b"\n"
    yield b'{"verb": "common", "fetch": null, "replica": "office", "hosts": {"web1": "2026-03-01T220000Z"}}\n'
    yield b'{"verb": "common", "fetch": null, "replica": "../../x", "hosts": {"../web1": "/etc"}}\n[[[[\n'


def _requests() -> Callable[[bytes], object]:
    """The input is all requests of another server. Each line gets an answer, and only files of common backups are written."""
    from backupd.replicate.sender import BackupSender, request_lines, serve
    from btrkeep.pool.marker import Pool

    top = scratch_folder()
    folder = top / "pool"
    (folder / "hosts" / "web1").mkdir(parents=True)
    (folder / ".btrkeep").mkdir()
    pool = Pool(folder, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    paths = {path for path in top.rglob("*") if path.is_dir()} | {folder / ".btrkeep" / "common"}

    def run(data: bytes) -> None:
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        answers = os.memfd_create("answers")
        try:
            serve(request_lines(reading), BackupSender(pool, None, answers).verbs, answers)
        finally:
            os.close(reading)
            os.close(answers)
        new = set(top.rglob("*")) - paths
        assert all(path.parent == folder / ".btrkeep" / "common" for path in new), new
        for path in new:
            path.unlink()

    return run


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("<HH", kind, len(value)) + value


def _command(number: int, content: bytes = b"") -> bytes:
    return struct.pack("<IHI", len(content), number, 0) + content


def _stream_seeds() -> Seeds:
    head = b"btrfs-stream\0" + struct.pack("<I", 1)
    content = _attribute(15, _NAME.encode()) + _attribute(1, UUID(_OURS).bytes) + _attribute(2, bytes(8))
    file = _command(3, _attribute(15, b"o1")) + _command(15, _attribute(15, b"o1") + _attribute(19, b"x" * 200))
    yield b"\x10" + head + _command(1, content) + file + _command(21)
    yield b"\x81" + head + _command(2, content + _attribute(20, UUID(_PARENT).bytes)) + file + _command(21)
    yield b"\x03" + head + _command(1, content) + file + _command(1, content) + _command(21)


def _stream() -> Callable[[bytes], object]:
    """The input is a stream after one byte: whether a difference is expected, and the length of the pieces. The guard passes the
    same bytes on whatever the pieces are, nothing after the end, and no second subvolume.
    """
    from backupd.replicate.stream_guard import BadStream, StreamGuard

    def passed(data: bytes, parent: str | None, step: int) -> tuple[bytes, bool, bool]:
        guard, out = StreamGuard(_OURS, parent, b"backup", 1), b""
        try:
            for at in range(0, len(data), step):
                out += b"".join(guard.filter(data[at : at + step]))
        except BadStream:
            return out, guard.whole, True
        return out, guard.whole, False

    def run(data: bytes) -> None:
        first, stream = data[0] if data else 0, data[1:]
        parent = _PARENT if first & 128 else None
        whole, pieces = (passed(stream, parent, step) for step in (max(1, len(stream)), 1 + first % 128))
        assert whole[2] == pieces[2]
        if whole[2]:
            return
        assert whole == pieces
        at, numbers = 17, []
        while at + 10 <= len(whole[0]):
            length, number = struct.unpack_from("<IH", whole[0], at)
            numbers.append(number)
            at += 10 + length
        assert all(number not in (1, 2) for number in numbers[1:])
        assert numbers[:1] in ([], [2 if parent else 1])
        assert not whole[1] or numbers[-1] == 21

    return run


TARGETS = {
    "replicate-answers": Target("answers of another server", _answer_seeds, _answers),
    "replicate-requests": Target("requests of another server", _request_seeds, _requests),
    "replicate-stream": Target("streams of btrfs send", _stream_seeds, _stream),
}
