"""badssh.py FAULT VALUE [ssh's own words]: tests/fakessh with one fault, for rsync's -e.

    dies BYTES        passes on that many bytes from the remote side, then ends with 255
    hangs BYTES       the same, but then does nothing more until it is killed
    refuses MESSAGE   prints it on standard error and ends with 255: nothing was reached
    babbles TEXT      writes it before the remote side's first byte, as a login script does
    sleeps SECONDS    does nothing for that long, then works normally

The fixture `badssh` makes a script of one word out of a fault.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

FAKESSH = Path(__file__).resolve().parents[1] / "fakessh"
LOST = 255  # ssh's status for every failure of its own


def work_as_ssh(words: list[str]) -> int:
    return subprocess.run([FAKESSH, *words], check=False).returncode


def pass_on(words: list[str], count: int) -> subprocess.Popen[bytes]:
    """Runs the remote side and passes on `count` bytes of its output."""
    remote = subprocess.Popen([FAKESSH, *words], stdout=subprocess.PIPE)
    assert remote.stdout is not None
    while count > 0 and (piece := os.read(remote.stdout.fileno(), min(count, 65536))):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        count -= len(piece)
    return remote


def dies(value: str, words: list[str]) -> int:
    pass_on(words, int(value)).kill()
    return LOST


def hangs(value: str, words: list[str]) -> int:
    remote = pass_on(words, int(value))  # kept: without a reader the remote side would notice
    while remote.stdout:
        signal.pause()
    return LOST


def refuses(value: str, words: list[str]) -> int:
    sys.stderr.write(f"{value}\n")
    return LOST


def babbles(value: str, words: list[str]) -> int:
    sys.stdout.write(value)
    sys.stdout.flush()
    return work_as_ssh(words)


def sleeps(value: str, words: list[str]) -> int:
    time.sleep(float(value))
    return work_as_ssh(words)


FAULTS: dict[str, Callable[[str, list[str]], int]] = {each.__name__: each for each in (dies, hangs, refuses, babbles, sleeps)}

if __name__ == "__main__":
    os.set_blocking(sys.stdout.fileno(), True)  # rsync hands over a socket that does not block
    sys.exit(FAULTS[sys.argv[1]](sys.argv[2], sys.argv[3:]))
