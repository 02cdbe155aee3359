"""Conditions that may last from one backup to the next, as data. btrkeep.decisions.lasting follows them and has the words."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from btrkeep.units import format_time, parse_time

LONGEST_NAME = 500
"""Characters of a name; a longer one is cut, and no pattern is made from it."""
CUT = "..."
MOST = 20
"""The maximum number of conditions that a record keeps, and as many standing ones: their names are the host's words."""
_MOST_TIMES = 100_000


class ConditionKind(StrEnum):
    """What was wrong, the most serious first. The meaning of a code in backup.json never changes."""

    DELETIONS_SKIPPED = "deletions-skipped"
    EMPTIED = "emptied"
    UNREADABLE = "unreadable"
    NOT_TRANSFERRED = "not-transferred"
    NOT_KEPT = "not-kept"
    VANISHED = "vanished"
    LEFT_OUT = "left-out"
    FETCHED_TWICE = "fetched-twice"


STANDING = frozenset({ConditionKind.LEFT_OUT, ConditionKind.FETCHED_TWICE})
"""Effects of the configuration: they are reported as long as they last, and are no alarm."""


@dataclass(frozen=True, slots=True)
class ConditionKey:
    """What makes two conditions the same. `path`: the source path; `name`: the path on the host, "" if it concerns all of it."""

    kind: ConditionKind
    path: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a backup. `since`: the start of the first backup in a row that had it; `times`: how many had it."""

    key: ConditionKey
    since: datetime
    times: int = 1

    @property
    def kind(self) -> ConditionKind:
        return self.key.kind

    def as_json(self) -> dict[str, object]:
        """Returns it as backup.json has it."""
        key = self.key
        return {
            "kind": key.kind.value,
            "path": key.path,
            "name": key.name,
            "since": format_time(self.since),
            "times": self.times,
        }


def conditions_of(entries: object) -> tuple[Condition, ...]:
    """Parses a list of what `as_json` has written. Ignores invalid entries, and kinds that only a newer version has."""
    if not isinstance(entries, list | tuple):
        return ()
    return tuple(condition for condition in _parsed(entries) if condition)[: 2 * MOST]


def _parsed(entries: Iterable[Any]) -> Iterable[Condition | None]:
    for entry in entries:
        try:
            kind, path, name, since, times = (entry[field] for field in ("kind", "path", "name", "since", "times"))
            is_valid = isinstance(path, str) and isinstance(name, str) and type(times) is int
            key = ConditionKey(ConditionKind(kind), path, shortened(name))
            yield Condition(key, parse_time(since), min(max(1, times), _MOST_TIMES)) if is_valid else None
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            yield None


def shortened(name: str) -> str:
    """Returns the name, cut to the length that is kept."""
    return name if len(name) <= LONGEST_NAME + len(CUT) else name[:LONGEST_NAME] + CUT
