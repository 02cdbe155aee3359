"""The events of an expiry: how far it is, and its result."""

from dataclasses import dataclass, field
from enum import StrEnum

from btrkeep.clock import elapsed
from btrkeep.decisions.expiry_plan import Plan, UnreadableHost
from btrkeep.decisions.safety_limits import ClockAhead, ClockBehind, DeletedShare
from btrkeep.process.progress import Notice


class Pause(StrEnum):
    """Why an expiry deletes nothing for a while."""

    BALANCE = "balance"
    PACE = "pace"
    BACKUPS = "backups"


@dataclass(frozen=True, slots=True)
class ExpiryProgress:
    """How far it is. `waiting`: deleted subvolumes that are not dropped yet, anybody's; `rate`: drops per second over the last
    minute.

    `left`: seconds until everything planned is deleted and dropped at that rate; None where it is not known. `paused`: why nothing
    is deleted now, None when something is. `batch`: a batch was just deleted.
    """

    deleted: int
    planned: int
    waiting: int
    most: int
    rate: float | None
    left: float | None
    paused: Pause | None = None
    batch: bool = False


@dataclass(slots=True)
class Summary:
    """The result. `left_out`: hosts and why; `busy`: hosts that were locked by somebody's work, left to the next run.

    `problems`: what somebody must look at. `stop`: why nothing was done at all; `clock`: what is wrong with the clock; `error`:
    what ended it early. `waiting_for_grace`: backups that are marked and not due yet. `written_bytes`: to all devices meanwhile, by
    everybody. `still_waiting`: for the cleaner at the end. `ended_by`: a signal's number, 0 without one. `rest`: deletions that
    were due and not made (a limit, a signal, a host that was busy, a backup that is restored from).
    """

    planned: int = 0
    marked: int = 0
    revived: int = 0
    deleted: int = 0
    rest: int = 0
    waiting_for_grace: int = 0
    left_out: dict[str, DeletedShare | UnreadableHost] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hosts_gone: list[str] = field(default_factory=list)
    stop: DeletedShare | ClockBehind | None = None
    clock: ClockBehind | ClockAhead | None = None
    error: str | None = None
    mount_option: str | None = None
    most_waiting: int = 0
    still_waiting: int | None = None
    written_bytes: int | None = None
    ended_by: int = 0
    begun: float = field(default_factory=elapsed)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Returns True if nothing needs attention."""
        return not (self.left_out or self.problems or self.stop)

    @property
    def outcome(self) -> str:
        """Returns the outcome as in the catalogue (EXPIRY_OUTCOMES)."""
        if self.error:
            return "failed"
        if self.stop or self.ended_by:
            return "stopped"
        return "partial" if self.left_out or self.problems or self.rest else "complete"

    @property
    def written_each(self) -> int | None:
        """Bytes written per deleted subvolume; None when none was deleted or they were not counted."""
        return round(self.written_bytes / self.deleted) if self.written_bytes is not None and self.deleted else None


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deleted backup; `path` is where it was, without symlinks."""

    host: str
    name: str
    path: str


ExpiryEvent = Plan | ExpiryProgress | Notice | Summary
"""The plan comes first and the summary last."""
