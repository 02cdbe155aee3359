"""From files to sections: checks that every key is known and in its place, parses every value, and merges the files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_letters
from typing import Any

from btrkeep.config.config_key import NAMED, NOTIFY, OFFSITE, SECTIONS, SINGLE, WITHIN
from btrkeep.config.documents import Document
from btrkeep.config.keys import LEGAL, SECRET, WRITTEN
from btrkeep.config.problems import InvalidValue, Problems, RefusedItems, dotted, nearest, nearest_of, quoted, show
from btrkeep.config.sources import name_fault

_COMMANDS = ("before", "after", "boot_checks")
_OPTIONS = "ssh_options"  # such as ProxyCommand, whose command may contain a password
_REMEDY = "; remove it or correct it"


@dataclass(frozen=True, slots=True)
class TomlSection:
    """A [group.NAME] or [host.NAME] section. A subsection such as [host.NAME.retention] is a dict among its values."""

    file: Path
    """The file that has it."""
    values: dict[str, Any]
    """The parsed values by key."""
    given: Mapping[str, Any]
    """The values as written, including rejected ones."""


@dataclass(slots=True)
class Sections:
    """The sections of all files, merged."""

    single: dict[str, dict[str, Any]] = field(default_factory=lambda: {section: {} for section in SINGLE})
    """Sections without a name, by section."""
    named: dict[str, dict[str, TomlSection]] = field(default_factory=lambda: {section: {} for section in NAMED})
    """Sections with names, by section and name."""


def merged(documents: list[Document], problems: Problems) -> Sections:
    """Adds every table of every file, with parsed values. A value of a later file replaces that of an earlier one."""
    sections = Sections()
    for document in documents:
        for section, content in document.tables.items():
            if section in SINGLE:
                if _is_table(content, document.file, (section,), problems):
                    sections.single[section] |= _values(content, section, document.file, (section,), problems)
            elif section in NAMED:
                if _is_table(content, document.file, (section, "NAME"), problems):
                    _merge_named(sections.named[section], content, section, document.file, problems)
            else:
                _unknown_section(section, content, document.file, problems)
    return sections


def _merge_named(tables: dict[str, TomlSection], content: Mapping[str, Any], section: str, file: Path, problems: Problems) -> None:
    for name, table in content.items():
        if name in LEGAL[section] and not isinstance(table, dict):
            text = f"belongs in a section with a name, [{section}.NAME]"
            problems.add(file, _written((section, name), table), text, (section, name))
            continue
        if fault := name_fault(name):
            problems.add(file, dotted(section, name), f"{quoted(name)} {fault}", (section, name))
        if not _is_table(table, file, (section, name), problems):
            continue
        values = _values(table, section, file, (section, name), problems)
        if name in tables:
            text = f"is in {tables[name].file} already; write each {section} in one file"
            problems.add(file, dotted(section, name), text, (section, name))
        else:
            tables[name] = TomlSection(file, values, table)


def _is_table(content: Any, file: Path, where: tuple[str, ...], problems: Problems) -> bool:
    if isinstance(content, dict):
        return True
    name = dotted(*where)
    if where[-1] == "NAME":
        where = where[:-1]
    problems.add(file, f"{name} = {show(content)}", f"expected a section, [{name}]", where)
    return False


def _unknown_section(name: str, content: Any, file: Path, problems: Problems) -> None:
    if not isinstance(content, dict):
        reason = _misplaced(name, "") or f"unknown key{nearest(name, SECTIONS) or _REMEDY}"
        problems.add(file, _written((name,), content), reason, (name,))
        return
    meant = nearest_of(name, SECTIONS)
    if meant in NAMED and content and all(isinstance(table, dict) for table in content.values()):
        for inner in content:  # only that host or copy is missing then; the rest of the configuration is valid
            reason = f"unknown section; did you mean [{dotted(meant, inner)}]?"
            problems.add(file, dotted(name, inner), reason, (name, inner), meant=(meant, inner))
    else:
        problems.add(file, dotted(name), f"unknown section{f'; did you mean [{meant}]?' if meant else ''}", (name,))


def _values(content: Mapping[str, Any], section: str, file: Path, where: tuple[str, ...], problems: Problems) -> dict[str, Any]:
    legal, within, values = LEGAL[section], WITHIN.get(section, ()), {}
    for name, raw in content.items():
        if name in within:
            if _is_table(raw, file, (*where, name), problems):
                values[name] = _values(raw, name, file, (*where, name), problems)
            continue
        try:
            if name not in legal:
                reason = _misplaced(name, _head(section, where)) or _name_with_dots(section, (*where, name), raw)
                raise InvalidValue(reason or f"unknown key{nearest(name, (*legal, *within)) or _REMEDY}")
            values[name] = legal[name].kind(raw)
        except InvalidValue as refused:
            problems.add(file, _written((*where, name), raw), refused.reason, (*where, name))
            if section == NOTIFY and refused.valid:  # notifications are sent to the valid services
                values[name] = refused.valid
        except RefusedItems as refused:
            for item, reason in refused.items:
                problems.add(file, dotted(*where, name), f"{show(_without_value(name, item))}: {reason}", (*where, name))
    return values


def _written(where: tuple[str, ...], value: Any) -> str:
    """Returns a key and its value, without the value of one that may contain secrets, because messages and the dashboard show the
    text.

    Commands may, and a misspelt key where passwords are configured.
    """
    name, section = where[-1], where[0]
    slip = section in (NOTIFY, OFFSITE) and name not in LEGAL[section]
    secret = slip or name in SECRET or nearest_of(name, LEGAL.get(section, ())) in (*_COMMANDS, _OPTIONS)
    return dotted(*where) if secret else f"{dotted(*where)} = {show(value)}"


def _without_value(name: str, item: Any) -> Any:
    """Returns only the name of an option of ssh."""
    if name != _OPTIONS or not isinstance(item, str):
        return item
    option = item[: len(item) - len(item.lstrip("-" + ascii_letters))]
    return option if option == item else f"{option}..."


def _head(section: str, where: tuple[str, ...]) -> str:
    """Formats the header of the section at that place: [host.NAME], [host.NAME.retention]."""
    return next(head for head in WRITTEN[section] if head.startswith(f"[{where[0]}"))


def _name_with_dots(section: str, where: tuple[str, ...], content: Any) -> str:
    """Explains how to write a name with dots, for [host.web1.example.org], which TOML reads as nested sections."""
    if section not in NAMED or len(where) != 3:
        return ""
    names = [*where[1:]]
    while isinstance(content, dict) and not LEGAL[section].keys() & content.keys():
        if len(content) != 1:
            return ""
        name, content = next(iter(content.items()))
        names.append(name)
    return f"write a name with dots in quotes: [{dotted(section, '.'.join(names))}]" if isinstance(content, dict) else ""


def _misplaced(name: str, here: str) -> str:
    """Explains where a key or section belongs that is valid in another place."""
    places = [place for section in SECTIONS if name in LEGAL[section] for place in WRITTEN[section]]
    if places:
        return f"belongs in {' or '.join(places)}{f', not in {here}' if here else ''}"
    return f"is a separate section, {' or '.join(WRITTEN[name])}" if name in WRITTEN else ""
