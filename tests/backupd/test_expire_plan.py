"""The plan of an expiry: which backups are marked, kept again, deleted or wait. Facts in, plan out; no pool."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from btrkeep.config import Retention
from btrkeep.decisions.expiry_plan import (
    ExpiryStep,
    HostBackups,
    HostPlan,
    UnreadableHost,
    _without_the_last,
    agreed,
    deletions_of,
    make_plan,
    plan_host,
)
from btrkeep.decisions.retention import Candidate, DeletionRequest, Hold, Reason, RetentionCode
from btrkeep.decisions.safety_limits import Forced
from tests.beds.gate import examples

ZONE = ZoneInfo("UTC")
NOW = datetime(2026, 3, 20, 23, tzinfo=UTC)
DAY = timedelta(days=1)
THREE_DAYS = Retention(daily=3, min_keep=1, grace=86400)


def backup(age: int, state: str = "complete", marked: timedelta | None = None, hold: Hold | None = None) -> Candidate:
    """A backup made that many days ago, and marked that long ago."""
    started = NOW - age * DAY - timedelta(hours=1)
    return Candidate(started.strftime("%Y-%m-%dT%H%M%SZ"), started, state, NOW - marked if marked is not None else None, hold)


def facts(
    *candidates: Candidate,
    host: str = "web",
    policy: Retention = THREE_DAYS,
    rows: Mapping[str, str] | None = None,
    forgotten: datetime | None = None,
) -> HostBackups:
    by_name = {candidate.name: "expired" if candidate.expired else candidate.state for candidate in candidates}
    return HostBackups(host, candidates, policy, by_name if rows is None else rows, forgotten)


def ages(steps: Sequence[ExpiryStep]) -> list[int]:
    """Returns how many days ago the backups of the steps started, the oldest first."""
    return [(NOW - datetime.strptime(step.name, "%Y-%m-%dT%H%M%SZ").replace(tzinfo=UTC)).days for step in steps]


def plan(*candidates: Candidate, clock_waits: bool = False, **wishes: object) -> HostPlan:
    return plan_host(facts(*candidates, **wishes), ZONE, NOW, clock_waits=clock_waits)  # type: ignore[arg-type]


def test_what_no_rule_keeps_is_marked_and_not_deleted() -> None:
    host_plan = plan(*(backup(age) for age in range(5)))
    assert ages(host_plan.mark) == [4, 3]
    assert (host_plan.delete, host_plan.wait, host_plan.revive) == ((), (), ())
    assert not host_plan.amend
    assert [step.reasons for step in host_plan.mark] == [(Reason(RetentionCode.NO_RULE),)] * 2
    assert host_plan.mark[0].expires == NOW + DAY
    assert host_plan.going == 2


@pytest.mark.parametrize(("marked", "deleted"), [(timedelta(hours=23, minutes=59), False), (DAY, True), (2 * DAY, True)])
def test_a_marked_backup_is_deleted_once_its_grace_is_over_and_not_a_second_before(marked: timedelta, deleted: bool) -> None:
    host_plan = plan(*(backup(age) for age in range(3)), backup(3, marked=marked))
    assert ages(host_plan.delete) == ([3] if deleted else [])
    assert ages(host_plan.wait) == ([] if deleted else [3])
    assert host_plan.going == 0


def test_a_mark_stamped_in_the_future_by_a_wrong_clock_starts_its_grace_again_now() -> None:
    host_plan = plan(*(backup(age) for age in range(3)), backup(3, marked=-2000 * DAY))
    assert host_plan.delete == host_plan.wait == ()
    assert [(step.name, step.expires) for step in host_plan.mark] == [(backup(3).name, NOW + DAY)]
    assert host_plan.going == 0  # the guards have counted it
    kept = plan(*(backup(age) for age in range(2)), backup(2, marked=-2000 * DAY))
    assert ages(kept.revive) == [2]


def test_a_complete_backup_stamped_in_the_future_does_not_replace_the_last_that_must_stay() -> None:
    facts = HostBackups("web", [backup(1), replace(backup(0), started=NOW + 2000 * DAY)], THREE_DAYS)
    step = ExpiryStep(backup(1).name, ())
    assert _without_the_last(facts, [step], NOW) == ()
    assert _without_the_last(replace(facts, candidates=[*facts.candidates, backup(2)]), [step], NOW) == (step,)
    ahead = replace(backup(0), started=NOW + timedelta(minutes=5))  # no clock is more exact
    assert _without_the_last(replace(facts, candidates=[backup(1), ahead]), [step], NOW) == (step,)


def test_a_marked_backup_that_a_rule_keeps_again_loses_its_mark_even_after_its_grace() -> None:
    host_plan = plan(backup(0), backup(1, marked=30 * DAY), backup(2))
    assert ages(host_plan.revive) == [1]
    assert host_plan.revive[0].reasons == (Reason("daily", 2, 3),)
    assert host_plan.delete == ()


def test_a_hold_removes_the_mark_of_a_backup_and_an_ended_hold_does_not() -> None:
    lasting, ended = Hold(NOW + DAY), Hold(NOW - DAY)
    fresh = [backup(age) for age in range(3)]
    host_plan = plan(*fresh, backup(3, marked=2 * DAY, hold=lasting), backup(4, marked=2 * DAY, hold=ended))
    assert (ages(host_plan.revive), ages(host_plan.delete)) == ([3], [4])


def test_while_the_clock_is_in_doubt_no_grace_and_no_hold_ends() -> None:
    fresh = [backup(age) for age in range(3)]
    host_plan = plan(*fresh, backup(3, marked=2 * DAY), backup(4, hold=Hold(NOW - DAY)), clock_waits=True)
    assert host_plan.delete == host_plan.mark == ()
    assert ages(host_plan.wait) == [3]
    host_plan = plan(*fresh, backup(3, marked=2 * DAY, hold=Hold(NOW + DAY)), clock_waits=True)
    assert host_plan.revive[0].reasons == (Reason(RetentionCode.HELD, until=NOW + DAY),), "the end of a hold in force is known"


def test_what_a_killed_run_was_deleting_is_finished_also_while_the_clock_is_in_doubt() -> None:
    candidate, name = backup(3, marked=2 * DAY), backup(3).name
    done = plan(*(backup(age) for age in range(3)), candidate, rows={name: "deleting"}, clock_waits=True)
    assert ages(done.delete) == [3]


def test_a_held_backup_that_a_killed_expiry_was_deleting_is_kept() -> None:
    candidate = backup(3, marked=2 * DAY, hold=Hold())
    done = plan(*(backup(age) for age in range(3)), candidate, rows={candidate.name: "deleting"})
    assert (ages(done.revive), done.delete) == ([3], ())


def test_a_row_that_says_deleting_without_a_note_begins_with_the_mark_again() -> None:
    candidate = backup(3)
    done = plan(*(backup(age) for age in range(3)), candidate, rows={candidate.name: "deleting"})
    assert (ages(done.mark), done.delete) == ([3], ())


def test_rows_that_differ_from_the_notes_are_put_right() -> None:
    kept, marked = backup(0), backup(3, marked=timedelta(hours=1))
    done = plan(kept, backup(1), backup(2), marked, rows={kept.name: "expired", marked.name: "complete"})
    assert set(done.amend) == {(kept.name, "complete"), (marked.name, "expired")}


def test_all_backups_of_a_forgotten_host_are_deleted_after_their_grace() -> None:
    done = plan(*(backup(age, marked=2 * DAY) for age in range(3)), forgotten=NOW - 2 * DAY)
    assert ages(done.delete) == [2, 1, 0]
    assert done.forgotten


def test_no_plan_deletes_all_complete_backups_of_a_host_whatever_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protection against a wrong decision."""
    from btrkeep.decisions import expiry_plan as module
    from btrkeep.decisions.retention import Decision

    def wrong(candidates: Sequence[Candidate], *_: object, **__: object) -> list[Decision]:
        return [Decision(candidate.name, False, (), NOW) for candidate in candidates]

    monkeypatch.setattr(module, "decide", wrong)
    assert plan(backup(0, marked=DAY), backup(1, marked=DAY), backup(2, "failed", marked=DAY)).delete == ()
    assert plan(backup(2, "failed", marked=DAY)).delete


def test_only_backups_that_both_the_plan_and_the_look_under_the_lock_delete_are_deleted() -> None:
    first = HostPlan("web", mark=(ExpiryStep("a", ()), ExpiryStep("b", ())), delete=(ExpiryStep("c", ()), ExpiryStep("d", ())))
    second = HostPlan(
        "web",
        mark=(ExpiryStep("b", ()), ExpiryStep("x", ())),
        delete=(ExpiryStep("d", ()), ExpiryStep("y", ())),
        revive=(ExpiryStep("c", ()),),
    )
    both = agreed(first, second)
    assert [step.name for step in both.mark] == ["b"]
    assert [step.name for step in both.delete] == ["d"]
    assert [step.name for step in both.revive] == ["c"]


# --- all hosts


def host(name: str, going: int, total: int, **wishes: object) -> HostBackups:
    """Returns a host with that many backups, of which a given number would be deleted."""
    policy = Retention(daily=total - going, min_keep=1, grace=86400)
    return facts(*(backup(age) for age in range(total)), host=name, policy=policy, **wishes)  # type: ignore[arg-type]


def test_a_host_of_which_too_much_would_go_is_left_out_and_the_others_are_not() -> None:
    done = make_plan([host("a", 11, 34), host("b", 10, 30), host("c", 11, 37)], ZONE, NOW, Forced())
    assert list(done.skipped_hosts) == ["a"]
    assert [host_plan.host for host_plan in done.hosts] == ["b", "c"]
    assert done.stop is None
    forced = make_plan([host("a", 11, 34)], ZONE, NOW, Forced(hosts=frozenset({"a"})))
    assert not forced.skipped_hosts
    assert forced.count("mark") == 11


def test_a_pool_of_which_too_much_would_go_is_left_alone() -> None:
    hosts = [host(f"h{number}", 10, 30) for number in range(11)]
    assert make_plan(hosts[:10], ZONE, NOW, Forced()).stop is None
    assert make_plan(hosts, ZONE, NOW, Forced()).stop
    assert make_plan(hosts, ZONE, NOW, Forced(pool=True)).stop is None


def test_backups_that_the_catalogue_knows_as_expired_went_past_the_guards_before() -> None:
    old = [backup(age, marked=2 * DAY) for age in range(3, 30)]
    fresh = [backup(age) for age in range(3)]
    assert not make_plan([facts(*fresh, *old)], ZONE, NOW, Forced()).skipped_hosts
    unknown = facts(*fresh, *old, rows={})  # notes.json was restored from elsewhere
    assert make_plan([unknown], ZONE, NOW, Forced()).skipped_hosts


def test_a_host_that_was_given_up_is_no_matter_for_the_guards() -> None:
    done = make_plan([host("a", 0, 400, forgotten=NOW)], ZONE, NOW, Forced())
    assert (done.skipped_hosts, done.stop, done.count("mark")) == ({}, None, 400)


def test_a_host_that_was_given_up_and_has_no_backup_is_in_the_plan_so_that_its_rows_can_go() -> None:
    done = make_plan([facts(host="a", forgotten=NOW), facts(host="b")], ZONE, NOW, Forced())
    assert [host_plan.host for host_plan in done.hosts] == ["a"]


def test_hosts_whose_notes_have_deleted_backups_are_named() -> None:
    done = make_plan([replace(facts(backup(0), host="a"), stale=True), facts(backup(0), host="b")], ZONE, NOW, Forced())
    assert done.stale == ("a",)


def test_a_host_with_trouble_is_left_out() -> None:
    problem = HostBackups("web", (), THREE_DAYS, problem=UnreadableHost("notes.json cannot be read"))
    done = make_plan([problem, host("b", 2, 5)], ZONE, NOW, Forced())
    assert done.skipped_hosts == {"web": UnreadableHost("notes.json cannot be read")}
    assert [host_plan.host for host_plan in done.hosts] == ["b"]


def test_a_host_whose_rows_alone_are_wrong_is_in_the_plan_and_all_backups_are_counted() -> None:
    candidate = backup(0)
    done = make_plan([facts(candidate, backup(1), rows={candidate.name: "expired"}), host("b", 2, 5)], ZONE, NOW, Forced())
    assert [(each.host, each.amend) for each in done.hosts] == [("web", ((candidate.name, "complete"),)), ("b", ())]
    assert done.total == 7


@pytest.mark.parametrize(
    ("backups", "policy", "wishes", "unruled", "unconfigured"),
    [
        ((backup(0),), Retention(), {}, ("web",), ()),
        ((backup(0),), Retention(), {"configured": False}, (), ("web",)),
        ((backup(0),), THREE_DAYS, {}, (), ()),
        ((), Retention(), {}, (), ()),
        ((backup(0),), Retention(), {"forgotten": NOW}, (), ()),
    ],
)
def test_hosts_of_which_everything_is_kept_for_want_of_a_rule_are_named(
    backups: tuple[Candidate, ...],
    policy: Retention,
    wishes: dict[str, Any],
    unruled: tuple[str, ...],
    unconfigured: tuple[str, ...],
) -> None:
    done = make_plan([HostBackups("web", backups, policy, **wishes)], ZONE, NOW, Forced())
    assert (done.unruled, done.unconfigured) == (unruled, unconfigured)


def test_a_mark_up_to_five_minutes_ahead_of_the_clock_counts() -> None:
    five = timedelta(minutes=5)
    assert backup(1, marked=-five).marked(NOW) == NOW + five
    assert backup(1, marked=-five - timedelta(seconds=1)).marked(NOW) is None
    assert backup(1).marked(NOW) is None


def test_the_last_complete_backup_is_deleted_only_when_it_was_requested_as_the_last() -> None:
    for wishes, stays in (({}, True), ({"last": True}, False)):
        last = requested_deletion(1, marked=DAY, **wishes)
        step = ExpiryStep(last.name, ())
        assert _without_the_last(facts(last, backup(2, "failed")), [step], NOW) == (() if stays else (step,))
    future = backup(-3)  # stamped by a wrong clock: it may be any
    step = ExpiryStep(backup(1).name, ())
    assert _without_the_last(facts(backup(1), future), [step], NOW) == ()
    assert _without_the_last(facts(backup(1), backup(0)), [step], NOW) == (step,)


STATES = st.sampled_from(["complete", "complete", "complete", "suspect", "failed"])
MARKS = st.one_of(st.none(), st.integers(-50, 500).map(lambda hours: timedelta(hours=hours)))
BACKUPS = st.lists(st.tuples(st.integers(0, 400), STATES, MARKS), max_size=40, unique_by=lambda drawn_backup: drawn_backup[0])
POLICIES = st.builds(
    Retention,
    daily=st.integers(0, 20),
    weekly=st.integers(0, 9),
    monthly=st.integers(0, 9),
    yearly=st.integers(0, 2),
    min_keep=st.integers(1, 4),
    grace=st.sampled_from([1.0, 3600.0, 86400.0]),
)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(BACKUPS, POLICIES, st.booleans())
def test_no_backup_is_deleted_before_its_grace_and_one_complete_backup_always_stays(
    drawn: list[tuple[int, str, timedelta | None]], policy: Retention, clock_waits: bool
) -> None:
    candidates = {candidate.name: candidate for candidate in (backup(age, state, marked) for age, state, marked in drawn)}
    done = plan(*candidates.values(), policy=policy, clock_waits=clock_waits)
    doomed = {step.name for step in done.delete}
    for name in doomed:
        mark = candidates[name].expired
        assert mark is not None
        assert mark + timedelta(seconds=policy.grace) <= NOW
    assert not (clock_waits and doomed)
    complete = {name for name, candidate in candidates.items() if candidate.state == "complete"}
    assert not complete or complete - doomed
    if policy.missing:
        assert not doomed
        assert not done.mark
    lists = [[step.name for step in steps] for steps in (done.mark, done.revive, done.delete, done.wait)]
    assert sum(map(len, lists)) == len({name for names in lists for name in names})


@pytest.mark.slow
def test_planning_for_a_large_pool_takes_well_below_two_seconds() -> None:
    moments = [NOW - age * DAY for age in [*range(14), *range(14, 105, 7), *range(105, 320, 30)]]
    names = [(moment.strftime("%Y-%m-%dT%H%M%SZ"), moment) for moment in moments]
    policy = Retention(daily=14, weekly=13, monthly=12, min_keep=3, grace=86400)
    rows = dict.fromkeys((name for name, _ in names), "complete")
    many = [
        HostBackups(f"host{number}", [Candidate(name, moment, "complete") for name, moment in names], policy, rows)
        for number in range(2800)
    ]
    assert sum(len(host_backups.candidates) for host_backups in many) > 95_000
    begun = time.process_time()
    done = make_plan(many, ZONE, NOW, Forced())
    assert done.total > 95_000
    assert time.process_time() - begun < 1.5


def requested_deletion(age: int, marked: timedelta = timedelta(0), **wishes: Any) -> Candidate:
    return replace(backup(age, marked=marked), asked=DeletionRequest("private", **wishes))


def test_a_backup_whose_deletion_was_requested_waits_for_its_grace_and_no_rule_keeps_it() -> None:
    host_plan = plan(backup(0), requested_deletion(1), backup(2), requested_deletion(3, marked=DAY))
    assert (ages(host_plan.wait), ages(host_plan.delete), host_plan.revive) == ([1], [3], ())


def test_requested_deletions_do_not_count_against_the_safety_limits() -> None:
    many = [requested_deletion(age, at_once=True) for age in range(1, 30)]
    result = make_plan([facts(backup(0), *many, rows={})], ZONE, NOW, Forced())
    assert (result.skipped_hosts, result.count("delete")) == ({}, 29)


def test_while_the_clock_is_in_doubt_only_backups_without_a_grace_are_deleted() -> None:
    host_plan = plan(backup(0), requested_deletion(1, marked=2 * DAY), requested_deletion(2, at_once=True), clock_waits=True)
    assert (ages(host_plan.delete), ages(host_plan.wait)) == ([2], [1])


def test_a_plan_limited_to_named_backups_deletes_no_others() -> None:
    whole = make_plan(
        [facts(backup(0), requested_deletion(1, at_once=True), requested_deletion(2, at_once=True), backup(3), backup(4))],
        ZONE,
        NOW,
        Forced(),
    )
    name = requested_deletion(2).name
    left = deletions_of(whole, {("web", name)})
    assert [(host.delete[0].name, len(host.delete), host.mark, host.revive) for host in left.hosts] == [(name, 1, (), ())]
    assert deletions_of(whole, {("db", name)}).hosts == ()
    unruled = make_plan([facts(backup(0), requested_deletion(1, at_once=True), policy=Retention())], ZONE, NOW, Forced())
    assert (unruled.unruled, deletions_of(unruled, {("web", requested_deletion(1).name)}).unruled) == (
        ("web",),
        (),
    )  # no note that everything is kept
