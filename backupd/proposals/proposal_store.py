"""STATE/proposals: the waiting proposals, one file each, which only root can read. A decided proposal is deleted; the record of
actions has the decision.
"""

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from btrkeep.descriptors import ClosingFd
from btrkeep.errors import UsageError
from btrkeep.pool.atomic import write_atomically
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import parse_time

ID = re.compile(r"[0-9a-f]{6}", re.ASCII)
OF_ONE, IN_ALL = 10, 50
"""Maximum number of waiting proposals: of one user, and of all users."""
LARGEST = 64 << 10
"""Maximum bytes of a proposal."""


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """What a change does to the backups of its host, as of one time."""

    total: int = 0
    """Number of the host's backups."""
    expires: int = 0
    """How many of them the next expiry would mark or delete because of the change."""
    written_bytes: int | None = None
    """Bytes that rsync wrote for these; None: unknown."""
    kept_again: int = 0
    """How many backups that are due for deletion would be kept."""
    sentences: tuple[str, ...] = ()
    """The same and everything else, for people."""


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """The result of the last check of a change; `apply` refuses the change if its diff differs now."""

    at: str
    """When it was checked, RFC 3339."""
    file: str
    """The file that would be changed."""
    diff: tuple[str, ...]
    """The lines of the changed keys as a unified diff: nothing else of the file."""
    effect: ChangeEffect
    """What it does."""
    notices: tuple[str, ...]
    """New remarks of the checker."""
    digest: str
    """Identifies file, keys, their values before and after, and the host's settings afterwards."""


@dataclass(frozen=True, slots=True)
class ConfigProposal:
    """A proposed change of one host's configuration."""

    id: str
    """Its id, which people type."""
    who: str
    """The user who proposed it."""
    at: str
    """When, RFC 3339."""
    host: str
    """The host's name."""
    is_new: bool
    """True if the host is added."""
    keys: Mapping[str, Any]
    """The values by key as in TOML; None removes a key."""
    why: str
    """The user's reason; "": none."""
    preview: ChangePreview = field(repr=False)
    """How it was last checked."""

    @property
    def title(self) -> str:
        """Returns the change in a few words."""
        keys = dict.fromkeys(key.rstrip("+-") for key in self.keys)
        return f"add {self.host}" if self.is_new else f"{self.host}: {', '.join(keys)}"


def no_proposal(proposal_id: str) -> RequestRefused:
    """Returns the refusal for an unknown proposal."""
    hint = "the list of proposed changes shows those that wait; the record of actions has the others"
    return RequestRefused(f"there is no proposed change {proposal_id}", hint, "missing")


class ProposalStore:
    """The proposals of a pool, in a folder of its state. `alone` is held around each change."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "proposals"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevents other processes and threads from changing the proposals. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with ClosingFd(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield

    def new_id(self) -> str:
        """Returns an id that no waiting proposal has."""
        while self._file(proposal_id := secrets.token_hex(3)).exists():
            pass
        return proposal_id

    def put(self, proposal: ConfigProposal) -> None:
        """Writes a proposal. Raises OSError; a file that could not be written completely is removed."""
        path = self._file(proposal.id)
        try:
            write_atomically(path, json.dumps(asdict(proposal)) + "\n")
        except OSError:
            path.with_name(f"{path.name}.new").unlink(missing_ok=True)
            raise

    def get(self, proposal_id: str) -> ConfigProposal:
        """Returns a waiting proposal. Raises RequestRefused, of kind missing."""
        proposal = self._read(self._file(proposal_id)) if ID.fullmatch(proposal_id) else None
        if proposal is None:
            raise no_proposal(proposal_id)
        return proposal

    def all(self) -> list[ConfigProposal]:
        """Returns the waiting proposals, oldest first. Skips damaged files."""
        paths = [path for path in self._folder.glob("*.json") if ID.fullmatch(path.stem)]
        return sorted(filter(None, map(self._read, paths)), key=lambda proposal: (proposal.at, proposal.id))

    def count(self) -> int:
        """Returns how many wait, without reading them."""
        return sum(ID.fullmatch(path.stem) is not None for path in self._folder.glob("*.json"))

    def remove(self, proposal_id: str) -> None:
        """Removes a decided proposal."""
        self._file(proposal_id).unlink(missing_ok=True)

    def _file(self, proposal_id: str) -> Path:
        return self._folder / f"{proposal_id}.json"

    def _read(self, path: Path) -> ConfigProposal | None:
        try:
            with ClosingFd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
                return proposal_of(json.loads(os.pread(fd, LARGEST, 0)))
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return None


def proposal_of(fields: Mapping[str, Any]) -> ConfigProposal:
    """Parses a proposal. Raises ValueError, TypeError, LookupError."""
    seen = fields["preview"]
    effect = ChangeEffect(**{**seen["effect"], "sentences": tuple(seen["effect"]["sentences"])})
    preview = ChangePreview(**{**seen, "effect": effect, "diff": tuple(seen["diff"]), "notices": tuple(seen["notices"])})
    parse_time(fields["at"]), parse_time(preview.at)
    return ConfigProposal(**{**fields, "keys": dict(fields["keys"]), "preview": preview})


def require_slot(proposals: Sequence[ConfigProposal], who: str) -> None:
    """Raises RequestRefused, of kind busy, if too many wait already."""
    hint = "wait until some are applied or rejected, or withdraw one"
    if sum(proposal.who == who for proposal in proposals) >= OF_ONE:
        raise RequestRefused(f"{OF_ONE} changes proposed by {who} wait already", hint, "busy")
    if len(proposals) >= IN_ALL:
        raise RequestRefused(f"{IN_ALL} proposed changes wait already", hint, "busy")


def require_size(proposal: ConfigProposal) -> None:
    """Raises UsageError if a proposal has too much text."""
    if len(json.dumps(asdict(proposal))) >= LARGEST:
        raise UsageError("the change has more text than a proposal may have", "propose it in parts, or edit the file on the server")


def as_json(proposal: ConfigProposal) -> dict[str, Any]:
    """Returns a proposal for --json and for the dashboard."""
    preview = proposal.preview
    return {
        "id": proposal.id,
        "title": proposal.title,
        "who": proposal.who,
        "at": proposal.at,
        "host": proposal.host,
        "new": proposal.is_new,
        "keys": dict(proposal.keys),
        "why": proposal.why,
        "checked": preview.at,
        "file": preview.file,
        "diff": list(preview.diff),
        "effect": asdict(preview.effect),
        "notices": list(preview.notices),
        "digest": preview.digest,
    }
