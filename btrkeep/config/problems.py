"""Collects the mistakes of a configuration: one line each, with file, line, key, value and the expected value."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from btrkeep.units import names_in_words, printable

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_HOST_KEY = re.compile(r'host\.("(?:[^"\\]|\\.)*"|[A-Za-z0-9_-]+)(?=\.|$)')
_LONGEST = 80
_MANY = 3  # hosts with the same problem; more are merged into one line
_SHOWN = 3


class InvalidValue(ValueError):
    """A value that is not allowed. Without a reason, the type's own description of valid values is used.

    `valid`: its valid part, None without one.
    """

    def __init__(self, reason: str = "", valid: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.valid = valid


class RefusedItems(ValueError):
    """Invalid items of a list: (item, reason) pairs."""

    def __init__(self, items: list[tuple[Any, str]]) -> None:
        super().__init__(str(items))
        self.items = items


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake of a configuration."""

    file: Path
    """The file that has it."""
    setting: str
    """The key or section in the form of messages; for a mistake of a whole file a description, or ""."""
    reason: str = ""
    """A description; "": `setting` contains it."""
    where: tuple[str, ...] = ()
    """The path of the key or section; empty for a whole file."""
    line: int | None = None
    """The line of a syntax error; None for other mistakes."""
    column: int | None = None
    """The column of a syntax error; None for other mistakes."""
    meant: tuple[str, ...] = ()
    """The section that a misspelt one probably means; empty if it is not misspelt."""
    unread: bool = False
    """True if the file could not be read, so that its sections are unknown."""
    implied: bool = False
    """True if it is a consequence of such a file, and is not reported separately."""

    def __str__(self) -> str:
        position = f"line {self.line}, column {self.column}" if self.column else self.setting
        return _line(str(self.file), position, self.reason)


@dataclass(slots=True)
class Problems:
    """Collects while the configuration is read: `faults` are mistakes, `notices` are remarks. `texts`: the content of each file."""

    faults: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    texts: dict[Path, str] = field(default_factory=dict)

    @property
    def unread(self) -> bool:
        """Returns True if some file could not be read: seemingly missing settings may be there."""
        return any(problem.unread for problem in self.faults)

    @property
    def lines(self) -> list[str]:
        """Returns all mistakes, one line each."""
        return [str(problem) for problem in self.faults if not problem.implied]

    def merged(self) -> list[str]:
        """Returns the lines; a problem of three hosts or more becomes one line, at the place of the first."""
        return self._merged(str, _first_in_names)

    def located(self) -> list[str]:
        """Returns the same in the form of compilers, FILE:LINE: KEY: REASON."""
        return self._merged(self.locate, self._first_in_front)

    def _merged(self, single: Callable[[Problem], str], many: Callable[[Problem, str, list[str]], str]) -> list[str]:
        hosts: dict[tuple[str, str], list[tuple[str, Problem]]] = {}
        for problem in self.faults:
            if key := _host_key(problem):
                hosts.setdefault((key[1], problem.reason), []).append((key[0], problem))
        lines = dict[str, None]()
        for problem in self.faults:
            if problem.implied:
                continue
            key = _host_key(problem)
            similar = hosts[key[1], problem.reason] if key else []
            names = list(dict.fromkeys(name for name, _ in similar))
            lines[many(similar[0][1], key[1], names) if key and len(names) >= _MANY else single(problem)] = None
        return list(lines)

    def _first_in_front(self, first: Problem, key: str, names: list[str]) -> str:
        """Formats a problem of many hosts with the place of the first."""
        hosts = f"{len(names)} hosts: {names_in_words(names, _SHOWN)}"
        return self.locate(replace(first, setting=f"host.*{key}", reason=f"{first.reason} ({hosts})"))

    def locate(self, problem: Problem) -> str:
        """Formats one mistake as FILE:LINE: KEY: REASON. Without a known line it is FILE: KEY: REASON."""
        line = problem.line
        if line is None and problem.where and problem.file in self.texts:
            line = line_of(self.texts[problem.file], problem.where)
        return _line(str(problem.file) if line is None else f"{problem.file}:{line}", problem.setting, problem.reason)

    def add(
        self,
        file: Path,
        setting: str,
        reason: str = "",
        where: tuple[str, ...] = (),
        *,
        meant: tuple[str, ...] = (),
        implied: bool = False,
    ) -> None:
        self.faults.append(Problem(file, setting, reason, where, meant=meant, implied=implied))

    def add_unread(self, file: Path, reason: str, line: int | None = None, column: int | None = None) -> None:
        self.faults.append(Problem(file, "", reason, line=line, column=column, unread=True))

    def add_notice(self, file: Path, setting: str, reason: str) -> None:
        self.notices.append(_line(str(file), setting, reason))


def _host_key(problem: Problem) -> tuple[str, str] | None:
    """Returns the name of the host of the problem, and the key with its value; None for another problem."""
    match = _HOST_KEY.match(problem.setting)
    return (match[1], problem.setting[match.end() :]) if match and not problem.implied else None


def _first_in_names(first: Problem, key: str, names: list[str]) -> str:
    where = f"{names_in_words(names, _SHOWN)}; the first in {first.file}"
    return f"{len(names)} hosts: host.*{printable(key)}: {printable(first.reason)} ({where})"


def _line(file: str, setting: str, reason: str) -> str:
    return ": ".join(printable(part) for part in (file, setting, reason) if part)


def dotted(*names: str) -> str:
    """A key as TOML spells it: host.web1.paths, host."my host".paths."""
    return ".".join(name if _BARE.fullmatch(name) else quoted(without_secrets(name)) for name in names)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def show(value: Any) -> str:
    """A value as TOML spells it, at most 80 characters."""
    text = _show(value, 2)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _show(value: Any, depth: int) -> str:
    if isinstance(value, dict | list):
        return _show_many(value, depth - 1) if depth else "..."  # dotted keys can be nested deeper than the stack allows
    if isinstance(value, str):
        return quoted(without_secrets(value)[:_LONGEST])
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to spell out very long integers
        return f"{value:#x}"
    return str(value)


def without_secrets(text: str) -> str:
    """Returns only the scheme of a URL, because a password may be anywhere after it."""
    return re.sub(r"://\S.*", "://...", text, flags=re.DOTALL)


def _show_many(value: dict[str, Any] | list[Any], depth: int) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_show(item, depth) for item in value[:_LONGEST])}]"
    return f"{{{', '.join(f'{dotted(key)} = {_show(item, depth)}' for key, item in value.items())}}}"


def nearest(word: str, words: Iterable[str]) -> str:
    """Returns `; did you mean "paths"?` if some known word is similar to `word`, else ""."""
    meant = nearest_of(word, words)
    return f"; did you mean {quoted(meant)}?" if meant else ""


def nearest_of(word: str, words: Iterable[str]) -> str:
    """Returns the known word that is most similar to `word`, "" if none is similar."""
    import difflib  # only needed after a mistake

    folded = {name.casefold(): name for name in words}
    matches = difflib.get_close_matches(word.casefold(), folded, n=1)
    return folded[matches[0]] if matches else ""


_HEADER = re.compile(r"\s*\[{1,2}([^\]]*)\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_.\s-]|"[^"]*"|'[^']*')+?)\s*=""", re.ASCII)


def line_of(text: str, where: tuple[str, ...]) -> int | None:
    """Returns the line of the key at this path, or of the nearest section or key above it; None if there is none."""
    lines = _lines(text)
    return next((lines[where[:end]] for end in range(len(where), 0, -1) if where[:end] in lines), None)


@lru_cache(maxsize=4)
def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Returns the first line of every section and key."""
    lines: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = _path_of_key(header[1])
            path = section
        elif key := _KEY.match(line):
            path = (*section, *_path_of_key(key[1]))
        else:
            continue
        for end in range(1, len(path) + 1):
            lines.setdefault(path[:end], number)
    return lines


def _path_of_key(dotted: str) -> tuple[str, ...]:
    """Parses host."my host".paths; () if it is not a key."""
    try:
        table: Any = tomllib.loads(f"{dotted} = 0")
    except (ValueError, RecursionError):
        return ()
    return tuple(_keys(table))


def _keys(table: Any) -> Iterator[str]:
    while isinstance(table, dict):
        (key,) = table
        yield key
        table = table[key]


def headers(text: str) -> Iterator[tuple[str, ...]]:
    """Yields the path of everything that looks like the header of a section, also in a text that is not TOML, and of the keys above
    the first header.

    A header is found even if the bracket on one side is missing; a text in quotes followed by a bracket is the end of a list. A
    header that cannot be parsed has one part, its text.
    """
    is_top = True
    for line in text.splitlines():
        bare = line.split("#", 1)[0].strip()
        if bare.startswith("["):
            is_top = False
            yield _path_of_key(bare.strip("[] \t")) or (bare,)
        elif bare.endswith("]") and bare[0] not in "\"'" and (path := _path_of_key(bare.rstrip("] \t"))):
            is_top = False
            yield path
        elif is_top and (key := _KEY.match(bare)) and (path := _path_of_key(key[1])):
            yield path


INSTALLED = Path("/usr/local/share/doc/btrkeep")
_CHECKOUT = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> Path:
    """Returns the path of a page: HTML if it is installed, otherwise the source."""
    written = _CHECKOUT / f"{name}.rst"
    if written.exists():
        return written
    paths = [path for suffix in ("html", "rst") if (path := INSTALLED / f"{name}.{suffix}").exists()]
    return paths[0] if paths else INSTALLED / f"{name}.html"


def reference() -> str:
    """Returns where every key is explained: the manual page, or in a checkout, in which man does not find it, the page in docs/."""
    written = page("configuration")
    return str(written) if written.is_relative_to(_CHECKOUT) else "`man btrkeep.toml`"
