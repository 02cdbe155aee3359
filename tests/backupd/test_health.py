"""The decision whether the pool has a problem, from plain facts, and the part of it that the catalogue stores."""

from dataclasses import replace
from pathlib import Path

import pytest

from btrkeep.config.values import SizeOrShare
from btrkeep.decisions import findings as v
from btrkeep.decisions.findings import CHECKS, PoolVerdict, StoredVerdict, as_text, from_text
from btrkeep.decisions.pool_health import HealthLimits, PoolFacts, judge_pool
from btrkeep.decisions.schedule import ScheduleVerdict
from btrkeep.pool.space_by_profile import Room
from tests.backupd.facts import NOW
from tests.backupd.seen import GIB, well

LIMITS = HealthLimits(Path("/srv/backup"), Path("/var/lib/btrkeep/main"), SizeOrShare("5%", 0.05), 0.9)
TIB = 1 << 40


def room(free: int, unallocated: int, metadata: int = GIB, total: int = 100 * GIB) -> PoolFacts:
    return well(room=Room(total, free, unallocated, metadata))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (well(), {}),
        (room(20 * GIB, 2 * GIB), {}),
        (room(20 * GIB, 2 * GIB - 1), {"unallocated": "warning"}),
        (room(20 * GIB, GIB, 900 << 20), {"unallocated": "warning"}),
        (room(20 * GIB, GIB, 100 << 20), {"unallocated": "error"}),
        (room(TIB - 5 * GIB, 4 * GIB, total=10 * TIB), {"used": "warning"}),
        (room(2 * TIB, 4 * GIB, total=10 * TIB), {}),
        (room(0, 10 * GIB), {"used": "warning"}),
        (replace(room(0, 12 * GIB), was_full=True), {"used": "warning"}),
        (room(0, 12 * GIB), {}),
        (replace(room(0, 13 * GIB), was_full=True), {}),
        (room(0, 4 * GIB), {"room": "error", "used": "warning"}),
        (room(50 * GIB, 10 << 20, 10 << 20), {"room": "error", "unallocated": "error"}),
        (room(1, 12 << 20, 1), {"room": "error", "unallocated": "error", "used": "warning"}),
        (well(missing=(3,)), {"missing-device": "error"}),
        (well(errors={1: {"read": 1}}), {"device-errors": "error"}),
        (well(read_only=True), {"read-only": "error"}),
        (well(foreign="0815"), {"catalogue": "error"}),
        (well(lost=True), {"catalogue": "error"}),
        (well(schedule=ScheduleVerdict(missed=("web1",))), {"schedule": "warning"}),
        (PoolFacts(fault="not mounted"), {"unusable": "error"}),
    ],
)
def test_what_is_wrong_and_how_bad(facts: PoolFacts, expected: dict[str, str]) -> None:
    verdict = judge_pool(facts, LIMITS)
    assert {finding.check: finding.level for finding in verdict.findings} == expected
    assert verdict.level == max(expected.values(), key=("ok", "warning", "error").index, default="ok")
    assert all(finding.hint for finding in verdict.findings if finding.check != "unusable")
    assert {check: verdict.level_of(check) for check in expected} == expected


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (room(20 * GIB, GIB, 900 << 20), "all space is allocated"),
        (room(20 * GIB, GIB, 100 << 20), "metadata is full"),
        (room(GIB, 0, 900 << 20), "data is full"),
        (well(left_devices=("/var/lib/btrkeep/main/temporary-device-1",)), "a temporary device is still part of the pool"),
    ],
)
def test_data_full_metadata_full_all_allocated_and_a_device_that_was_left_are_told_apart(facts: PoolFacts, words: str) -> None:
    (finding,) = judge_pool(facts, LIMITS).of(v.UNALLOCATED)
    assert words in finding.text
    assert ("--fix room" in finding.hint) is (words != "data is full")


def test_each_check_is_seen_to_find_something_and_only_what_stops_backups_makes_the_pool_unusable() -> None:
    broken = (
        well(foreign="x", read_only=True, missing=(1,), errors={1: {"read": 1}}, room=Room(100 * GIB, 0, 1, 1)),
        well(schedule=ScheduleVerdict(missed=("web1",))),
        PoolFacts("not mounted"),
    )
    findings = [finding for facts in broken for finding in judge_pool(facts, LIMITS).findings]
    assert {finding.check for finding in findings} == set(CHECKS)
    assert {finding.check for finding in findings if finding.unusable} == {v.UNUSABLE, v.READ_ONLY, v.ROOM}


@pytest.mark.parametrize(
    ("unknown", "checks"),
    [
        ("foreign", {"catalogue"}),
        ("read_only", {"read-only"}),
        ("missing", {"missing-device"}),
        ("errors", {"device-errors"}),
        ("room", {"room", "unallocated", "used"}),
    ],
)
def test_what_could_not_be_looked_at_is_not_well(unknown: str, checks: set[str]) -> None:
    verdict = judge_pool(well(**{unknown: None}), LIMITS)
    assert (verdict.level, set(verdict.unlooked)) == ("unknown", checks)
    assert {v.grade(verdict.level_of(check)) for check in checks} == {None}
    assert {verdict.level_of(check) for check in set(CHECKS) - checks} == {"ok"}
    worse = judge_pool(well(**{unknown: None, "was_full": True, "fault": ""}), LIMITS)
    assert worse.level == "unknown"


def test_a_schedule_that_could_not_be_read_is_not_well() -> None:
    verdict = judge_pool(well(schedule=ScheduleVerdict(unknown="systemctl: timed out")), LIMITS)
    assert (verdict.level, verdict.unlooked) == ("unknown", ("schedule",))


def test_of_a_pool_that_cannot_be_used_nothing_else_is_known() -> None:
    verdict = judge_pool(PoolFacts("not mounted", "mount it"), LIMITS)
    assert set(verdict.unlooked) == set(CHECKS) - {"unusable"}
    assert [finding.hint for finding in verdict.findings] == ["mount it"]


def test_a_verdict_goes_through_the_catalogue_as_it_is_and_anything_else_is_none() -> None:
    kept = StoredVerdict(NOW, judge_pool(well(missing=(2,), errors={1: {"read": 3}}, room=None), LIMITS))
    assert from_text(as_text(kept)) == kept
    assert from_text(as_text(StoredVerdict(NOW, PoolVerdict()))) == StoredVerdict(NOW, PoolVerdict())
    for text in (None, "", "[]", "no json", "{}", as_text(kept).replace('"hint"', '"later"'), as_text(kept).replace("2026", "x")):
        assert from_text(text) is None, text
