"""Five years of backups against golden lists made by GNU date and SQLite (golden/reference.py), and random days against
those two.
"""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.config import Retention
from btrkeep.decisions.retention import Candidate
from tests.backupd.golden.reference import GOLDEN, RULES, Backup, Scenario, golden, scenarios, text
from tests.backupd.golden.reference import kept as truth
from tests.backupd.golden.replay import candidate, expire, kept, pruned_each_time

SCENARIOS = scenarios()
EACH = pytest.mark.parametrize(("name", "scenario"), SCENARIOS.items(), ids=SCENARIOS)


@EACH
def test_five_years_pruned_once_leave_what_the_golden_list_names_with_the_same_reasons(name: str, scenario: Scenario) -> None:
    backups = [candidate(backup) for backup in scenario.backups]
    assert kept(backups, Retention(**scenario.policy), scenario.zone, scenario.end) == golden(name)


@pytest.mark.slow
@EACH
def test_five_years_pruned_after_each_backup_leave_what_the_golden_list_names(name: str, scenario: Scenario) -> None:
    policy = Retention(**scenario.policy)
    left = pruned_each_time([candidate(backup) for backup in scenario.backups], policy, scenario.zone)
    assert kept(left, policy, scenario.zone, scenario.end) == golden(name)
    assert {backup.name for backup in left} == set(golden(name))


@pytest.mark.slow
@EACH
def test_five_years_with_a_grace_leave_what_the_golden_list_names_and_what_waits_for_the_end_of_its_grace(
    name: str, scenario: Scenario
) -> None:
    policy = Retention(**scenario.policy, grace=3 * 86400)
    left: list[Candidate] = []
    for backup in map(candidate, scenario.backups):
        left = expire([*left, backup], policy, scenario.zone, backup.started)
    assert {backup.name for backup in left if not backup.expired} == set(golden(name))
    waiting = [backup for backup in left if backup.expired]
    assert waiting
    assert all(backup.expired and backup.expired > left[-1].started - timedelta(days=3) for backup in waiting)


@pytest.mark.slow
@EACH
def test_the_golden_lists_are_those_of_the_reference(name: str, scenario: Scenario) -> None:
    assert (GOLDEN / f"{name}.txt").read_text("utf-8") == text(name, scenario)


def test_the_golden_lists_know_what_hands_can_count() -> None:
    """Spot checks with a paper calendar."""
    daily, four, patchy = (golden(name) for name in ("daily", "four-a-day", "patchy"))
    # 00:16 in Berlin on Monday 2020-12-28, with which week 53 begins.
    assert daily["2020-12-27T231600Z"] == {"weekly 4 of 13"}
    assert "2021-01-04T231200Z" in daily  # 00:12 on Tuesday the 5th: Monday's came at 23:35 on Sunday
    assert daily["2020-02-29T230200Z"] == {"monthly 11 of 12"}  # 00:02 on the first of March
    assert daily["2017-01-01T232400Z"] == {"yearly 5 of 5"}  # the night before was at 23:47 on 2016-12-31
    # Brazil's clocks went from 00:00 to 01:00 on 2018-11-04, which is 03:00 UTC.
    assert four["2018-11-04T031000Z"] == {"daily 6 of 14"}
    # Samoa: 03:50 on the 29th, 14:03 on the 31st, 04:25 on the first.
    assert patchy["2011-12-29T135059Z"] == {"daily 8 of 10"}
    assert patchy["2011-12-31T000352Z"] == {"daily 7 of 10"}
    assert patchy["2011-12-31T142537Z"] == {"daily 6 of 10", "monthly 1 of 24", "yearly 1 of 7"}


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


# Zones, and moments around which days are odd: clock changes in the night, at midnight, over midnight, a day that never was.
ODD = {
    "Europe/Berlin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z", "2020-12-28T00:00+01:00", "2027-01-04T00:00+01:00"),
    "America/Sao_Paulo": ("2018-02-18T02:00Z", "2018-11-04T03:00Z", "2016-02-29T03:00Z"),
    "Africa/Cairo": ("2023-04-27T22:00Z", "2023-10-26T21:00Z", "2024-02-29T22:00Z"),
    "Asia/Beirut": ("2023-03-29T22:00Z", "2022-10-29T21:00Z"),
    "Pacific/Apia": ("2011-12-30T10:00Z", "2012-01-02T00:00+14:00"),
    "America/St_Johns": ("2006-10-29T02:31Z", "2006-04-02T03:31Z"),  # at 00:01, so Saturday comes back after a minute of Sunday
    "Australia/Lord_Howe": ("2026-04-04T15:00Z", "2026-10-03T15:30Z"),
    "UTC": ("2020-02-29T00:00Z", "2026-12-31T00:00Z"),
}
QUICK = ("UTC", "Europe/Berlin")  # the others are no part of `--unit`
POLICIES = st.fixed_dictionaries({**{rule: st.integers(0, 4) for rule in RULES}, "min_keep": st.integers(1, 4)}).filter(
    lambda policy: any(policy[rule] for rule in RULES)
)
STATES = st.sampled_from(("complete", "complete", "complete", "suspect", "failed"))


@pytest.mark.parametrize("zone", [pytest.param(zone, marks=() if zone in QUICK else pytest.mark.slow) for zone in ODD])
@given(st.data(), POLICIES)
def test_what_is_kept_and_why_is_what_gnu_date_and_sqlite_say(zone: str, data: st.DataObject, policy: dict[str, int]) -> None:
    around = st.sampled_from([seconds(moment) for moment in ODD[zone]])
    near = st.builds(int.__add__, around, st.integers(-90 * 60, 90 * 60) | st.integers(-40 * 86400, 40 * 86400))
    backups = [Backup(epoch, data.draw(STATES)) for epoch in data.draw(st.lists(near, min_size=1, max_size=25, unique=True))]
    end = datetime.fromtimestamp(max(backups).epoch, UTC)
    assert kept([candidate(backup) for backup in backups], Retention(**policy), zone, end) == truth(backups, policy, zone)
