"""Changes to the text of a configuration that leave everything else in it as the operator wrote it: comments, order, blanks.

The only importer of tomlkit. What comes out is read again and compared with what was meant, so no odd way to write TOML spoils it.
"""

import re
import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit
from tomlkit.items import Table

_HEAD = re.compile(r"\s*\[")


def with_keys(text: str, section: str, keys: Mapping[str, Any]) -> str:
    """`text` with these keys in [section], which is added when there is none; None takes a key away.

    Raises ValueError when the text is no TOML, or the section no table.
    """
    document = tomlkit.parse(text)
    if section not in document:
        if document.body and text.strip():
            document.add(tomlkit.nl())
        document.add(section, tomlkit.table())
    table = document[section]
    if not isinstance(table, Table):
        raise ValueError(f"{section} is no table of its own")
    for key, value in keys.items():
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value  # one that is there keeps its place and the comment behind it
    return tomlkit.dumps(document)


def new_host(name: str, keys: Mapping[str, Any]) -> str:
    """The text of a file of its own for that host."""
    document, hosts, table = tomlkit.document(), tomlkit.table(is_super_table=True), tomlkit.table()
    for key, value in keys.items():
        table.add(key, value)
    hosts.add(name, table)
    document.add("host", hosts)
    return tomlkit.dumps(document)


def without_host(text: str, name: str) -> str:
    """`text` without [host.NAME] and what belongs to it. Comments above the next section are that one's, and stay.

    Raises ValueError when the host is not in it.
    """
    meant = tomllib.loads(text)
    if name not in meant.get("host", {}):
        raise ValueError(f"the host {name} is not in it")
    del meant["host"][name]
    cut = _without_lines(text, name)
    if _same(cut, meant):
        return cut
    document = tomlkit.parse(text)  # written in another way than by heads: [host] with web1.paths = ..., or a table in one line
    hosts = document["host"]
    assert isinstance(hosts, MutableMapping)
    del hosts[name]
    return tomlkit.dumps(document)


def _same(text: str, meant: Mapping[str, Any]) -> bool:
    """Whether the text says what is meant; a table of hosts without any is none."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return {key: value for key, value in found.items() if value != {}} == {
        key: value for key, value in meant.items() if value != {}
    }


def _without_lines(text: str, name: str) -> str:
    """The lines from the head of the host's table, or of one within it, to the next head that is none of these."""
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
    """Whether TOML may end here: within a text or a list of several lines, what looks like a head is none."""
    try:
        tomllib.loads("".join(lines))
    except tomllib.TOMLDecodeError:
        return False
    return True


def _comments_at_the_end(lines: list[str]) -> list[str]:
    """Comments between a table's last key and the next head, after the first blank line: they belong to what follows."""
    start = len(lines)
    while start and (not lines[start - 1].strip() or lines[start - 1].lstrip().startswith("#")):
        start -= 1
    tail = lines[start:]
    blank = next((number for number, line in enumerate(tail) if not line.strip()), None)
    return [] if blank is None else tail[blank + 1 :]
