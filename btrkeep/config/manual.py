"""The part of man/btrkeep.toml.5 that lists every key, made from the table of keys.

`python -m btrkeep.config man/btrkeep.toml.5` writes it anew; a test says when that is due.
"""

import re

from btrkeep.config.documents import INSTALLED
from btrkeep.config.keys import SECTIONS, TABLE, WRITTEN, ConfigKey
from btrkeep.config.reference import TITLES, toml

BEGIN, END = '.\\" keys begin here\n', '.\\" keys end here\n'
_MARKUP = re.compile(r"``(?P<code>.+?)``|:manpage:`(?P<man>[^`]+)`|:doc:`(?P<page>[^`]+)`|`(?P<here>[^`]+)`_")


def refreshed(text: str) -> str:
    """`text` of the manual page with the keys between the two marks made anew. Raises ValueError when a mark is missing."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{keys()}{END}{after}"


def keys() -> str:
    """roff: one heading per widest section, one entry per key."""
    parts = []
    for section in SECTIONS:
        parts.append(f".SS {roff(TITLES[section])}\n")
        parts += [_entry(key) for key in TABLE if key.sections[0] == section]
    return "".join(parts)


def _entry(key: ConfigKey) -> str:
    places = ", ".join(roff(place) for section in key.sections for place in WRITTEN[section])
    default = "none" if key.default is None else _bold(toml(key.default))
    return (
        f".TP\n{_bold(f'{key.name} = {key.example}')}\n{_line(roff(key.meaning))}\n.br\n"
        f"{_line(roff(key.kind.title[0].upper() + key.kind.title[1:]))}; default: {default}; in {places}.\n"
    )


def roff(text: str) -> str:
    """reStructuredText of the table of keys as roff."""
    done, parts = 0, []
    for found in _MARKUP.finditer(text):
        parts += [_escaped(text[done : found.start()]), _marked(found)]
        done = found.end()
    return "".join([*parts, _escaped(text[done:])])


def _marked(found: "re.Match[str]") -> str:
    if found["code"]:
        return _bold(found["code"])
    if found["man"]:
        name, _, number = found["man"].partition("(")
        return f"{_bold(name)}({number}"
    if found["page"]:
        return f"\\fI{_escaped(str(INSTALLED / found['page']))}.html\\fP"
    return f"{found['here'].upper()} below"


def _bold(text: str) -> str:
    return f"\\fB{_escaped(text)}\\fP"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")


def _line(text: str) -> str:
    """One that roff does not take for a request."""
    return f"\\&{text}" if text.startswith((".", "'")) else text
