"""Regenerates the lists in the documentation from their tables: keys of the configuration, checks of the doctor, metrics.

    .venv/bin/python -m scripts.make_lists

Each list is between two marks in its page; a test fails if a list is outdated.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

from backupd.doctor.rules import RULES
from btrkeep.config.config_key import SECTIONS, ConfigKey
from btrkeep.config.keys import TABLE, WRITTEN
from btrkeep.config.problems import INSTALLED, quoted
from btrkeep.metrics import METRICS, Metric
from scripts.what_to_do import tables

TOP = Path(__file__).resolve().parents[1]
TITLES = {
    "pool": "The pool",
    "backup": "Backups: for all hosts, a group or one host",
    "retention": "Retention: for all hosts, a group or one host",
    "expiry": "Expiry",
    "balance": "Balance",
    "notify": "Notifications",
    "web": "The dashboard",
    "serve": "The root service",
    "ssh": "Connection to the hosts",
    "group": "Hosts: for a group or one host",
    "host": "Hosts: for one host only",
    "verify": "Verification",
    "drill": "Restore drills",
    "replica": "Second copies",
    "push": "Second copies: for a server that sends",
    "fetched_by": "Second copies: for a server that is fetched from",
    "offsite": "Offsite copies",
}
_BLANK = "\0"  # a space at which no line may be broken
_MARKUP = re.compile(r"``(?P<code>.+?)``|:manpage:`(?P<man>[^`]+)`|:doc:`(?P<page>[^`]+)`|`(?P<here>[^`]+)`_")


def refreshed(page: str, text: str) -> str:
    """Returns the `text` of the page with a new list. Raises ValueError if a mark is missing."""
    begin, made, end = LISTS[page]
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}{made()}{end}{after}"


# --- keys, in reStructuredText


def keys() -> str:
    """Returns a heading for each section, and an entry for each key below its widest section."""
    parts = []
    for section in SECTIONS:
        title = TITLES[section]
        parts.append(f"{title}\n{'~' * len(title)}\n")
        parts += [_key(key) for key in TABLE if key.sections[0] == section]
    return "\n{}\n".format("\n".join(parts))


def _key(key: ConfigKey) -> str:
    places = ", ".join(f"``{place}``" for section in key.sections for place in WRITTEN[section])
    return (
        f"``{key.name}``\n"
        f"{wrapped(key.meaning)}\n\n"
        f"    :Type: {key.kind.title}\n"
        f"    :Default: {_default(key)}\n"
        f"{fill(f':In: {places}', 132, initial_indent=' ' * 4, subsequent_indent=' ' * 8)}\n"
        f"    :Example: ``{key.name} = {key.example}``\n"
    )


def wrapped(text: str) -> str:
    """Returns a paragraph that is indented by four columns, in lines of the usual length; code is not broken."""
    held = re.sub("``.*?``", lambda code: code[0].replace(" ", _BLANK), text)
    whole = fill(held, 132, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return whole.replace(_BLANK, " ")


def _default(key: ConfigKey) -> str:
    return "none" if key.default is None else f"``{toml(key.default)}``"


def toml(value: Any) -> str:
    """Formats a default as TOML: a string, a number, true or false, or a list of these."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return str(value).lower()


# --- keys, in roff


def manual_keys() -> str:
    """Returns the same as `keys` in roff."""
    parts = []
    for section in SECTIONS:
        parts.append(f".SS {roff(TITLES[section])}\n")
        parts += [_manual_key(key) for key in TABLE if key.sections[0] == section]
    return "".join(parts)


def _manual_key(key: ConfigKey) -> str:
    places = ", ".join(roff(place) for section in key.sections for place in WRITTEN[section])
    default = "none" if key.default is None else _bold(toml(key.default))
    return (
        f".TP\n{_bold(f'{key.name} = {key.example}')}\n{_line(roff(key.meaning))}\n.br\n"
        f"{_line(roff(key.kind.title[0].upper() + key.kind.title[1:]))}; default: {default}; in {places}.\n"
    )


def roff(text: str) -> str:
    """Converts reStructuredText of the table of keys to roff."""
    done, parts = 0, []
    for markup in _MARKUP.finditer(text):
        parts += [_escaped(text[done : markup.start()]), _marked(markup)]
        done = markup.end()
    return "".join([*parts, _escaped(text[done:])])


def _marked(markup: "re.Match[str]") -> str:
    if markup["code"]:
        return _bold(markup["code"])
    if markup["man"]:
        name, _, number = markup["man"].partition("(")
        return f"{_bold(name)}({number}"
    if markup["page"]:
        return f"\\fI{_escaped(str(INSTALLED / markup['page']))}.html\\fP"
    return f"{markup['here'].upper()} below"


def _bold(text: str) -> str:
    return f"\\fB{_escaped(text)}\\fP"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")


def _line(text: str) -> str:
    """Returns a line that roff does not interpret as a request."""
    return f"\\&{text}" if text.startswith((".", "'")) else text


# --- checks and metrics


def checks() -> str:
    """Returns a row for each rule."""
    rows = [("NAME", "SEVERITY", "FIX", "WHAT IT FINDS")]
    rows += [(f"``{rule.name}``", ", ".join(rule.severities), "yes" if rule.fixable else "", rule.problem) for rule in RULES]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    line = "  ".join("=" * width for width in widths)
    head, *body = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(["", line, head, line, *body, line, "", ""])


def metrics() -> str:
    """Returns an entry for each metric."""
    return f"\n{''.join(map(_metric, METRICS))}\n"


def _metric(metric: Metric) -> str:
    labels = f" Labels: {', '.join(f'``{label}``' for label in metric.labels)}." if metric.labels else ""
    kind = " A counter." if metric.kind == "counter" else ""
    return f"``{metric.name}``\n{wrapped(f'{metric.meaning}{kind}{labels}')}\n"


LISTS: dict[str, tuple[str, Callable[[], str], str]] = {
    "docs/configuration.rst": (".. keys begin here\n", keys, ".. keys end here\n"),
    "man/btrkeep.toml.5": ('.\\" keys begin here\n', manual_keys, '.\\" keys end here\n'),
    "docs/doctor.rst": (".. checks begin here\n", checks, ".. checks end here\n"),
    "docs/monitoring.rst": (".. metrics begin here\n", metrics, ".. metrics end here\n"),
    "docs/what-to-do.rst": (".. messages begin here\n", tables, ".. messages end here\n"),
}

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name in LISTS:
        file = TOP / name
        file.write_text(refreshed(name, file.read_text(encoding="utf-8")), encoding="utf-8")
