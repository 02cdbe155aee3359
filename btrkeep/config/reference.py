"""The part of docs/configuration.rst that lists every key, made from the table of keys.

`python -m btrkeep.config docs/configuration.rst` writes it anew; a test says when that is due.
"""

import re
from textwrap import fill
from typing import Any

from btrkeep.config.keys import SECTIONS, TABLE, WRITTEN, ConfigKey
from btrkeep.config.problems import quoted

BEGIN, END = ".. keys begin here\n", ".. keys end here\n"
TITLES = {
    "pool": "The pool",
    "backup": "Backups: for all hosts, a group or one host",
    "retention": "Retention: for all hosts, a group or one host",
    "expiry": "Expiry",
    "balance": "Balance",
    "notify": "Being told",
    "web": "The dashboard",
    "ssh": "The way to the hosts",
    "group": "Hosts: for a group or one host",
    "host": "Hosts: for one host only",
}
_BLANK = "\0"  # one at which no line ends


def refreshed(text: str) -> str:
    """`text` of the document with the keys between the two marks made anew. Raises ValueError when a mark is missing."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{keys()}\n{END}{after}"


def keys() -> str:
    """reStructuredText: one heading per widest section, one entry per key."""
    parts = []
    for section in SECTIONS:
        title = TITLES[section]
        parts.append(f"{title}\n{'~' * len(title)}\n")
        parts += [_entry(key) for key in TABLE if key.sections[0] == section]
    return "\n".join(parts)


def _entry(key: ConfigKey) -> str:
    places = ", ".join(f"``{place}``" for section in key.sections for place in WRITTEN[section])
    return (
        f"``{key.name}``\n"
        f"{wrapped(key.meaning)}\n\n"
        f"    :Type: {key.kind.title}\n"
        f"    :Default: {_default(key)}\n"
        f"    :In: {places}\n"
        f"    :Example: ``{key.name} = {key.example}``\n"
    )


def wrapped(text: str) -> str:
    """A paragraph four columns in, in lines of the length that all pages have; no piece of code is broken."""
    held = re.sub("``.*?``", lambda code: code[0].replace(" ", _BLANK), text)
    whole = fill(held, 132, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return whole.replace(_BLANK, " ")


def _default(key: ConfigKey) -> str:
    return "none" if key.default is None else f"``{toml(key.default)}``"


def toml(value: Any) -> str:
    """A default as TOML spells it: a string, a number, true or false, or a list of these."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return str(value).lower()
