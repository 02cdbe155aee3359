"""Collects the mistakes of a configuration: one line each, with file, key, value and what is expected."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from btrkeep.units import printable

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_HOST_KEY = re.compile(r'host\.("(?:[^"\\]|\\.)*"|[A-Za-z0-9_-]+)(?=\.|$)')
_LONGEST = 80
_MANY = 3  # hosts with the same problem, from which on they are one line
_SHOWN = 3


class InvalidValue(ValueError):
    """A value that is not allowed. Without a reason, the type's own description of valid values is used."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RefusedItems(ValueError):
    """Items of a list that cannot be: (item, reason) pairs."""

    def __init__(self, items: list[tuple[Any, str]]) -> None:
        super().__init__(str(items))
        self.items = items


@dataclass(slots=True)
class Problems:
    """Collects while the configuration is read: `lines` are wrong, `notices` are only said."""

    lines: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    unread: bool = False  # some file could not be read: what seems to be missing may stand there

    _entries: list[tuple[Path, str, str]] = field(default_factory=list)

    def add(self, file: Path, what: str, reason: str = "") -> None:
        self.lines.append(_line(file, what, reason))
        self._entries.append((file, what, reason))

    def merged(self) -> list[str]:
        """Returns the lines; a problem that three hosts or more have is one line, at the place of the first."""
        keys = [_HOST_KEY.match(what) for _, what, _ in self._entries]
        hosts: dict[tuple[str, str], list[tuple[str, Path]]] = {}
        for (file, what, reason), key in zip(self._entries, keys, strict=True):
            if key:
                hosts.setdefault((what[key.end() :], reason), []).append((key[1], file))
        lines = dict[str, None]()
        for (file, what, reason), key in zip(self._entries, keys, strict=True):
            names = hosts[what[key.end() :], reason] if key else []
            names = list({name: (name, file) for name, file in reversed(names)}.values())[::-1]
            is_repeated = key is not None and len(names) >= _MANY
            line = _line_of_many(names, what[key.end() :], reason) if key and is_repeated else _line(file, what, reason)
            lines[line] = None
        return list(lines)

    def say(self, file: Path, what: str, reason: str) -> None:
        self.notices.append(_line(file, what, reason))


def _line_of_many(hosts: list[tuple[str, Path]], key: str, reason: str) -> str:
    names = ", ".join(name for name, _ in hosts[:_SHOWN]) + (f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else "")
    return f"{len(hosts)} hosts: host.*{printable(key)}: {printable(reason)} ({names}; the first in {hosts[0][1]})"


def _line(file: Path, what: str, reason: str) -> str:
    return ": ".join(printable(part) for part in (str(file), what, reason) if part)


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
        return _show_many(value, depth - 1) if depth else "..."  # dotted keys nest deeper than a stack
    if isinstance(value, str):
        return quoted(without_secrets(value)[:_LONGEST])
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to spell out very long integers
        return f"{value:#x}"
    return str(value)


def without_secrets(text: str) -> str:
    """Returns only the scheme of a URL, because a password may stand anywhere after it."""
    return re.sub(r"://\S.*", "://...", text, flags=re.DOTALL)


def _show_many(value: dict[str, Any] | list[Any], depth: int) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_show(item, depth) for item in value[:_LONGEST])}]"
    return f"{{{', '.join(f'{dotted(key)} = {_show(item, depth)}' for key, item in value.items())}}}"


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean "paths"?` when some known word is near enough to `word`, else nothing."""
    import difflib  # only a mistake pays for it

    folded = {name.casefold(): name for name in known}
    matches = difflib.get_close_matches(word.casefold(), folded, n=1)
    return f"; did you mean {quoted(folded[matches[0]])}?" if matches else ""
