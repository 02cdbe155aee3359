"""KEY=VALUE as an operator types it: the key of a host, and the value as in TOML. Pure."""

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from btrkeep.config.config_key import HOST, RETENTION, WITHIN, ConfigKey
from btrkeep.config.keys import LEGAL
from btrkeep.config.problems import InvalidValue, RefusedItems, nearest, show
from btrkeep.config.sources import require_host_name
from btrkeep.errors import UsageError

KEYS: Mapping[str, ConfigKey] = LEGAL[HOST] | {
    f"{section}.{name}": key for section in WITHIN[HOST] for name, key in LEGAL[section].items()
}
"""Every key of a host: paths, window, retention.daily."""


@dataclass(frozen=True, slots=True)
class AddedValues:
    """Items to add to a list of the host's own, and to remove from it."""

    items: tuple[Any, ...]
    """The added items."""
    removed: tuple[Any, ...] = ()
    """The removed items."""

    def to(self, before: Any) -> list[Any]:
        """Returns the list with the added items that are missing in it. Raises UsageError if an item to remove is not in it."""
        own = list(before) if isinstance(before, list) else []
        if inherited := [item for item in self.removed if item not in own]:
            raise UsageError(
                f"{show(inherited[0])} is not in the host's own list", "its group or [backup] may have it: change it there"
            )
        added = [item for item in dict.fromkeys(self.items) if item not in own]
        return [item for item in own if item not in self.removed] + added


def parse_assignments(words: tuple[str, ...], unset: tuple[str, ...]) -> dict[str, Any]:
    """The keys and their values; None for those to be unset, AddedValues for KEY+=VALUE. Raises UsageError."""
    keys: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        adds = name.endswith("+")
        name = name.removesuffix("+")
        if not equals:
            raise UsageError(f"{word!r} is not a KEY=VALUE", "such as port=2222, or 'paths=/etc /srv'; --unset KEY removes a key")
        _require_new(name, keys)
        value = value_of(_key(name), text)
        keys[name] = AddedValues(tuple(value)) if adds and isinstance(value, list) else value
        if adds and not isinstance(value, list):
            raise UsageError(f"{name} is not a list, so nothing can be added to it", f"{name}=VALUE sets it")
    for name in unset:
        _key(name)
        _require_new(name, keys)
        keys[name] = None
    if not keys:
        raise UsageError("no change was given", "give KEY=VALUE, such as port=2222, or --unset KEY")
    return keys


@dataclass(frozen=True, slots=True)
class ListedHost:
    """A host in a list: the number of its line, and its keys."""

    line: int
    keys: dict[str, Any]


def read_host_list(text: str, source: str, declared: Mapping[str, Path]) -> dict[str, ListedHost]:
    """Parses a list of hosts, one in each line: NAME KEY=VALUE..., with quotes as in a shell; # starts a comment.

    `declared`: the configured hosts, and the file of each. Raises UsageError, with a line for each mistake.
    """
    hosts: dict[str, ListedHost] = {}
    wrong: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            name, keys = _read_host(line)
            if name in hosts:
                raise UsageError(f"{name} is named twice", "name each host once")
            if name in declared:
                raise UsageError(
                    f"the host {name} is in {declared[name]} already", f"`backupd host set {name} KEY=VALUE` changes it"
                )
        except UsageError as error:
            wrong.append((f"{source}:{number}: {error.message}", error.hint))
        else:
            if name:
                hosts[name] = ListedHost(number, keys)
    if wrong:
        hint = wrong[0][1] if len(wrong) == 1 else "correct these lines; no host of the list was added"
        raise UsageError("\n".join(message for message, _ in wrong), hint)
    if not hosts:
        raise UsageError(f"{source} has no host", "write one host on each line: NAME KEY=VALUE...")
    return hosts


def _read_host(line: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the keys of a line; "" for a line without a host. Raises UsageError."""
    try:
        name, *words = shlex.split(line, comments=True) or ("",)
    except ValueError as error:
        raise UsageError(str(error), "close the quote") from None
    if not name:
        return "", {}
    if "=" in name:
        raise UsageError(f"{name!r} is not a host's name", "write each line as NAME KEY=VALUE...")
    require_host_name(name)
    return name, parse_assignments(tuple(words), ()) if words else {}


def _key(name: str) -> ConfigKey:
    if name not in KEYS:
        near = nearest(f"{RETENTION}.{name}" if name in LEGAL[RETENTION] else name, KEYS)
        raise UsageError(f"{name!r} is not a key of a host{near}", f"the keys are: {', '.join(KEYS)}")
    return KEYS[name]


def _require_new(name: str, keys: Mapping[str, Any]) -> None:
    if name in keys:
        raise UsageError(f"{name} is named twice", "write a list as one value: 'paths=/etc /srv'")


def value_of(key: ConfigKey, text: str) -> Any:
    """Parses the text as TOML, as a plain string, or as a list of words: the first of these that the key accepts. If it accepts
    none, returns the most likely intention; the configuration then reports the mistake.
    """
    meant = list(_readings(text))
    for value in meant:
        with suppress(InvalidValue, RefusedItems):
            key.kind(value)
            return value
    return meant[0]


def _readings(text: str) -> Iterator[Any]:
    with suppress(ValueError):
        read = tomllib.loads(f"value = {text}")
        if len(read) == 1:
            yield read["value"]
    yield text
    with suppress(ValueError):
        yield shlex.split(text)
