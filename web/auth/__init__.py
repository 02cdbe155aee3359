"""Users, sessions and tokens, in the form that the rest of the dashboard uses; and random words, of which only digests
are stored.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from btrkeep.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}", re.ASCII)
LONGEST_LINK_NAME = 60
"""Characters of the name of a saved link."""
_PATTERN = re.compile(r"[A-Za-z0-9_*?\[\]!.-]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class User:
    """A user."""

    name: str
    """The user's name."""
    role: str
    """One of the roles."""
    hosts: tuple[str, ...] | None
    """Patterns of the hosts that the user may see; None: all hosts."""
    hash: str
    """argon2's text."""
    created: datetime
    """When the user was added."""
    changed: datetime
    """When the password was last changed."""


@dataclass(frozen=True, slots=True)
class LoginSession:
    """One browser that is logged in."""

    key: bytes
    """The digest of the random word in its cookie."""
    user: str
    """The user's name."""
    created: datetime
    """When it logged in."""
    seen: datetime
    """When it was last active."""
    address: str
    """Its address."""
    browser: str
    """How it names itself."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that a script sends instead of a login. Only its digest is stored."""

    name: str
    """Its name."""
    role: str
    """One of the roles."""
    hosts: tuple[str, ...] | None
    """Patterns of the hosts that it may see; None: all hosts."""
    created: datetime
    """When it was made."""
    used: datetime | None
    """When it was last used; None: never."""


def checked_name(name: str) -> str:
    """Returns the name. Raises UsageError if it is not a valid user name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name} is not a valid user name", "use at most 64 letters and digits; after the first also . _ @ and -")
    return name


def parse_hosts(text: str | None) -> tuple[str, ...] | None:
    """Parses patterns such as "web*,db1"; None for "all" and for a missing text. Raises UsageError."""
    if text is None or text == "all":
        return None
    patterns = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [pattern for pattern in patterns if not _PATTERN.fullmatch(pattern)]
    if wrong or not patterns:
        raise UsageError(
            f"{wrong[0] if wrong else text!r} is not a pattern of hosts", 'write names of hosts with * and ?, such as "web*,db1"'
        )
    return patterns


TOKEN_PREFIX = "btrkeep_"  # noqa: S105  no secret


def new_word() -> str:
    """Returns a session's random word. It never starts like a token, because then it would be looked up among the tokens."""
    while (word := secrets.token_urlsafe(32)).startswith(TOKEN_PREFIX):
        pass
    return word


def digest(word: str) -> bytes:
    """Returns the digest to store for a session's or token's random word. The word is so random that a slow hash is unnecessary."""
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
