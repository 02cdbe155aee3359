"""The user of a request, with role and visible hosts, and limits for users: slots, and bytes of answers.

One user, or the users of one customer together, may use a part of each. A host chooses names, targets of symlinks and lines of
text: 4,000 bytes of a target that are not UTF-8 are 24,000 bytes of JSON.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from btrkeep.units import with_encoded

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")


@dataclass(frozen=True, slots=True)
class Viewer:
    """A logged-in user, or the owner of a token."""

    name: str
    """The user's name."""
    role: Role
    """The user's role."""
    hosts: tuple[str, ...] | None = None
    """Patterns of the hosts that the user may see; None: all hosts."""
    session: str = ""
    """Identifies the login in the journal; "": none."""

    @property
    def operator(self) -> bool:
        """True if the user may change anything."""
        return self.role in ("operator", "admin")

    @property
    def admin(self) -> bool:
        """True if the user may restore files to other paths of a host than their original ones: whoever may do that can become root
        there.
        """
        return self.role == "admin"

    @property
    def limited(self) -> bool:
        """True if the user may not see all hosts, nor pages about the whole pool."""
        return self.hosts is not None

    def may_see(self, host: str) -> bool:
        """True if the user may see this host."""
        return self.hosts is None or any(fnmatchcase(host, pattern) for pattern in self.hosts)

    def seen(self, hosts: Iterable[str]) -> list[str]:
        """Returns those of the hosts that this user may see."""
        return [host for host in hosts if self.may_see(host)]


def viewer_object(viewer: Viewer) -> dict[str, Any]:
    """Returns a viewer as JSON."""
    hosts = None if viewer.hosts is None else list(viewer.hosts)
    return {"name": viewer.name, "role": viewer.role, "hosts": hosts, "session": viewer.session}


def read_viewer(fields: Mapping[str, Any]) -> Viewer:
    """Parses a viewer from JSON. Raises KeyError and TypeError if it is invalid."""
    hosts = fields["hosts"]
    limits = None if hosts is None else tuple(map(str, hosts))
    return Viewer(str(fields["name"]), role_of(fields["role"]), limits, str(fields["session"]))


def role_of(word: Any) -> Role:
    """A word of a newer version gives no rights."""
    return next((role for role in ROLES if role == word), "viewer")


Holder = str | tuple[str, ...]
"""The name of a user, or of all users together with the same limit of hosts."""


class NoSlot(Exception):
    """No slot is free, or too many bytes wait. `own`: the limit of this user, or of all users limited to the same hosts, is
    reached; otherwise that of all users.
    """

    def __init__(self, *, own: bool) -> None:
        super().__init__("no slot is free")
        self.own = own


class RequestSlots:
    """`at_once` slots, of which one user may use `of_one`, and so may all users with the same limit of hosts together. The last
    free slot is reserved for users without a slot.
    """

    def __init__(self, at_once: int, of_one: int) -> None:
        self.at_once, self.of_one = at_once, of_one
        self._taken: Counter[Holder] = Counter()
        self._total = 0
        self._lock = threading.Lock()

    def take(self, viewer: Viewer) -> None:
        """Takes a slot. Raises NoSlot."""
        keys = holders(viewer)
        with self._lock:
            held = max(self._taken[key] for key in keys)
            if held >= self.of_one:
                raise NoSlot(own=True)
            if self._total >= self.at_once - (1 if held else 0):
                raise NoSlot(own=False)
            self._total += 1
            self._taken.update(keys)

    def leave(self, viewer: Viewer) -> None:
        """Releases the slot."""
        with self._lock:
            self._total -= 1
            self._taken.subtract(holders(viewer))
            self._taken += Counter()  # drops users without connections

    @property
    def total(self) -> int:
        """Returns the number of taken slots."""
        return self._total


def holders(viewer: Viewer) -> tuple[Holder, ...]:
    """Returns the keys under which the usage of a viewer is counted."""
    return (viewer.name,) if viewer.hosts is None else (viewer.name, tuple(sorted(viewer.hosts)))


LIST_BYTES = 4 << 20
"""Bytes of the lists in one answer: encoded, including the percent-encoded forms that the API adds."""
UNREAD_BYTES, UNREAD_OF_ONE = 32 << 20, 10 << 20
"""Bytes of answers that wait for their clients: in all, and of one user or customer."""


class AnswerSize:
    """The remaining bytes of one answer for its lists."""

    def __init__(self, left: int = LIST_BYTES) -> None:
        self._left, self._is_empty = left, True

    def take(self, entry: object) -> bool:
        """Returns True if the entry also fits; the first one always does. After False the list has to end."""
        self._left -= encoded_bytes(entry)
        fits = self._left >= 0 or self._is_empty
        self._is_empty = False
        return fits


def encoded_bytes(value: object) -> int:
    """Returns the length of a value as JSON, with the percent-encoded forms."""
    return len(json.dumps(with_encoded(value), separators=(",", ":"))) + 1


class UnreadBytes:
    """The bytes of complete answers that their clients have not read yet. Shared by all threads."""

    def __init__(self, in_all: int = UNREAD_BYTES, of_one: int = UNREAD_OF_ONE) -> None:
        self._in_all, self._of_one = in_all, of_one
        self._held: Counter[Holder] = Counter()
        self._total = 0
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, viewer: Viewer, size: int) -> Iterator[None]:
        """Counts an answer until the context ends. Raises NoSlot if too much waits already. A user for whom nothing waits gets an
        answer of any size unless the limit for all is reached.
        """
        keys = holders(viewer)
        with self._lock:
            held = max(self._held[key] for key in keys)
            if held and held + size > self._of_one:
                raise NoSlot(own=True)
            if self._total + (size if held else 0) > self._in_all:
                raise NoSlot(own=False)
            self._total += size
            self._held.update(dict.fromkeys(keys, size))
        try:
            yield
        finally:
            with self._lock:
                self._total -= size
                self._held.subtract(dict.fromkeys(keys, size))
                self._held += Counter()
