"""Withholds what would give privileges on this machine from a restore to one of its folders, unless --privileged asks for it.

A backup's content is an untrusted host's. A setuid program, a file with capabilities or a device node would work here for everyone
who reaches it, as soon as it is restored. Fifos, sockets and setgid folders give no privileges, so they are restored.
"""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace

from backupd.files.attributes import attribute_names, attributes
from backupd.files.placing import Visit
from backupd.files.restoration import Withheld
from backupd.files.tree import Entry

_SETS = stat.S_ISUID | stat.S_ISGID
_POWERS = "security."  # capabilities, and the labels by which Linux's security modules judge a program
_LABEL = "security.selinux"  # every file has one where there are any: that it stays behind is no news


def harmless(visits: Iterable[Visit], withheld: Withheld, to: str) -> Iterator[Visit]:
    """The visits without device nodes, and with entries of files without setuid and setgid bits; `withheld` counts."""
    for visit in visits:
        entry = visit.entry
        if entry.kind.endswith("device"):
            withheld.devices.add(visit.at(to), f"it is a {entry.kind}")
            continue
        if entry.kind == "file":
            _count(visit, withheld, to)
        yield replace(visit, entry=_without_sets(entry), privileged=False)


def _count(visit: Visit, withheld: Withheld, to: str) -> None:
    if visit.entry.mode & _SETS:
        withheld.setuid.add(visit.at(to), f"its mode is {visit.entry.mode:04o}", visit.entry.size)
    try:
        powers = [name for name in attribute_names(visit.folder, visit.name) if _is_power(name) and name != _LABEL]
    except OSError:  # whoever is to give it to its place meets the same, and names it
        return
    if powers:
        withheld.capabilities.add(visit.at(to), ", ".join(sorted(powers)), visit.entry.size)


def _without_sets(entry: Entry) -> Entry:
    return replace(entry, mode=entry.mode & ~_SETS) if entry.kind == "file" and entry.mode & _SETS else entry


def _is_power(attribute: str) -> bool:
    return attribute.startswith(_POWERS)


def given_attributes(visit: Visit) -> dict[str, bytes]:
    """The extended attributes that the place of a visit gets. Raises OSError."""
    found = attributes(visit.folder, visit.name)
    return found if visit.privileged else {name: value for name, value in found.items() if not _is_power(name)}
