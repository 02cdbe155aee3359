"""The user who asks, with role and visible hosts, as the login service knows a session or a token."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user who is logged in, or the owner of a token. `hosts` are patterns; None: all hosts. `session` names the login in the
    journal.
    """

    name: str
    role: Role
    hosts: tuple[str, ...] | None = None
    session: str = ""

    @property
    def operator(self) -> bool:
        """True if the user may change anything."""
        return self.role in ("operator", "admin")

    @property
    def admin(self) -> bool:
        """True if the user may have files written to other places of a host than their own, which makes him root there."""
        return self.role == "admin"

    @property
    def limited(self) -> bool:
        """True if the user may not see all hosts, nor pages of the pool as a whole."""
        return self.hosts is not None

    def may_see(self, host: str) -> bool:
        """True if the user may see this host."""
        return self.hosts is None or any(fnmatchcase(host, pattern) for pattern in self.hosts)

    def seen(self, hosts: Iterable[str]) -> list[str]:
        """Returns those of the hosts that this user may see."""
        return [host for host in hosts if self.may_see(host)]


def viewer_object(viewer: Viewer) -> dict[str, Any]:
    """A viewer as JSON has it."""
    hosts = None if viewer.hosts is None else list(viewer.hosts)
    return {"name": viewer.name, "role": viewer.role, "hosts": hosts, "session": viewer.session}


def read_viewer(found: Mapping[str, Any]) -> Viewer:
    """Parses a viewer from JSON. Raises KeyError and TypeError if it is invalid."""
    hosts = found["hosts"]
    limits = None if hosts is None else tuple(map(str, hosts))
    return Viewer(str(found["name"]), role_of(found["role"]), limits, str(found["session"]))


def role_of(word: Any) -> Role:
    """A word of a newer version gives no right."""
    return next((role for role in ROLES if role == word), "viewer")
