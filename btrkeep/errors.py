"""Errors that an operator sees, and their exit statuses.

Libraries raise :class:`OperatorError`; only the command line catches it and prints one line and a hint. Any other exception is a
bug and keeps its traceback.
"""

import errno
from collections.abc import Iterable, Sequence
from enum import IntEnum

DAMAGED = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""What the kernel says of data or metadata that the disk cannot give back as they were written."""


def is_damage(error: BaseException | None) -> bool:
    """Returns True if it is an OSError that says so."""
    return isinstance(error, OSError) and error.errno in DAMAGED


def is_caused_by_damage(error: BaseException) -> bool:
    """Returns True if it is an OSError that says so, or was raised from one."""
    return is_damage(error) or is_damage(error.__cause__)


class Exit(IntEnum):
    """Exit statuses of every program; the manual's table is this one."""

    OK = 0  # all complete, or nothing was due
    ATTENTION = 1  # some host is partial, failed or suspect; or a check found something to act on
    USAGE = 2  # wrong usage or configuration
    LOCKED = 3  # a lock is held by another process, which is named
    UNUSABLE = 4  # the pool is unusable: not there, not the right one, read-only or full
    INTERRUPTED = 130  # interrupted from the terminal (SIGINT)
    TERMINATED = 143  # ended by SIGTERM, or the terminal went away (SIGHUP)


class OperatorError(Exception):
    """Something the operator can act on: one line, and a hint what to do next."""

    exit_code = Exit.ATTENTION

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(OperatorError):
    """The command's words do not fit the configuration or the catalogue."""

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
    """The request does not fit the present state: accepting a complete backup, releasing one that is not held.

    The message is only about the host in question, because users who may see no other host read it.
    """


class LockHeld(OperatorError):
    """Another process holds the lock that is needed."""

    exit_code = Exit.LOCKED


class PoolUnusable(OperatorError):
    """The pool is not there, not the one it should be, read-only or full."""

    exit_code = Exit.UNUSABLE


_NEAR = 0.66  # of difflib's ratio: a letter that is wrong, left out or too many


def quoted(word: str) -> str:
    """Returns a name as a message has it: an empty one, such as a shell's variable that is not set, is visible."""
    return word or "''"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The hint that names the nearest of the known words, or `otherwise` when none is near.

    HOST of HOST@BACKUP is near, for a command that takes a host alone.
    """
    from difflib import get_close_matches  # only a mistake pays for it

    bare = {name.lstrip("-"): name for name in known}  # two dashes in common make no option near
    host, at, _ = word.partition("@")
    nearest = [host] if at and host in bare else get_close_matches(word.lstrip("-"), bare, 1, _NEAR)
    return f"did you mean {bare[nearest[0]]}?" if nearest else otherwise
