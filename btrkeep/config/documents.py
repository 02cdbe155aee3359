"""Finds the files of a configuration, and parses their TOML. Interprets nothing."""

import errno
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from btrkeep.config.problems import Problems, nearest
from btrkeep.errors import ConfigError
from btrkeep.procfs import privilege_hint

_WHERE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_TABLE = re.compile(r"\('[^)]*\)")  # ('host', 'web1'), as tomllib prints a table's name
_NAME = re.compile(r"'([^']*)'")


@dataclass(frozen=True, slots=True)
class Document:
    """A file and the tables in it."""

    file: Path
    tables: dict[str, Any]


def documents(main: Path, problems: Problems, instead: Mapping[Path, str | None] | None = None) -> list[Document]:
    """Returns the main file and its drop-ins MAIN.d/*.toml in the order of their names. Raises ConfigError if there is no main
    file.

    `instead`: planned contents of files, None for one that will be deleted, so that a change is checked before it is made.
    """
    given = instead or {}
    if main not in given:
        _require_file(main)
    folder = main.with_suffix(".d")
    _refuse_written_by_others(main, problems)
    _refuse_written_by_others(folder, problems)
    names = {*_drop_ins(folder, problems), *(file.name for file in given if file.parent == folder)}
    files = (main, *(folder / name for name in sorted(names)))
    for file in files[1:]:
        _refuse_written_by_others(file, problems)
    read = [_document(file, given.get(file), problems) for file in files if given.get(file, "") is not None]
    return [document for document in read if document]


def documents_of_texts(texts: Mapping[Path, str], problems: Problems) -> list[Document]:
    """Parses texts, in their order, instead of files."""
    parsed = [_document(file, text, problems) for file, text in texts.items()]
    return [document for document in parsed if document]


def _require_file(main: Path) -> None:
    try:
        main.lstat()
    except PermissionError as error:  # of a folder above it
        raise ConfigError([f"{main}: cannot be read: {error.strerror}"], privilege_hint("CAP_DAC_READ_SEARCH")) from None
    except OSError:
        raise ConfigError([f"{main}: no such file"], _hint(main)) from None


def _refuse_written_by_others(path: Path, problems: Problems) -> None:
    """Root runs the hooks in a configuration, so only root may be able to write it. A missing file is not a problem."""
    if os.geteuid():
        return
    try:
        status = path.stat()
    except OSError:
        return
    if status.st_uid:
        problems.add(path, f"belongs to user {status.st_uid}, who could run any command as root: chown root it")
    elif status.st_mode & stat.S_IWOTH:
        problems.add(path, "can be written by other users, who could run any command as root: chmod go-w it")


def _hint(main: Path) -> str:
    others = sorted(file.stem for file in main.parent.glob("*.toml"))
    hint = "run `backupd init PATH` to make a pool and an example configuration"
    return f"{hint}; pools configured here: {', '.join(others)}{nearest(main.stem, others)}" if others else hint


def _drop_ins(folder: Path, problems: Problems) -> list[str]:
    try:
        names = [file.name for file in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.add_unread(folder, f"cannot be read: {error.strerror}")
        return []
    # Hidden files are temporary files of editors: .#web1.toml
    return [name for name in names if name.endswith(".toml") and not name.startswith(".")]


def _document(file: Path, text: str | None, problems: Problems) -> Document | None:
    """Parses the file, or `text` instead of its content."""
    try:
        content = _content(file) if text is None else text.encode()
        decoded = problems.texts[file] = content.decode("utf-8-sig")
        return Document(file, tomllib.loads(decoded))
    except OSError as error:
        problems.add_unread(file, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        problems.texts[file] = content.decode("utf-8-sig", "replace")
        problems.add_unread(file, "is not UTF-8", line, column)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, as is the error for very long numbers
        problems.add_unread(file, *_syntax(error, decoded))
    return None


def _content(file: Path) -> bytes:
    """Reads a regular file. Does not wait for a pipe, which may never get data."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(kind) else "it is not a regular file")
        return stream.read()


def _syntax(error: Exception, text: str) -> tuple[str, int | None, int | None]:
    """Returns the reason, line and column of a syntax error, from the text of tomllib."""
    if isinstance(error, RecursionError):
        return "is nested too deeply", None, None
    message = str(error)
    match = _WHERE.search(message)
    if not match:
        return f"is not TOML: {message}", None, None
    lines = text.splitlines() or [""]
    line, column = (match[1], match[2]) if match[1] else (len(lines), len(lines[-1]) + 1)
    reason = _TABLE.sub(lambda names: f"[{'.'.join(_NAME.findall(names[0]))}]", message[: match.start()])
    return reason, int(line), int(column)
