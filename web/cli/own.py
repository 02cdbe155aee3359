"""The database of users for a command: opened as the user whom it belongs to, whoever runs the command."""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from btrkeep.catalogue.migrate import READERS
from btrkeep.errors import OperatorError
from web.auth.store import FILE, Store
from web.cli import Chosen
from web.settings import data_of


@contextmanager
def opened(ctx: click.Context) -> Iterator[Store]:
    """The database. As root it first becomes the folder's owner, so that no file of root's stands in the dashboard's way."""
    chosen = ctx.obj
    assert isinstance(chosen, Chosen)
    data = chosen.data or data_of(chosen.pool)
    if os.geteuid() == 0:
        _become_owner(data, by_default=chosen.data is None)
    elif not os.access(data if data.exists() else data.parent, os.W_OK | os.X_OK):
        raise OperatorError(f"{data} is another user's", "run this as root")
    yield Store(data)


def _become_owner(data: Path, *, by_default: bool) -> None:
    """The folder is made for the user `btrkeep` where it is missing, in its usual place; elsewhere it is whose folder it is."""
    if by_default and not data.exists():
        _make(data)
    with suppress(FileNotFoundError):
        status = (data / FILE).stat() if (data / FILE).exists() else data.stat()
        if status.st_uid != 0:
            os.setgroups([])
            os.setgid(status.st_gid)
            os.setuid(status.st_uid)


def _make(data: Path) -> None:
    try:
        entry = pwd.getpwnam(READERS)
    except KeyError:
        raise OperatorError(f"there is no user {READERS} on this machine", "install.sh makes it; or give --data") from None
    for folder in (data.parent, data):
        if not folder.exists():
            folder.mkdir(mode=0o700)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
