"""Collects the mistakes of a configuration: one line each, with file, key, value and what is expected."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from btrkeep.units import printable

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LONGEST = 80


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

    def add(self, file: Path, what: str, reason: str = "") -> None:
        self.lines.append(_line(file, what, reason))

    def say(self, file: Path, what: str, reason: str) -> None:
        self.notices.append(_line(file, what, reason))


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
