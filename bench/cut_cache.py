"""Disks with a volatile write cache: after a power cut, any part of the writes since the last flush may be on them.

    python -m bench.cut_cache [--log=FILE] CONTROL IMAGE...

Serves each image at the Unix socket IMAGE-socket, as a network block device (NBD, fixed newstyle) for nbdfuse. Beside it
is IMAGE-safe, to which a flush adds all earlier writes. Each line `SEED NUMBER` at the socket CONTROL is a power cut of all
of them at one moment: IMAGE-NUMBER is a copy of IMAGE-safe with some of the later writes, sector by sector, and the answer is a
line. With --log nothing is cut: every write and flush goes to FILE in its order (cut_log.py), and each line `STEP MOMENT` at
CONTROL too. A separate process, because the one that mounts the disks waits for them in calls that hold Python's lock.
"""

import random
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.cut_log import Recorder, clone, record

_SECTOR = 4096
_READ, _WRITE, _DISCONNECT, _FLUSH = range(4)
_GO, _ACKNOWLEDGED, _INFO, _UNSUPPORTED = 7, 1, 3, (1 << 31) + 1
_FIXED_NEWSTYLE, _HAS_FLAGS, _CAN_FLUSH = 1, 1, 4
_OPTION_MAGIC, _OPTION_REPLY, _REQUEST, _REPLY = b"IHAVEOPT", 0x3E889045565A9, 0x25609513, 0x67446698
_INVALID = 22
_MOST = 8 << 20  # bytes that wait; more and the oldest are safe, as on a disk
_ODDS = (0.0, 0.5, 0.9, 1.0)  # how much of a cache comes through


class Cache:
    """The writes of an image that no flush has made safe yet."""

    def __init__(self, image: Path) -> None:
        self.image, self._path = image, image.with_name(f"{image.name}-safe")
        clone(image, self._path)
        self._safe = self._path.open("r+b", buffering=0)
        self._writes: deque[tuple[int, bytes]] = deque()
        self._waiting = 0

    def write(self, offset: int, data: bytes) -> None:
        """Keeps a write until the next flush."""
        self._writes.append((offset, data))
        self._waiting += len(data)
        self._save(_MOST)

    def flush(self) -> None:
        """Makes all writes safe."""
        self._save(0)

    def cut(self, number: str, dice: random.Random) -> None:
        """Makes IMAGE-`number`."""
        copy, odds = self.image.with_name(f"{self.image.name}-{number}"), dice.choice(_ODDS)
        clone(self._path, copy)
        with copy.open("r+b", buffering=0) as file:
            for offset, data in self._writes:
                for start in range(0, len(data), _SECTOR):
                    if dice.random() < odds:
                        file.seek(offset + start)
                        file.write(data[start : start + _SECTOR])

    def _save(self, left: int) -> None:
        """Makes the oldest writes safe until at most that many bytes wait."""
        while self._waiting > left:
            offset, data = self._writes.popleft()
            self._safe.seek(offset)
            self._safe.write(data)
            self._waiting -= len(data)


class Disk:
    """An image, and the record of its writes and flushes. `lock` is that of all disks whose power is cut together."""

    def __init__(self, image: Path, lock: threading.Lock, notes: Cache | Recorder) -> None:
        self.image, self._lock, self._notes = image, lock, notes
        self._live = image.open("r+b", buffering=0)

    def serve(self, client: socket.socket) -> None:
        """Answers one client until it disconnects."""
        with client, client.makefile("rb") as asked:
            self._greet(client, asked.read)
            while len(head := asked.read(28)) == 28:
                magic, _, kind, handle, offset, length = struct.unpack(">IHHQQI", head)
                assert magic == _REQUEST
                if kind == _DISCONNECT:
                    return
                data = asked.read(length) if kind == _WRITE else b""
                with self._lock:
                    error, answer = self._carry_out(kind, offset, length, data)
                client.sendall(struct.pack(">IIQ", _REPLY, error, handle) + answer)

    def _greet(self, client: socket.socket, read: Callable[[int], bytes]) -> None:
        client.sendall(b"NBDMAGIC" + _OPTION_MAGIC + struct.pack(">H", _FIXED_NEWSTYLE))
        read(4)
        while head := read(16):
            _, option, length = struct.unpack(">8sII", head)
            read(length)
            if option == _GO:
                flags = _HAS_FLAGS | _CAN_FLUSH
                info = struct.pack(">HQH", 0, self.image.stat().st_size, flags)
                client.sendall(struct.pack(">QIII", _OPTION_REPLY, option, _INFO, len(info)) + info)
                client.sendall(struct.pack(">QIII", _OPTION_REPLY, option, _ACKNOWLEDGED, 0))
                return
            client.sendall(struct.pack(">QIII", _OPTION_REPLY, option, _UNSUPPORTED, 0))

    def _carry_out(self, kind: int, offset: int, length: int, data: bytes) -> tuple[int, bytes]:
        """Executes a request; returns an errno, and the data."""
        if kind == _READ:
            self._live.seek(offset)
            return 0, self._live.read(length).ljust(length, b"\0")
        if kind == _WRITE:
            self._live.seek(offset)
            self._live.write(data)
            self._notes.write(offset, data)
        elif kind == _FLUSH:
            self._notes.flush()
        else:
            return _INVALID, b""
        return 0, b""


def _listen(path: Path) -> socket.socket:
    """Returns a socket at a path that appears when clients can connect."""
    server, early = socket.socket(socket.AF_UNIX), path.with_name(f"{path.name}-early")
    server.bind(str(early))
    server.listen()
    early.rename(path)
    return server


def _serve(disk: Disk, server: socket.socket) -> None:
    while True:
        threading.Thread(target=disk.serve, args=(server.accept()[0],), daemon=True).start()


def main() -> None:
    """Serves until the first client of CONTROL disconnects."""
    log = Path(sys.argv.pop(1).removeprefix("--log=")) if sys.argv[1].startswith("--log=") else None
    control, *images = map(Path, sys.argv[1:])
    lock = threading.Lock()
    notes: Sequence[Cache | Recorder] = record(log, images) if log else [Cache(image) for image in images]
    for image, note in zip(images, notes, strict=True):
        server = _listen(image.with_name(f"{image.name}-socket"))
        threading.Thread(target=_serve, args=(Disk(image, lock, note), server), daemon=True).start()
    client, _ = _listen(control).accept()
    for line in client.makefile():
        number, _, rest = line.strip().partition(" ")
        with lock:
            _carry_out(notes, int(number), rest)
        client.sendall(b"\n")


def _carry_out(notes: Sequence[Cache | Recorder], number: int, rest: str) -> None:
    """Executes a line of CONTROL. The lock is held."""
    dice = random.Random(number)
    for note in notes:
        if isinstance(note, Recorder):
            note.mark(number, rest)
            return
        note.cut(rest, dice)


if __name__ == "__main__":
    main()
