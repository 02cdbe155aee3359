"""Calculates what was read and written between two readings of counters. Pure.

A counter says nothing by itself: it began when its device came up. A difference is only taken within one boot, of one and the same
device, and when it is not negative. Where a single device cannot be compared the whole span is not known: a gap in a curve is
honest, a dip or a spike is not. So no reboot, no replaced device and no counter that wraps ever shows as traffic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from btrkeep.pool.activity import Counters

_READ, _WRITTEN = 1, 3  # of what Counters.devices has for each
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Flow:
    """What was read and written in the `seconds` before a reading; 0: unknown."""

    seconds: float = 0.0
    read: int = 0
    written: int = 0
    pressure: Mapping[str, float] = field(default_factory=dict)


UNKNOWN = Flow()


def as_document(counters: Counters) -> dict[str, object]:
    """Returns them as stored in the catalogue."""
    return {"boot": counters.boot, "clock": counters.clock, "devices": counters.devices, "pressure": counters.pressure}


def flow(before: Mapping[str, object], after: Mapping[str, object], between: float) -> Flow:
    """Returns the flow between two readings, as `as_document` makes them. `between`: seconds by the wall clock.

    The time is that of the clock that nobody sets. A rehearsal has none (None), and there it is that of the calendar.
    """
    if not before or before.get("boot") != after["boot"]:
        return UNKNOWN
    then, now = cast(Mapping[str, Any], before), cast(Mapping[str, Any], after)
    seconds = between if now["clock"] is None or then["clock"] is None else now["clock"] - then["clock"]
    differences = _differences(then["devices"], now["devices"])
    if seconds <= 0 or differences is None:
        return UNKNOWN
    return Flow(
        seconds,
        sum(one[_READ] for one in differences),
        sum(one[_WRITTEN] for one in differences),
        _pressure(then["pressure"], now["pressure"], seconds),
    )


def _differences(before: Mapping[str, list[int]], after: Mapping[str, list[int]]) -> list[tuple[int, ...]] | None:
    """Returns the differences of all present devices; None if one was not present before, or restarted counting."""
    if not after.keys() <= before.keys():
        return None
    found = [tuple(now - then for then, now in zip(before[name], after[name], strict=True)) for name in after]
    # The milliseconds busy, the last of them, are a 32-bit number that wraps every seven weeks; nothing is made of them.
    return found if all(value >= 0 for one in found for value in one[: _WRITTEN + 1]) else None


def _pressure(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Returns the pressure of the kinds that both have. Waiting longer than the elapsed time means that a counter was reset."""
    found = {kind: (after[kind] - before[kind]) / _MICRO for kind in after if kind in before}
    return {kind: round(value, 3) for kind, value in found.items() if 0 <= value <= seconds * 1.1}
