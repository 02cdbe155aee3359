"""Streams that no `btrfs send` makes: the commands after the first one and the record, in version 2 of the stream."""

import struct
import zlib
from collections.abc import Callable, Mapping

from tests.beds.send_stream import attribute, clone, command, encoded, node, number, reserve, symlink, truncate, write

UUID_SENT = "00000000-0000-0000-0000-00000000004d"
_EMPTY = command(3, (15, b"x"), (3, number(400)))
_ZEROS = zlib.compress(bytes(131072))
_CAPABILITIES = struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0x1FF, 0)  # struct vfs_cap_data: all of them, effective


def _folder(path: bytes = b"data") -> bytes:
    return command(4, (15, path), (3, number(310)))


def _renamed(path: bytes, to: bytes) -> bytes:
    return command(9, (15, path), (16, to))


def _removed(path: bytes) -> bytes:
    return command(11, (15, path))


def _pipe(path: bytes) -> bytes:
    return node(path, 0o010644)


def _packed(path: bytes = b"x", data: bytes = _ZEROS, *, length: int = 131072, whole: int = 131072, **numbers: int) -> bytes:
    return encoded(path, data, length=length, whole=whole, **numbers)


STRANGE: Mapping[str, Callable[[bytes], bytes]] = {
    # clones of other data
    "clone-of-another-host": lambda other: _EMPTY + clone(b"x", other.decode(), b"secret"),
    "clone-from-above": lambda target: _EMPTY + clone(b"x", UUID_SENT, target, 1),
    "clone-through-a-symlink": lambda target: symlink(b"out", target) + _EMPTY + clone(b"x", UUID_SENT, b"out", 1),
    "clone-into-a-symlink": lambda target: symlink(b"out", target) + clone(b"out", UUID_SENT, b"backup.json"),
    "cut-through-a-symlink": lambda target: symlink(b"out", target) + truncate(b"out", 0),
    "mode-through-a-symlink": lambda target: symlink(b"out", target) + command(18, (15, b"out"), (5, number(0o777))),
    "owner-above": lambda target: command(19, (15, target), (6, number(1000)), (7, number(1000))),
    "time-above": lambda target: command(20, (15, target), *((kind, bytes(12)) for kind in (11, 10, 9))),
    "attribute-above": lambda target: attribute(target, b"user.taken", b"over"),
    "reserve-above": lambda target: reserve(target, 1 << 20),
    "encoded-above": _packed,
    "removed-above": _removed,
    "device-written": lambda device: node(b"disk", 0o60666, int(device)) + write(b"disk", b"taken over", 2),
    # in the place of what a backup has
    "data-is-a-symlink": lambda target: _folder() + symlink(b"new", target) + _renamed(b"data", b"old") + _renamed(b"new", b"data"),
    "data-is-a-file": lambda _: _folder() + _EMPTY + _renamed(b"data", b"old") + _renamed(b"x", b"data"),
    "data-is-a-pipe": lambda _: _pipe(b"data"),
    "record-is-a-pipe": lambda _: _removed(b"backup.json") + _pipe(b"backup.json"),
    "record-is-a-symlink": lambda target: _removed(b"backup.json") + symlink(b"backup.json", target),
    "record-is-huge": lambda _: truncate(b"backup.json", 1 << 62),
    "sums-are-a-pipe": lambda _: _pipe(b"SHA256SUMS"),
    "root-removed": lambda _: command(12, (15, b"")),
    # numbers
    "truncate-too-huge": lambda _: _EMPTY + truncate(b"x", (1 << 64) - 1),
    "clone-too-huge": lambda _: _EMPTY + clone(b"x", UUID_SENT, b"backup.json", (1 << 63) - 4096),
    "reserve-too-huge": lambda _: _EMPTY + reserve(b"x", (1 << 63) - 1),
    "encoded-claims-much": lambda _: _EMPTY + _packed(length=1 << 62, whole=1 << 62),
    "encoded-beyond": lambda _: _EMPTY + _packed(length=4096, offset=1 << 62),
    "encoded-in-no-way": lambda _: _EMPTY + _packed(compression=99),
    "encoded-encrypted": lambda _: _EMPTY + _packed(encryption=1),
    "encoded-far-away": lambda _: _EMPTY + _packed(at=(1 << 63) - 1),
    # commands
    "of-version-3": lambda _: b"",
    "verity": lambda _: _EMPTY + command(26, (15, b"x"), (32, b"\1"), (33, struct.pack("<I", 4096)), (34, b""), (35, b"")),
    "command-27": lambda _: command(27, (15, b"x")),
    "attribute-too-long": lambda _: command(11, (15, b"x" * 60000)),
    "attribute-of-btrfs": lambda _: _folder() + attribute(b"data", b"btrfs.compression", b"no such"),
    "attribute-of-btrfs-unknown": lambda _: _folder() + attribute(b"data", b"btrfs.taken", b"over"),
    # streams that wait
    "pipe-written": lambda _: _pipe(b"pipe") + write(b"pipe", b"x", 2),
    "clone-of-a-pipe": lambda _: _pipe(b"pipe") + _EMPTY + clone(b"x", UUID_SENT, b"pipe"),
}
"""Streams that cannot be received, by their names; `target` is what some of them aim at."""

ODD: Mapping[str, Callable[[bytes], bytes]] = {
    "truncate-huge": lambda _: _folder() + _EMPTY + truncate(b"x", (1 << 63) - 1) + _renamed(b"x", b"data/x"),
    "data-renamed-away": lambda _: _folder() + _renamed(b"data", b"old"),
    "compressed-from-now-on": lambda _: _folder() + attribute(b"data", b"btrfs.compression", b"zstd"),
    "may-do-all": lambda _: _folder() + _EMPTY + attribute(b"x", b"security.capability", _CAPABILITIES) + _renamed(b"x", b"data/x"),
    "reserves-often": lambda _: (
        _folder() + _EMPTY + b"".join(reserve(b"x", 1, at=at << 12, mode=at % 2) for at in range(2000)) + _renamed(b"x", b"data/x")
    ),
    "encoded-claims-little": lambda _: _folder() + _EMPTY + _packed(length=4096, whole=4096) + _renamed(b"x", b"data/x"),
    "encoded-of-nothing": lambda _: _folder() + _EMPTY + _packed(data=b"") + _renamed(b"x", b"data/x"),
    "encoded-garbage": lambda _: _folder() + _EMPTY + _packed(data=b"\xff" * 4096) + _renamed(b"x", b"data/x"),
}
"""Streams that may be received, because they only affect the sender's data: later steps must cope with them."""
