"""What is known of copies in other pools and from other pools, as facts of the catalogue: for readers that cannot see the pool."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

COPIES = "copies"
"""The fact of which hosts are copies, and of what this pool and replicas have in common. There is none without replicas."""
REPLICATED = "replica:"
"""With a replica's name: the fact of its newest replication."""


@dataclass(frozen=True, slots=True)
class ReplicaSession:
    """The newest replication that came to its end: when, from which pool, how much came, and how many hosts did not."""

    at: str
    pool: str
    fetched: int
    bytes: int
    failed: int


@dataclass(frozen=True, slots=True)
class KnownCopies:
    """`fetched`: the replica of each host that is fetched from another pool. `common`: by replica and host, the newest backup that
    both pools have: here it is a copy, or the other pool has said that it has it.
    """

    fetched: Mapping[str, str] = field(default_factory=dict)
    common: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def session_of(text: str | None) -> ReplicaSession | None:
    """The newest replication as the fact tells of it; None when there was none, or nothing is known of it."""
    try:
        return ReplicaSession(**json.loads(text or ""))
    except (ValueError, TypeError):
        return None


def copies_text(copies: KnownCopies) -> str:
    """As the fact has it."""
    return json.dumps({"fetched": copies.fetched, "common": copies.common}, separators=(",", ":"), sort_keys=True)


@lru_cache(maxsize=4)
def copies_of(text: str | None) -> KnownCopies:
    """What the fact tells; nothing when it is none."""
    found: dict[str, Any] = json.loads(text) if text else {}
    return KnownCopies(found.get("fetched", {}), found.get("common", {}))
