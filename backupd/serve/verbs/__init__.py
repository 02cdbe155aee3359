"""All verbs with their arguments. The function with the verb's name in the named module carries it out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from backupd.serve import request_checks as checks
from backupd.serve.request_checks import LONGEST_NAME, Argument, Right
from backupd.serve.service_context import ConcurrencyLimit
from btrkeep.choices import CURVES, OVERWRITE, SERVICE_VERBS
from btrkeep.decisions.silences import PROBLEM_KINDS
from btrkeep.serving.protocol import LONGEST_ANSWER, LONGEST_REASON
from btrkeep.serving.viewer import LIST_BYTES, Viewer

Function = Callable[[Any], Any]
"""Takes a `Call`; returns data for JSON, or None after sending a stream."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the root service."""

    module: str
    """Its module, imported at the first request."""
    arguments: Mapping[str, Argument]
    """Its arguments by name."""
    right: Right
    """The right that a user needs."""
    limit: ConcurrencyLimit = field(compare=False)
    """How many run at once, shared with other verbs."""
    longest: int = LIST_BYTES + (512 << 10)
    """Maximum bytes of its answer."""

    def function(self, name: str) -> Function:
        """Returns the function."""
        function: Function = getattr(import_module(f"backupd.serve.verbs.{self.module}"), name)
        return function

    @contextmanager
    def place(self, viewer: Viewer) -> Iterator[None]:
        """Takes a slot of the verb's limit and one of the limit on all requests. Raises RequestRefused, of kind busy."""
        with _ALL.taken(viewer), self.limit.taken(viewer):
            yield


_ALL = ConcurrencyLimit(16, 10)
"""Number of requests that the server answers at the same time; a client with very many requests leaves slots for others."""
_STREAMS = ConcurrencyLimit(10, 5)
"""Streams last as long as the client reads, so slots are kept free for others."""
_HEAVY = ConcurrencyLimit(4, 2)
"""Verbs that may read for an unlimited time."""
_LISTS = ConcurrencyLimit(8, 4)
"""Verbs that sort folders, which takes seconds for a million names."""
_SCANS = ConcurrencyLimit(6, 3)
"""Verbs that wait for each other, at most a minute."""
_SHORT = ConcurrencyLimit(12, 6)
_HOST = {"host": Argument(checks.host)}
_BACKUP = {**_HOST, "backup": Argument(checks.which)}
_NAMED = {**_HOST, "backup": Argument(checks.name)}
_PATH = {"path": Argument(checks.path)}
_UNTIL = {"until": Argument(checks.moment, None)}
_SECONDS = {"seconds": Argument(checks.number(0, 60), 20)}
_PROPOSAL = {"id": Argument(checks.proposal)}
_WHY = {"why": Argument(checks.text(LONGEST_REASON), "")}
_RESTORE = {
    **_BACKUP,
    "paths": Argument(checks.paths),
    "to": Argument(checks.destination, checks.HOST),
    "overwrite": Argument(checks.optional(checks.choice(*OVERWRITE)), None),
}

_VERBS: Mapping[str, Verb] = {
    "browse": Verb(
        "files",
        right=Right.HOST,
        limit=_LISTS,
        arguments={
            **_BACKUP,
            **_PATH,
            "offset": Argument(checks.number(0, 10**9), 0),
            "limit": Argument(checks.number(1, 5000), 1000),
            "sort": Argument(checks.choice("name", "kind", "size", "mode", "owner", "mtime"), "name"),
            "descending": Argument(checks.flag, False),
            "find": Argument(checks.text(LONGEST_NAME), ""),
            "typed": Argument(checks.flag, False),
            "collapse": Argument(checks.flag, False),
        },
    ),
    "search": Verb(
        "files",
        right=Right.HOST,
        limit=_HEAVY,
        arguments={
            **_BACKUP,
            **_PATH,
            "find": Argument(checks.search_text),
            "limit": Argument(checks.number(1, 1000), 200),
            **_SECONDS,
        },
    ),
    "versions": Verb(
        "files",
        right=Right.HOST,
        limit=_HEAVY,
        arguments={
            **_HOST,
            **_PATH,
            "content": Argument(checks.flag, False),
            "since": Argument(checks.optional(checks.whole_name), None),
            **_SECONDS,
        },
    ),
    "compare": Verb(
        "files",
        right=Right.HOST,
        limit=_HEAVY,
        arguments={
            **_HOST,
            **_PATH,
            "before": Argument(checks.which),
            "after": Argument(checks.which, ""),  # the newest complete backup
            "content": Argument(checks.flag, False),
            "limit": Argument(checks.number(1, 5000), 1000),
            "since": Argument(checks.optional(checks.path), None),
            **_SECONDS,
        },
    ),
    "download": Verb(
        "files",
        right=Right.HOST,
        limit=_STREAMS,
        arguments={
            **_BACKUP,
            **_PATH,
            "as": Argument(checks.choice("file", "tar", "zip"), "file"),
            "paths": Argument(checks.optional(checks.paths), None),
        },
    ),
    "hold": Verb("protection", {**_NAMED, **_WHY, **_UNTIL}, Right.OPERATE, _SHORT),
    "release": Verb("protection", _NAMED, Right.OPERATE, _SHORT),
    "accept": Verb("protection", {**_NAMED, **_WHY}, Right.OPERATE, _SHORT),
    "silence": Verb(
        "protection",
        {
            "targets": Argument(checks.targets, ()),
            "group": Argument(checks.optional(checks.host), None),
            "problem": Argument(checks.optional(checks.choice(*PROBLEM_KINDS)), None),
            **_WHY,
            **_UNTIL,
            "disable": Argument(checks.flag, False),
        },
        Right.OPERATE,
        _SHORT,
    ),
    "run": Verb("tasks", _HOST, Right.OPERATE, _SHORT),
    "bulk": Verb(
        "bulk",
        {"action": Argument(checks.choice("run", "hold", "accept")), "targets": Argument(checks.targets), **_WHY, **_UNTIL},
        Right.OPERATE,
        _HEAVY,
    ),
    "restore": Verb("tasks", _RESTORE, Right.OPERATE, _SHORT),
    "preview": Verb("tasks", _RESTORE, Right.OPERATE, _HEAVY),
    "reach": Verb("tasks", _RESTORE, Right.OPERATE, _SHORT),
    "job": Verb("tasks", {"job": Argument(checks.job), "lines": Argument(checks.number(0, 1000), 50)}, Right.LISTED, _SHORT),
    "jobs": Verb(
        "tasks",
        {
            "limit": Argument(checks.number(1, 1000), 200),
            "before": Argument(checks.optional(checks.job), None),
            "of_host": Argument(checks.optional(checks.host), None),
            "of_verb": Argument(checks.optional(checks.choice("run", "restore")), None),
        },
        Right.LISTED,
        _SHORT,
    ),
    "stop": Verb("stopping", {"job": Argument(checks.any_job)}, Right.LISTED, _SHORT),
    "doctor": Verb("queries", {}, Right.POOL, _SCANS, LONGEST_ANSWER),
    "plan": Verb("queries", {}, Right.POOL, _SCANS, LONGEST_ANSWER),
    "extents": Verb(
        "queries",
        {
            "vaddr": Argument(checks.number(0, 2**64 - 1)),
            "curve": Argument(checks.choice(*CURVES), CURVES[0]),
            "size": Argument(checks.number(4, 12), None),
        },
        Right.POOL,
        _SCANS,
    ),
    "retention": Verb("queries", _HOST, Right.HOST, _SHORT),
    "hello": Verb("queries", {}, Right.LISTED, _SHORT),
    "propose": Verb(
        "proposals",
        {**_HOST, "new": Argument(checks.flag, False), "keys": Argument(checks.config_keys), **_WHY},
        Right.PROPOSE,
        _HEAVY,
    ),
    "proposals": Verb("proposals", {}, Right.POOL, _SHORT),
    "proposal": Verb("proposals", _PROPOSAL, Right.POOL, _SHORT),
    "reject": Verb("proposals", _PROPOSAL, Right.PROPOSE, _SHORT),
    "apply": Verb(
        "proposals",
        {
            **_PROPOSAL,
            "digest": Argument(checks.digest),
            "password": Argument(checks.secret),
            "address": Argument(checks.text(100)),
        },
        Right.APPLY,
        _HEAVY,
    ),
}
VERBS = {name: _VERBS[name] for name in SERVICE_VERBS}
