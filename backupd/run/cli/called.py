"""`backupd answer` until its answer: few modules are imported, so that many hosts can call at the same time and be told to wait."""

import fcntl
import json
import os
import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import click

from btrkeep.cli.lazy import import_command
from btrkeep.errors import Exit, UsageError

FORMAT = 1
_AT_A_TIME = 4  # calls being answered; each takes half a second of processor time and 38 MB. Backups that run have slots.
_SHORTEST, _LONGEST = 300, 900  # seconds until the next call of a host for which there was no time; by chance, to spread them
_LOCKS = Path("/run/btrkeep-calls")


@click.command("answer")
@click.argument("name", metavar="HOST")
@click.pass_context
def command(ctx: click.Context, name: str) -> int:
    """Answer a call of HOST: start its backup over this connection if it is due, or tell it when to call again.

    It is the forced command for the key of a host that calls (`calls = true`). In authorized_keys of this server:

    \b
        restrict,command="backupd answer laptop7" ssh-ed25519 AAAA... laptop7

    The host starts it with `btrkeep-source call`. Output of the backup goes to the system's log, not to the host.
    """
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise UsageError("answer needs `btrkeep-source call` at the other end, not a terminal", "run that on the host")
    if (variables := own_environment(os.environ)) is not None:
        os.execve(sys.executable, sys.orig_argv, variables)  # noqa: S606  only the environment is another one
    turns: tuple[int, ...] = ()
    try:
        own = take_own_turn(_LOCKS, name)
        turn = None if own is None else take_turn(_LOCKS, _AT_A_TIME)
    except OSError:  # /run is full, or this is not root: the answer reports it
        pass
    else:
        if own is None or turn is None:
            seconds = random.SystemRandom().randint(_SHORTEST, _LONGEST)
            text = "another call of this host is being answered" if own is None else "the server is answering other calls"
            reply(1, timedelta(seconds=seconds), text=text)
            return Exit.OK
        turns = (turn, own)
    status: int = ctx.invoke(import_command("backupd.run.cli.answer"), name=name, turns=turns)
    return status


def own_environment(variables: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the environment with a locale of this server; None if it has one already. The host may set LANG and LC_* (AcceptEnv
    of sshd), which decide how Python reads paths.
    """
    if variables.get("LC_ALL") == "C.UTF-8":
        return None
    own = {name: value for name, value in variables.items() if not name.startswith(("LC_", "LANG"))}
    return {**own, "LC_ALL": "C.UTF-8"}


def take_turn(folder: Path, count: int) -> int | None:
    """Returns a descriptor that is one of `count` locks until it is closed; None if all are taken."""
    return next((fd for number in range(count) if (fd := _taken(folder, str(number))) is not None), None)


def take_own_turn(folder: Path, name: str) -> int | None:
    """Returns a descriptor that is the only lock of a host, so that one host that calls without a pause leaves turns for others;
    None if another call of the host has it.
    """
    return _taken(folder, f"of-{quote(name, safe='')}")


def _taken(folder: Path, name: str) -> int | None:
    folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def reply(outgoing: int, again: timedelta, *, retry: timedelta | None = None, connect: bool = False, text: str = "") -> None:
    """Sends the host the one line of the answer."""
    answer = {
        "format": FORMAT,
        "connect": connect,
        "again": round(again.total_seconds()),
        "retry": round((retry or again).total_seconds()),
        "text": text,
    }
    with suppress(OSError):  # the host has gone
        os.write(outgoing, json.dumps(answer).encode() + b"\n")
