"""Finds out whether users other than root control a path: through a folder or a symlink of theirs, data that root writes would go
somewhere else.
"""

import os
import pwd
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from btrkeep.hung_storage import is_remote

WEB_USER = "btrkeep"
"""The dashboard's user and its group, which may read the copy of the catalogue and ask the root service."""
_MOST_LINKS = 40
MOVE_STATE = "set `state` in [pool] to a folder that belongs to root, such as /var/lib/btrkeep, then: `backupd rebuild`"
_MOVE_CONFIGURATION = "move the configuration to a folder that belongs to root, such as /etc/btrkeep"
_OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class UntrustedStep:
    """A part of a path that another user controls: `place` is the folder or the symlink, `reason` the problem. `is_open`: the
    problem is its mode, else its owner or the number of links.
    """

    place: Path
    reason: str
    is_open: bool = False


def untrusted_step(path: Path, *, sticky: bool = False) -> UntrustedStep | None:
    """Returns the first part of an absolute path that a user other than root and the present one could replace or write to, or
    None.

    Parents to which all users may write are allowed with the sticky bit (/tmp): there only root can replace root's entries. With
    `sticky` the last folder may be one, too. For a path that does not exist, the existing part is checked. Group write permission
    also counts for root's group, because with an ACL that bit is the mask of all groups. Raises OSError.
    """
    todo, place, links = list(reversed(path.parts[1:])), Path("/"), 0
    trusted = {0, os.geteuid()}
    while todo:
        if os.lstat(place).st_mode & _OPEN_TO_OTHERS and not os.lstat(place).st_mode & stat.S_ISVTX:
            return _open(place)
        name = todo.pop()
        if name == "..":
            place = place.parent
            continue
        try:
            entry = os.lstat(place / name)
        except FileNotFoundError:
            return None
        if entry.st_uid not in trusted:
            return UntrustedStep(place / name, f"belongs to {_user(entry.st_uid)}")
        if stat.S_ISLNK(entry.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return UntrustedStep(place / name, "is one of too many symbolic links")
            target = (place / name).readlink()
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            place = Path("/") if target.is_absolute() else place
            continue
        place /= name
    mode = os.lstat(place).st_mode
    if mode & _OPEN_TO_OTHERS and not (sticky and mode & stat.S_ISVTX):
        return _open(place)
    return None


def untrusted_config(main: Path) -> UntrustedStep | None:
    """Returns the first of a configuration's files and folders, including all folders above them, to which users other than root
    may write, or None: a user who may write there chooses which hooks root runs. A process without root's rights runs hooks with
    its own, so then nothing is checked. Raises OSError.
    """
    if os.geteuid():
        return None
    folder = main.absolute().with_suffix(".d")
    paths = [main.absolute(), *([folder, *sorted(folder.glob("*.toml"))] if folder.is_dir() else [])]
    return next((step for path in paths if (step := untrusted_step(path))), None)


def untrusted_state(folder: Path) -> UntrustedStep | None:
    """Returns the first part of a state folder's path that a user other than root could replace or write to, or None: such a user
    can replace the files that root writes, and SQLite opens them by their path. Without root's rights nothing is checked. Raises
    OSError.
    """
    return None if os.geteuid() else untrusted_step(folder.absolute())


def remedy(step: UntrustedStep, for_home: str = _MOVE_CONFIGURATION) -> str:
    """Returns the command after which only root may write there. `for_home`: for a home folder, which must remain its user's, and
    for a folder on a server or a FUSE filesystem, where owners and modes usually cannot be changed from here (root_squash, CIFS,
    sshfs).
    """
    if is_remote(step.place) or (not step.is_open and _is_home(step.place)):
        return for_home
    place = shlex.quote(str(step.place))
    return f"chmod go-w {place}" if step.is_open else f"chown -h root {place}"


def _open(place: Path) -> UntrustedStep:
    return UntrustedStep(place, "can be written by users other than root", is_open=True)


def _is_home(place: Path) -> bool:
    try:
        return Path(pwd.getpwuid(os.lstat(place).st_uid).pw_dir) == place
    except (OSError, KeyError):
        return False


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"
