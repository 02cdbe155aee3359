"""The change of a proposal: which keys it may have, its diff and its check, and how it is applied."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from backupd.hosts.assigning import AddedValues
from backupd.hosts.config_files import EXCLUDE, Files, new_files, set_hosts
from btrkeep.config import Config, HostConfig, Retention
from btrkeep.config.problems import dotted
from btrkeep.errors import OperatorError, StateConflict, UsageError
from btrkeep.units import printable

_RETENTION = tuple(f"retention.{rule.name}" for rule in fields(Retention))
ADD, REMOVE = "exclude+", "exclude-"
"""Patterns to add to the host's own exclusions, and to remove from them."""
CHANGEABLE = ("paths", ADD, REMOVE, "window", *_RETENTION)
"""The keys of a host that a proposal may change: nothing that runs a command, names a key, or is about another machine."""
OF_NEW_HOST = ("address", "group", "paths", EXCLUDE, "window", *_RETENTION)
"""The keys that a proposed new host may have."""
_OF_THIS_MACHINE = ("paths", REMOVE)
"""Keys that a proposal may not change for a host without an address: with them, users could read other files of this server."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change of one file, checked and not yet written."""

    host: str
    """The host's name."""
    path: Path
    """The file."""
    text: str
    """Its text before; "": a new file."""
    text_after: str
    """Its text after the change."""
    keys: Mapping[str, tuple[Any, Any]]
    """The value of each changed key, before and after; None: missing."""
    config: Config
    """The configuration after the change."""
    notices: tuple[str, ...]
    """New remarks of the checker."""

    @property
    def digest(self) -> str:
        """Identifies the change and the host's settings after it, inherited ones included. It has no secret of the file."""
        after = self.config.hosts[self.host]
        settings = (after.address, after.group, after.paths, after.exclude, str(after.window), after.retention)
        content = [str(self.path), self.host, {key: list(pair) for key, pair in self.keys.items()}, repr(settings)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def require_allowed(config: Config, host: str, keys: Mapping[str, Any], *, is_new: bool) -> None:
    """Raises UsageError for a key that a proposal may not have, and StateConflict for one that this host may not get."""
    allowed = OF_NEW_HOST if is_new else CHANGEABLE
    for key in keys:
        if key not in allowed:
            raise UsageError(f"{printable(key)} cannot be proposed", f"these keys can: {', '.join(allowed)}")
    if not keys:
        raise UsageError("the proposal changes nothing", "change at least one setting")
    if is_new:
        if not keys.get("address"):
            raise UsageError("a new host needs an address", "only root adds a host that is this server: `backupd host add`")
        return
    configured = config.every_host.get(host)  # one with a mistake too: the change may correct it
    if configured and configured.address is None and (refused := [key for key in _OF_THIS_MACHINE if key in keys]):
        raise StateConflict(
            f"{host} is this server, so only root changes its {' and '.join(refused)}",
            f"on the server: `backupd host set {host} KEY=VALUE`",
        )


def plan_change(files: Files, host: str, keys: Mapping[str, Any], *, is_new: bool) -> PlannedChange:
    """Returns the change, checked like that of `host add` and `host set`; nothing is written.

    Raises UsageError, ConfigError with the checker's problems, and OperatorError for a file in a form that cannot be edited.
    """
    if is_new:
        given = {key: value for key, value in keys.items() if value is not None}
        ((path, text),) = new_files(files, {host: _nested(given)}).items()
        config = files.judge({path: text}, [host])
        return PlannedChange(host, path, "", text, {key: (None, value) for key, value in given.items()}, config, ())
    values = {key: value for key, value in keys.items() if key not in (ADD, REMOVE)}
    if ADD in keys or REMOVE in keys:
        values[EXCLUDE] = AddedValues(_patterns(keys, ADD), _patterns(keys, REMOVE))
    changed = set_hosts(files, [host], values, write=False)
    change = changed.hosts[host]
    return PlannedChange(host, change.path, change.text, change.text_after, change.keys, changed.config, changed.notices)


def _patterns(keys: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    given = keys.get(key) or []
    if not isinstance(given, list):
        raise UsageError(f"{key} is not a list of patterns", "give each pattern as an item of a list")
    return tuple(given)


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns "retention.daily" as a key of a table."""
    nested: dict[str, Any] = {}
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return nested


def write_change(files: Files, planned: PlannedChange) -> None:
    """Replaces the file atomically; the previous one stays beside it. The caller holds `files.alone`.

    Raises ConfigError, and OperatorError if the file cannot be written: then it is unchanged.
    """
    files.change({planned.path: planned.text_after}, [planned.host], keep_old=True)


def key_diff(planned: PlannedChange) -> tuple[str, ...]:
    """Returns the changed keys as a unified diff in TOML, each item of a list in its own line.

    It is made from the keys, not from the file, whose other lines, comments included, may have passwords.
    """
    before, after = ([*_key_lines(planned.keys, number)] for number in (0, 1))
    lines = list(difflib.unified_diff(before, after, n=3, lineterm=""))[2:]  # without the names of files
    head = f"[{dotted('host', planned.host)}]"
    return (head if planned.text else f"+{head}", *(printable(line) for line in lines if not line.startswith("@@")))


def _key_lines(keys: Mapping[str, tuple[Any, Any]], number: int) -> Iterator[str]:
    from backupd.hosts.edit import toml_text

    for key, pair in keys.items():
        value = pair[number]
        if isinstance(value, list) and value:
            yield f"{key} = ["
            yield from (f"    {toml_text(item)}," for item in value)
            yield "]"
        elif value is not None:
            yield f"{key} = {toml_text(value)}"


def host_after(planned: PlannedChange) -> HostConfig:
    """Returns the host's settings after the change."""
    return planned.config.hosts[planned.host]


def require_change(planned: PlannedChange) -> None:
    """Raises OperatorError if the configuration has these values already."""
    if not planned.keys:
        raise OperatorError(f"{planned.host} already has these values", "the configuration is unchanged")
