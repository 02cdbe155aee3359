"""The other end of a replication, taken over by an attacker: it lists one host, and sends a forged stream.

    python -m tests.beds.hostile_pool ATTACK TARGET

It does not import btrkeep.
"""

import json
import struct
import sys
import time
from collections.abc import Iterator
from uuid import UUID

from tests.beds.send_stream import command, file, reserve, subvolume, symlink, write
from tests.beds.strange_streams import ODD, STRANGE, UUID_SENT

_UUID = UUID_SENT
_NAME = "2026-03-01T220000Z"
_LATER, _LATER_UUID = "2026-03-02T220000Z", str(UUID(int=78))
WORDS = "\x1b[31mno\ud800\x00"
_RECORD = {
    "format": 1, "host": "web1", "uuid": _UUID, "state": "complete", "started": "2026-03-01T22:00:00Z", "name": _NAME, "paths": [],
}  # fmt: skip


def stream_of(kind: str) -> int:
    """Returns a stream in its version."""
    return 2 if kind in {"fills-and-trickles", *STRANGE, *ODD} else 1


def attack(kind: str, target: bytes) -> Iterator[bytes]:
    version = stream_of(kind)
    yield b"btrfs-stream\0" + struct.pack("<I", 3 if kind == "of-version-3" else version)
    if kind == "spoils-the-first":  # a difference to the first one, which is beside it; its record is valid
        origin = ((15, _LATER.encode()), (1, UUID(_LATER_UUID).bytes), (2, struct.pack("<Q", 6)))
        yield command(2, *origin, (20, UUID(_UUID).bytes), (21, struct.pack("<Q", 5)))
        record = json.dumps({**_RECORD, "uuid": _LATER_UUID, "name": _LATER}).encode()
        yield command(11, (15, b"backup.json")) + file(b"backup.json", record)
        if target == b"written":
            yield write(b"../backup/backup.json", b"taken over")
        else:
            yield command(9, (15, b"../backup"), (16, target))
        yield command(21)
        return
    if kind == "wrong-parent":
        origin = ((15, _LATER.encode()), (1, UUID(_LATER_UUID).bytes), (2, struct.pack("<Q", 5)))
        yield command(2, *origin, (20, UUID(int=99).bytes), (21, struct.pack("<Q", 5))) + command(21)
        return
    if kind == "endless":
        yield subvolume(_LATER.encode(), _LATER_UUID) + file(b"same", b"")
        again = write(b"same", b"x" * 40_000) * 6
        while True:  # the same place of the same file: that needs no room
            yield again
    if kind == "renamed-away":
        yield subvolume(_LATER.encode(), _LATER_UUID)
        yield file(b"backup.json", json.dumps({**_RECORD, "uuid": _LATER_UUID, "name": _LATER}).encode())
        yield command(9, (15, f"../{_NAME}".encode()), (16, target)) + command(21)
        return
    if kind == "fills-and-trickles":
        yield subvolume(_LATER.encode(), _LATER_UUID) + file(b"x", b"", 2)
        for place in range(int(target)):
            yield reserve(b"x", 4 << 20, at=place << 22)
        while True:
            time.sleep(0.3)
            yield write(b"x", b"slowly", 2)
    yield subvolume(_NAME.encode(), _UUID)
    yield file(b"backup.json", json.dumps(_RECORD).encode(), version)
    if strange := {**STRANGE, **ODD}.get(kind):
        yield strange(target)
    match kind:
        case "through-a-symlink":
            yield symlink(b"out", target) + write(b"out", b"taken over")
        case "through-a-folder":
            yield symlink(b"out", target) + file(b"out/taken", b"taken over")
        case "above":
            yield file(b"../" * 12 + target.lstrip(b"/"), b"taken over")
        case "absolute":
            yield file(target, b"taken over")
        case "moved-out":
            yield file(b"taken", b"taken over") + command(9, (15, b"taken"), (16, target))
        case "hard-link":
            yield command(10, (15, b"passwd"), (17, target)) + write(b"passwd", b"taken over")
        case "nested":
            yield subvolume(b"nested", str(UUID(int=78)))
        case "clone":
            yield command(16, (15, b"backup.json"), (18, bytes(8)), (24, struct.pack("<Q", 4096)), (20, UUID(int=5).bytes),
                          (21, bytes(8)), (22, target), (23, bytes(8)))  # fmt: skip
        case "deep":  # beside the backup
            path = b"../x"
            for number in range(1200):
                yield command(4, (15, path), (3, struct.pack("<Q", 400 + number)))
                path += b"/d"
        case "another-record":
            yield write(b"backup.json", json.dumps({**_RECORD, "host": "other"}).encode())
        case "no-record":
            yield command(11, (15, b"backup.json"))
        case "device":
            yield command(
                5, (15, b"disk"), (3, struct.pack("<Q", 9)), (5, struct.pack("<Q", 0o60666)), (8, struct.pack("<Q", 1792))
            )
    yield command(21)


def frame(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">cI", kind, len(content)) + content


def main() -> None:
    kind, target = sys.argv[1], sys.argv[2].encode()
    out = sys.stdout.buffer
    for line in sys.stdin:
        asked = json.loads(line)
        verb = asked["verb"]
        if verb == "hello":
            out.write(frame(b"o", json.dumps({"protocol": 1, "version": "x", "pool": "p", "stream": stream_of(kind)}).encode()))
        if verb == "list":
            host = "../other" if kind == "bad-host" else "web1"
            name = "../../2026-03-01T220000Z" if kind == "bad-name" else _NAME
            backups = [[name, _UUID, "complete"]]
            if kind in ("renamed-away", "endless", "fills-and-trickles"):
                backups = [[_LATER, _LATER_UUID, "complete"]]
            if kind in ("wrong-parent", "spoils-the-first"):
                backups.append([_LATER, _LATER_UUID, "complete"])
            out.write(frame(b"o", json.dumps({"host": host, "was": [], "backups": backups}).encode()))
        if verb == "send":
            hold = {"hold": {"at": "2026-03-02T01:00:00Z", "until": None, "why": WORDS}} if kind == "words" else {}
            answer = {"uuid": _UUID, "state": "complete", "notes": hold, "bytes": 1, "total": 1 << 70, "stream": stream_of(kind)}
            if kind in ("endless", "fills-and-trickles"):
                answer["total"] = 1000
            out.write(frame(b"o", json.dumps(answer).encode()))
            is_first = kind == "spoils-the-first" and asked["name"] == _NAME
            for piece in attack("device" if is_first else kind, target):
                out.write(frame(b"p", piece))
                out.flush()
        problem = {"error": WORDS} if kind == "complains" and verb == "list" else {}
        out.write(frame(b"e", json.dumps(problem).encode()))
        out.flush()


if __name__ == "__main__":
    main()
