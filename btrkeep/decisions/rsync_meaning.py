"""A table of the exit statuses of rsync, and of ssh below it: their meaning, and whether another try can help."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto


class ExitKind(Enum):
    """How to react to an exit status."""

    FINISHED = auto()  # rsync went through to its end; the messages say how well
    STOPPED = auto()  # by us
    RETRY = auto()  # the line or the other side broke
    HOST = auto()  # this host cannot be reached as configured; trying again tonight will not help
    BROKEN = auto()  # usage, protocol or crash: needs a person


class ExitCause(StrEnum):
    """Why an rsync ended, as stored in the catalogue and backup.json. The meaning of a code never changes."""

    COMPLETE = "complete"
    WRONG_USAGE = "wrong-usage"
    NO_PROTOCOL = "no-protocol"
    FILE_SELECTION = "file-selection"
    UNSUPPORTED = "unsupported"
    REFUSED_TO_START = "refused-to-start"
    LOG_FILE = "log-file"
    SOCKET = "socket"
    FILE_IO = "file-io"
    CONNECTION_BROKE = "connection-broke"
    MESSAGE_NOT_WRITTEN = "message-not-written"
    COMMUNICATION = "communication"
    RECEIVER_KILLED = "receiver-killed"
    STOPPED = "stopped"
    RECEIVER_NOT_AWAITED = "receiver-not-awaited"
    OUT_OF_MEMORY = "out-of-memory"
    NOT_TRANSFERRED = "not-transferred"
    VANISHED = "vanished"
    DELETIONS_LIMITED = "deletions-limited"
    NO_ANSWER = "no-answer"
    NO_ANSWER_CONNECTING = "no-answer-connecting"
    REMOTE_FAILED = "remote-failed"
    REMOTE_KILLED = "remote-killed"
    NOT_RUNNABLE = "not-runnable"
    NO_RSYNC = "no-rsync"
    NOT_CONNECTED = "not-connected"
    HOST_KEY = "host-key"
    KEY_REFUSED = "key-refused"
    NO_SUCH_NAME = "no-such-name"
    REFUSED = "refused"
    NO_ROUTE = "no-route"
    SILENT = "silent"
    CLOSED = "closed"
    SUDO_PASSWORD = "sudo-password"  # noqa: S105  a cause
    RRSYNC_REFUSED = "rrsync-refused"
    RSYNC_SIGNALLED = "rsync-signalled"
    REMOTE_SIGNALLED = "remote-signalled"
    UNKNOWN = "unknown"


_WORDS: dict[ExitCause, str] = {
    ExitCause.COMPLETE: "complete",
    ExitCause.WRONG_USAGE: "wrong usage: an option that one side's rsync does not know",
    ExitCause.NO_PROTOCOL: "the other side does not speak rsync (does its login shell print something?)",
    ExitCause.FILE_SELECTION: "errors selecting input or output files",
    ExitCause.UNSUPPORTED: "the other side cannot do what was asked",
    ExitCause.REFUSED_TO_START: "the other side refused to start",
    ExitCause.LOG_FILE: "a log file could not be written",
    ExitCause.SOCKET: "socket error",
    ExitCause.FILE_IO: "error in file I/O",
    ExitCause.CONNECTION_BROKE: "the connection broke",
    ExitCause.MESSAGE_NOT_WRITTEN: "a message could not be written",
    ExitCause.COMMUNICATION: "error in communication between rsync's processes",
    ExitCause.RECEIVER_KILLED: "rsync's receiver was killed",
    ExitCause.STOPPED: "stopped",
    ExitCause.RECEIVER_NOT_AWAITED: "rsync could not wait for its receiver",
    ExitCause.OUT_OF_MEMORY: "out of memory",
    ExitCause.NOT_TRANSFERRED: "some files could not be transferred",
    ExitCause.VANISHED: "some files vanished while they were read",
    ExitCause.DELETIONS_LIMITED: "deletions stopped at a limit",
    ExitCause.NO_ANSWER: "no answer from the other side for too long",
    ExitCause.NO_ANSWER_CONNECTING: "no answer when connecting",
    ExitCause.REMOTE_FAILED: "the remote command failed",
    ExitCause.REMOTE_KILLED: "the remote command was killed",
    ExitCause.NOT_RUNNABLE: "the remote command cannot be run",
    ExitCause.NO_RSYNC: "rsync was not found on the other side (or a program is missing here)",
    ExitCause.NOT_CONNECTED: "ssh could not connect",
    ExitCause.HOST_KEY: "the host key is unknown or changed",
    ExitCause.KEY_REFUSED: "the host does not accept the key",
    ExitCause.NO_SUCH_NAME: "the host's name does not resolve",
    ExitCause.REFUSED: "the host refuses the connection",
    ExitCause.NO_ROUTE: "there is no way to the host",
    ExitCause.SILENT: "the host does not answer",
    ExitCause.CLOSED: "the host closed the connection",
    ExitCause.SUDO_PASSWORD: "sudo asks for a password on the other side",
    ExitCause.RRSYNC_REFUSED: "rrsync on the other side refuses what was asked for",
    ExitCause.RSYNC_SIGNALLED: "rsync was ended by signal {number}",
    ExitCause.REMOTE_SIGNALLED: "the remote command was ended by signal {number}",
    ExitCause.UNKNOWN: "unknown exit status {number}",
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """The reaction to an exit status, and why rsync ended; `unreachable` if ssh never connected.

    `number`: of the signal, or an unknown exit status; otherwise 0.
    """

    kind: ExitKind
    cause: ExitCause
    unreachable: bool = False
    number: int = 0

    @property
    def words(self) -> str:
        return _WORDS[self.cause].format(number=self.number)


MEANING: dict[int, Meaning] = {
    0: Meaning(ExitKind.FINISHED, ExitCause.COMPLETE),
    1: Meaning(ExitKind.BROKEN, ExitCause.WRONG_USAGE),
    2: Meaning(ExitKind.BROKEN, ExitCause.NO_PROTOCOL),
    3: Meaning(ExitKind.BROKEN, ExitCause.FILE_SELECTION),
    4: Meaning(ExitKind.BROKEN, ExitCause.UNSUPPORTED),
    5: Meaning(ExitKind.BROKEN, ExitCause.REFUSED_TO_START),
    6: Meaning(ExitKind.BROKEN, ExitCause.LOG_FILE),
    10: Meaning(ExitKind.RETRY, ExitCause.SOCKET),
    11: Meaning(ExitKind.BROKEN, ExitCause.FILE_IO),
    12: Meaning(ExitKind.RETRY, ExitCause.CONNECTION_BROKE),
    13: Meaning(ExitKind.BROKEN, ExitCause.MESSAGE_NOT_WRITTEN),
    14: Meaning(ExitKind.RETRY, ExitCause.COMMUNICATION),
    15: Meaning(ExitKind.RETRY, ExitCause.RECEIVER_KILLED),
    16: Meaning(ExitKind.RETRY, ExitCause.RECEIVER_KILLED),
    19: Meaning(ExitKind.STOPPED, ExitCause.STOPPED),
    20: Meaning(ExitKind.STOPPED, ExitCause.STOPPED),
    21: Meaning(ExitKind.RETRY, ExitCause.RECEIVER_NOT_AWAITED),
    22: Meaning(ExitKind.BROKEN, ExitCause.OUT_OF_MEMORY),
    23: Meaning(ExitKind.FINISHED, ExitCause.NOT_TRANSFERRED),
    24: Meaning(ExitKind.FINISHED, ExitCause.VANISHED),
    25: Meaning(ExitKind.FINISHED, ExitCause.DELETIONS_LIMITED),
    30: Meaning(ExitKind.RETRY, ExitCause.NO_ANSWER),
    35: Meaning(ExitKind.RETRY, ExitCause.NO_ANSWER_CONNECTING),
    124: Meaning(ExitKind.BROKEN, ExitCause.REMOTE_FAILED),
    125: Meaning(ExitKind.BROKEN, ExitCause.REMOTE_KILLED),
    126: Meaning(ExitKind.HOST, ExitCause.NOT_RUNNABLE),
    127: Meaning(ExitKind.HOST, ExitCause.NO_RSYNC),
    255: Meaning(ExitKind.RETRY, ExitCause.NOT_CONNECTED),
}

_SSH_SAYS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (
        re.compile(r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED"),
        Meaning(ExitKind.HOST, ExitCause.HOST_KEY),
    ),
    (re.compile(r"Permission denied \([a-z]"), Meaning(ExitKind.HOST, ExitCause.KEY_REFUSED)),
    (re.compile(r"Could not resolve hostname"), Meaning(ExitKind.RETRY, ExitCause.NO_SUCH_NAME)),
    (re.compile(r"Connection refused"), Meaning(ExitKind.RETRY, ExitCause.REFUSED)),
    (re.compile(r"No route to host|Network is unreachable"), Meaning(ExitKind.RETRY, ExitCause.NO_ROUTE)),
    (re.compile(r"timed out|Timeout, server .* not responding"), Meaning(ExitKind.RETRY, ExitCause.SILENT)),
    (re.compile(r"Connection (?:to \S+ )?(?:closed|reset)"), Meaning(ExitKind.RETRY, ExitCause.CLOSED)),
)
# What the login shell over there says when it cannot start rsync.
_SHELL_SAYS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (re.compile(r": (?:command )?not found$|: No such file or directory$"), MEANING[127]),
    (re.compile(r": Permission denied$|: cannot execute"), MEANING[126]),
    (
        re.compile(r"sudo: .*(?:password|terminal) is required"),
        Meaning(ExitKind.HOST, ExitCause.SUDO_PASSWORD),
    ),
    (re.compile(r"rrsync error: "), Meaning(ExitKind.HOST, ExitCause.RRSYNC_REFUSED)),
)
# What the rsync over there says of our options if it is an old one, or openrsync (macOS, OpenBSD), whose long usage ends so.
_RSYNC_SAYS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (
        re.compile(r"rsync: .*: unknown option|rsync: unrecognized option|source \.\.\. directory$"),
        replace(MEANING[1], kind=ExitKind.HOST),
    ),
)


def exit_words(cause: str, exit_code: int | None) -> str:
    """The words for a cause that was stored beside its exit status; earlier versions stored words, which are given as they are."""
    try:
        known = ExitCause(cause)
    except ValueError:
        return cause
    return Meaning(ExitKind.FINISHED, known, number=_number(exit_code or 0)).words


def _number(exit_code: int) -> int:
    """Returns the number of the signal, or the exit status itself if its meaning is unknown."""
    return -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code <= 192 else exit_code


_CLOSED = re.compile(r"rsync: connection unexpectedly closed \((\d+) bytes received so far\)")


def meaning(exit_code: int, last_lines: Iterable[str] = ()) -> Meaning:
    """Interprets `exit_code` (negative: the signal); for a failed connection also ssh's last messages."""
    if exit_code < 0:
        return Meaning(ExitKind.RETRY, ExitCause.RSYNC_SIGNALLED, number=_number(exit_code))
    if 128 < exit_code <= 192:  # as shells and our bandwidth relay say it
        return Meaning(ExitKind.RETRY, ExitCause.REMOTE_SIGNALLED, number=_number(exit_code))
    if exit_code in (12, 255):
        return _of_the_connection(exit_code, tuple(last_lines))
    return MEANING.get(exit_code) or Meaning(ExitKind.BROKEN, ExitCause.UNKNOWN, number=exit_code)


def _of_the_connection(exit_code: int, lines: tuple[str, ...]) -> Meaning:
    """Returns why a connection ended, and whether it was ever established.

    rsync asks for ssh's exit status only once; if it asks too early, ssh's 255, 126 or 127 becomes rsync's 12. So messages decide.
    rsync's own messages are ignored: a file that could not be opened ("Permission denied") says nothing about the connection.
    """
    received = [int(match[1]) for line in lines if (match := _CLOSED.match(line))]
    reached = any(received)
    said = [line for line in lines if not line.startswith("rsync")]
    if found := _first(_SSH_SAYS, said):
        return replace(found, kind=ExitKind.RETRY) if reached else replace(found, unreachable=True)
    if not reached and (found := _first(_SHELL_SAYS, said) or _first(_RSYNC_SAYS, lines)):
        return found
    unreachable = exit_code == 255 and not reached
    return replace(MEANING[255 if unreachable else 12], unreachable=unreachable)


def _first(table: Iterable[tuple[re.Pattern[str], Meaning]], lines: Iterable[str]) -> Meaning | None:
    """The first row that fits the first line that any row fits."""
    return next((means for line in lines for pattern, means in table if pattern.search(line)), None)
