"""Retention by example: hosts without new backups, wrong clocks, other reasons to keep a backup; and policies as text."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from btrkeep.config import Retention
from btrkeep.decisions.retention import Candidate, Decision, DeletionRequest, Hold, Reason, RetentionCode, decide, parse_policy
from btrkeep.decisions.retention_words import reason_words
from tests.backupd.golden.replay import kept, names, prune, pruned_each_time

POLICY = Retention(daily=14, weekly=13, monthly=12)
FEW = Retention(daily=1, min_keep=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


NOW = at("2026-11-20T23:00Z")


def backup(started: str | datetime, state: str = "complete", **fields: object) -> Candidate:
    moment = at(started) if isinstance(started, str) else started
    return Candidate(moment.isoformat()[:19].replace(":", "") + "Z", moment, state, **fields)  # type: ignore[arg-type]


def every(step: timedelta, first: str, last: str) -> Iterator[Candidate]:
    moment = at(first)
    while moment <= at(last):
        yield backup(moment)
        moment += step


def decisions(*backups: Candidate, policy: Retention = FEW, now: datetime = NOW, zone: str = "UTC") -> dict[str, Decision]:
    """Returns the decisions by day of the month, which is the only difference in most examples."""
    return {decision.name[8:10]: decision for decision in decide(backups, policy, ZoneInfo(zone), now)}


def reasons_of(decision: Decision) -> tuple[str, ...]:
    return tuple(map(reason_words, decision.reasons))


def reasons(*backups: Candidate, policy: Retention = FEW, now: datetime = NOW) -> dict[str, tuple[str, ...]]:
    return {day: reasons_of(decision) for day, decision in decisions(*backups, policy=policy, now=now).items()}


def kept_when_pruned_daily(backups: list[Candidate], now: datetime = NOW) -> list[str]:
    """Pruned after each backup, and then each day until `now`; pruning once at the end must have the same result."""
    left = pruned_each_time(backups, POLICY, "UTC")
    moment = backups[-1].started
    while moment < now:
        moment += DAY
        left = prune(left, POLICY, "UTC", min(moment, now))
    assert names(left) == names(prune(backups, POLICY, "UTC", now))
    return names(left)


# The cases in which other programs' rules were compared, 14 days, 13 weeks, 12 months; counted with a calendar.
def test_two_years_of_daily_backups_leave_37() -> None:
    """14 days, 13 weeks and 12 months, of which the Mondays 9 and 16 November are both the first of a day and of a week."""
    left = kept_when_pruned_daily(list(every(DAY, "2024-11-21T22:00Z", "2026-11-20T22:00Z")))
    assert (len(left), left[0]) == (37, "2025-12-01T220000Z")


@pytest.mark.slow
def test_two_years_of_four_backups_a_day_leave_three_more_for_min_keep() -> None:
    left = kept_when_pruned_daily(list(every(DAY / 4, "2024-11-21T04:00Z", "2026-11-20T22:00Z")))
    assert (len(left), left[0]) == (40, "2025-12-01T040000Z")
    assert left[-4:] == [f"2026-11-20T{hour}0000Z" for hour in ("04", "10", "16", "22")]


def test_a_host_that_was_silent_for_60_days_keeps_all_of_its_37() -> None:
    left = kept_when_pruned_daily(list(every(DAY, "2024-11-21T22:00Z", "2026-09-21T22:00Z")))
    assert (len(left), left[0], left[-1]) == (37, "2025-10-01T220000Z", "2026-09-21T220000Z")


def test_a_host_that_was_dead_for_400_days_keeps_all_of_its_36() -> None:
    """Shared: the Mondays 6 and 13 October between days and weeks, Monday 1 September between weeks and months."""
    left = kept_when_pruned_daily(list(every(DAY, "2024-11-21T22:00Z", "2025-10-16T22:00Z")))
    assert (len(left), left[0], left[-1]) == (36, "2024-11-21T220000Z", "2025-10-16T220000Z")


def test_one_backup_stamped_2028_is_one_more_and_nothing_else() -> None:
    before = list(every(DAY, "2024-11-21T22:00Z", "2026-06-01T22:00Z"))
    after = list(every(DAY, "2026-06-02T22:00Z", "2026-11-20T22:00Z"))
    left = kept_when_pruned_daily([*before, backup("2028-01-01T22:00Z"), *after], NOW)
    assert (len(left), left[0], left[-1]) == (38, "2025-12-01T220000Z", "2028-01-01T220000Z")


def test_pruning_once_while_the_clock_says_2028_takes_nothing_more() -> None:
    backups = list(every(DAY, "2024-11-21T22:00Z", "2026-11-20T22:00Z"))
    wrong = prune(backups, POLICY, "UTC", at("2028-06-01T12:00Z"))
    assert names(wrong) == kept_when_pruned_daily(backups)


def test_backups_that_were_stamped_2028_by_a_wrong_clock_stay_until_their_day_has_come() -> None:
    """A month of them: each is kept, and counts as soon as it is no longer in the future."""
    good = list(every(DAY, "2026-10-01T22:00Z", "2026-11-20T22:00Z"))
    ahead = list(every(DAY, "2028-01-01T22:00Z", "2028-01-31T22:00Z"))
    assert names(prune([*good, *ahead], FEW, "UTC", NOW)) == ["2026-11-20T220000Z", *names(ahead)]
    assert names(prune([*good, *ahead], FEW, "UTC", at("2028-02-01T00:00Z"))) == ["2028-01-31T220000Z"]


def test_a_stamp_is_in_the_future_beyond_five_minutes() -> None:
    actual_reasons = reasons(backup("2026-11-20T22:00Z"), backup("2026-11-21T22:00Z"), now=at("2026-11-21T21:55Z"))
    assert actual_reasons["21"] == ("daily 1 of 1", "newest complete", "min_keep 1 of 1")
    actual_reasons = reasons(backup("2026-11-20T22:00Z"), backup("2026-11-21T22:00Z"), now=at("2026-11-21T21:54:59Z"))
    assert actual_reasons == {"20": ("daily 1 of 1", "newest complete", "min_keep 1 of 1"), "21": ("its time is in the future",)}


def test_a_mark_is_in_the_future_beyond_five_minutes_and_its_grace_then_begins_again() -> None:
    marked, late = at("2026-11-20T23:05Z"), at("2026-11-20T23:05:01Z")
    assert backup("2026-11-01T22:00Z", expired=marked).marked(NOW) == marked
    assert backup("2026-11-01T22:00Z", expired=late).marked(NOW) is None
    for request in (None, DeletionRequest()):
        ends = decisions(backup("2026-11-20T22:00Z"), backup("2026-11-01T22:00Z", expired=late, asked=request))["01"].expires
        assert ends == NOW + timedelta(seconds=FEW.grace)


def test_one_backup_may_stand_for_several_periods_and_says_so() -> None:
    policy = Retention(daily=2, weekly=2, monthly=1, yearly=1, min_keep=2)
    actual_reasons = reasons(*(backup(f"2026-11-{day:02}T22:00Z") for day in (2, 3, 9, 10)), policy=policy)
    assert actual_reasons["02"] == ("weekly 2 of 2", "monthly 1 of 1", "yearly 1 of 1")
    assert actual_reasons["03"] == ("no rule keeps it",)
    assert actual_reasons["09"] == ("daily 2 of 2", "weekly 1 of 2", "min_keep 2 of 2")
    assert actual_reasons["10"] == ("daily 1 of 2", "newest complete", "min_keep 1 of 2")


def test_the_first_complete_backup_of_a_day_stands_for_it_and_an_extra_run_changes_nothing() -> None:
    day = [backup("2026-11-19T06:00Z", "failed"), backup("2026-11-19T07:00Z"), backup("2026-11-19T09:00Z")]
    assert names(prune([*day, backup("2026-11-20T07:00Z")], Retention(daily=2, min_keep=1), "UTC", NOW))[0] == "2026-11-19T070000Z"


def test_days_are_those_of_the_pools_zone() -> None:
    """22:30 and 23:30 UTC are one day in UTC and two in Berlin."""
    pair = [backup("2026-11-19T22:30Z"), backup("2026-11-19T23:30Z")]
    assert kept(pair, Retention(daily=2), "Europe/Berlin", NOW)[pair[0].name] >= {"daily 2 of 2"}
    assert kept(pair, Retention(daily=2), "UTC", NOW)[pair[0].name] >= {"daily 1 of 2"}


def test_a_backup_of_the_first_day_that_a_date_can_have_stops_nothing() -> None:
    assert decisions(backup("0001-01-01T00:00Z"), zone="America/New_York")["01"].keep
    assert reasons_of(decisions(backup("9999-12-31T23:59Z"), zone="Asia/Tokyo")["31"]) == ("its time is in the future",)


def test_a_backup_due_for_deletion_has_a_time_counted_from_its_mark() -> None:
    policy = Retention(daily=1, min_keep=1, grace=36 * 3600)
    actual_decisions = decisions(
        backup("2026-11-17T22:00Z", expired=at("2026-11-19T12:00Z")),
        backup("2026-11-18T22:00Z"),
        backup("2026-11-19T22:00Z"),
        policy=policy,
    )
    assert actual_decisions["17"] == Decision(
        "2026-11-17T220000Z", False, (Reason(RetentionCode.NO_RULE),), at("2026-11-21T00:00Z")
    )
    assert actual_decisions["18"] == Decision(
        "2026-11-18T220000Z", False, (Reason(RetentionCode.NO_RULE),), NOW + timedelta(hours=36)
    )
    assert actual_decisions["19"].expires is None


def test_a_marked_one_that_is_the_newest_complete_comes_back() -> None:
    assert decisions(backup("2026-11-17T22:00Z", expired=NOW), backup("2026-11-18T22:00Z", "suspect"))["17"].keep


def test_the_base_of_the_run_in_progress_stays() -> None:
    actual_reasons = reasons(backup("2026-11-17T22:00Z", in_use=True), backup("2026-11-18T22:00Z"), backup("2026-11-19T22:00Z"))
    assert actual_reasons["17"] == ("base of the run in progress",)
    assert actual_reasons["18"] == ("no rule keeps it",)


@pytest.mark.parametrize(
    ("hold", "wanted"),
    [
        (Hold(), "held"),
        (Hold(why="audit"), "held: audit"),
        (Hold(at("2027-01-01T00:00Z"), "audit"), "held until 2027-01-01T00:00:00Z: audit"),
        (Hold(NOW + timedelta(seconds=1)), "held until 2026-11-20T23:00:01Z"),
        (Hold(NOW, "audit"), "no rule keeps it"),
        (Hold(at("2026-01-01T00:00Z")), "no rule keeps it"),
    ],
)
def test_a_held_backup_stays_until_the_hold_ends(hold: Hold, wanted: str) -> None:
    actual_decisions = decisions(backup("2026-11-17T22:00Z", hold=hold), backup("2026-11-19T22:00Z"))
    assert reasons_of(actual_decisions["17"]) == (wanted,)
    assert actual_decisions["17"].keep is wanted.startswith("held")


def test_min_keep_counts_complete_ones_only() -> None:
    policy = Retention(yearly=1, min_keep=2)
    night = [backup(f"2026-11-{day}T22:00Z", "failed" if day == 19 else "complete") for day in (16, 17, 18, 19, 20)]
    actual_reasons = reasons(*night, policy=policy)
    assert (actual_reasons["18"], actual_reasons["20"]) == (("min_keep 2 of 2",), ("newest complete", "min_keep 1 of 2"))
    assert actual_reasons["17"] == ("no rule keeps it",)


@pytest.mark.parametrize("state", ["suspect", "failed"])
def test_a_suspect_or_failed_one_goes_when_two_complete_ones_are_newer(state: str) -> None:
    bad, newer = backup("2026-11-17T22:00Z", state), [backup("2026-11-18T22:00Z"), backup("2026-11-19T22:00Z")]
    stays = (f"{state}: daily 1 of 1", f"{state}: newest 1 of 1")
    assert reasons(bad)["17"] == stays
    assert reasons(bad, newer[0])["17"] == stays
    assert reasons(bad, newer[0], backup("2026-11-19T22:00Z", "suspect"), backup("2026-12-19T22:00Z"))["17"] == stays
    assert reasons(backup("2026-11-15T22:00Z"), backup("2026-11-16T22:00Z"), bad)["17"] == stays
    decision = decisions(bad, *newer)["17"]
    assert (decision.keep, reasons_of(decision)) == (False, (f"{state}: two newer complete backups",))


TWO_YEARS = list(every(DAY, "2024-11-20T22:00Z", "2026-11-20T22:00Z"))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["suspect", "failed"])
def test_two_years_of_nights_of_which_none_is_complete_leave_as_many_as_complete_ones_would(state: str) -> None:
    """731 nights in which one source path is missing; all other paths are in each of them."""
    bad = [replace(candidate, state=state) for candidate in TWO_YEARS]
    left = pruned_each_time(bad, POLICY, "UTC")
    assert (len(bad), len(left)) == (731, 37)
    assert names(left) == names(prune(TWO_YEARS, POLICY, "UTC", NOW))


def test_after_a_complete_one_the_failed_and_the_suspect_are_thinned_each_for_themselves() -> None:
    nights = [
        replace(candidate, state=("complete", "failed")[number > 0] if number % 2 == 0 else "suspect")
        for number, candidate in enumerate(TWO_YEARS)
    ]
    left = {candidate.name: candidate for candidate in pruned_each_time(nights, POLICY, "UTC")}
    assert TWO_YEARS[0].name in left  # the last complete one, which is all that there is to go back to
    assert {left[candidate.name].state for candidate in TWO_YEARS[-2:]} == {"suspect", "failed"}
    assert 60 < len(left) < 80


def test_a_failed_backup_due_for_deletion_without_a_newer_complete_one_has_the_reason_no_rule() -> None:
    actual_decisions = decisions(
        *(backup(f"2026-11-{day}T22:00Z", "failed") for day in (17, 18, 19, 20)), policy=Retention(daily=2)
    )
    assert reasons_of(actual_decisions["17"]) == ("failed: no rule keeps it",)
    assert reasons_of(actual_decisions["18"]) == ("failed: newest 3 of 3",)
    assert reasons_of(actual_decisions["20"]) == ("failed: daily 1 of 2", "failed: newest 1 of 3")


def test_a_suspect_one_that_is_held_pushes_no_other_out() -> None:
    held = backup("2026-11-20T22:00Z", "suspect", hold=Hold())
    actual_reasons = reasons(backup("2026-11-19T22:00Z", "suspect"), held)
    assert actual_reasons == {"19": ("suspect: daily 1 of 1", "suspect: newest 1 of 1"), "20": ("held",)}


def test_the_last_complete_one_before_a_suspect_one_stays_as_long_as_that_does() -> None:
    nights = [
        backup("2026-11-16T22:00Z"),
        backup("2026-11-17T22:00Z"),
        backup("2026-11-18T22:00Z", "suspect"),
        backup("2026-11-19T22:00Z"),
    ]
    actual_reasons = reasons(*nights)
    assert actual_reasons["17"] == ("last complete before the suspect 2026-11-18T220000Z",)
    assert actual_reasons["16"] == ("no rule keeps it",)
    assert reasons(*nights, backup("2026-11-20T22:00Z"))["17"] == ("no rule keeps it",)
    nights[2] = backup("2026-11-18T22:00Z", "suspect", hold=Hold())  # a suspect one that is held keeps its predecessor
    assert reasons(*nights, backup("2026-11-20T22:00Z"))["17"] == ("last complete before the suspect 2026-11-18T220000Z",)
    nights[2] = backup("2026-11-18T22:00Z")  # accepted
    assert reasons(*nights)["17"] == ("no rule keeps it",)
    nights[2] = backup("2026-11-18T22:00Z", "failed")
    assert reasons(*nights)["17"] == ("no rule keeps it",)


def test_with_min_keep_1_a_suspect_one_that_was_held_waits_for_two_newer_ones_that_are_still_there() -> None:
    """The only case in which the time of the decision matters (docs/decisions/0008-retention.rst); it keeps too much rather than
    too little.
    """
    first, newer = backup("2026-11-17T01:00Z"), [backup("2026-11-17T03:00Z"), backup("2026-11-17T04:00Z")]
    held = backup("2026-11-17T02:00Z", "suspect", hold=Hold(at("2026-11-18T00:00Z")))
    often = prune(pruned_each_time([first, held, *newer], FEW, "UTC"), FEW, "UTC", NOW)
    assert names(often) == names([first, held, newer[1]])
    assert names(prune([first, held, *newer], FEW, "UTC", NOW)) == names([first, newer[1]])


def test_a_suspect_one_from_the_future_makes_no_other_stay() -> None:
    actual_reasons = reasons(backup("2026-11-16T22:00Z"), backup("2026-11-17T22:00Z"), backup("2028-11-18T22:00Z", "suspect"))
    assert (actual_reasons["16"], actual_reasons["18"]) == (("no rule keeps it",), ("its time is in the future",))
    assert actual_reasons["17"] == ("daily 1 of 1", "newest complete", "min_keep 1 of 1")


def test_a_state_of_a_later_version_is_kept() -> None:
    actual_reasons = reasons(backup("2026-11-16T22:00Z", "sealed"), *(backup(f"2026-11-{day}T22:00Z") for day in (17, 18, 19)))
    assert actual_reasons["16"] == ("unknown state sealed",)


def test_without_a_policy_every_backup_is_kept_with_that_reason() -> None:
    held = backup("2026-11-16T22:00Z", "suspect", hold=Hold(why="audit"))
    actual_reasons = reasons(held, *(backup(f"2026-11-{day}T22:00Z") for day in (17, 18, 19)), policy=Retention(min_keep=1))
    assert actual_reasons["16"] == ("no retention policy", "held: audit")
    assert actual_reasons["17"] == actual_reasons["18"] == actual_reasons["19"] == ("no retention policy",)


@pytest.mark.parametrize("policy", [FEW, Retention()])
def test_all_backups_of_a_forgotten_host_are_due_whatever_min_keep_is(policy: Retention) -> None:
    backups = (backup("2026-11-16T22:00Z", hold=Hold()), backup("2026-11-17T22:00Z", in_use=True), backup("2028-11-18T22:00Z"))
    rows = decide(backups, policy, ZoneInfo("UTC"), NOW, forgotten=NOW - DAY)
    assert {(decision.keep, reasons_of(decision), decision.expires) for decision in rows} == {
        (False, ("host forgotten",), NOW + DAY)
    }


@pytest.mark.slow
def test_a_large_pool_is_decided_in_well_under_its_share_of_two_seconds() -> None:
    ages = [*range(14), *range(14, 91, 7), *range(120, 360, 30)]
    hosts = [[backup(NOW - timedelta(days=days, seconds=11 * host)) for days in (*ages, 400)[:34]] for host in range(2800)]
    assert {len(host) for host in hosts} == {34}
    begin = time.process_time()
    left = sum(decision.keep for host in hosts for decision in decide(host, POLICY, ZoneInfo("Europe/Berlin"), NOW))
    assert time.process_time() - begin < 0.6
    assert left > 2800 * 25


BASE = Retention(daily=14, weekly=13, monthly=12, yearly=0, min_keep=3, grace=86400.0)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("daily=7", Retention(7, 13, 12, 0, 3, 86400.0)),
        ("daily=7,weekly=4", Retention(7, 4, 12, 0, 3, 86400.0)),
        (" yearly = 3 , monthly=0 ", Retention(14, 13, 0, 3, 3, 86400.0)),
        ("min_keep=1,grace=2d12h", Retention(14, 13, 12, 0, 1, 216000.0)),
        ("daily=0,weekly=0,monthly=0", Retention(0, 0, 0, 0, 3, 86400.0)),
    ],
)
def test_a_policy_as_text_changes_what_it_names(text: str, policy: Retention) -> None:
    assert parse_policy(text, BASE) == policy


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("dayly=7", "'dayly' is not a key of a policy (daily, weekly, monthly, yearly, min_keep, grace); did you mean \"daily\"?"),
        ("hourly=7", "'hourly' is not a key"),
        ("daily=7 weekly=4", "daily=7 weekly=4: expected a whole number from 0, such as 14"),
        ("daily=7,", "'' is not a key"),
        ("", "'' is not a key"),
        ("daily", "'daily' has no value: write it like daily=7,weekly=4"),
        ("daily=", "daily=: expected a whole number from 0, such as 14"),
        ("daily=-1", "expected a whole number from 0"),
        ("daily=1.5", "expected a whole number from 0"),
        ("daily=\u0667", "expected a whole number from 0"),
        ("daily=200000", "daily=200000: expected"),
        ("min_keep=0", "min_keep=0: expected a whole number from 1, such as 4"),
        ("grace=3", "grace=3: expected a duration"),
        ("grace=0s", "expected a duration above zero"),
        ("daily=1,daily=2", "'daily' is given twice"),
    ],
)
def test_a_policy_that_is_none_says_what_is_wrong(text: str, output: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_policy(text, BASE)
    assert output in str(caught.value)
    assert "quotes" not in str(caught.value)


# --- deletions on request


def requested_deletion(started: str, state: str = "complete", days_ago: int = 0, **wishes: Any) -> Candidate:
    return backup(started, state, expired=NOW - days_ago * DAY, asked=DeletionRequest("private", **wishes))


@pytest.mark.parametrize("policy", [FEW, POLICY, Retention()])
def test_what_was_asked_to_be_deleted_goes_after_its_grace_whatever_a_rule_says(policy: Retention) -> None:
    actual_decisions = decisions(
        backup("2026-11-18T22:00Z"), requested_deletion("2026-11-19T22:00Z"), policy=replace(policy, grace=3600)
    )
    assert (actual_decisions["19"].keep, reasons_of(actual_decisions["19"])) == (False, ("deleted by hand: private",))
    assert actual_decisions["19"].expires == NOW + timedelta(hours=1)
    assert actual_decisions["18"].keep


def test_a_backup_requested_to_be_deleted_at_once_has_no_grace() -> None:
    actual_decisions = decisions(
        backup("2026-11-18T22:00Z"), requested_deletion("2026-11-19T22:00Z", at_once=True), policy=replace(FEW, grace=3600)
    )
    assert actual_decisions["19"].expires == NOW


def test_a_backup_whose_deletion_was_requested_stands_for_no_period() -> None:
    """The other backup of its day represents the day, and it does not make a suspect one unnecessary."""
    first, second = requested_deletion("2026-11-19T04:00Z"), backup("2026-11-19T22:00Z")
    assert reasons(second, first, backup("2026-11-20T22:00Z"), policy=Retention(daily=2, min_keep=1))["19"] == ("daily 2 of 2",)
    newer = requested_deletion("2026-11-19T04:00Z"), backup("2026-11-20T22:00Z")
    assert decisions(backup("2026-11-17T22:00Z"), backup("2026-11-18T22:00Z", "suspect"), *newer)["18"].keep


def test_retention_deletes_the_last_complete_backup_only_on_request_as_the_last() -> None:
    assert reasons(requested_deletion("2026-11-19T22:00Z"))["19"] == ("daily 1 of 1", "newest complete", "min_keep 1 of 1")
    assert not decisions(requested_deletion("2026-11-19T22:00Z", last=True))["19"].keep
    assert not decisions(requested_deletion("2026-11-18T22:00Z", "failed"), requested_deletion("2026-11-19T22:00Z"))["18"].keep
    future = backup(NOW + 100 * DAY)  # a backup with a time from a wrong clock does not count as one that stays
    assert {
        decision.name: decision.keep
        for decision in decide([requested_deletion("2026-11-19T22:00Z"), future], FEW, ZoneInfo("UTC"), NOW)
    } == {
        "2026-11-19T220000Z": True,
        future.name: True,
    }


def test_a_hold_or_a_run_in_progress_keeps_a_backup_despite_a_requested_deletion() -> None:
    candidate = replace(requested_deletion("2026-11-19T22:00Z"), hold=Hold(None, "court"))
    assert reasons_of(decisions(backup("2026-11-18T22:00Z"), candidate)["19"]) == ("held: court",)
    candidate = replace(requested_deletion("2026-11-19T22:00Z"), in_use=True)
    assert reasons_of(decisions(backup("2026-11-18T22:00Z"), candidate)["19"]) == ("base of the run in progress",)


def test_one_that_is_stamped_in_the_future_can_be_asked_to_go() -> None:
    future = replace(backup(NOW + 100 * DAY), expired=NOW, asked=DeletionRequest())
    by_name = {
        decision.name: reasons_of(decision) for decision in decide([backup("2026-11-19T22:00Z"), future], FEW, ZoneInfo("UTC"), NOW)
    }
    assert by_name[future.name] == ("deleted by hand",)
