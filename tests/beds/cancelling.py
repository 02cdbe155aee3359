"""A cancellation at the nth check."""

from collections.abc import Callable

from btrkeep.process.progress import Cancellation


class CancelledWhen(Cancellation):
    """Cancelled as soon as `asked` returns True; it is called at each check."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        super().__init__()
        self._asked = asked

    def __bool__(self) -> bool:
        return self._asked()
