"""A table of the exit statuses of rsync and of its ssh: their meaning, and whether another attempt can help."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto


class ExitKind(Enum):
    """How to react to an exit status."""

    FINISHED = auto()  # rsync completed; its messages show how well
    STOPPED = auto()  # by us
    RETRY = auto()  # the connection or the remote program failed
    HOST = auto()  # this host cannot be reached as configured; another attempt tonight will not help
    BROKEN = auto()  # usage, protocol or crash: an administrator has to act


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
    PROTOCOL_ERROR = "protocol-error"
    NO_START = "no-start"
    SUDO_REFUSED = "sudo-refused"


_WORDS: dict[ExitCause, str] = {
    ExitCause.COMPLETE: "complete",
    ExitCause.WRONG_USAGE: "wrong usage: an option that one of the two rsyncs does not have",
    ExitCause.NO_PROTOCOL: "the host does not answer in rsync's protocol (does its login shell print text?)",
    ExitCause.FILE_SELECTION: "errors selecting input or output files",
    ExitCause.UNSUPPORTED: "the host's rsync cannot do this",
    ExitCause.REFUSED_TO_START: "the host's rsync did not start",
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
    ExitCause.NO_ANSWER: "no answer from the host for too long",
    ExitCause.NO_ANSWER_CONNECTING: "no answer when connecting",
    ExitCause.REMOTE_FAILED: "the remote command failed",
    ExitCause.REMOTE_KILLED: "the remote command was killed",
    ExitCause.NOT_RUNNABLE: "the remote command cannot be run",
    ExitCause.NO_RSYNC: "rsync was not found on the host (or a program is missing here)",
    ExitCause.NOT_CONNECTED: "ssh could not connect",
    ExitCause.HOST_KEY: "the host key is unknown or changed",
    ExitCause.KEY_REFUSED: "the host does not accept the key",
    ExitCause.NO_SUCH_NAME: "the host's name does not resolve",
    ExitCause.REFUSED: "the host refuses the connection",
    ExitCause.NO_ROUTE: "there is no route to the host",
    ExitCause.SILENT: "the host does not answer",
    ExitCause.CLOSED: "the host closed the connection",
    ExitCause.SUDO_PASSWORD: "sudo asks for a password on the host",
    ExitCause.RRSYNC_REFUSED: "rrsync on the host refuses this request",
    ExitCause.RSYNC_SIGNALLED: "rsync was ended by signal {number}",
    ExitCause.REMOTE_SIGNALLED: "the remote command was ended by signal {number}",
    ExitCause.UNKNOWN: "unknown exit status {number}",
    ExitCause.PROTOCOL_ERROR: "rsync stopped at a protocol error",
    ExitCause.NO_START: "the host's command ended before rsync answered",
    ExitCause.SUDO_REFUSED: "sudo on the host refused to run rsync",
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """Why rsync ended, and what to do."""

    kind: ExitKind
    """How to react."""
    cause: ExitCause
    """Why it ended."""
    unreachable: bool = False
    """True if ssh did not connect."""
    number: int = 0
    """The signal, or an unknown exit status; otherwise 0."""
    line: str = field(default="", compare=False)
    """The message with the reason, or rsync's last one. It is not compared."""

    @property
    def words(self) -> str:
        return _WORDS[self.cause].format(number=self.number)


MEANING: dict[int, Meaning] = {
    0: Meaning(ExitKind.FINISHED, ExitCause.COMPLETE),
    1: Meaning(ExitKind.BROKEN, ExitCause.WRONG_USAGE),
    2: Meaning(ExitKind.BROKEN, ExitCause.PROTOCOL_ERROR),
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

# Patterns are compiled when they are needed, by `re.match`: compiling them takes 20 ms of a command's start.
# Where ssh (8.5 to 10) prints an errno: connect, key exchange, a jump host's channel, and a connection lost later.
_SSH_ERRNO = (
    r"(?:ssh: connect to host \S+ port \d+|channel \d+: open failed: connect failed|(?:kex|ssh)_exchange_identification: \w+"
    r"|client_loop: send disconnect|(?:ssh_dispatch_run_fatal|packet_write_\w+|banner exchange): Connection \w+ \S+ port \d+"
    r"|mux_client_\w+: read \w+ failed): "
)
_SSH_SAYS: tuple[tuple[str, Meaning], ...] = (
    (
        r"Host key verification failed|@ +WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! +@",
        Meaning(ExitKind.HOST, ExitCause.HOST_KEY),
    ),
    (
        r"(?:\S+: )?Permission denied \([a-z]|Received disconnect from .*: Too many authentication failures",
        Meaning(ExitKind.HOST, ExitCause.KEY_REFUSED),
    ),
    (r"ssh: Could not resolve hostname ", Meaning(ExitKind.RETRY, ExitCause.NO_SUCH_NAME)),
    (_SSH_ERRNO + "Connection refused", Meaning(ExitKind.RETRY, ExitCause.REFUSED)),
    (
        _SSH_ERRNO + "(?:No route to host|Network is unreachable|Host is down)",
        Meaning(ExitKind.RETRY, ExitCause.NO_ROUTE),
    ),
    (
        (
            _SSH_ERRNO + r"(?:Connection|Operation) timed out|Connection timed out during banner exchange"
            r"|Connection to \S+ port \d+ timed out|Timeout, server \S+ not responding"
        ),
        Meaning(ExitKind.RETRY, ExitCause.SILENT),
    ),
    (
        (
            _SSH_ERRNO + r"(?:Connection reset by peer|Broken pipe)|(?:kex|ssh)_exchange_identification: "
            r"|Connection (?:closed|reset) by \S+ port \d+|Connection to \S+ (?:closed|reset) by remote host"
        ),
        Meaning(ExitKind.RETRY, ExitCause.CLOSED),
    ),
)
# What ssh prints besides the reason.
_SSH_ASIDE = r"stdio forwarding failed|(?:Shared c|C)onnection to \S+ closed|Disconnected from |mux_client_|debug\d: "
# Messages of the remote login shell, sudo and rrsync when they do not start rsync. A startup file's message includes its name.
_SHELL = r"(?:-?(?:/[\w./-]*/)?(?:ba|da|z|k|mk|a|fi|rba)?sh(?:\[\d+\])?: (?:(?:line )?\d+: )?|zsh:\d+: |env: )"
_SHELL_SAYS: tuple[tuple[str, Meaning], ...] = (
    (
        (
            rf"{_SHELL}\S+: (?:(?:command )?not found|No such file or directory)$|{_SHELL}command not found: \S+$"
            r"|fish: Unknown command: |\S+: Command not found\.$|sudo: \S+: command not found$"
        ),
        MEANING[127],
    ),
    (rf"{_SHELL}\S+: (?:Permission denied|cannot execute)", MEANING[126]),
    (
        r"sudo: .*(?:password|terminal) is required",
        Meaning(ExitKind.HOST, ExitCause.SUDO_PASSWORD),
    ),
    (
        (
            r"sudo: (?!unable to resolve host |setrlimit)|Sorry, user \S+ (?:is not allowed to execute|may not run sudo)"
            r"|\S+ is not in the sudoers file"
        ),
        Meaning(ExitKind.HOST, ExitCause.SUDO_REFUSED),
    ),
    (r"\S*rrsync error: ", Meaning(ExitKind.HOST, ExitCause.RRSYNC_REFUSED)),
)
# Messages of an old remote rsync about our options, or the end of the long usage text of openrsync (macOS, OpenBSD).
_RSYNC_SAYS: tuple[tuple[str, Meaning], ...] = (
    (
        r"rsync: .*: unknown option|rsync: unrecognized option|.{0,8}source \.\.\. directory$",
        replace(MEANING[1], kind=ExitKind.HOST),
    ),
)
# Message of our rsync about data that does not come from rsync.
_NOT_RSYNC = r"protocol version mismatch -- is your shell clean\?"
_NO_PROTOCOL = Meaning(ExitKind.BROKEN, ExitCause.NO_PROTOCOL)


def exit_words(cause: str, exit_code: int | None) -> str:
    """Returns the words for a cause that was stored beside its exit status; KILLED and other words are returned unchanged."""
    try:
        exit_cause = ExitCause(cause)
    except ValueError:
        return cause
    return Meaning(ExitKind.FINISHED, exit_cause, number=_number(exit_code or 0)).words


def _number(exit_code: int) -> int:
    """Returns the number of the signal, or the exit status itself if its meaning is unknown."""
    return -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code <= 192 else exit_code


_CLOSED = r"rsync: (?:\[\w+\] )?connection unexpectedly closed \((\d+) bytes received so far\)"
_OUR_RSYNC = r"rsync: (?:\[\w+\] )?connection unexpectedly closed|rsync (?:error|warning): "


def meaning(exit_code: int, last_lines: Iterable[str] = ()) -> Meaning:
    """Interprets `exit_code` (negative: the signal), and for a connection that failed also the last messages.

    A message counts only in the form in which ssh, rsync, sudo, rrsync or a shell prints it, from the start of its line, and the
    last one counts: before rsync's first byte a host may print anything (a banner, output of the startup files of its shell).
    """
    lines = tuple(last_lines)
    if exit_code < 0:
        means = Meaning(ExitKind.RETRY, ExitCause.RSYNC_SIGNALLED, number=_number(exit_code))
    elif 128 < exit_code <= 192:  # shells and our bandwidth relay report signals this way
        means = Meaning(ExitKind.RETRY, ExitCause.REMOTE_SIGNALLED, number=_number(exit_code))
    elif exit_code in (12, 255):
        means = _of_the_connection(exit_code, lines)
    elif exit_code == 2 and (line := next((line for line in lines if re.match(_NOT_RSYNC, line)), "")):
        means = replace(_NO_PROTOCOL, line=line)
    else:
        means = MEANING.get(exit_code) or Meaning(ExitKind.BROKEN, ExitCause.UNKNOWN, number=exit_code)
    return means if means.line else replace(means, line=_last_line(means.kind, lines))


def _last_line(kind: ExitKind, lines: tuple[str, ...]) -> str:
    """Returns rsync's own last line, which names its status, or an earlier complaint that explains it."""
    complaints = [line for line in lines if not re.match(_OUR_RSYNC, line)]
    if kind in (ExitKind.BROKEN, ExitKind.HOST) and complaints:
        return complaints[-1]
    return next((line for line in reversed(lines) if line.startswith("rsync error: ")), complaints[-1] if complaints else "")


def _of_the_connection(exit_code: int, lines: tuple[str, ...]) -> Meaning:
    """Returns why a connection ended, and whether it was ever established. rsync asks for ssh's exit status only once; if it asks
    too early, ssh's 255, 126 or 127 becomes rsync's 12.

    So messages decide. rsync's own messages are ignored: that a file could not be opened ("Permission denied") is not about the
    connection.
    """
    received = [int(match[1]) for line in lines if (match := re.match(_CLOSED, line))]
    reached = any(received)
    printed = [line for line in lines if not line.startswith("rsync")]
    if by_ssh := _by_ssh(exit_code, printed):
        return replace(by_ssh, kind=ExitKind.RETRY) if reached else replace(by_ssh, unreachable=True)
    if not reached and (refused := _last_match((*_SHELL_SAYS, *_RSYNC_SAYS), lines)):
        return refused
    if exit_code == 255 and not reached:
        return replace(MEANING[255], unreachable=True, line=printed[-1] if printed else "")
    if received and not reached:
        return Meaning(ExitKind.RETRY, ExitCause.NO_START, line=printed[-1] if printed else "")
    return MEANING[12]


def _by_ssh(exit_code: int, printed: list[str]) -> Meaning | None:
    """Returns the reason in ssh's messages. Its message is the last one; with rsync's 12 nothing may follow it, because that status
    usually comes from the host.

    With a jump host the real reason is just before the message that the connection was closed.
    """
    closed: Meaning | None = None
    for line in reversed(printed):
        means = _match(_SSH_SAYS, line)
        if means and means.cause is ExitCause.HOST_KEY:
            return _last_match(_SSH_SAYS[:1], tuple(reversed(printed)))  # the first pattern, which contains "changed"
        if means and means.cause is not ExitCause.CLOSED:
            return means
        closed = closed or means
        if not means and not re.match(_SSH_ASIDE, line) and (closed or exit_code == 12):
            break
    return closed


def _last_match(table: Iterable[tuple[str, Meaning]], lines: tuple[str, ...]) -> Meaning | None:
    rows = tuple(table)
    return next((means for line in reversed(lines) if (means := _match(rows, line))), None)


def _match(table: Iterable[tuple[str, Meaning]], line: str) -> Meaning | None:
    """Returns the first row that matches the line, with the line."""
    return next((replace(means, line=line) for pattern, means in table if re.match(pattern, line)), None)
