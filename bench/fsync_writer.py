"""Writes 4 KiB to a file and fsyncs it, again and again, as a small service on the same filesystem would.

    python -m bench.fsync_writer FILE [PAUSE]

Between two writes is a pause of PAUSE seconds (0.01). It continues until its standard input ends; then it prints, as JSON, one
[begin, seconds] for each write; begin is CLOCK_MONOTONIC, which all processes share. "ready" comes first, on a line of its own.
"""

import json
import os
import sys
import threading
import time


def _write(fd: int, pause: float, ended: threading.Event) -> list[tuple[float, float]]:
    taken = []
    while not ended.is_set():
        begun = time.monotonic()
        os.pwrite(fd, os.urandom(4096), 0)
        os.fsync(fd)
        taken.append((begun, time.monotonic() - begun))
        time.sleep(pause)
    return taken


def main() -> None:
    """Runs the command line."""
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
    pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    print("ready", flush=True)
    print(json.dumps(_write(fd, pause, ended)), flush=True)


if __name__ == "__main__":
    main()
