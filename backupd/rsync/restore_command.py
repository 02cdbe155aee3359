"""The rsync command that gives files of a backup back to a host, as a tuple, and what it says of each name. Nothing is run here.

``--ignore-existing`` is given whenever nothing may be overwritten: then rsync also leaves what is of another kind alone, which it
would delete otherwise to make room for a folder. Never ``--delete`` or ``--force``. ``--no-implied-dirs``: folders above what is
restored stay as they are on the host; missing ones are made. They are looked at before, for rsync up to 3.4 goes through a symlink
that is in the place of one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backupd.rsync.command import METADATA, remote_shell
from backupd.rsync.messages import unescape
from btrkeep.config import HostConfig, SshSettings

_ALWAYS = (
    *METADATA,
    "--sparse",
    "--timeout=600",
    "--no-human-readable",
    "--outbuf=L",
    "--info=progress2,stats2",
)
ITEMS = ("--out-format=%i|%l|%n",)
"""Has a line printed for each name, which has to be read here."""
NO_ATTRIBUTES = ("--no-acls", "--no-xattrs")
"""Neither sets nor removes ACLs and attributes: rsync asks for them of each name, which takes a fifth of its time."""
LOOK, ONLY_NEW = ("--dry-run",), ("--ignore-existing",)
CONTENT = ("--checksum", "--timeout=0")
"""While rsync reads a large file for its checksum it transfers nothing, for hours perhaps. ssh itself notices a dead line."""
EXACT = ("--modify-window=-1",)
"""Compares nanoseconds. An rrsync that may write rejects it (rsync 3.5: its pattern knows no minus sign)."""
NEWER_STAYS = ("--update", "--modify-window=1")
"""With a window of -1 a file that is a second newer would be overwritten too: the window is the difference that times must
exceed.
"""
FOLDERS_ALONE = ("--existing", "--include=*/", "--exclude=*")
"""Gives existing folders what they should have, and touches nothing else."""
NO_HOLES = ("--no-sparse",)
"""Writes files as they are. To look for zeros rsync writes a KiB at a time."""
NOT_BELOW = ("--no-recursive", "--dirs")
"""Folders without what is in them."""
ABOVE_STAYS = ("--no-implied-dirs",)
_ITEM = re.compile(rb"([<>ch.][fdLDS][^|]{9})\|(\d{1,18})\|(.*)", re.DOTALL)
_KINDS = {b"f": "file", b"d": "folder", b"L": "symlink", b"D": "device", b"S": "fifo or socket"}


@dataclass(frozen=True, slots=True)
class Item:
    """What rsync would do with one name, or has done."""

    name: bytes
    """Relative to the destination, without a trailing slash."""
    kind: str
    """The type of file."""
    size: int
    """Bytes."""
    new: bool
    """False if something of that name exists there, and differs."""
    only_time: bool
    """True if only the time differs."""
    fields: tuple[str, ...]
    """What differs."""


_FIELDS = {ord("c"): "content", ord("s"): "size", ord("p"): "mode", ord("o"): "owner", ord("g"): "group", ord("a"): "ACL"}
_FIELDS |= {ord("x"): "attributes", ord("t"): "time", ord("T"): "time"}


def parse_item(line: bytes) -> Item | None:
    """Parses a line of rsync's output; None if it is about no item."""
    match = _ITEM.fullmatch(line)
    if not match:
        return None
    signs, new = match[1], b"+" in match[1]
    fields = () if new else tuple(dict.fromkeys(_FIELDS[sign] for sign in signs[2:] if sign in _FIELDS))
    name = unescape(match[3]).rstrip(b"/")
    return Item(name, _KINDS[signs[1:2]], int(match[2]), new, fields == ("time",), fields)


def restore_command(
    host: HostConfig,
    ssh: SshSettings,
    data: Path,
    paths: Sequence[bytes],
    folder: bytes,
    whole: bool,
    options: Sequence[str],
    shell: Sequence[str] = (),
    base: bytes = b"",
) -> tuple[str, ...]:
    """Returns the command that copies `paths` of the backup whose files are in `data` into `folder` on the host.

    `whole`: under their whole paths, else under their last names. The caller has checked that the paths contain no symlink. `shell`
    replaces ssh. `base`: with `whole`, a folder that all paths are in, and that the host has in `folder`: rsync goes there first.
    What rsync prints of names begins below it then.
    """
    return (
        "rsync",
        *_ALWAYS,
        *(("--relative",) if whole else ()),
        *options,
        *remote_shell(host, ssh, (), shell),
        *(_source(data, path, whole, base) for path in paths),
        _destination(host, folder.rstrip(b"/") + b"/" + base if base else folder),
    )


def _source(data: Path, path: bytes, whole: bool, base: bytes) -> str:
    text = path.strip(b"/")
    if whole:
        text = base + b"/./" + text[len(base) + 1 :] if base else b"./" + text
    return f"{data}/{text.decode('utf-8', 'surrogateescape')}"


def _destination(host: HostConfig, folder: bytes) -> str:
    """Returns the destination. A remote shell would expand wildcards in it; rsync escapes everything else itself."""
    text = folder.decode("utf-8", "surrogateescape").rstrip("/") + "/"
    return f"{host.address}:" + re.sub(r"([*?\[\]])", r"\\\1", text) if host.address else text
