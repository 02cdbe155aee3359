"""What an exit status of rsync (or of ssh below it) means, and whether trying again can help. A table."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto


class ExitKind(Enum):
    """What to do about an exit status."""

    FINISHED = auto()  # rsync went through to its end; the messages say how well
    STOPPED = auto()  # by us
    RETRY = auto()  # the line or the other side broke
    HOST = auto()  # this host cannot be reached as configured; trying again tonight will not help
    BROKEN = auto()  # usage, protocol or crash: needs a person


MEANING: dict[int, tuple[ExitKind, str]] = {
    0: (ExitKind.FINISHED, "complete"),
    1: (ExitKind.BROKEN, "wrong usage: an option that one side's rsync does not know"),
    2: (ExitKind.BROKEN, "the other side does not speak rsync (does its login shell print something?)"),
    3: (ExitKind.BROKEN, "errors selecting input or output files"),
    4: (ExitKind.BROKEN, "the other side cannot do what was asked"),
    5: (ExitKind.BROKEN, "the other side refused to start"),
    6: (ExitKind.BROKEN, "a log file could not be written"),
    10: (ExitKind.RETRY, "socket error"),
    11: (ExitKind.BROKEN, "error in file I/O"),
    12: (ExitKind.RETRY, "the connection broke"),
    13: (ExitKind.BROKEN, "a message could not be written"),
    14: (ExitKind.RETRY, "error in communication between rsync's processes"),
    15: (ExitKind.RETRY, "rsync's receiver was killed"),
    16: (ExitKind.RETRY, "rsync's receiver was killed"),
    19: (ExitKind.STOPPED, "stopped"),
    20: (ExitKind.STOPPED, "stopped"),
    21: (ExitKind.RETRY, "rsync could not wait for its receiver"),
    22: (ExitKind.BROKEN, "out of memory"),
    23: (ExitKind.FINISHED, "some files could not be transferred"),
    24: (ExitKind.FINISHED, "some files vanished while they were read"),
    25: (ExitKind.FINISHED, "deletions stopped at a limit"),
    30: (ExitKind.RETRY, "no answer from the other side for too long"),
    35: (ExitKind.RETRY, "no answer when connecting"),
    124: (ExitKind.BROKEN, "the remote command failed"),
    125: (ExitKind.BROKEN, "the remote command was killed"),
    126: (ExitKind.HOST, "the remote command cannot be run"),
    127: (ExitKind.HOST, "rsync was not found on the other side (or a program is missing here)"),
    255: (ExitKind.RETRY, "ssh could not connect"),
}

_SSH_SAYS: tuple[tuple[re.Pattern[str], ExitKind, str], ...] = (
    (
        re.compile(r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED"),
        ExitKind.HOST,
        "the host key is unknown or changed",
    ),
    (re.compile(r"Permission denied \([a-z]"), ExitKind.HOST, "the host does not accept the key"),
    (re.compile(r"Could not resolve hostname"), ExitKind.RETRY, "the host's name does not resolve"),
    (re.compile(r"Connection refused"), ExitKind.RETRY, "the host refuses the connection"),
    (re.compile(r"No route to host|Network is unreachable"), ExitKind.RETRY, "there is no way to the host"),
    (re.compile(r"timed out|Timeout, server .* not responding"), ExitKind.RETRY, "the host does not answer"),
    (re.compile(r"Connection (?:to \S+ )?(?:closed|reset)"), ExitKind.RETRY, "the host closed the connection"),
)
# What the login shell over there says when it cannot start rsync.
_SHELL_SAYS: tuple[tuple[re.Pattern[str], ExitKind, str], ...] = (
    (re.compile(r": (?:command )?not found$|: No such file or directory$"), *MEANING[127]),
    (re.compile(r": Permission denied$|: cannot execute"), *MEANING[126]),
    (re.compile(r"sudo: .*(?:password|terminal) is required"), ExitKind.HOST, "sudo asks for a password on the other side"),
    (re.compile(r"rrsync error: "), ExitKind.HOST, "rrsync on the other side refuses what was asked for"),
)


def every_meaning() -> frozenset[str]:
    """The words of all rows."""
    rows = (*MEANING.values(), *(row[1:] for row in (*_SSH_SAYS, *_SHELL_SAYS)))
    return frozenset(words for _, words in rows)


_CLOSED = re.compile(r"rsync: connection unexpectedly closed \((\d+) bytes received so far\)")


@dataclass(frozen=True, slots=True)
class Meaning:
    """An exit status in words; `unreachable` when ssh never got through."""

    kind: ExitKind
    words: str
    unreachable: bool = False


def meaning(exit_code: int, last_lines: Iterable[str] = ()) -> Meaning:
    """What `exit_code` (negative: ended by that signal) means, ssh's own words taken into account when the connection failed."""
    if exit_code < 0:
        return Meaning(ExitKind.RETRY, f"rsync was ended by signal {-exit_code}")
    if 128 < exit_code <= 192:  # as shells and our bandwidth relay say it
        return Meaning(ExitKind.RETRY, f"the remote command was ended by signal {exit_code - 128}")
    if exit_code in (12, 255):
        return _of_the_connection(exit_code, tuple(last_lines))
    return Meaning(*MEANING.get(exit_code, (ExitKind.BROKEN, f"unknown exit status {exit_code}")))


def _of_the_connection(exit_code: int, lines: tuple[str, ...]) -> Meaning:
    """What ended a connection, and whether there ever was one.

    rsync asks for ssh's exit status only once: when it asks too early, ssh's 255, 126 or 127 becomes rsync's 12. So words decide.
    rsync's own lines are no words of ssh: a file that could not be opened ("Permission denied") says nothing about the connection.
    """
    received = [int(match[1]) for line in lines if (match := _CLOSED.match(line))]
    reached = any(received)
    said = [line for line in lines if not line.startswith("rsync")]
    if found := _first(_SSH_SAYS, said):
        return Meaning(ExitKind.RETRY, found[1]) if reached else Meaning(*found, unreachable=True)
    if not reached and (found := _first(_SHELL_SAYS, said)):
        return Meaning(*found)
    unreachable = exit_code == 255 and not reached
    return Meaning(*MEANING[255 if unreachable else 12], unreachable)


def _first(table: Iterable[tuple[re.Pattern[str], ExitKind, str]], lines: Iterable[str]) -> tuple[ExitKind, str] | None:
    """Kind and words of the first row that fits the first line that any row fits."""
    return next(((kind, words) for line in lines for pattern, kind, words in table if pattern.search(line)), None)
