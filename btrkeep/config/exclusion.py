"""Decides whether mistakes concern only some hosts and copies, which are left out, or stop everything. Pure.

A mistake that could change what is deleted, or where data is written, stops everything. So does a file that cannot be read, unless
it contained only hosts and copies. Sections that only report or verify stop no backup; a mistake about who may do what stops the
dashboard and the root service.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from btrkeep.config.config_key import (
    BALANCE,
    DRILL,
    FETCHED_BY,
    GROUP,
    HOST,
    NAMED,
    NOTIFY,
    OFFSITE,
    PUSH,
    REPLICA,
    SERVE,
    VERIFY,
    WEB,
)
from btrkeep.config.config_model import Config, HostConfig
from btrkeep.config.merge import Sections
from btrkeep.config.problems import Problem, Problems, headers

_COPIES = (REPLICA, PUSH, FETCHED_BY, OFFSITE)
_HARMLESS = (NOTIFY, VERIFY, DRILL, BALANCE, WEB, SERVE)
_PARTIAL = (*NAMED, *_HARMLESS)  # a mistake in one of these does not affect the rest


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The hosts and copies that are left out, the latter with the reason. `faults`, `sections` and `unread` are as in Config."""

    faults: tuple[str, ...] = ()
    hosts: Mapping[str, HostConfig] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    sections: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()


NOTHING_EXCLUDED = Exclusion()


def excluding(main: Path, last: Callable[[], Config | None]) -> Callable[[Sections, Problems], Exclusion | None]:
    """Returns the decision for a configuration. `last` reads its last valid state, which is needed only after a mistake."""

    def decide(sections: Sections, problems: Problems) -> Exclusion | None:
        valid = last() if all(_is_partial(problem, main) for problem in problems.faults) else None
        return exclusion(main, sections, problems, valid)

    return decide


def exclusion(main: Path, sections: Sections, problems: Problems, last: Config | None) -> Exclusion | None:
    """Returns what is left out; None if the mistakes stop everything."""
    faults: dict[str, str] = {}
    copies: dict[str, str] = {}
    sections_with_faults: set[str] = set()
    unread = []
    for problem in problems.faults:
        if not _is_partial(problem, main):
            return None
        text = problems.locate(problem)
        if problem.unread:
            held = _sections_of(problem.file, problems.texts.get(problem.file), last)
            if held is None and last is None:  # the missing part may have named the catalogue's folder
                return None
            if held is None:
                unread.append(text)
            elif any(path[0] not in _PARTIAL for path in held):
                return None
            where = held or []
        else:
            where = [problem.meant or problem.where]
        sections_with_faults.update(path[0] for path in where)
        for path in where:
            _note(path, text, sections, faults, copies)
    before = last.every_host if last else {}
    hosts = {name: replace(before.get(name) or HostConfig(name), fault=fault) for name, fault in faults.items()}
    return Exclusion(tuple(problems.located()), hosts, copies, frozenset(sections_with_faults), tuple(unread))


def _is_partial(problem: Problem, main: Path) -> bool:
    """Returns False for a mistake that stops everything, whatever the file contained before."""
    if problem.unread:
        return problem.file.parent == main.with_suffix(".d")
    path = problem.meant or problem.where
    return bool(path) and (path[0] in _HARMLESS or (path[0] in NAMED and len(path) > 1))


def _note(path: tuple[str, ...], text: str, sections: Sections, faults: dict[str, str], copies: dict[str, str]) -> None:
    """Adds the hosts or the copy that the mistake at this path concerns."""
    section, name = path[0], path[1] if len(path) > 1 else ""
    if section == HOST and name:
        faults.setdefault(name, text)
    elif section == GROUP:
        for host, table in sections.named[HOST].items():
            if table.values.get("group") == name:
                faults.setdefault(host, text)
    elif section in _COPIES:
        copies.setdefault(name, text)


def _sections_of(file: Path, text: str | None, last: Config | None) -> list[tuple[str, ...]] | None:
    """Returns the sections of an unreadable file, by its headers and by its last valid state.

    None: neither shows any, so it may contain any section. If there is a last valid configuration, none of it was ever in effect.
    """
    if text is not None and "\0" in text:
        text = None
    before = last.texts.get(file, "") if last else ""
    return [path[:2] for path in (*headers(text or ""), *headers(before))] or None
