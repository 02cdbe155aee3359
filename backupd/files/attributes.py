"""Extended attributes of a name in an open folder, including ACLs and capabilities; and ACLs as text for tar."""

import errno
import os
from collections.abc import Iterator
from struct import Struct

from btrkeep.fs.openat import by_descriptor

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
LABEL = "security.selinux"
"""Attributes that every file has on a system that uses them: they belong to the destination, and are skipped without a message."""
_POWERS = "security."  # file capabilities, and labels of Linux security modules
_ENTRY = Struct("<HHL")  # tag, permissions, id: linux/posix_acl_xattr.h, after a version of four bytes
_VERSION = 4
_TAGS = {0x01: "user", 0x02: "user", 0x04: "group", 0x08: "group", 0x10: "mask", 0x20: "other"}
_NAMED = (0x02, 0x08)


def attributes(folder: int, name: bytes) -> dict[str, bytes]:
    """Returns all extended attributes of a name, without following it; none if the filesystem does not support them."""
    path = by_descriptor(folder, name)
    return {attribute: os.getxattr(path, attribute, follow_symlinks=False) for attribute in attribute_names(folder, name)}


def attribute_names(folder: int, name: bytes) -> list[str]:
    """Returns the names of all extended attributes of a name, without following it."""
    try:
        return os.listxattr(by_descriptor(folder, name), follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return []


def attributes_of_open(fd: int) -> dict[str, bytes]:
    """Returns all extended attributes of an open file, which is faster."""
    try:
        return {attribute: os.getxattr(fd, attribute) for attribute in os.listxattr(fd)}
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return {}


def is_power(attribute: str) -> bool:
    """Returns True if an attribute may give a file privileges."""
    return attribute.startswith(_POWERS)


def acl_text(value: bytes) -> str:
    """Returns an ACL's attribute as text, with numbers for names: user::rw-,user:1000:r--,group::r--,mask::r--,other::---."""
    return ",".join(_acl_entries(value))


def _acl_entries(value: bytes) -> Iterator[str]:
    for tag, permissions, number in _ENTRY.iter_unpack(value[_VERSION:]):
        letters = "".join(letter if permissions & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        yield f"{_TAGS[tag]}:{number if tag in _NAMED else ''}:{letters}"
