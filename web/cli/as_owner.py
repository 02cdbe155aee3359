"""Opens a folder of the dashboard or of the login service as the user who owns it, whichever user runs the command; and reads the
[web] section of the configuration, as programs of root have published it.

An attacker who controls one of these folders can put anything into it: links to root's files, pipes. So root reads nothing there.
It becomes that user at the first folder of the path that root does not own.
"""

import logging
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrkeep.errors import OperatorError
from btrkeep.trusted_path import WEB_USER
from web.auth.store import Store
from web.dashboard_settings import DATA, LOGIN_USER, USERS, GlobalOptions

if TYPE_CHECKING:
    from btrkeep.config import Published

_MOST_LINKS = 40
_OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_HINT = "give --data or --users a folder below one that only root, or the folder's owner, can write"


@contextmanager
def opened(ctx: click.Context) -> Iterator[Store]:
    """Opens the database. Root first becomes the folder's owner, so that no file of root blocks the dashboard."""
    chosen = ctx.obj
    assert isinstance(chosen, GlobalOptions)
    data = chosen.users_folder
    if os.geteuid() == 0:
        become_owner(data)
    elif not os.access(data if data.exists() else data.parent, os.W_OK | os.X_OK):
        raise OperatorError(f"{data} belongs to another user", "run this as root")
    yield Store(data)


def become_owner(data: Path) -> None:
    """Changes from root to the owner of the folder, for good; remains root for a folder that only root can change.

    Makes missing default folders for their users. Raises OperatorError if another user could replace the folder.
    """
    for usual, name in ((DATA, WEB_USER), (USERS, LOGIN_USER)):
        if data.parent == usual and not os.path.lexists(usual):
            _make_usual_place(usual, name)
    uid, gid = _owner(data.absolute())
    if uid:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


def _owner(path: Path) -> tuple[int, int]:
    """Returns user and group of the first part of `path` that root does not own; that user can change everything in it. 0, 0 if
    root owns all parts.

    The result remains valid for folders that only root can change. Raises OperatorError.
    """
    todo, seen, links = list(reversed(path.parts[1:])), Path("/"), 0
    while todo:
        status = seen.lstat()
        name = todo.pop()
        if name == "..":
            seen = seen.parent
            continue
        try:
            entry = (seen / name).lstat()
        except FileNotFoundError:
            if status.st_mode & _OPEN_TO_OTHERS:
                raise OperatorError(f"users other than root may write in {seen}", _HINT) from None
            return 0, 0
        if status.st_mode & _OPEN_TO_OTHERS and not status.st_mode & stat.S_ISVTX:
            raise OperatorError(f"users other than root may write in {seen}", _HINT)
        if stat.S_ISLNK(entry.st_mode):
            links += 1
            if entry.st_uid or links > _MOST_LINKS:
                raise OperatorError(
                    f"{seen / name} is a link that does not belong to root", "give the folder that the link leads to"
                )
            target = (seen / name).readlink()
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            seen = Path("/") if target.is_absolute() else seen
            continue
        seen /= name
        if entry.st_uid:
            return entry.st_uid, _group(entry)
    if seen.lstat().st_mode & _OPEN_TO_OTHERS:
        raise OperatorError(f"users other than root may write in {seen}", _HINT)
    return 0, 0


def _group(entry: os.stat_result) -> int:
    """Returns the user's own group; never root's, which may own a folder."""
    try:
        return pwd.getpwuid(entry.st_uid).pw_gid
    except KeyError:
        return entry.st_gid or entry.st_uid


def _make_usual_place(place: Path, name: str) -> None:
    """Makes the folder like systemd-tmpfiles. Its parent is root's, so that no other user can replace it."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise OperatorError(
            f"there is no user {name} on this machine", "run install.sh, which creates the user, or use --users"
        ) from None
    place.mkdir(mode=0o700)
    os.chown(place, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def published_of(chosen: GlobalOptions) -> "Published":
    """Returns the published configuration. The dashboard also starts without it, and each page then shows the reason."""
    from btrkeep.catalogue import Catalogue  # the commands about users do not need these
    from btrkeep.config import Published, published, state_of

    try:
        with Catalogue.open_copy(chosen.state or state_of(chosen.pool)) as catalogue:
            return published(catalogue, chosen.pool)
    except OperatorError as error:
        logging.getLogger("btrkeep.web").warning("%s: could not read [web]; using the defaults", error.message)
        return Published(chosen.pool)
