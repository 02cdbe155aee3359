"""The history of free space over months: which of many samples are shown, and the sums of balances. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from btrkeep.catalogue import Balance, FreeSpaceScore


def thinned(moments: Sequence[datetime], count: int) -> list[int]:
    """Returns which of these moments, in order, to show in `count` lines, at least two: the first, and the last of each slot.

    Slots are of equal length, so that a week with many samples takes no more lines than one with few; an empty slot takes none.
    """
    if len(moments) <= count:
        return list(range(len(moments)))
    first, slots = moments[0], count - 1
    whole = (moments[-1] - first) / slots
    last_of = {min(int((moment - first) / whole), slots - 1) if whole else 0: at for at, moment in enumerate(moments) if at}
    return [0, *last_of.values()]


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One displayed sample. `moved`: bytes moved by balances since the sample displayed above it, None for the first."""

    look: "FreeSpaceScore"
    moved: int | None


def shown(looks: "Sequence[FreeSpaceScore]", balances: "Sequence[Balance]", count: int) -> list[HistoryLine]:
    """The looks, oldest first, thinned to `count`. A balance counts where it ended or was heard of last."""
    kept = [looks[at] for at in thinned([look.taken for look in looks], count)]
    lines = []
    for before, look in zip([None, *kept], kept, strict=False):
        since = [one.moved for one in balances if before and before.taken < (one.finished or one.updated) <= look.taken]
        lines.append(HistoryLine(look, sum(since) if before else None))
    return lines


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of some balances. `written` counts those of which it is known."""

    count: int
    moved: int
    written: int
    gained: float


def sums(balances: "Sequence[Balance]") -> Sums:
    """Returns the totals of all balances, including stopped or killed ones, because what they moved has moved."""
    moved, written = sum(one.moved for one in balances), sum(one.written or 0 for one in balances)
    return Sums(len(balances), moved, written, sum(one.gained for one in balances))
