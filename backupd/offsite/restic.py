"""Runs restic in a cell: everything of this machine is read-only, and the pool is hidden except for the backup that is sent.

That backup is always at the same path, /btrkeep, so that restic finds the previous one and reads only the changes. Secrets come
from files that only root may read; restic gets them in its environment, never on its command line, and they are removed from its
output before it is shown or logged.

The reason of a failure is found in its output. restic 0.17 and later end with one JSON object ("exit_error") and an exit status of
their own for a missing repository, a locked one and a wrong password; earlier ones print "Fatal: ..." and exit 1. Errors may be
followed by the stack of a Go program.
"""

import json
import os
import re
import select
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from btrkeep.config.config_model import OffsiteSettings
from btrkeep.config.values import without_credentials
from btrkeep.errors import OperatorError
from btrkeep.process.proc import bytes_read_below
from btrkeep.process.programs import ProgramFailed, environment, piped
from btrkeep.units import format_duration

PROGRAM = "restic"
INCOMPLETE = 3
"""restic's exit status if it could not read all of the source; it creates the snapshot nevertheless."""
SHOWN = Path("/btrkeep")
"""The path of the backup in the cell, and so in the repository."""
_CELL = "bwrap"
_NOT_SHOWN = {"proc", "dev", "sys", "tmp", SHOWN.name}
_TO_READ, _TO_WRITE = ("CAP_DAC_OVERRIDE",), ("CAP_CHOWN", "CAP_FOWNER", "CAP_SETFCAP")
_KIB = 1024
_CHECK_EVERY = 0.2  # seconds between two checks whether it should end
OPENING = 60.0
"""Seconds in which a repository has to be reached; restic 0.17 and later would try for a quarter of an hour. A later failure is
retried as long as restic wants, because the network may return.
"""
_NOT_REACHED = re.compile(r"<config/?\w*>\) returned error, retrying after [^:]*: (?P<why>.*)")
_ALIVE = 1 << 16
"""Bytes that restic must read within `stall`. While its server does not answer, restic reads only a few, to renew its lock."""
_READINGS = 20  # readings of its counter within `stall`
_PIECE = 1 << 16
_SHORTEST_SECRET = 4


class ResticFailed(OperatorError):
    """A failed command of restic; the message is restic's own, without secrets."""


class RepositoryLocked(ResticFailed):
    """Another restic is running there, or was killed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of restic."""

    lines: list[Any]
    """Its JSON, without progress."""
    status: int
    """Its exit status: 0, or INCOMPLETE."""


@dataclass(frozen=True, slots=True)
class Restic:
    """One repository."""

    settings: OffsiteSettings
    """Its settings."""
    cache: Path
    """A folder for restic's own cache."""
    hidden: tuple[Path, ...]
    """Folders that are hidden from restic."""
    variables: Mapping[str, str] = field(repr=False)
    """Its environment, with the password."""
    poll: Callable[[], None] = lambda: None
    """Called from time to time during each command; may raise."""

    def ask(
        self,
        *words: str,
        shown: Path | None = None,
        written: Path | None = None,
        tell: Callable[[dict[str, Any]], None] = lambda _line: None,
        poll: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Runs a command of restic. `shown` appears at SHOWN, `written` is a folder to which it may write; `tell` receives each
        line at once, `poll` is called from time to time, and may raise.

        A stale lock, as `restic unlock` defines it, is removed. Raises ResticFailed, also if the repository has not answered for
        `stall`, and the exceptions of `poll`, which end restic.
        """
        try:
            return self._ask(words, shown, written, tell, poll)
        except RepositoryLocked:
            self._ask(("unlock",), None, None, tell, poll)
            return self._ask(words, shown, written, tell, poll)

    def _ask(
        self,
        words: Sequence[str],
        shown: Path | None,
        written: Path | None,
        tell: Callable[[dict[str, Any]], None],
        poll: Callable[[], None],
    ) -> Answer:
        command = (*self._cell(shown, written), PROGRAM, *words, "--json", "--cache-dir", str(self.cache))
        lines: list[Any] = []
        opening = _Opening()
        try:
            with piped(command, extra=self.variables) as program:
                silence = _Silence(program.pid, self.settings.stall)

                def poll_all() -> None:
                    self.poll()
                    poll()
                    if words[0] != "backup" and silence.is_over():  # a backup's own lines show its progress
                        waited = format_duration(self.settings.stall)
                        raise ResticFailed(f"restic: the repository has not answered for {waited}", "check that its server works")
                    if why := "" if lines else opening.fails(program.error_lines):
                        raise ResticFailed(
                            f"restic: the repository cannot be reached: {self._clean(why)}", "check that its server is running"
                        )

                for line in _lines(program.output, poll_all):
                    if isinstance(line, dict):
                        tell(line)
                        if line.get("message_type") == "status":
                            continue  # restic prints one each second, for days
                    lines.append(line)
                status = program.wait(poll_all)
                output = program.error_lines()
        except ProgramFailed as error:
            raise ResticFailed(self._clean(error.message), error.hint) from None
        if status not in (0, INCOMPLETE) or (status and words[0] != "backup"):
            messages = [json.dumps(line) for line in lines if isinstance(line, dict) and message_of(line)]
            raise self._failure([*output, *messages], status)
        return Answer(lines, status)

    def _cell(self, shown: Path | None, written: Path | None) -> tuple[str, ...]:
        words = [_CELL, "--die-with-parent", "--new-session", "--unshare-ipc", "--cap-drop", "ALL"]
        for capability in _TO_READ + (_TO_WRITE if written else ()):
            words += ["--cap-add", capability]
        for entry in sorted(os.scandir("/"), key=lambda dir_entry: dir_entry.name):
            if entry.is_symlink():
                words += ["--symlink", str(Path(entry.path).readlink()), entry.path]
            elif entry.is_dir() and entry.name not in _NOT_SHOWN:
                words += ["--ro-bind", entry.path, entry.path]
        words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]  # noqa: S108, the cell's own
        for folder in self.hidden:
            words += ["--tmpfs", str(folder)]
        for folder in filter(None, (self.cache, self.local, written)):
            words += ["--bind", str(folder), str(folder)]
        for file, name in ((shown, SHOWN), (self.settings.password_file, self.settings.password_file)):
            if file:
                words += ["--ro-bind", str(file), str(name)]
        return (*words, "--")

    @property
    def local(self) -> Path | None:
        """Returns the folder of a repository on this machine."""
        text = self.variables.get("RESTIC_REPOSITORY", "").removeprefix("local:")
        return Path(text) if text.startswith("/") else None

    def _failure(self, lines: Sequence[str], status: int) -> ResticFailed:
        error = restic_error([self._clean(line) for line in lines], status)
        kind = RepositoryLocked if error.locked else ResticFailed
        return kind(f"restic: {error.text}", error.hint.format(name=self.settings.name))

    def _clean(self, text: str) -> str:
        """Returns the text without secrets: the values of the environment file, and everything before the @ of a URL."""
        secrets = sorted(set(self.variables.values()), key=len, reverse=True)
        for secret in secrets:
            if len(secret) >= _SHORTEST_SECRET and secret not in (str(self.settings.password_file), self.settings.repository):
                text = text.replace(secret, "***")
        return without_credentials(text)


class _Silence:
    """Watches whether restic is reading: from its repository, its cache, or a backup."""

    def __init__(self, pid: int, stall: float) -> None:
        self._pid, self._stall = pid, stall
        self._read, self._since = 0, time.monotonic()
        self._next = 0.0

    def is_over(self) -> bool:
        """Returns whether it has read next to nothing for `stall` seconds. Its counter is read from time to time."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._stall / _READINGS
        read = bytes_read_below(self._pid)
        if read is None or read >= self._read + _ALIVE:
            self._read, self._since = read or self._read, now
        return now - self._since > self._stall


class _Opening:
    """Watches whether restic reaches its repository."""

    def __init__(self) -> None:
        self._end = time.monotonic() + OPENING
        self._before: int | None = None

    def fails(self, output: Callable[[], Sequence[str]]) -> str:
        """Returns the reason if the time is over and restic has reported another retry; an earlier report alone may be old, and
        restic may have continued since.
        """
        if time.monotonic() < self._end:
            return ""
        lines = output()
        self._before = len(lines) if self._before is None else self._before
        match = _NOT_REACHED.search(_message(lines[-1])) if len(lines) > self._before else None
        return match["why"] if match else ""


def restic_of(settings: OffsiteSettings, state: Path, pool: Path) -> Restic:
    """Returns the client of the configured repository. Raises OperatorError if a program is missing, or other users can read a
    secret.
    """
    path = environment()["PATH"]
    for program, package in ((PROGRAM, "restic"), (_CELL, "bubblewrap")):
        if not shutil.which(program, path=path):
            raise OperatorError(f"{package} is not installed", f"`apt install {package}`")
    variables = _variables(settings.environment_file) if settings.environment_file else {}
    if settings.repository:
        variables["RESTIC_REPOSITORY"] = settings.repository
    if settings.password_file:
        _require_private(settings.password_file)
        variables["RESTIC_PASSWORD_FILE"] = str(settings.password_file)
    if not {"RESTIC_REPOSITORY", "RESTIC_REPOSITORY_FILE"} & variables.keys():
        raise OperatorError(
            f"{settings.environment_file} does not name a repository", "add RESTIC_REPOSITORY=... on a separate line"
        )
    cache = state / "offsite" / settings.name
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    fixed = {"TZ": "UTC", "RESTIC_PROGRESS_FPS": "1", "RESTIC_FEATURES": "device-id-for-hardlinks"}
    restic = Restic(settings, cache, (pool, state), {**fixed, **variables})
    if (local := restic.local) and local.resolve().is_relative_to(pool.resolve()):
        raise OperatorError(
            f"the repository {local} is in the pool: if the pool is lost, the copy is lost too", "put it on another disk"
        )
    return restic


def _variables(file: Path) -> dict[str, str]:
    """Parses the NAME=value lines of a file, values quoted as for a shell. Raises OperatorError with the number of the line."""
    _require_private(file)
    variables = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, is_one, value = line.strip().removeprefix("export ").partition("=")
        try:
            words = shlex.split(value)
        except ValueError:
            words = ["", ""]
        if not is_one or not re.fullmatch(r"[A-Za-z_]\w*", name) or len(words) > 1:
            raise OperatorError(f"{file}, line {number}: expected NAME=value", "quote a value that contains spaces")
        variables[name] = words[0] if words else ""
    return variables


def _require_private(file: Path) -> None:
    try:
        status = file.stat()
    except OSError as error:
        raise OperatorError(f"{file}: {error.strerror}", "create it, and `chmod 600` it") from None
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise OperatorError(
            f"{file} has secrets, but users other than root can access it",
            f"`chown root {shlex.quote(str(file))}`; `chmod 600 {shlex.quote(str(file))}`",
        )


def _lines(output: int, poll: Callable[[], None]) -> Iterator[Any]:
    """Yields each line of JSON when it arrives; skips other lines."""
    rest = b""
    waiting = select.poll()
    waiting.register(output, select.POLLIN)
    while True:
        poll()
        if not waiting.poll(_CHECK_EVERY * 1000):
            continue
        piece = os.read(output, _PIECE)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines if piece else [*lines, rest]:
            try:
                yield json.loads(line)
            except ValueError:
                continue
        if not piece:
            return


def _message(line: str) -> str:
    """Returns the message in a line of restic's output, which newer versions write as JSON."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return line
    return (message_of(parsed) if isinstance(parsed, dict) else "") or line


def limit_words(settings: OffsiteSettings) -> tuple[str, ...]:
    """Returns the options for the bandwidth limit, which restic counts in KiB per second."""
    return ("--limit-upload", str(max(1, settings.bandwidth // _KIB))) if settings.bandwidth else ()


class ResticStatus(IntEnum):
    """Exit statuses of restic 0.17 and later."""

    NO_REPOSITORY = 10
    LOCKED = 11
    WRONG_PASSWORD = 12


@dataclass(frozen=True, slots=True)
class ResticError:
    """An error of restic."""

    text: str
    """The reason."""
    hint: str
    """The hint, with {name} for the name of the repository; "": none."""
    locked: bool
    """True if another restic uses the repository."""


_FRAME = re.compile(r"\t|goroutine \d+|(?=.{0,300}$)[\w./()*\-]+\.[\w.()*\-]+(?:\([^ ]*\))?$")  # long lines take hours
_RETRY = re.compile(r"returned error, retrying after [^:]*: (?P<why>.*)")
_REMARK = re.compile(r"warning|using parent snapshot|no parent snapshot|Is there a repository at|created new cache", re.IGNORECASE)
_LOCKED = "already locked"
_FATAL = "Fatal: "
_INIT = "`backupd offsite init {name}` creates it"
_BY_STATUS = {
    ResticStatus.NO_REPOSITORY: _INIT,
    ResticStatus.LOCKED: (
        "another restic uses the repository: wait until it ends. `backupd offsite run {name}` removes the lock of a killed restic"
    ),
    ResticStatus.WRONG_PASSWORD: "check that password_file belongs to this repository",
}
_BY_TEXT = (  # for versions that always exit 1, and errors without a status
    (r"wrong password", _BY_STATUS[ResticStatus.WRONG_PASSWORD]),
    (r"ciphertext verification failed", "`backupd offsite check {name}` lists the damaged data"),
    (_LOCKED, _BY_STATUS[ResticStatus.LOCKED]),
    (r"unable to open config file: (?:stat [^ ]*: no such file or directory|<config/> does not exist)$", _INIT),
    (
        r"config file already exists|already initialized",
        "the repository exists already: `backupd offsite run {name}` sends backups to it",
    ),
    (
        r"\b403\b|access denied|permission denied|forbidden",
        "check the permissions of the key; a key that cannot delete needs an [offsite] without retention",
    ),
    (r"no space left|quota exceeded|insufficient storage", "free some space in the repository's storage"),
    (
        r"connection refused|no such host|i/o timeout|no route to host|network is unreachable|connection reset|sftp session",
        "check that its server is running and reachable, and that the address in [offsite.{name}] is right",
    ),
)


def restic_error(lines: Sequence[str], status: int) -> ResticError:
    """Returns the reason why restic failed, from its messages without secrets, in their order."""
    objects, texts = list[dict[str, Any]](), list[str]()
    for line in lines:
        parsed = _parsed(line)
        if parsed is None:
            texts.append(line)
        else:
            objects.append(parsed)
    final: dict[str, Any] = next((message for message in reversed(objects) if message.get("message_type") == "exit_error"), {})
    code = final.get("code")
    status = code if isinstance(code, int) and status == 1 else status
    messages = [*filter(None, map(message_of, objects))]
    text = next(_reasons(str(final.get("message") or ""), texts, messages), f"exit status {status}").removeprefix(_FATAL)
    locked = status == ResticStatus.LOCKED or any(_LOCKED in line for line in (text, *texts, *messages))
    hint = _BY_STATUS.get(ResticStatus(status), "") if status in ResticStatus.__members__.values() else ""
    return ResticError(text, hint or _hint(text, locked=locked), locked)


def _reasons(final: str, texts: Iterable[str], messages: Sequence[str]) -> Iterator[str]:
    """Yields possible reasons, the best first."""
    lines = [line.strip() for line in texts if line.strip() and not _FRAME.match(line)]
    yield from filter(None, (final,))
    yield from (line for line in (*lines, *messages) if line.startswith(_FATAL) or _LOCKED in line)
    yield from messages
    yield from (line for line in lines if not (_RETRY.search(line) or _REMARK.match(line)))
    yield from (match["why"] for line in lines if (match := _RETRY.search(line)))


def _hint(text: str, *, locked: bool) -> str:
    if locked:
        return _BY_STATUS[ResticStatus.LOCKED]
    return next((hint for words, hint in _BY_TEXT if re.search(words, text, re.IGNORECASE)), "")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def message_of(given: dict[str, Any]) -> str:
    """Returns the message in a JSON object of restic, "" without one."""
    error = given.get("error")
    return str(given.get("message") or (error.get("message") if isinstance(error, dict) else "") or "")
