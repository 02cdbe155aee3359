"""The rsync command that restores files of a backup to a host, as a tuple, and the meaning of its output. Nothing is run here.

``--ignore-existing`` is given if nothing may be overwritten: then rsync does not touch entries of another type either, which it
would otherwise delete to make a folder. Never ``--delete`` or ``--force``. ``--no-implied-dirs``: existing folders above the
restored files are not changed; missing ones are made. They are checked first, because rsync up to 3.4 follows a symlink that
replaced one.
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
"""Prints a line for each name, which has to be parsed here."""
NO_ATTRIBUTES = ("--no-acls", "--no-xattrs")
"""Neither sets nor removes ACLs and attributes: rsync reads them for each name, which takes a fifth of its time."""
LOOK, ONLY_NEW = ("--dry-run",), ("--ignore-existing",)
CONTENT = ("--checksum", "--timeout=0")
"""While rsync reads a large file for its checksum it transfers nothing, perhaps for hours. ssh itself detects a dead connection."""
EXACT = ("--modify-window=-1",)
"""Compares nanoseconds. An rrsync with write access rejects it (rsync 3.5: its pattern allows no minus sign)."""
NEWER_STAYS = ("--update", "--modify-window=1")
"""With a window of -1 a file that is one second newer would also be overwritten: the window is the difference that times must
exceed.
"""
FOLDERS_ALONE = ("--existing", "--include=*/", "--exclude=*")
"""Sets the attributes of existing folders, and changes nothing else."""
NO_HOLES = ("--no-sparse",)
"""Writes files completely. To find zeros rsync would write one KiB at a time."""
NOT_BELOW = ("--no-recursive", "--dirs")
"""Folders without their content."""
ABOVE_STAYS = ("--no-implied-dirs",)
_ITEM = re.compile(rb"([<>ch.][fdLDS][^|]{9})\|(\d{1,18})\|(.*)", re.DOTALL)
_KINDS = {b"f": "file", b"d": "folder", b"L": "symlink", b"D": "device", b"S": "fifo or socket"}


@dataclass(frozen=True, slots=True)
class Item:
    """What rsync would do, or has done, with one name."""

    name: bytes
    """Relative to the destination, without a trailing slash."""
    kind: str
    """The type of file."""
    size: int
    """Bytes."""
    new: bool
    """False if an entry of that name exists there and differs."""
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
    replaces ssh. `base`: with `whole`, a folder that contains all paths and exists below `folder` on the host: rsync starts there,
    and the names in its output are relative to it.
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
