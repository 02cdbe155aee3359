"""How groups and hosts come to their retention: key by key, what they set themselves over what they inherit."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from btrkeep.config.keys import RETENTION
from btrkeep.config.model import HostConfig, Retention
from btrkeep.config.problems import Problems
from btrkeep.units import counted

_SOME = 3  # hosts that are named; the others are counted


class Policies:
    """Makes them from parsed sections. Equal policies are one object: 3,000 hosts have a handful."""

    def __init__(self, everybody: Mapping[str, Any]) -> None:
        self._everybody = everybody
        self._made: dict[tuple[tuple[str, Any], ...], Retention] = {}

    def of(self, *sections: Mapping[str, Any]) -> Retention:
        """The policy for what is set in these sections, the widest first; none for all hosts."""
        keys = dict(self._everybody)
        for section in sections:
            keys |= section.get(RETENTION, {})
        key = tuple(keys.items())
        if key not in self._made:
            self._made[key] = Retention(**keys)
        return self._made[key]


def say_who_keeps_everything(file: Path, hosts: Iterable[HostConfig], problems: Problems) -> None:
    """One notice for all hosts that have no policy: a pool that nobody thought about is full one day."""
    names = [host.name for host in hosts if host.retention.missing]
    if names:
        problems.say(file, "no retention", f"every backup is kept, of {_listed(names)}")


def _listed(names: list[str]) -> str:
    """ "a", "a and b", "a, b, c and 2,997 other hosts"."""
    parts, others = names[:_SOME], len(names) - _SOME
    if others > 0:
        parts.append(counted(others, "other host"))
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
