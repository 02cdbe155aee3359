"""Counts the device errors that our own reads of files known to be damaged cause, so that no scrub has to look for them.

An error that another reader meets in just that time, without a line in the kernel's log, is taken for one of these.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from backupd.actions.read_errors import look_at_read_errors, read_counters
from backupd.repo.context import PoolContext
from btrkeep.decisions.device_errors import SeenErrors, forget_own, grown


class OwnReads:
    """The reads of one command, from `moment` on."""

    def __init__(self, context: PoolContext, moment: datetime) -> None:
        """Looks first, because what was counted until now somebody else has met. Raises OSError."""
        self._site, self._moment, self._errors = context, moment, 0
        look_at_read_errors(context, moment)

    @contextmanager
    def counting(self, met: Callable[[], int] | None = None) -> Iterator[None]:
        """Counts what is read in the block: files known to be damaged. Or, with `met`, the number of what was found damaged
        and has a name, if that is larger at the end.
        """
        before, known = read_counters(self._site), met() if met else 0
        try:
            yield
        finally:
            if met is None or met() > known:
                self._errors += grown(SeenErrors(before), read_counters(self._site))

    def forget(self) -> None:
        """Looks again, and forgets as many of the errors without a name as these reads met. Raises OSError.

        If the log cannot be read nothing is written down, so that the next look reads what this one could not.
        """
        found = look_at_read_errors(self._site, self._site.clock.now())
        if not found.why:
            forget_own(self._site.catalogue, found.seen, self._moment, max(0, self._errors - found.lines))
