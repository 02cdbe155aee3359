"""All that can be asked, and what each argument has to be. The function of that name in the module named does it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from backupd.serve import arguments as given
from backupd.serve.arguments import Argument
from btrkeep.serving.protocol import RequestRefused

Function = Callable[[Any], Any]
"""Of a call; gives what JSON can hold, or has made a stream."""


class ConcurrencyLimit:
    """How much of something may go on at once, and how much of that for one asker: one who asks much leaves places for others."""

    def __init__(self, at_once: int, of_one: int) -> None:
        self.at_once, self.of_one = at_once, of_one
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, who: str) -> Iterator[None]:
        """A place. Raises RequestRefused, of kind busy."""
        with self._lock:
            if self._taken[who] >= self.of_one or self._taken.total() >= self.at_once:
                of = "of that is under way for you" if self._taken[who] >= self.of_one else "of that is under way"
                raise RequestRefused(f"too much {of}", "try again in a moment", "busy", own=True)
            self._taken[who] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[who] -= 1
                self._taken += Counter()  # without those who have none


@dataclass(frozen=True, slots=True)
class Verb:
    """`module` is loaded when it is asked for the first time. `limit`: what of it may go on at once."""

    module: str
    arguments: Mapping[str, Argument]
    limit: ConcurrencyLimit | None = field(default=None, compare=False)

    def function(self, name: str) -> Function:
        """What does it."""
        found: Function = getattr(import_module(f"backupd.serve.verbs.{self.module}"), name)
        return found

    def place(self, who: str) -> AbstractContextManager[None]:
        """A place among those that are doing it. Raises RequestRefused, of kind busy."""
        return self.limit.taken(who) if self.limit else nullcontext()


_STREAMS = ConcurrencyLimit(10, 5)
"""They last as long as the asker's line is slow, and must leave room for everybody else."""
_HEAVY = ConcurrencyLimit(4, 2)
"""They read for as long as they may."""
_LISTS = ConcurrencyLimit(8, 4)
"""A folder of a million names takes seconds to put in order."""
_HOST = {"host": Argument(given.host)}
_BACKUP = {**_HOST, "backup": Argument(given.which)}
_NAMED = {**_HOST, "backup": Argument(given.name)}
_PATH = {"path": Argument(given.path)}
_UNTIL = {"until": Argument(given.moment, None)}
_SECONDS = {"seconds": Argument(given.number(0, 60), 20)}
_WHY = {"why": Argument(given.text(500), "")}
_RESTORE = {
    **_BACKUP,
    "paths": Argument(given.paths),
    "to": Argument(given.destination, given.HOST),
    "overwrite": Argument(given.optional(given.choice("never", "older", "all")), None),
}

VERBS: Mapping[str, Verb] = {
    "browse": Verb(
        "files",
        {
            **_BACKUP,
            **_PATH,
            "offset": Argument(given.number(0, 10**9), 0),
            "limit": Argument(given.number(1, 5000), 1000),
            "sort": Argument(given.choice("name", "kind", "size", "mode", "owner", "mtime"), "name"),
            "descending": Argument(given.flag, False),
        },
        _LISTS,
    ),
    "versions": Verb(
        "files",
        {
            **_HOST,
            **_PATH,
            "content": Argument(given.flag, False),
            "since": Argument(given.optional(given.whole_name), None),
            **_SECONDS,
        },
        _HEAVY,
    ),
    "compare": Verb(
        "files",
        {
            **_HOST,
            **_PATH,
            "before": Argument(given.which),
            "after": Argument(given.which, ""),  # the newest complete one
            "content": Argument(given.flag, False),
            "limit": Argument(given.number(1, 5000), 1000),
            **_SECONDS,
        },
        _HEAVY,
    ),
    "download": Verb("files", {**_BACKUP, **_PATH, "as": Argument(given.choice("file", "tar", "zip"), "file")}, _STREAMS),
    "hold": Verb("keeping", {**_NAMED, **_WHY, **_UNTIL}),
    "release": Verb("keeping", _NAMED),
    "accept": Verb("keeping", {**_NAMED, **_WHY}),
    "run": Verb("tasks", _HOST),
    "restore": Verb("tasks", _RESTORE),
    "preview": Verb("tasks", _RESTORE, _HEAVY),
    "job": Verb("tasks", {"job": Argument(given.job), "lines": Argument(given.number(0, 1000), 50)}),
    "jobs": Verb("tasks", {"limit": Argument(given.number(1, 1000), 200)}),
    "doctor": Verb("queries", {}),
    "plan": Verb("queries", {}),
    "extents": Verb(
        "queries",
        {
            "vaddr": Argument(given.number(0, 2**64 - 1)),
            "curve": Argument(given.choice("hilbert", "linear", "snake"), "hilbert"),
            "size": Argument(given.number(4, 12), None),
        },
    ),
    "retention": Verb("queries", _HOST),
    "hello": Verb("queries", {}),
}
