"""The login name of the user who started this process, also behind sudo."""

import os
import pwd
import re
from contextlib import suppress
from pathlib import Path

_LOGIN_ID = Path("/proc/self/loginuid")
_NO_LOGIN = 0xFFFFFFFF
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,62}\$?", re.ASCII)


def login_name() -> str:
    """Returns the name of the login of this process.

    The kernel's login id counts first. No user can change it once it is set; but where no login has set it (a container, a service)
    any process can set its own to any user. So another SUDO_USER, which sudo sets, stands beside it. Without both it is the name of
    the process's user, which is root for a command that writes.
    """
    return choose_login(_login_id(), os.environ.get("SUDO_USER"), os.getuid())


def is_automatic() -> bool:
    """True for a process that systemd has started and no user."""
    return _login_id() is None and "SUDO_USER" not in os.environ and "INVOCATION_ID" in os.environ


def choose_login(login_id: int | None, sudo_user: str | None, user_id: int) -> str:
    """Returns the name. A SUDO_USER that cannot be a user's name is ignored."""
    by_sudo = sudo_user if sudo_user and _NAME.fullmatch(sudo_user) else ""
    if login_id is None:
        return by_sudo or _name_of(user_id)
    name = _name_of(login_id)
    return name if by_sudo in ("", "root", name) else f"{name} (sudo: {by_sudo})"


def _login_id() -> int | None:
    with suppress(OSError, ValueError):
        if (number := int(_LOGIN_ID.read_text())) != _NO_LOGIN:
            return number
    return None


def _name_of(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"
