"""All verbs with their arguments. The function with the verb's name in the named module carries it out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from backupd.serve import request_checks as given
from backupd.serve.request_checks import Argument, Right
from backupd.serve.service_context import ConcurrencyLimit
from btrkeep.choices import CURVES, OVERWRITE, SERVICE_VERBS
from btrkeep.serving.protocol import LONGEST_ANSWER, LONGEST_REASON
from btrkeep.serving.viewer import LIST_BYTES, Viewer

Function = Callable[[Any], Any]
"""Takes a call; returns data for JSON, or has made a stream."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the root service."""

    module: str
    """Its module, imported at the first request."""
    arguments: Mapping[str, Argument]
    """Its arguments by name."""
    right: Right
    """Who may use it."""
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
        """A slot of the verb's limit and of the limit for all. Raises RequestRefused, of kind busy."""
        with _ALL.taken(viewer), self.limit.taken(viewer):
            yield


_ALL = ConcurrencyLimit(16, 10)
"""Number of requests that the server answers at the same time; a client with very many requests leaves slots for others."""
_STREAMS = ConcurrencyLimit(10, 5)
"""Streams last as long as the client reads, so slots are kept free for others."""
_HEAVY = ConcurrencyLimit(4, 2)
"""These verbs may read for any time."""
_LISTS = ConcurrencyLimit(8, 4)
"""Sorting a folder of a million names takes seconds."""
_SCANS = ConcurrencyLimit(6, 3)
"""These verbs wait for each other, at most a minute."""
_SHORT = ConcurrencyLimit(12, 6)
_HOST = {"host": Argument(given.host)}
_BACKUP = {**_HOST, "backup": Argument(given.which)}
_NAMED = {**_HOST, "backup": Argument(given.name)}
_PATH = {"path": Argument(given.path)}
_UNTIL = {"until": Argument(given.moment, None)}
_SECONDS = {"seconds": Argument(given.number(0, 60), 20)}
_WHY = {"why": Argument(given.text(LONGEST_REASON), "")}
_RESTORE = {
    **_BACKUP,
    "paths": Argument(given.paths),
    "to": Argument(given.destination, given.HOST),
    "overwrite": Argument(given.optional(given.choice(*OVERWRITE)), None),
}

_VERBS: Mapping[str, Verb] = {
    "browse": Verb(
        "files",
        right=Right.HOST,
        limit=_LISTS,
        arguments={
            **_BACKUP,
            **_PATH,
            "offset": Argument(given.number(0, 10**9), 0),
            "limit": Argument(given.number(1, 5000), 1000),
            "sort": Argument(given.choice("name", "kind", "size", "mode", "owner", "mtime"), "name"),
            "descending": Argument(given.flag, False),
        },
    ),
    "versions": Verb(
        "files",
        right=Right.HOST,
        limit=_HEAVY,
        arguments={
            **_HOST,
            **_PATH,
            "content": Argument(given.flag, False),
            "since": Argument(given.optional(given.whole_name), None),
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
            "before": Argument(given.which),
            "after": Argument(given.which, ""),  # the newest complete backup
            "content": Argument(given.flag, False),
            "limit": Argument(given.number(1, 5000), 1000),
            "since": Argument(given.optional(given.path), None),
            **_SECONDS,
        },
    ),
    "download": Verb(
        "files", {**_BACKUP, **_PATH, "as": Argument(given.choice("file", "tar", "zip"), "file")}, Right.HOST, _STREAMS
    ),
    "hold": Verb("protection", {**_NAMED, **_WHY, **_UNTIL}, Right.OPERATE, _SHORT),
    "release": Verb("protection", _NAMED, Right.OPERATE, _SHORT),
    "accept": Verb("protection", {**_NAMED, **_WHY}, Right.OPERATE, _SHORT),
    "run": Verb("tasks", _HOST, Right.OPERATE, _SHORT),
    "restore": Verb("tasks", _RESTORE, Right.OPERATE, _SHORT),
    "preview": Verb("tasks", _RESTORE, Right.OPERATE, _HEAVY),
    "job": Verb("tasks", {"job": Argument(given.job), "lines": Argument(given.number(0, 1000), 50)}, Right.LISTED, _SHORT),
    "jobs": Verb(
        "tasks",
        {"limit": Argument(given.number(1, 1000), 200), "before": Argument(given.optional(given.job), None)},
        Right.LISTED,
        _SHORT,
    ),
    "doctor": Verb("queries", {}, Right.POOL, _SCANS, LONGEST_ANSWER),
    "plan": Verb("queries", {}, Right.POOL, _SCANS, LONGEST_ANSWER),
    "extents": Verb(
        "queries",
        {
            "vaddr": Argument(given.number(0, 2**64 - 1)),
            "curve": Argument(given.choice(*CURVES), CURVES[0]),
            "size": Argument(given.number(4, 12), None),
        },
        Right.POOL,
        _SCANS,
    ),
    "retention": Verb("queries", _HOST, Right.HOST, _SHORT),
    "hello": Verb("queries", {}, Right.LISTED, _SHORT),
}
VERBS = {name: _VERBS[name] for name in SERVICE_VERBS}
