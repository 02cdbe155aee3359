"""What an expiry tells: how far it is, what came of it, and who is told."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from btrkeep.decisions.expiry_plan import Plan
from btrkeep.process.proc import Standing
from btrkeep.units import counted


@dataclass(frozen=True, slots=True)
class ExpiryProgress:
    """How far it is. `waiting`: deleted subvolumes that are not dropped yet, anybody's; `rate`: drops per second over the last
    minute.

    `left`: seconds until everything planned is deleted and dropped at that rate; None where it is not known. `paused`: why nothing
    is deleted now, or "".
    """

    deleted: int
    planned: int
    waiting: int
    most: int
    rate: float | None
    left: float | None
    paused: str = ""


@dataclass(slots=True)
class Summary:
    """What became of it. `left_out`: hosts and why; `busy`: hosts that were locked by somebody's work, left to the next run.

    `problems`: what somebody must look at. `stop`: why nothing was done at all; `clock`: what is odd with the clock; `error`: what
    ended it before its time. `waiting_for_grace`: backups that are marked and not due yet. `written_bytes`: by everybody, to all
    devices, meanwhile. `still_waiting`: for the cleaner at the end. `ended_by`: a signal's number, 0 without one. `rest`: deletions
    that were due and not made (a limit, a signal, a host that was busy, a backup that is restored from).
    """

    planned: int = 0
    marked: int = 0
    revived: int = 0
    deleted: int = 0
    rest: int = 0
    waiting_for_grace: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hosts_gone: list[str] = field(default_factory=list)
    stop: str | None = None
    clock: str | None = None
    error: str | None = None
    mount_option: str | None = None
    most_waiting: int = 0
    still_waiting: int | None = None
    written_bytes: int | None = None
    ended_by: int = 0
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nobody needs to look."""
        return not (self.left_out or self.problems or self.stop)

    @property
    def outcome(self) -> str:
        """As the catalogue has it (EXPIRY_OUTCOMES)."""
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
    """A backup that was deleted; `path` is where it was, without symlinks."""

    host: str
    name: str
    path: str


class ExpiryObserver(Protocol):
    """Who is told; must be quick."""

    def begin(self, plan: Plan) -> None: ...
    def progress(self, now: ExpiryProgress) -> None: ...
    def batch(self, now: ExpiryProgress) -> None: ...
    def notice(self, text: str) -> None: ...
    def end(self, summary: Summary) -> None: ...


def names_in_words(names: Sequence[str], most: int = 5) -> str:
    """ "a, b and 17 more"."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def held_words(deleted: Mapping[int, Deleted], held: Mapping[int, Standing | None]) -> str:
    """Which deleted backups the cleaner cannot take, and who has a file open or stands in them."""
    told = []
    for id_, who in sorted(held.items()):
        by = f"process {who.pid} ({who.name})" if who else "nobody who is seen (a mount?)"
        told.append(f"{deleted[id_].host} {deleted[id_].name} by {by}")
    count, inside = counted(len(held), "deleted backup"), "it" if len(held) == 1 else "them"
    return f"{count} cannot be dropped as long as something in {inside} is open: {names_in_words(told)}"


def stuck_words(waiting: int) -> str:
    """Why nothing more is deleted when nothing leaves the queue."""
    return (
        f"nothing more is deleted: {counted(waiting, 'deleted subvolume')} fill the queue (max_orphans) and nothing moves; "
        "somebody has files open in them, or stands in them"
    )
