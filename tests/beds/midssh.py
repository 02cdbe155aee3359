"""midssh.py BYTES END [COMMAND] -- [ssh's own words]: tests/fakessh that does something in the middle of a transfer.

After BYTES bytes from the remote side it runs COMMAND (a line for the shell), then passes on the rest (END `goes-on`) or ends like
a lost connection (END `dies`). With END `dies-once:FILE` it does all that only while FILE does not exist, and makes it.
"""

import os
import subprocess
import sys
from pathlib import Path

FAKESSH = Path(__file__).resolve().parents[1] / "fakessh"
LOST = 255


def pass_on(fd: int, count: int) -> None:
    while count > 0 and (piece := os.read(fd, min(count, 65536))):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        count -= len(piece)


def main(count: int, end: str, command: str, words: list[str]) -> int:
    flag = Path(end.partition(":")[2])
    if end.startswith("dies-once"):
        if flag.exists():
            return subprocess.run([FAKESSH, *words], check=False).returncode
        flag.touch()
    remote = subprocess.Popen([FAKESSH, *words], stdout=subprocess.PIPE)
    assert remote.stdout is not None
    pass_on(remote.stdout.fileno(), count)
    subprocess.run(command, shell=True, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if end != "goes-on":
        remote.kill()
        return LOST
    pass_on(remote.stdout.fileno(), sys.maxsize)
    return remote.wait()


if __name__ == "__main__":
    os.set_blocking(sys.stdout.fileno(), True)  # rsync hands over a socket that does not block
    mark = sys.argv.index("--")
    sys.exit(main(int(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:mark]), sys.argv[mark + 1 :]))
