"""Progress of long work: a series of events, each passed to every sink.

An event is a value that the work has anyway, such as its plan, a reading or its result, or one of those below. A sink is a function
of one event: a display, lines, the catalogue's record, the status line of `systemctl status`. It ignores events that do not concern
it. It is called in the working thread, so it must be quick; if it raises, the work ends in good order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the operator should know, and no state."""

    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The work is waiting; repeated while it waits."""

    why: str


Event = TypeVar("Event")
ProgressSink = Callable[[Event], None]


class ProgressSinks(Generic[Event]):
    """Passes events to several sinks in order."""

    def __init__(self, *sinks: ProgressSink[Event | Notice]) -> None:
        self._sinks = sinks

    def __call__(self, event: Event | Notice) -> None:
        for sink in self._sinks:
            sink(event)

    def notice(self, text: str) -> None:
        """Sends a Notice."""
        self(Notice(text))
