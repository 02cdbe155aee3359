"""bench.silence: its patterns match only complaints, and a few of its faults are made for real.

If it is wrong, docs/monitoring.rst promises a report of faults that are never reported.
"""

import json
import tempfile
from pathlib import Path

import pytest

from bench import silence_machine
from bench.silence import is_good, run_inside, table
from bench.silence_machine import PLACES
from tests.beds import session
from tests.beds.machine import why_not

REAL = ("pool read-only", "timer of the backups disabled", "host down")


def overview(**changed: object) -> str:
    calm = {"urgent": [], "alarms": [], "health": {"level": "ok", "findings": []}, "states": [["ok", 4], ["failing", 0]]}
    return json.dumps({**calm, **changed})


def test_a_calm_overview_and_calm_metrics_have_no_complaint_and_others_have() -> None:
    assert silence_machine.of_overview(overview()) == []
    assert silence_machine.of_overview(overview(states=[["ok", 3], ["failing", 1]])) == ["1 failing"]
    assert silence_machine.of_overview(overview(health={"level": "unknown", "findings": []}))
    assert silence_machine.of_overview("no answer: refused") == ["no answer: refused"]
    calm = 'btrkeep_look_timestamp_seconds{pool="main"} 1000.0\nbtrkeep_alarms{event="failure",pool="main"} 0.0\n'
    assert silence_machine.of_metrics(calm, 1100.0) == []
    assert silence_machine.of_metrics(calm, 9000.0) == ["the file of metrics is older than an hour"]
    assert silence_machine.of_metrics(calm.replace("} 0.0", "} 2.0"), 1100.0) == ['btrkeep_alarms{event="failure",pool="main"} 2.0']
    assert silence_machine.of_metrics("", 1100.0) == ["empty"]


def test_what_was_not_told_or_has_not_ended_is_named_in_the_table() -> None:
    took = {place: {"seconds": 3.2, "nights": 0, "waited": 0} for place in PLACES}
    good = {"fault": "good", "kind": "A", "reported": took, "not_told": [], "left": [], "took": 9}
    silent = {**good, "fault": "silent", "reported": {"status": took["status"]}, "not_told": ["overview", "metrics", "webhook"]}
    left = {**good, "fault": "left", "left": ["status: exit status 1"]}
    broken = {"fault": "broken", "kind": "A", "broken": "Traceback\nOSError: no", "left": [], "took": 1}
    loud = {"clean_night": 1, "complaints": ["webhook: all is lost"], "seconds": 1}
    rows = [loud, good, silent, left, broken]
    assert [is_good(row) for row in rows] == [False, True, False, False, False]
    lines = list(table(rows))
    assert "not told: silent (overview, metrics, webhook)" in lines
    assert "not told: broken (not made)" in lines
    assert "still reported after the end: left" in lines
    assert "clean nights: 1, of which 1 were not silent" in lines


@pytest.mark.slow
@pytest.mark.takes(100)
@pytest.mark.btrfs
@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=f"left out: under real systemd ({why_not()})")
@pytest.mark.timeout(600)  # the machine may have to be made first
def test_some_faults_are_made_on_a_booted_server_and_reported_and_a_night_without_one_is_silent() -> None:
    folder = Path(tempfile.mkdtemp(prefix="silence-", dir=session.folder(2 << 30)))
    try:
        rows = run_inside(folder, REAL, clean_nights=1)
    finally:
        problems = session.remove(folder)
    assert not problems, "\n".join(problems)
    assert [row.get("fault") for row in rows] == [None, *REAL]
    assert all(is_good(row) for row in rows), json.dumps(rows, indent=2)
    assert all(set(row["reported"]) == set(PLACES) for row in rows[1:])
