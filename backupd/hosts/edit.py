"""Changes the text of a configuration and keeps everything else in it: comments, order, blanks.

The only importer of tomlkit, so commands import it when they change something. A changed text is parsed and compared with the
intended result, so an unusual way to write TOML is refused instead of damaged.
"""

import re
import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit
from tomlkit.items import Array, InlineTable, Table

_HEAD = re.compile(r"\s*\[")
_NO_KEY = re.compile(r"\s*(?:#.*)?")


def with_keys(text: str, section: str, keys: Mapping[str, Any]) -> str:
    """Returns `text` with these keys in [section], which is added if missing; None removes a key.

    Raises ValueError if the text is not TOML, or the section is not a table.
    """
    document = tomlkit.parse(text)
    if section not in document:
        if document.body and text.strip():
            document.add(tomlkit.nl())
        document.add(section, tomlkit.table())
        text = tomlkit.dumps(document)
    if not isinstance(document[section], Table):
        raise ValueError(f"{section} is not a separate table")
    for key, value in keys.items():
        text = _with_key(text, [section], key, value)
    return text


def new_host(name: str, keys: Mapping[str, Any]) -> str:
    """Returns the text of a separate file for that host."""
    document, hosts, table = tomlkit.document(), tomlkit.table(is_super_table=True), tomlkit.table()
    for key, value in keys.items():
        table.add(key, value)
    hosts.add(name, table)
    document.add("host", hosts)
    return tomlkit.dumps(document)


def with_host_keys(text: str, name: str, keys: Mapping[str, Any]) -> str:
    """Returns `text` with these keys of the host; None removes a key, "retention.daily" is a key of its retention table.

    A new key is added after the host's last one. Raises ValueError if the host is missing, or the change is impossible.
    """
    meant = tomllib.loads(text)
    if not isinstance(meant.get("host", {}).get(name), dict):
        raise ValueError(f"the host {name} is not in it")
    for key, value in keys.items():
        text = _with_host_key(text, name, key.split("."), value)
        *within, last = key.split(".")
        table = meant["host"][name]
        for section in within:
            table = table.setdefault(section, {})
        table[last] = value
        if value is None:
            del table[last]
    parsed = tomllib.loads(text)
    for document in (meant, parsed):  # an empty section does not count
        document["host"][name] = {key: value for key, value in document["host"].get(name, {}).items() if value != {}}
    if parsed != meant:
        raise ValueError("its section is in a form that btrkeep cannot edit")
    return text


def _with_host_key(text: str, name: str, key: list[str], value: Any) -> str:
    *within, last = key
    host = tomlkit.parse(text)["host"][name]
    if value is not None and any(section not in host for section in within):
        return _with_key(text, ["host", name], within[0], _inline({last: value}))
    if any(section not in host for section in within):
        return text
    return _with_key(text, ["host", name, *within], last, value)


def _inline(keys: Mapping[str, Any]) -> InlineTable:
    table = tomlkit.inline_table()
    table.update(keys)
    return table


def _with_key(text: str, path: list[str], key: str, value: Any) -> str:
    """Returns `text` with the key in the existing table at that path; None removes it."""
    document: Any = tomlkit.parse(text)
    table = document
    for part in path:
        table = table[part]
    if key in table and value is not None:
        table[key] = _replaced(table[key], value)  # keeps its position and trailing comment
    elif key in table:
        table.pop(key)
    elif value is None:
        return text
    elif not isinstance(table, InlineTable) and (added := _with_line(text, path, f"{key} = {tomlkit.item(value).as_string()}")):
        return added
    else:
        table[key] = value
    return tomlkit.dumps(document)


def _replaced(old: Any, value: Any) -> Any:
    """Returns the new value; in a list that has line breaks and comments, those of unchanged items are kept."""
    if not (isinstance(old, Array) and isinstance(value, list)):
        return value
    for item in [item for item in old.unwrap() if item not in value]:
        old.remove(item)
    for number, item in enumerate(value):
        if item not in old:
            old.insert(number, item)
    return old if old.unwrap() == value else value


def _with_line(text: str, path: list[str], line: str) -> str | None:
    """Returns `text` with the line after the last key below the head of that table; None if no head names the table. tomlkit would
    put it after the following comments and blank lines, which belong to the next head.
    """
    names = (rf"(?:{re.escape(part)}|\"{re.escape(part)}\"|'{re.escape(part)}')" for part in path)
    head = re.compile(r"\s*\[\s*" + r"\s*\.\s*".join(names) + r"\s*\]")
    lines = text.splitlines(keepends=True)
    starts = [number for number, text_line in enumerate(lines) if _HEAD.match(text_line) and _complete(lines[:number])]
    start = next((number for number in starts if head.match(lines[number])), None)
    if start is None:
        return None
    end = next((number for number in starts if number > start), len(lines))
    while _NO_KEY.fullmatch(lines[end - 1].rstrip("\r\n")):
        end -= 1
    first = next((line for line in lines[start + 1 : end] if not _NO_KEY.fullmatch(line.rstrip("\r\n"))), "")
    newline = "\r\n" if lines[start].endswith("\r\n") else "\n"
    if not lines[end - 1].endswith("\n"):
        lines[end - 1] += newline
    indent = first[: len(first) - len(first.lstrip())]
    return "".join([*lines[:end], f"{indent}{line}{newline}", *lines[end:]])


def without_host(text: str, name: str) -> str:
    """Returns `text` without [host.NAME] and its subtables. Comments above the next section belong to that one and are kept.

    Raises ValueError if the host is missing.
    """
    meant = tomllib.loads(text)
    if name not in meant.get("host", {}):
        raise ValueError(f"the host {name} is not in it")
    del meant["host"][name]
    cut = _without_lines(text, name)
    if _same(cut, meant):
        return cut
    document = tomlkit.parse(text)  # not written as [host.web1]: [host] with web1.paths = ..., or an inline table
    hosts = document["host"]
    assert isinstance(hosts, MutableMapping)
    del hosts[name]
    return tomlkit.dumps(document)


def _same(text: str, meant: Mapping[str, Any]) -> bool:
    """Returns True if the text has the intended meaning; an empty table of hosts equals none."""
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return {key: value for key, value in parsed.items() if value != {}} == {
        key: value for key, value in meant.items() if value != {}
    }


def _without_lines(text: str, name: str) -> str:
    """Removes the lines from the head of the host's table, or of a table within it, to the next other head."""
    heads = re.compile(rf"""\s*\[\s*host\s*\.\s*(?:{re.escape(name)}|"{re.escape(name)}"|'{re.escape(name)}')\s*[.\]]""")
    kept: list[str] = []
    gone: list[str] = []
    inside = False
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        is_ours = heads.match(line) is not None
        if (is_ours if not inside else _HEAD.match(line)) and _complete(lines[:number]):
            if inside and not is_ours:
                kept += _comments_at_the_end(gone)
                gone = []
            inside = is_ours
        (gone if inside else kept).append(line)
    return "".join([*kept, *(_comments_at_the_end(gone) if inside else ())])


def _complete(lines: list[str]) -> bool:
    """Returns True if TOML may end here. Within a multi-line string or list a line may look like a head."""
    try:
        tomllib.loads("".join(lines))
    except tomllib.TOMLDecodeError:
        return False
    return True


def _comments_at_the_end(lines: list[str]) -> list[str]:
    """Returns the comments between a table's last key and the next head, after the first blank line: they belong to
    what follows.
    """
    start = len(lines)
    while start and (not lines[start - 1].strip() or lines[start - 1].lstrip().startswith("#")):
        start -= 1
    tail = lines[start:]
    blank = next((number for number, line in enumerate(tail) if not line.strip()), None)
    return [] if blank is None else tail[blank + 1 :]


def toml_text(value: Any) -> str:
    """Returns a value as TOML spells it."""
    text: str = tomlkit.item(value).as_string()
    return text
