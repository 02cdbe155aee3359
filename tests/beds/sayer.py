"""sayer.py COUNT FILE rsync --server --sender ...: a host whose rsync prints the text of FILE on our rsync's output.

It is called before rsync, by `rsync_path`. After the greeting a sender's stream is made of frames: four bytes, the lowest three of
them a length, the highest 7 and a kind. Kind 2 (MSG_INFO) is printed by the receiving rsync unchanged. Each line of FILE becomes a
frame, COUNT times; then the transfer continues normally. With COUNT `0` it never does, with COUNT `dies` it ends after the first.
"""

import os
import re
import subprocess
import sys
from itertools import count, repeat
from pathlib import Path
from typing import IO

INFO = 7 + 2 << 24
LONGEST = 4000  # of a frame that rsync accepts; a frame without a newline does not end a line


def pass_greeting(stream: IO[bytes]) -> None:
    """Passes on the data before the frames: version, compatibility flags, a list of checksums if the flags require it,
    and a seed.
    """

    def take(size: int) -> bytes:
        piece = stream.read(size)
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()  # the other side answers before the next comes
        return piece

    take(4)
    flags = take(1)[0]
    if flags & 0x80:  # a number of two bytes
        flags = take(1)[0]
    if flags & 0x80:  # checksums are negotiated: a string with its length before
        length = take(1)[0]
        if length & 0x80:
            length = (length & 0x7F) << 8 | take(1)[0]
        take(length)
    take(4)


def main(times: str, text: bytes, command: list[str]) -> int:
    os.set_blocking(1, True)
    pieces = [line[at : at + LONGEST] for line in re.findall(rb"[^\n]*\n|[^\n]+", text) for at in range(0, len(line), LONGEST)]
    frames = b"".join((INFO | len(piece)).to_bytes(4, "little") + piece for piece in pieces)
    sender = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert sender.stdout is not None
    pass_greeting(sender.stdout)
    for _ in count() if times == "0" else repeat(None, 1 if times == "dies" else int(times)):
        sys.stdout.buffer.write(frames)
    sys.stdout.buffer.flush()
    if times == "dies":
        sender.kill()
        sender.wait()
        return 255  # like ssh after a lost connection
    while piece := sender.stdout.read1(65536):  # type: ignore[attr-defined]
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return sender.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).read_bytes(), sys.argv[3:]))
