"""The command that mounts a pool, where this server's own configuration has it: /etc/fstab, or a mount unit of systemd."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

_FSTAB = Path("/etc/fstab")
_UNITS = (Path("/etc/systemd/system"), Path("/usr/local/lib/systemd/system"), Path("/usr/lib/systemd/system"))
_OCTAL = re.compile(r"\\([0-7]{3})")
_LONGEST_UNIT = 255  # of systemd; no file has a longer name either
_PLAIN = re.compile(r"[A-Za-z0-9:_.]")


def mount_pool_words(path: Path) -> str:
    """Returns the advice for a pool at `path` that is not mounted, with the command if there is one."""
    try:
        fstab = _FSTAB.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        fstab = ""
    command = mount_command(path.absolute(), fstab, _has_unit, os.path.ismount)
    return f"mount the pool: `{command}`" if command else "mount the pool"


def _has_unit(name: str) -> bool:
    return len(name) <= _LONGEST_UNIT and any((folder / name).exists() for folder in _UNITS)


def mount_command(path: Path, fstab: str, has_unit: Callable[[str], bool], is_mount: Callable[[Path], bool]) -> str | None:
    """Returns the command for the nearest folder of `path` that fstab or a unit mounts; None if none does, or it is mounted."""
    mountpoints = {_mountpoint(line) for line in fstab.splitlines()}
    for folder in (path, *path.parents[:-1]):
        if is_mount(folder):
            return None
        if folder in mountpoints:
            return f"mount {shlex.quote(str(folder))}"
        if has_unit(unit := unit_name(folder)):
            return f"systemctl start {shlex.quote(unit)}"
    return None


def unit_name(folder: Path) -> str:
    """Returns the name of the unit that mounts a folder, as `systemd-escape --path --suffix=mount` has it."""
    text = "".join("-" if char == "/" else _escaped(char, first=number == 0) for number, char in enumerate(str(folder).strip("/")))
    return f"{text or '-'}.mount"


def _escaped(char: str, *, first: bool) -> str:
    if _PLAIN.fullmatch(char) and not (first and char == "."):
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _mountpoint(line: str) -> Path | None:
    """Returns where a line of fstab mounts something: its second field, in which \\040 is a blank."""
    fields = line.split()
    if len(fields) < 3 or fields[0].startswith("#") or not fields[1].startswith("/"):
        return None
    return Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1]))
