"""A plan and a report as JSON objects. Times are RFC 3339, sizes bytes, durations seconds."""

from collections.abc import Sequence
from typing import Any

from balancer.cli.plan_view import StopPoint
from balancer.explain import profile
from balancer.run_types import PlannedBlockGroup, Report, RunSettings, SpaceNumbers, StepDone
from btrkeep.units import format_time


def plan_as_json(
    filesystem: str, now: SpaceNumbers, planned: Sequence[PlannedBlockGroup], cut: StopPoint, settings: RunSettings
) -> dict[str, Any]:
    """`within`: how many of the block groups budget and time cover, the first ones."""
    return {
        "filesystem": filesystem,
        **settings_as_json(settings),
        "before": numbers_as_json(now),
        "within": cut.number,
        "planned": [_planned(one, within=at < cut.number) for at, one in enumerate(planned)],
    }


def report_as_json(report: Report, settings: RunSettings) -> dict[str, Any]:
    """All of a run."""
    return {
        "filesystem": report.filesystem,
        **settings_as_json(settings),
        "started": format_time(report.started),
        "seconds": round(report.seconds, 3),
        "ending": str(report.reason),
        "why": report.why,
        "before": numbers_as_json(report.before),
        "after": numbers_as_json(report.after),
        "balanced": report.balanced,
        "moved": report.moved,
        "written": report.written,
        "amplification": report.amplification,
        "gained": report.gained,
        "steps": [_step(step) for step in report.steps],
    }


def settings_as_json(settings: RunSettings) -> dict[str, Any]:
    """Returns the settings that decide what is balanced."""
    return {
        "policy": settings.policy,
        "min_score": settings.floors.min_score,
        "min_benefit": settings.floors.min_benefit,
        "budget": settings.budget,
        "time": settings.time,
        "until": settings.until and format_time(settings.until),
    }


def numbers_as_json(numbers: SpaceNumbers) -> dict[str, Any]:
    """A filesystem at one moment."""
    return {name: getattr(numbers, name) for name in SpaceNumbers.__slots__}


def _group(one: PlannedBlockGroup, *columns: str) -> dict[str, Any]:
    """A block group before it is balanced."""
    estimate = one.estimate
    return {
        "vaddr": one.vaddr,
        "length": one.length,
        "profile": profile(one.type),
        **{name: getattr(one, name) for name in ("used", "fragments", "score", *columns)},
        "extents": one.cost.extents,
        "references": one.cost.references,
        "estimate": {"moved": estimate.moved, "metadata": estimate.metadata, "seconds": round(estimate.seconds, 3)},
    }


def _planned(one: PlannedBlockGroup, *, within: bool) -> dict[str, Any]:
    return {**_group(one, "benefit"), "moved_so_far": one.moved_so_far, "within": within}


def _step(done: StepDone) -> dict[str, Any]:
    return {
        "number": done.group.number,
        **_group(done.group),
        "started": format_time(done.started),
        "seconds": round(done.seconds, 3),
        "outcome": str(done.outcome),
        **{name: getattr(done, name) for name in ("moved", "written", "gained", "freed", "unallocated", "error")},
    }
