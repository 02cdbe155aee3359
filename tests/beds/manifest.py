"""A tree as find, stat, sha256sum, getfacl, getfattr and getcap see it: the independent truth that backups are compared with.

No code of ours takes part, and none of these programs is asked anything that a name with a newline or with bytes that are no
UTF-8 could distort: names are separated by NUL, or come in the programs' own octal escapes.
"""

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

# Name, kind, mode, owner, group, size, mtime with nanoseconds, link target, device and inode, blocks of 512 bytes.
_FIELDS = ("%P", "%y", "%m", "%U", "%G", "%s", "%T@", "%l", "%D:%i", "%b")
_ESCAPE = re.compile(rb"\\(?:([0-7]{3})|\\)")  # getfattr writes a backslash as \\134, getfacl as two


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a tree. Sizes are those of regular files; `links` are all names of its inode within the tree, sorted."""

    kind: str
    mode: str
    uid: int
    gid: int
    size: int
    mtime: str
    target: bytes
    links: tuple[bytes, ...]
    device: bytes
    sha256: bytes
    acl: bytes
    xattrs: bytes
    capabilities: bytes
    blocks: int | None


def manifest(top: Path, blocks: bool = False) -> dict[bytes, Entry]:
    """Every name below `top`, and `top` itself as b"", with all that a backup has to bring back.

    `blocks` adds the allocated 512-byte blocks of regular files: whether holes stayed holes.
    """
    rows = list(_find(top))
    groups: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for row in rows:
        groups[row[8]].append(row[0])
    sums = _checksums(top)
    acls = _blocks_by_name(_output(top, "getfacl", "-R", "-P", "-n", "-p", "."))
    xattrs = _blocks_by_name(_output(top, "getfattr", "-R", "-P", "-h", "-m", "-", "-d", "-e", "hex", "."))
    capabilities = _capabilities(top, [name for name, block in xattrs.items() if b"security.capability=" in block])
    devices = _devices(top, [row[0] for row in rows if row[1] in (b"b", b"c")])
    return {
        name: Entry(
            kind=kind.decode(),
            mode=mode.decode(),
            uid=int(uid),
            gid=int(gid),
            size=int(size) if kind == b"f" else 0,
            mtime=mtime.decode(),
            target=target,
            links=tuple(sorted(groups[inode])) if kind != b"d" else (),
            device=devices.get(name, b""),
            sha256=sums.get(name, b""),
            acl=acls.get(name, b""),
            xattrs=xattrs.get(name, b""),
            capabilities=capabilities.get(name, b""),
            blocks=int(allocated) if blocks and kind == b"f" else None,
        )
        for name, kind, mode, uid, gid, size, mtime, target, inode, allocated in rows
    }


def differences(source: dict[bytes, Entry], backup: dict[bytes, Entry]) -> list[str]:
    """One line for every name that only one side has, and for every field of a common name that differs; none when all is equal."""
    lines = [f"{name!r}: only in the source" for name in sorted(source.keys() - backup.keys())]
    lines += [f"{name!r}: only in the backup" for name in sorted(backup.keys() - source.keys())]
    for name in sorted(source.keys() & backup.keys()):
        for field in fields(Entry):
            here, there = getattr(source[name], field.name), getattr(backup[name], field.name)
            if here != there:
                lines.append(f"{name!r}: {field.name} is {here!r} in the source, {there!r} in the backup")
    return lines


def _output(top: Path, *argv: str, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        argv, cwd=top, input=stdin, capture_output=True, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    assert done.returncode == 0, f"{argv} in {top}: {done.stderr.decode(errors='replace')}"
    return done.stdout


def _find(top: Path) -> Iterator[tuple[bytes, ...]]:
    words = _output(top, "find", ".", "-printf", "\\0".join(_FIELDS) + "\\0").split(b"\0")[:-1]
    return zip(*[iter(words)] * len(_FIELDS), strict=True)


def _checksums(top: Path) -> dict[bytes, bytes]:
    names = _output(top, "find", ".", "-type", "f", "-print0")
    lines = _output(top, "xargs", "-0", "-r", "sha256sum", "-z", "--", stdin=names).split(b"\0")[:-1]
    return {_relative(line[66:]): line[:64] for line in lines}


def _blocks_by_name(text: bytes) -> dict[bytes, bytes]:
    """getfacl and getfattr write a block for each name, led by "# file: NAME", and order them as the folder happens to be."""
    found = {}
    for block in re.split(rb"\n\n+", text.strip(b"\n")):
        if block:
            head, _, body = block.partition(b"\n")
            assert head.startswith(b"# file: "), block
            found[_relative(_unescape(head[8:]))] = b"\n".join(sorted(body.splitlines()))
    return found


def _capabilities(top: Path, names: list[bytes]) -> dict[bytes, bytes]:
    """getcap's answer for each of `names`, asked one by one: its lines cannot tell a newline in a name from their end."""
    paths = {name: b"./" + name for name in names}
    said = {name: _output(top, "getcap", "-n", os.fsdecode(path)) for name, path in paths.items()}
    return {name: said[name].removeprefix(path).strip() for name, path in paths.items()}


def _devices(top: Path, names: list[bytes]) -> dict[bytes, bytes]:
    if not names:
        return {}
    stdin = b"".join(b"./" + name + b"\0" for name in names)
    said = _output(top, "xargs", "-0", "stat", "--printf", "%t:%T\\n", "--", stdin=stdin).splitlines()
    return dict(zip(names, said, strict=True))


def _relative(name: bytes) -> bytes:
    return b"" if name == b"." else name.removeprefix(b"./")


def _unescape(name: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]) if match[1] else b"\\", name)
