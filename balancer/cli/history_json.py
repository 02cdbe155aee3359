"""The history of free space as JSON: every look, every balance and every step of it."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from btrkeep.units import format_time, printable

if TYPE_CHECKING:
    from btrkeep.catalogue import Balance, BalanceStep, FreeSpaceScore

_LOOK = ("block_groups", "length", "used", "unallocated", "fragments", "score", "bad", "largest_free", "free_in_large")
_BALANCE = ("outcome", "why", "policy", "budget", "block_groups", "moved", "written", "gained", "failed")
_STEP = ("number", "vaddr", "length", "used", "extents", "refs", "fragments", "score")
_TOOK = ("seconds", "moved", "written", "estimate_written", "estimate_seconds", "gained", "outcome", "error")


def document(
    filesystem: str,
    since: datetime,
    looks: "Sequence[FreeSpaceScore]",
    balances: "Sequence[tuple[Balance, bool, Sequence[BalanceStep]]]",
) -> dict[str, Any]:
    """All of it, oldest first. A balance comes with whether it runs now, and its steps."""
    return {
        "filesystem": filesystem,
        "since": format_time(since),
        "scores": [look_as_json(look) for look in looks],
        "balances": [balance_as_json(*one) for one in balances],
    }


def look_as_json(look: "FreeSpaceScore") -> dict[str, Any]:
    """One look at free space."""
    histogram = [{"at_least": least, "extents": extents, "bytes": size} for least, extents, size in look.histogram]
    return {"taken": format_time(look.taken), **{name: getattr(look, name) for name in _LOOK}, "histogram": histogram}


def balance_as_json(one: "Balance", is_running: bool, steps: "Sequence[BalanceStep]") -> dict[str, Any]:
    """One run with its steps."""
    return {
        "id": one.id,
        "mountpoint": printable(one.mountpoint),
        "started": format_time(one.started),
        "finished": format_time(one.finished) if one.finished else None,
        "running": is_running,
        **{name: getattr(one, name) for name in _BALANCE},
        "before": dict(one.before),
        "after": dict(one.after),
        "steps": [step_as_json(step) for step in steps],
    }


def step_as_json(step: "BalanceStep") -> dict[str, Any]:
    """One block group of a run."""
    before, took = ({name: getattr(step, name) for name in names} for names in (_STEP, _TOOK))
    return {**before, "started": format_time(step.started), **took}
