"""Announces every change of state by an audit event of Python (PEP 578), before and after it. Only tests listen, to kill a run at a
chosen checkpoint (tests/beds/kill_at.py). Without a listener a checkpoint takes a quarter of a microsecond.
"""

import sys
from contextlib import ContextDecorator

EVENT = "btrkeep.checkpoint"
"""Its arguments: `before` or `after`, and what is changed, in words."""


class Checkpoint(ContextDecorator):
    """Used around a change of state, or on the function that makes it: `after` is announced only if nothing was raised. Not for a
    coroutine function, which has done nothing yet when it returns; nor for a generator.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        sys.audit(EVENT, "before", self._name)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            sys.audit(EVENT, "after", self._name)
