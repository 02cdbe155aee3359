"""Withholds privileges from a restore into a folder of this machine, unless --privileged is given.

A backup's content comes from an untrusted host. A setuid program, a file with capabilities or a device node would work here for
every user who can reach it, as soon as it is restored. Fifos, sockets and setgid folders give no privileges, so they are restored.
"""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace

from backupd.files.attributes import LABEL, attribute_names, attributes, is_power
from backupd.files.placing import AnyVisit, FolderVisits, PlainVisits, Visit, place_path
from backupd.files.restore_types import Withheld

_SETS = stat.S_ISUID | stat.S_ISGID


def harmless(visits: Iterable[AnyVisit], withheld: Withheld, to: str) -> Iterator[AnyVisit]:
    """Yields the visits, except those of device nodes, and removes setuid and setgid bits of files; counts both in `withheld`.
    Groups of plain files have no such bits: they are passed on unchanged, and their attributes are not checked.
    """
    for visit in visits:
        if isinstance(visit, PlainVisits | FolderVisits) or (visit.entry.kind == "folder" and not visit.privileged):
            yield visit
            continue
        entry = visit.entry
        if entry.kind.endswith("device"):
            withheld.devices.add(visit.at(to), f"it is a {entry.kind}")
            continue
        if entry.kind == "file":
            _count(visit, withheld, to)
            entry = replace(entry, mode=entry.mode & ~_SETS) if entry.mode & _SETS else entry
        yield visit._replace(entry=entry, privileged=False)


def _count(visit: Visit, withheld: Withheld, to: str) -> None:
    if visit.entry.mode & _SETS:
        withheld.setuid.add(visit.at(to), f"its mode is {visit.entry.mode:04o}", visit.entry.size)
    if powers := _powers(visit.folder, visit.name):
        withheld.capabilities.add(visit.at(to), powers, visit.entry.size)


def count_powers(plain: PlainVisits, withheld: Withheld, to: str) -> None:
    """Counts the files whose attributes are withheld."""
    for file in plain.group.files:
        if not file.is_symlink and (powers := _powers(plain.group.folder, file.name)):
            withheld.capabilities.add(place_path(to, (*plain.place, file.name)), powers, file.size)


def _powers(folder: int, name: bytes) -> str:
    try:
        attribute_list = attribute_names(folder, name)
    except OSError:  # setting it raises the same error, which is reported
        return ""
    return (
        ", ".join(sorted(attribute for attribute in attribute_list if is_power(attribute) and attribute != LABEL))
        if attribute_list
        else ""
    )


def given_attributes(visit: Visit) -> dict[str, bytes]:
    """Returns the extended attributes for the place of a visit. Raises OSError."""
    attribute_values = attributes(visit.folder, visit.name)
    return attribute_values if visit.privileged else {name: value for name, value in attribute_values.items() if not is_power(name)}
