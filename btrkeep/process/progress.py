"""How far long work is: one event after the other, each told to every sink.

An event is a value that the work has anyway, such as its plan, a reading or its result, or one of those below. A sink is a function
of one event: a display, lines, the catalogue's record, the line of `systemctl status`. It passes over what does not concern it. It
is called where the work is done, so it must be quick; when it raises, the work ends in good order.
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
    """Nothing is done for the moment; told again and again while that lasts."""

    why: str


Event = TypeVar("Event")
ProgressSink = Callable[[Event], None]


class ProgressSinks(Generic[Event]):
    """Tells each of several sinks, in their order."""

    def __init__(self, *sinks: ProgressSink[Event | Notice]) -> None:
        self._sinks = sinks

    def __call__(self, event: Event | Notice) -> None:
        for sink in self._sinks:
            sink(event)

    def notice(self, text: str) -> None:
        """Tells a Notice."""
        self(Notice(text))
