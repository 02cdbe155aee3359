"""Finds the reason in the output of a restic that failed, and what to do about it. Pure.

restic 0.17 and later end with one JSON object ("exit_error") and an exit status of their own for a missing repository, a locked one
and a wrong password; earlier ones print "Fatal: ..." and exit 1. Errors may be followed by the stack of a Go program.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ResticStatus(IntEnum):
    """Exit statuses of restic 0.17 and later."""

    NO_REPOSITORY = 10
    LOCKED = 11
    WRONG_PASSWORD = 12


@dataclass(frozen=True, slots=True)
class ResticError:
    """The reason, and the hint with {name} for the name of the repository; "" without one. `locked`: another restic uses it."""

    text: str
    hint: str
    locked: bool


_FRAME = re.compile(r"\t|goroutine \d+|(?=.{0,300}$)[\w./()*\-]+\.[\w.()*\-]+(?:\([^ ]*\))?$")  # a long line would take hours
_RETRY = re.compile(r"returned error, retrying after [^:]*: (?P<why>.*)")
_REMARK = re.compile(r"warning|using parent snapshot|no parent snapshot|Is there a repository at|created new cache", re.IGNORECASE)
_LOCKED = "already locked"
_FATAL = "Fatal: "
_INIT = "`backupd offsite init {name}` makes it"
_BY_STATUS = {
    ResticStatus.NO_REPOSITORY: _INIT,
    ResticStatus.LOCKED: (
        "another restic is at work there: wait for its end. `backupd offsite run {name}` removes the lock of one that was killed"
    ),
    ResticStatus.WRONG_PASSWORD: "is password_file that of this repository?",
}
_BY_TEXT = (  # of versions that exit 1 for everything, and of what no status is for
    (r"wrong password", _BY_STATUS[ResticStatus.WRONG_PASSWORD]),
    (r"ciphertext verification failed", "`backupd offsite check` says what is damaged there"),
    (_LOCKED, _BY_STATUS[ResticStatus.LOCKED]),
    (r"unable to open config file: (?:stat [^ ]*: no such file or directory|<config/> does not exist)$", _INIT),
    (
        r"config file already exists|already initialized",
        "it is made already: `backupd offsite run {name}` sends to it",
    ),
    (
        r"\b403\b|access denied|permission denied|forbidden",
        "may that key do this there? One that cannot delete needs an offsite without retention",
    ),
    (r"no space left|quota exceeded|insufficient storage", "make room there"),
    (
        r"connection refused|no such host|i/o timeout|no route to host|network is unreachable|connection reset|sftp session",
        "see that its server is running and reachable, and that the address in [offsite.{name}] is right",
    ),
)


def restic_error(lines: Sequence[str], status: int) -> ResticError:
    """Returns why restic failed, from its messages without secrets, in their order."""
    objects, texts = list[dict[str, Any]](), list[str]()
    for line in lines:
        parsed = _parsed(line)
        if parsed is None:
            texts.append(line)
        else:
            objects.append(parsed)
    final: dict[str, Any] = next((one for one in reversed(objects) if one.get("message_type") == "exit_error"), {})
    code = final.get("code")
    status = code if isinstance(code, int) and status == 1 else status
    messages = [*filter(None, map(message_of, objects))]
    text = next(_reasons(str(final.get("message") or ""), texts, messages), f"exit status {status}").removeprefix(_FATAL)
    locked = status == ResticStatus.LOCKED or any(_LOCKED in line for line in (text, *texts, *messages))
    hint = _BY_STATUS.get(ResticStatus(status), "") if status in ResticStatus.__members__.values() else ""
    return ResticError(text, hint or _hint(text, locked=locked), locked)


def _reasons(final: str, texts: Iterable[str], messages: Sequence[str]) -> Iterator[str]:
    """Yields what may be the reason, the best first."""
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
