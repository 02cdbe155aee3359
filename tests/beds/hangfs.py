"""A filesystem that never answers when a folder is opened, like a dead NFS or FUSE server: a caller waits in the kernel (state D).

    python hangfs.py FOLDER         mounts it there and says "mounted"
    python hangfs.py FOLDER file    it has one file, and stops answering once that is open
    python hangfs.py FOLDER dead    it answers nothing at all, not even a stat of the folder itself

A number after that is the user who owns it.

`hanging(folder)` does that around a test and frees the hanging processes at its end. The layouts are those of
include/uapi/linux/fuse.h.
"""

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN = struct.Struct("<IIQQ")  # len, opcode, unique, nodeid, ...
_LOOKUP, _GETATTR, _OPEN, _STATFS, _RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 1, 3, 14, 17, 18, 25, 26, 27, 28, 29
_FORGET, _INTERRUPT = (2, 42), 36
_ROOT, _FILE = 1, 2  # inodes


def _attributes(node: int) -> bytes:
    mode, size = (0o40755, 0) if node == _ROOT else (0o100644, 5000)
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, 16, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@contextmanager
def hanging(folder: Path, *, once_open: bool = False, dead: bool = False, user: int = 0) -> Iterator[None]:
    """Mounts it at the folder, which is made, during the block. `once_open`: it has a file, and is dead as soon as that is open.

    `dead`: it never answers. `user`: its owner; no other user has access, not even root.
    """
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-P", __file__, str(folder), *(["file"] if once_open else []), *(["dead"] if dead else []), str(user)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "mounted\n"
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
            server.kill()  # without a server the kernel releases the waiting processes


def _serve(folder: str, *, once_open: bool, dead: bool, user: str) -> None:
    channel = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={channel},rootmode=40000,user_id={user},group_id={user}"
    if libc.mount(b"hang", os.fsencode(folder), b"fuse.hang", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    alive = True
    while True:
        try:
            request = os.read(channel, 1 << 20)
            opcode = _IN.unpack_from(request)[1]
            if alive and opcode not in (_INTERRUPT, *_FORGET):
                _answer(channel, request, once_open=once_open)
            alive = alive and not dead and opcode != _OPEN
        except OSError:  # aborted
            return


def _answer(channel: int, request: bytes, *, once_open: bool) -> None:
    _, opcode, unique, node = _IN.unpack_from(request)

    def reply(data: bytes = b"", error: int = 0) -> None:
        os.write(channel, struct.pack("<IiQ", 16 + len(data), error, unique) + data)

    if opcode == _INIT:
        reply(struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 10, 1 << 16, 1, 1, 0, 0, *[0] * 7))
    elif opcode == _GETATTR:
        reply(struct.pack("<QII", 1, 0, 0) + _attributes(node))
    elif opcode == _STATFS:
        reply(struct.pack("<QQQQQIII I6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6))
    elif opcode == _OPENDIR and not once_open:
        return
    elif opcode in (_OPENDIR, _OPEN) and once_open:
        reply(struct.pack("<QII", 1, 0, 0))
    elif opcode == _READDIR:
        at_end = struct.unpack_from("<QQ", request, _IN.size + 16)[1]
        reply(b"" if at_end else struct.pack("<QQII4s4x", _FILE, 1, 4, 8, b"file"))
    elif opcode == _LOOKUP and once_open and request[_IN.size + 16 :] == b"file\0":
        reply(struct.pack("<QQQQII", _FILE, 0, 60, 0, 0, 0) + _attributes(_FILE))
    elif opcode in (_RELEASE, _RELEASEDIR, _FLUSH):
        reply()
    else:
        reply(error=-2 if opcode == _LOOKUP else -38)


if __name__ == "__main__":
    _serve(
        sys.argv[1],
        once_open="file" in sys.argv[2:],
        dead="dead" in sys.argv[2:],
        user=sys.argv[-1] if sys.argv[-1].isdecimal() else "0",
    )
