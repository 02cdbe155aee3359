"""kill_at.py ACTION WHEN CHECKPOINT COUNT [-m PROGRAM] [its own words]: backupd, or PROGRAM, dies or lingers at a checkpoint.

A checkpoint (btrkeep/checkpoints.py) is a change of state that the program announces, such as `subvolume deleted`; WHEN is `before`
or `after` it, and COUNT says which time. With `any any`, COUNT counts them all, whatever they are called. One that is not reached
does nothing, which the exit status shows.

ACTION is `die` (SIGKILL), `slow:SECONDS:FILE` (makes FILE and takes so much longer), `held:FILE` (makes FILE and waits until it
is gone), `does:COMMAND` (runs that line of the shell to
its end), `list:FILE`: writes each checkpoint that the run passes into FILE, a line each, whatever the other words are; or
`asks:SOCKET`: sends each of them to a Unix socket, and continues when that is closed.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

EVENT = "btrkeep.checkpoint"
Deed = tuple[str, str, str, int]  # ACTION, WHEN, CHECKPOINT, COUNT


def do(action: str) -> None:
    subject, _, rest = action.partition(":")
    if subject == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif subject == "slow":
        seconds, flag = rest.split(":", 1)
        Path(flag).touch()
        time.sleep(float(seconds))
    elif subject == "held":
        Path(rest).touch()
        while Path(rest).exists():
            time.sleep(0.02)
    else:
        subprocess.run(rest, shell=True, check=True)


def ask(path: str, line: str) -> None:
    """Sends a line to a Unix socket, and waits until the peer closes it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(line.encode() + b"\n")
        connection.recv(1)


def listener(action: str, when: str, name: str, count: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Returns the function for sys.addaudithook. Checkpoints come from several threads."""
    lock, reached = Lock(), 0

    def is_it(arguments: tuple[Any, ...]) -> bool:
        nonlocal reached
        with lock:
            reached += arguments == (when, name) or name == "any"
            return reached == count and (arguments == (when, name) or name == "any")

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event != EVENT:
            return
        if action.startswith("list:"):
            with Path(action.removeprefix("list:")).open("a") as file:
                file.write(" ".join(arguments) + "\n")
        elif action.startswith("asks:"):
            ask(action.removeprefix("asks:"), " ".join(arguments))
        elif is_it(arguments):
            do(action)

    return hear


if __name__ == "__main__":
    action, when, name, count, *words = sys.argv[1:]
    program, words = (words[1], words[2:]) if words[:1] == ["-m"] else ("backupd", words)
    main = import_module(f"{program}.cli").main
    sys.addaudithook(listener(action, when, name, int(count)))
    sys.argv = [program, *words]
    main()
