"""What an exit status of rsync (or of ssh below it) means, and whether trying again can help. A table."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto


class ExitKind(Enum):
    """What to do about an exit status."""

    FINISHED = auto()  # rsync went through to its end; the messages say how well
    STOPPED = auto()  # by us
    RETRY = auto()  # the line or the other side broke
    HOST = auto()  # this host cannot be reached as configured; trying again tonight will not help
    BROKEN = auto()  # usage, protocol or crash: needs a person


class ExitCause(StrEnum):
    """Causes that something is done about: a hint is given, or a question asked again."""

    HOST_KEY = "host-key"
    KEY_REFUSED = "key-refused"
    NO_RSYNC = "no-rsync"
    NOT_TRANSFERRED = "not-transferred"


@dataclass(frozen=True, slots=True)
class Meaning:
    """An exit status in words; `unreachable` when ssh never got through; `cause` where it is one that something is done about."""

    kind: ExitKind
    words: str
    cause: ExitCause | None = None
    unreachable: bool = False


MEANING: dict[int, Meaning] = {
    0: Meaning(ExitKind.FINISHED, "complete"),
    1: Meaning(ExitKind.BROKEN, "wrong usage: an option that one side's rsync does not know"),
    2: Meaning(ExitKind.BROKEN, "the other side does not speak rsync (does its login shell print something?)"),
    3: Meaning(ExitKind.BROKEN, "errors selecting input or output files"),
    4: Meaning(ExitKind.BROKEN, "the other side cannot do what was asked"),
    5: Meaning(ExitKind.BROKEN, "the other side refused to start"),
    6: Meaning(ExitKind.BROKEN, "a log file could not be written"),
    10: Meaning(ExitKind.RETRY, "socket error"),
    11: Meaning(ExitKind.BROKEN, "error in file I/O"),
    12: Meaning(ExitKind.RETRY, "the connection broke"),
    13: Meaning(ExitKind.BROKEN, "a message could not be written"),
    14: Meaning(ExitKind.RETRY, "error in communication between rsync's processes"),
    15: Meaning(ExitKind.RETRY, "rsync's receiver was killed"),
    16: Meaning(ExitKind.RETRY, "rsync's receiver was killed"),
    19: Meaning(ExitKind.STOPPED, "stopped"),
    20: Meaning(ExitKind.STOPPED, "stopped"),
    21: Meaning(ExitKind.RETRY, "rsync could not wait for its receiver"),
    22: Meaning(ExitKind.BROKEN, "out of memory"),
    23: Meaning(ExitKind.FINISHED, "some files could not be transferred", ExitCause.NOT_TRANSFERRED),
    24: Meaning(ExitKind.FINISHED, "some files vanished while they were read"),
    25: Meaning(ExitKind.FINISHED, "deletions stopped at a limit"),
    30: Meaning(ExitKind.RETRY, "no answer from the other side for too long"),
    35: Meaning(ExitKind.RETRY, "no answer when connecting"),
    124: Meaning(ExitKind.BROKEN, "the remote command failed"),
    125: Meaning(ExitKind.BROKEN, "the remote command was killed"),
    126: Meaning(ExitKind.HOST, "the remote command cannot be run"),
    127: Meaning(ExitKind.HOST, "rsync was not found on the other side (or a program is missing here)", ExitCause.NO_RSYNC),
    255: Meaning(ExitKind.RETRY, "ssh could not connect"),
}

_SSH_SAYS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (
        re.compile(r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED"),
        Meaning(ExitKind.HOST, "the host key is unknown or changed", ExitCause.HOST_KEY),
    ),
    (re.compile(r"Permission denied \([a-z]"), Meaning(ExitKind.HOST, "the host does not accept the key", ExitCause.KEY_REFUSED)),
    (re.compile(r"Could not resolve hostname"), Meaning(ExitKind.RETRY, "the host's name does not resolve")),
    (re.compile(r"Connection refused"), Meaning(ExitKind.RETRY, "the host refuses the connection")),
    (re.compile(r"No route to host|Network is unreachable"), Meaning(ExitKind.RETRY, "there is no way to the host")),
    (re.compile(r"timed out|Timeout, server .* not responding"), Meaning(ExitKind.RETRY, "the host does not answer")),
    (re.compile(r"Connection (?:to \S+ )?(?:closed|reset)"), Meaning(ExitKind.RETRY, "the host closed the connection")),
)
# What the login shell over there says when it cannot start rsync.
_SHELL_SAYS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (re.compile(r": (?:command )?not found$|: No such file or directory$"), MEANING[127]),
    (re.compile(r": Permission denied$|: cannot execute"), MEANING[126]),
    (
        re.compile(r"sudo: .*(?:password|terminal) is required"),
        Meaning(ExitKind.HOST, "sudo asks for a password on the other side"),
    ),
    (re.compile(r"rrsync error: "), Meaning(ExitKind.HOST, "rrsync on the other side refuses what was asked for")),
)


def every_meaning() -> frozenset[str]:
    """The words of all rows."""
    rows = (*MEANING.values(), *(means for _, means in (*_SSH_SAYS, *_SHELL_SAYS)))
    return frozenset(means.words for means in rows)


_CLOSED = re.compile(r"rsync: connection unexpectedly closed \((\d+) bytes received so far\)")


def meaning(exit_code: int, last_lines: Iterable[str] = ()) -> Meaning:
    """What `exit_code` (negative: ended by that signal) means, ssh's own words taken into account when the connection failed."""
    if exit_code < 0:
        return Meaning(ExitKind.RETRY, f"rsync was ended by signal {-exit_code}")
    if 128 < exit_code <= 192:  # as shells and our bandwidth relay say it
        return Meaning(ExitKind.RETRY, f"the remote command was ended by signal {exit_code - 128}")
    if exit_code in (12, 255):
        return _of_the_connection(exit_code, tuple(last_lines))
    return MEANING.get(exit_code) or Meaning(ExitKind.BROKEN, f"unknown exit status {exit_code}")


def _of_the_connection(exit_code: int, lines: tuple[str, ...]) -> Meaning:
    """What ended a connection, and whether there ever was one.

    rsync asks for ssh's exit status only once: when it asks too early, ssh's 255, 126 or 127 becomes rsync's 12. So words decide.
    rsync's own lines are no words of ssh: a file that could not be opened ("Permission denied") says nothing about the connection.
    """
    received = [int(match[1]) for line in lines if (match := _CLOSED.match(line))]
    reached = any(received)
    said = [line for line in lines if not line.startswith("rsync")]
    if found := _first(_SSH_SAYS, said):
        return replace(found, kind=ExitKind.RETRY) if reached else replace(found, unreachable=True)
    if not reached and (found := _first(_SHELL_SAYS, said)):
        return found
    unreachable = exit_code == 255 and not reached
    return replace(MEANING[255 if unreachable else 12], unreachable=unreachable)


def _first(table: Iterable[tuple[re.Pattern[str], Meaning]], lines: Iterable[str]) -> Meaning | None:
    """The first row that fits the first line that any row fits."""
    return next((means for line in lines for pattern, means in table if pattern.search(line)), None)
