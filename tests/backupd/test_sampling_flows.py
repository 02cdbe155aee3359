"""Differences of counters that a reboot, another device, a wrap-around or a changed clock must never show."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.observe.sampling import UNKNOWN, as_document, flow
from btrkeep.pool.activity import Counters

BEFORE = Counters("boot-1", 1000.0, {"sda:9": (10, 1 << 30, 20, 2 << 30, 500), "sdb:3": (0, 0, 5, 4096, 1)}, {"io some": 5_000_000})
AFTER = Counters(
    "boot-1",
    1300.0,
    {"sda:9": (30, (1 << 30) + 700, 25, (2 << 30) + 900, 900), "sdb:3": (0, 50, 6, 4196, 2)},
    {"io some": 8_000_000},
)


def between(before: Counters | None, after: Counters, calendar: float = 300.0) -> Any:
    return flow(as_document(before) if before else {}, as_document(after), calendar)


def test_what_went_on_between_two_looks_is_the_sum_over_all_devices() -> None:
    answer = between(BEFORE, AFTER)
    assert (answer.seconds, answer.read, answer.written, answer.pressure) == (300.0, 750, 1000, {"io some": 3.0})


@pytest.mark.parametrize(
    "after",
    [
        replace(AFTER, boot="boot-2"),
        replace(AFTER, boot="boot-2", clock=5.0, devices={"sda:9": (1, 4096, 1, 4096, 1), "sdb:3": (0, 0, 0, 0, 0)}),
        replace(AFTER, devices={"sda:9": AFTER.devices["sda:9"], "sdc:12": (9, 1 << 50, 9, 1 << 50, 9)}),
        replace(AFTER, devices={"sda:10": (9, 1 << 50, 9, 1 << 50, 9), "sdb:3": AFTER.devices["sdb:3"]}),
        replace(AFTER, devices={**AFTER.devices, "sdc:12": (9, 1 << 50, 9, 1 << 50, 9)}),
        replace(AFTER, devices={"sda:9": (30, 700, 25, 900, 900), "sdb:3": AFTER.devices["sdb:3"]}),
        replace(AFTER, clock=1000.0),
    ],
    ids=["boot", "boot and small", "replaced", "same name anew", "added", "wrapped", "no time"],
)
def test_what_cannot_be_compared_is_not_known_rather_than_a_spike(after: Counters) -> None:
    assert between(BEFORE, after) is UNKNOWN
    assert between(None, after) is UNKNOWN


def test_a_device_that_was_removed_does_not_matter() -> None:
    assert between(BEFORE, replace(AFTER, devices={"sdb:3": AFTER.devices["sdb:3"]})).written == 100


def test_milliseconds_that_wrap_after_seven_weeks_do_not_matter() -> None:
    assert (
        between(
            replace(BEFORE, devices={"sda:9": (1, 2, 3, 4, 2**32 - 1)}), replace(AFTER, devices={"sda:9": (1, 2, 3, 14, 5)})
        ).written
        == 10
    )


def test_a_clock_that_is_set_changes_no_rate_and_a_rehearsal_goes_by_the_calendar() -> None:
    assert between(BEFORE, AFTER, calendar=-86400.0).seconds == 300.0
    timeless = {**as_document(AFTER), "clock": None}
    assert flow(as_document(BEFORE), timeless, 7200.0).seconds == 7200.0
    assert flow(as_document(BEFORE), timeless, -1.0) is UNKNOWN


def test_pressure_that_cannot_be_is_left_out() -> None:
    strange = replace(AFTER, pressure={"io some": 5_000_000 + 10**12, "memory some": 7})
    assert between(BEFORE, strange).pressure == {}
    assert between(BEFORE, replace(AFTER, pressure={"io some": 1})).pressure == {}


COUNTS = st.tuples(*[st.integers(0, 2**64 - 1)] * 5)
LOOKS = st.builds(
    Counters,
    st.sampled_from(["a", "b"]),
    st.floats(0, 1e9),
    st.dictionaries(st.sampled_from(["sda:1", "sda:2", "sdb:1"]), COUNTS, max_size=3),
    st.dictionaries(st.sampled_from(["io some"]), st.integers(0, 2**63), max_size=1),
)


@given(LOOKS, LOOKS)
def test_no_two_looks_whatever_they_are_give_more_than_the_counters_moved(before: Counters, after: Counters) -> None:
    answer = between(before, after)
    assert answer.seconds >= 0
    assert answer.read >= 0
    moved = sum(max(now[3] - before.devices.get(name, now)[3], 0) for name, now in after.devices.items())
    assert 0 <= answer.written <= moved
    assert all(0 <= seconds <= answer.seconds * 1.1 for seconds in answer.pressure.values())
