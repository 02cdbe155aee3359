"""Two names in a tree that are exchanged all the time, like an attack in the moment between check and use."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EXCHANGE = """
import ctypes, fcntl, os, struct, sys
libc = ctypes.CDLL(None)
one, two, *subvolume = (word.encode() for word in sys.argv[1:])
fd = os.open(subvolume[0], os.O_RDONLY) if subvolume else None

def read_only(flags):
    fcntl.ioctl(fd, 0x4008941A, struct.pack("=Q", flags))  # BTRFS_IOC_SUBVOL_SETFLAGS

print(flush=True)
while True:
    if subvolume:
        read_only(0)
    for _ in range(1 if subvolume else 1000):
        assert libc.renameat2(-100, one, -100, two, 2) == 0
    if subvolume:
        read_only(2)
"""


@contextmanager
def swapping(path: Path, other: Path, read_only: Path | None = None) -> Iterator[None]:
    """Exchanges two names as fast as it can, in another process: `path` is alternately one and the other.

    `read_only`: a subvolume that is made writable only for each exchange.
    """
    words = [path, other, *([read_only] if read_only else [])]
    process = subprocess.Popen([sys.executable, "-c", _EXCHANGE, *words], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
