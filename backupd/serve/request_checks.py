"""Checks a request before it is carried out: its arguments, and the rights of the caller according to the login service.

The dashboard has validated the arguments too, but is not trusted. Rights are role, hosts, and disabled features; the dashboard
cannot change them.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

from backupd.files.tree import components, joined
from btrkeep.serving.client import Absent, RootServiceClient
from btrkeep.serving.protocol import BACKUP_NAME, JOB_ID, MOST_TARGETS, WHICH_BACKUP, Request, RequestRefused
from btrkeep.serving.server import Peer
from btrkeep.serving.viewer import Viewer, read_viewer
from btrkeep.units import parse_time, printable

Check = Callable[[Any], Any]
"""Returns the value in the form that the verb uses. Raises ValueError, whose text the caller gets."""
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST_PATH = 16 << 10
_MOST_PATHS = 1000
LONGEST_NAME = 300
"""Maximum characters of a text that is searched in names, which have at most 255 bytes."""
_LONGEST_TIME = 40
_LONGEST_PASSWORD = 1025  # a longer one is wrong
_LONGEST_KEY, _MOST_KEYS, _MOST_ITEMS = 40, 20, 500
HOST, FOLDER = "host", "folder"
REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a verb."""

    check: Check
    """Validates it."""
    default: Any = REQUIRED
    """Its default; REQUIRED: it must be given."""


def checked(given: Mapping[str, Any], allowed: Mapping[str, Argument]) -> dict[str, Any]:
    """Returns all arguments, with defaults for missing ones. Raises RequestRefused, of kind usage."""
    for name in given:
        if name not in allowed:
            raise RequestRefused(
                f"unknown argument {name[:40]}", f"the arguments are: {', '.join(allowed) or 'none'}", "usage", is_public=True
            )
    return {name: _checked_argument(name, argument, given) for name, argument in allowed.items()}


def _checked_argument(name: str, argument: Argument, given: Mapping[str, Any]) -> Any:
    if name not in given:
        if argument.default is REQUIRED:
            raise RequestRefused(f"the argument {name} is missing", kind="usage", is_public=True)
        return argument.default
    try:
        return argument.check(given[name])
    except ValueError as error:
        raise RequestRefused(f"{name}: {error}", kind="usage", is_public=True) from None


def text(longest: int) -> Check:
    """A text of limited length that contains only valid characters."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("it must be a string")
        if len(value) > longest:
            raise ValueError(f"it is longer than {longest} characters")
        if _UNFIT.search(value):
            raise ValueError("it contains invisible characters")
        return value

    return check


def matching(shape: re.Pattern[str], description: str) -> Check:
    """A text that matches a pattern."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not shape.fullmatch(value):
            raise ValueError(f"it is not {description}")
        return value

    return check


def secret(value: Any) -> str:
    """A password: any text of limited length."""
    if not isinstance(value, str) or len(value) > _LONGEST_PASSWORD:
        raise ValueError("it must be a string")
    return value


def config_keys(value: Any) -> dict[str, Any]:
    """The keys of a host's configuration with values of the types of TOML, within limits; which keys a user may propose is decided
    later.
    """
    if not isinstance(value, dict) or len(value) > _MOST_KEYS:
        raise ValueError("it must be an object with a few keys")
    return {text(_LONGEST_KEY)(key): _config_value(key, item) for key, item in value.items()}


def _config_value(key: str, value: Any) -> Any:
    if isinstance(value, list) and len(value) <= _MOST_ITEMS:
        return [_config_text(item) for item in value]
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53):
        return value
    try:
        return _config_text(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


_config_text = text(4096)
host = matching(_HOST, "the name of a host")
proposal = matching(re.compile(r"[0-9a-f]{6}", re.ASCII), "the id of a proposed change")
digest = matching(re.compile(r"[0-9a-f]{32}", re.ASCII), "the digest of a difference")
which = matching(WHICH_BACKUP, "a backup: its name, the beginning of names, or latest")
name = matching(re.compile(f"latest|{BACKUP_NAME.pattern}"), "the name of a backup, or latest")
whole_name = matching(BACKUP_NAME, "the name of a backup")

job = matching(JOB_ID, "the name of a job")
any_job = matching(
    re.compile(rf"{JOB_ID.pattern}|(?:backup|night|expire|balance)-[0-9]{{1,15}}|verify"), "the name of a job, or verify"
)


def path(value: Any) -> bytes:
    """A path in a backup, as bytes, of valid names."""
    if not isinstance(value, str):
        raise ValueError("it must be a string")
    try:
        raw = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("it is not a path: a surrogate in it encodes no byte") from None
    if len(raw) > _LONGEST_PATH:
        raise ValueError("it is too long for a path")
    return joined(components(raw))


def paths(value: Any) -> tuple[bytes, ...]:
    """Validates one or more paths."""
    if not isinstance(value, list) or not value:
        raise ValueError("it must be a list of paths")
    if len(value) > _MOST_PATHS:
        raise ValueError(f"more than {_MOST_PATHS} paths were given: name their folder instead")
    return tuple(path(item) for item in value)


def search_text(value: Any) -> str:
    """Validates a text to search for: not empty."""
    words: str = text(LONGEST_NAME)(value)
    if not words.strip():
        raise ValueError("it is empty")
    return words


def targets(value: Any) -> tuple[tuple[str, str], ...]:
    """Validates hosts, each of them once; those of an action on backups as HOST@BACKUP."""
    if not isinstance(value, list) or not value:
        raise ValueError("it must be a list of hosts")
    if len(value) > MOST_TARGETS:
        raise ValueError(f"more than {MOST_TARGETS} hosts were given: divide them")
    split = [str(item).partition("@") for item in value]
    pairs = {host(host_name): whole_name(backup) if at else "" for host_name, at, backup in split}
    if len(pairs) < len(value):
        raise ValueError("a host is given twice")
    return tuple(pairs.items())


def moment(value: Any) -> datetime:
    """A time in the form of RFC 3339."""
    if not isinstance(value, str) or len(value) > _LONGEST_TIME:
        raise ValueError("it must be a time such as 2027-01-01T00:00:00Z")
    return parse_time(value)


def destination(value: Any) -> str:
    """Validates the destination of a restore: host, host:/DIR, or folder."""
    if value in ("", HOST, FOLDER):
        return FOLDER if value == FOLDER else HOST
    if not isinstance(value, str) or not value.startswith((":/", f"{HOST}:/")):
        raise ValueError("it must be host, host:/FOLDER or folder")
    return f"{HOST}:{os.fsdecode(path(value.partition(':')[2]))}"


def optional(check: Check) -> Check:
    """Allows null, too."""
    return lambda value: None if value is None else check(value)


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def number(least: int, most: int) -> Check:
    """A whole number."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("it must be a whole number")
        if not least <= value <= most:
            raise ValueError(f"it must be between {least} and {most}")
        return value

    return check


def choice(*words: str) -> Check:
    """Accepts only one of a few words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"it must be one of: {', '.join(words)}")
        return value

    return check


_LONGEST_WHO = 100
_PATIENCE = 20.0
ROOT = 0


class Right(Enum):
    """The right that a verb needs. HOST: to see the host; OPERATE: to change something of it; POOL: to see all hosts; LISTED: none,
    but the answer has only the hosts that the user sees; PROPOSE: to operate all hosts; APPLY: the same, as an admin.
    """

    HOST, OPERATE, POOL, LISTED, PROPOSE, APPLY = range(6)


def viewer_of(request: Request, peer: Peer, login: Path) -> Viewer:
    """Returns the viewer. Root may name a user; other clients send a session or a token. Raises RequestRefused."""
    if request.session is not None:
        return _logged_in(request.session, login)
    if not request.who.strip() or len(request.who) > _LONGEST_WHO:
        raise RequestRefused(f"who must be a name, of {_LONGEST_WHO} characters at most", kind="usage")
    if peer.uid != ROOT:
        raise RequestRefused(
            "no user is logged in", "log in at the dashboard; only root needs no session", "refused", is_public=True
        )
    return Viewer(printable(request.who), "admin")


def _logged_in(word: str, login: Path) -> Viewer:
    try:
        answer = RootServiceClient(login, "", _PATIENCE, word).ask("viewer")
        if answer is not None:
            return read_viewer(answer)
    except Absent as error:
        raise RequestRefused(
            "the login service does not answer", "`systemctl status 'btrkeep-login@*'`", "unusable", is_public=True
        ) from error
    except (KeyError, TypeError):
        raise RequestRefused(
            "the login service sent an invalid answer", "check that the login service has the same version"
        ) from None
    raise RequestRefused("no user is logged in with that session", "log in again", "refused", is_public=True)


def confirmed(word: str | None, password: str, address: str, login: Path) -> dict[str, Any]:
    """Asks the login service whether it is the password of the session's user, because a session may be stolen. Returns `outcome`:
    right, wrong, or wait with `seconds`. Raises RequestRefused without a session, and for a token, which has no password.
    """
    if word is None:
        raise RequestRefused("a session and its password are needed", "as root, use backupd on the server", "refused")
    try:
        answer = RootServiceClient(login, "", _PATIENCE, word).ask("confirm", password=password, address=address)
    except Absent as error:
        raise RequestRefused("the login service does not answer", "`systemctl status 'btrkeep-login@*'`", "unusable") from error
    if not isinstance(answer, dict) or answer.get("outcome") not in ("right", "wrong", "wait"):
        raise RequestRefused("the login service sent an invalid answer", "check that it has the same version")
    return answer


def require(right: Right, viewer: Viewer, arguments: Mapping[str, Any]) -> None:
    """Raises RequestRefused: of kind missing for a host that the viewer does not see, as if it did not exist; else of
    kind refused.
    """
    if "host" in arguments and not viewer.may_see(arguments["host"]):
        raise RequestRefused("there is no such host", "", "missing", is_public=True)
    if not all(viewer.may_see(host) for host, _ in arguments.get("targets", ())):
        raise RequestRefused("there is no such host", "", "missing", is_public=True)
    if right in (Right.POOL, Right.PROPOSE, Right.APPLY) and viewer.limited:
        raise _refused("this is about the whole pool, but you may see only some of its hosts")
    if right is Right.APPLY and not viewer.admin:
        raise _refused("only admins may do this")
    if right in (Right.OPERATE, Right.PROPOSE) and not viewer.operator:
        raise _refused("only operators may do this")
    if right is Right.OPERATE and arguments.get("to", HOST) not in (HOST, FOLDER) and not viewer.admin:
        raise _refused("only admins may restore into another folder of a host")
    if right is Right.OPERATE and arguments.get("to") == FOLDER and viewer.limited:
        raise _refused("this is about a folder of the backup server, but you may see only some of its hosts")


def _refused(message: str) -> RequestRefused:
    return RequestRefused(message, "ask an administrator of this pool", "refused", is_public=True)


def require_switched_on(verb: str, *, no_downloads: bool, no_restores: bool) -> None:
    """Raises RequestRefused for features that the configuration disables."""
    denied = "downloads" if no_downloads and verb == "download" else ""
    denied = "restores" if no_restores and verb in ("restore", "preview", "reach") else denied
    if denied:
        hint = f"the administrator has set `no_{denied}` in [serve]; on the server: backupd restore"
        raise RequestRefused(f"{denied} are switched off on this server", hint, "refused", is_public=True)
