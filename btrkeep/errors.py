"""Errors for users, their exit statuses, and how a program of btrkeep passes one to the program that started it.

Libraries raise :class:`OperatorError`; only the command line catches it and prints one line and a hint. Any other exception is a
bug and keeps its traceback.

The starting program gets an error as a line of JSON on a separate descriptor, so messages for people can be changed: no program
parses them. ssh does not forward that descriptor, only standard error: there an error is a line that starts with ERROR_MARK, which
is part of the protocol with programs of other versions.
"""

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

DAMAGED = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""The kernel's errors for data or metadata that the disk cannot return as they were written."""


def is_damage(error: BaseException | None) -> bool:
    """Returns True if it is an OSError with one of the numbers in DAMAGED."""
    return isinstance(error, OSError) and error.errno in DAMAGED


def is_caused_by_damage(error: BaseException) -> bool:
    """Returns True if it is an OSError with one of the numbers in DAMAGED, or was raised from one."""
    return is_damage(error) or is_damage(error.__cause__)


class Exit(IntEnum):
    """Exit statuses of every program; the table of the manual is made from these."""

    OK = 0  # all complete, or nothing was due
    ATTENTION = 1  # a host is partial, failed or suspect; or a check found a problem
    USAGE = 2  # wrong usage or configuration
    LOCKED = 3  # another process holds a lock; the message names it
    UNUSABLE = 4  # the pool is unusable: missing, not the right one, read-only or full
    INTERRUPTED = 130  # interrupted from the terminal (SIGINT)
    TERMINATED = 143  # ended by SIGTERM, or the terminal was closed (SIGHUP)


class OperatorError(Exception):
    """A problem that the user can solve: one line, and a hint what to do next."""

    exit_code = Exit.ATTENTION

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(OperatorError):
    """The words of the command do not fit the configuration or the catalogue."""

    exit_code = Exit.USAGE


class ConfigError(OperatorError):
    """The configuration is wrong; every problem found is listed in `problems`, one line each.

    `located`: the same as FILE:LINE: KEY: REASON.
    """

    exit_code = Exit.USAGE

    def __init__(self, problems: Sequence[str], hint: str = "", located: Sequence[str] = ()) -> None:
        super().__init__("\n".join(problems), hint)
        self.problems = list(problems)
        self.located = tuple(located or problems)


class StateConflict(OperatorError):
    """The request is not possible in the present state: accepting a complete backup, releasing one that is not held. The message is
    only about the host in question, because users who may see no other host read it.
    """


class LockHeld(OperatorError):
    """Another process holds the lock that is needed."""

    exit_code = Exit.LOCKED


class PoolUnusable(OperatorError):
    """The pool is missing, not the expected one, read-only or full."""

    exit_code = Exit.UNUSABLE


READ_ONLY_HINT = "check the kernel's messages (dmesg), then mount it read-write"
"""What to do about a pool that is read-only."""

_NEAR = 0.66  # difflib's ratio for one wrong, missing or additional letter


def quoted(word: str) -> str:
    """Returns a name for a message: an empty one, such as an unset variable of a shell, becomes visible."""
    return word or "''"


def did_you_mean(word: str, names: Iterable[str], otherwise: str = "") -> str:
    """Returns the hint that names the most similar of the known words, or `otherwise` if none is similar. HOST of HOST@BACKUP
    counts as similar, for a command that takes only a host.
    """
    from difflib import get_close_matches  # only needed after a mistake

    bare = {name.lstrip("-"): name for name in names}  # two common dashes do not make options similar
    host, at, _ = word.partition("@")
    nearest = [host] if at and host in bare else get_close_matches(word.lstrip("-"), bare, 1, _NEAR)
    return f"did you mean {bare[nearest[0]]}?" if nearest else otherwise


ERRORS_VARIABLE = "BTRKEEP_ERRORS"
"""The environment variable with the number of the descriptor."""
ERROR_MARK = "error: "
"""Start of a line of standard error that is an error of btrkeep's programs, also on the other server of a replica."""
_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class ReportedError:
    """An error of a program."""

    message: str
    """What happened."""
    hint: str
    """What to do; "": none."""
    status: int
    """The exit status."""


def report_error(error: OperatorError) -> None:
    """Reports the error to the parent, if the parent requested it."""
    descriptor = os.environ.get(ERRORS_VARIABLE, "")
    if not (descriptor.isascii() and descriptor.isdecimal()):
        return
    import json  # only where needed: every command imports this module

    line = json.dumps({"error": error.message, "hint": error.hint, "status": int(error.exit_code)})
    with suppress(OSError):  # the client may have disconnected
        os.write(int(descriptor), line.encode("ascii") + b"\n")


def first_reported(file: BinaryIO) -> ReportedError | None:
    """Returns the first complete error in `file`, or None."""
    import json

    file.seek(0)
    try:
        fields = json.loads(file.readline(_LONGEST))
        return ReportedError(str(fields["error"]), str(fields["hint"]), int(fields["status"]))
    except (ValueError, KeyError, TypeError):
        return None


def last_remote_error(lines: Sequence[str]) -> str:
    """Returns the last error in the standard error of a program of btrkeep behind ssh; if there is none, the last line, which may
    be one of ssh itself; "" if there are no lines.
    """
    errors = [line.removeprefix(ERROR_MARK) for line in lines if line.startswith(ERROR_MARK)]
    return (errors or list(lines) or [""])[-1]
