"""Writes all users of a dashboard as JSON, and reads them on another server."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from btrkeep.errors import UsageError
from btrkeep.serving.viewer import role_of
from btrkeep.units import printable
from web.auth.model import LoginSession, Token, User, checked_name, parse_hosts
from web.auth.store import Store

_HASH = "$argon2id$"
_KEY = 32


def exported(store: Store) -> dict[str, Any]:
    """Returns everything but failed attempts and secrets, with the hashes of passwords."""
    users = store.users()
    return {
        "format": 1,
        "users": [
            {"name": one.name, "role": one.role, "hosts": _hosts(one.hosts), "hash": one.hash, **_times(one, "created", "changed")}
            for one in users
        ],
        "sessions": [
            {
                "key": one.key.hex(),
                "user": one.user,
                "address": one.address,
                "browser": one.browser,
                **_times(one, "created", "seen"),
            }
            for user in users
            for one in store.sessions(user.name)
        ],
        "tokens": [
            {"name": one.name, "role": one.role, "hosts": _hosts(one.hosts), "key": key.hex(), **_times(one, "created")}
            for one, key in store.token_keys()
        ],
    }


def imported(store: Store, text: str) -> None:
    """Takes over what `exported` gave, into a database that has never had anybody. Raises UsageError for anything else."""
    try:
        found = json.loads(text)
        if found["format"] != 1:
            raise ValueError("another format")
        users = [
            User(
                checked_name(one["name"]),
                role_of(one["role"]),
                _limits(one["hosts"]),
                _hash(one["hash"]),
                *_moments(one, "changed"),
            )
            for one in found["users"]
        ]
        sessions = [
            LoginSession(_key(one["key"]), one["user"], *_moments(one, "seen"), _text(one["address"]), _text(one["browser"]))
            for one in found["sessions"]
        ]
        tokens = [
            (
                Token(
                    checked_name(one["name"]),
                    role_of(one["role"]),
                    _limits(one["hosts"]),
                    datetime.fromisoformat(one["created"]),
                    None,
                ),
                _key(one["key"]),
            )
            for one in found["tokens"]
        ]
        if not store.fill(users, sessions, tokens) and (users or tokens):
            raise UsageError(f"{store.path} has had users already", "import into a new one, or add users: btrkeep-web user add")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"these are no users: {printable(str(error))}", "give the output of btrkeep-web --users OLD-FOLDER user export"
        ) from None


def _times(one: Any, *names: str) -> dict[str, str]:
    return {name: getattr(one, name).isoformat() for name in names}


def _moments(one: Mapping[str, Any], second: str) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(one["created"]), datetime.fromisoformat(one[second])


def _hosts(hosts: tuple[str, ...] | None) -> list[str] | None:
    return None if hosts is None else list(hosts)


def _limits(hosts: Any) -> tuple[str, ...] | None:
    if hosts is None:
        return None
    limits = [parse_hosts(one) for one in hosts] if isinstance(hosts, list) else []
    # None is the word "all", which as a list of patterns names a host; one pattern with a comma would be two.
    if not limits or any(limit is None or len(limit) != 1 for limit in limits):
        raise ValueError("a pattern of hosts is none")
    return tuple(hosts)


def _hash(text: str) -> str:
    if not text.startswith(_HASH) or not text.isascii():
        raise ValueError("a password's hash is none")
    return text


def _key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != _KEY:
        raise ValueError("a digest is none")
    return key


def _text(value: str) -> str:
    return printable(value[:300])
