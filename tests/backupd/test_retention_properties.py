"""Properties for any backups, any policy and any clock: minimums, and independence of how often and when decisions are made."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from btrkeep.config import Retention
from btrkeep.decisions.due import FUTURE
from btrkeep.decisions.retention import Candidate, Hold, Reason, RetentionCode, decide
from btrkeep.decisions.retention_words import reason_words
from tests.backupd.golden.replay import expire, kept, names, prune
from tests.backupd.test_retention_golden import ODD

LONG_AGO, FAR_OFF = datetime(1990, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
STATES = st.sampled_from(("complete", "complete", "complete", "suspect", "failed"))
POLICIES = st.builds(
    Retention, *[st.integers(0, 5)] * 4, min_keep=st.integers(1, 4), grace=st.sampled_from((1.0, 86400.0, 30 * 86400.0))
).filter(lambda policy: not policy.missing)
ANY_POLICY = POLICIES | st.just(Retention())
ZONES = st.sampled_from(list(ODD))
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis asks for naive ones
HOLDS = st.none() | st.builds(Hold, st.none() | MOMENTS, st.sampled_from(("", "court")))
ENDLESS = st.none() | st.none() | st.just(Hold())


def backup(started: datetime, state: str = "complete", hold: Hold | None = None, in_use: bool = False) -> Candidate:
    return Candidate(f"{started:%Y-%m-%dT%H%M%S.%fZ}", started, state, hold=hold, in_use=in_use)


@st.composite
def histories(draw: st.DrawFn, holds: st.SearchStrategy[Hold | None] = ENDLESS) -> list[Candidate]:
    """Backups one after the other, from minutes to months apart, around a special moment of some zone."""
    moment = datetime.fromisoformat(draw(st.sampled_from([text for texts in ODD.values() for text in texts])))
    moment = moment.astimezone(UTC) - timedelta(days=draw(st.integers(0, 60)))
    gaps = st.integers(360, 86400) | st.integers(360, 3 * 86400) | st.sampled_from((86400, 7 * 86400, 31 * 86400, 200 * 86400))
    candidates = []
    for gap in draw(st.lists(gaps, min_size=1, max_size=30)):
        moment += timedelta(seconds=gap)
        candidates.append(backup(moment, draw(STATES), draw(holds)))
    return candidates


BACKUPS = st.builds(backup, MOMENTS, STATES, HOLDS, st.booleans())
SCATTERED = st.lists(BACKUPS, max_size=30, unique_by=lambda candidate: candidate.name)
ANYTHING = SCATTERED | histories(HOLDS).flatmap(st.permutations)
NOWS = MOMENTS | st.datetimes(datetime(2006, 1, 1), datetime(2027, 6, 1), timezones=st.just(UTC))  # noqa: DTZ001


def complete(backups: Sequence[Candidate]) -> list[Candidate]:
    return sorted((candidate for candidate in backups if candidate.state == "complete"), key=lambda candidate: candidate.started)


def pruned_at(backups: Sequence[Candidate], when: Sequence[bool], policy: Retention, zone: str) -> list[Candidate]:
    """The remaining backups after expiries that follow some of the backups, including the last one."""
    left: list[Candidate] = []
    for number, candidate in enumerate(backups):
        left.append(candidate)
        if number == len(backups) - 1 or when[number % len(when)]:
            left = prune(left, policy, zone, candidate.started)
    return left


OFTEN = st.lists(st.booleans(), min_size=1, max_size=30)


@given(ANYTHING, ANY_POLICY, ZONES, NOWS)
def test_every_backup_gets_one_decision_with_a_reason_oldest_first(
    backups: list[Candidate], policy: Retention, zone: str, now: datetime
) -> None:
    decisions = decide(backups, policy, ZoneInfo(zone), now)
    assert [decision.name for decision in decisions] == names(backups)
    assert all(decision.reasons and all(map(reason_words, decision.reasons)) for decision in decisions)
    assert all((decision.expires is None) is decision.keep for decision in decisions)


@given(ANYTHING, POLICIES, ZONES, NOWS)
def test_pruning_twice_is_pruning_once(backups: list[Candidate], policy: Retention, zone: str, now: datetime) -> None:
    once = prune(backups, policy, zone, now)
    assert names(prune(once, policy, zone, now)) == names(once)


def good_between(good: Sequence[Candidate], candidate: Candidate, other: Candidate) -> bool:
    return any(candidate.started < between.started < other.started for between in good)


@given(st.lists(st.sampled_from(("suspect", "failed")), min_size=1), histories(), POLICIES, ZONES)
def test_however_many_are_suspect_or_failed_no_more_are_left_than_the_policy_has_places(
    states: list[str], backups: list[Candidate], policy: Retention, zone: str
) -> None:
    """Of each state, for each of the two complete backups that may be newer; and the held ones."""
    candidates = [replace(candidate, state=states[number % len(states)]) for number, candidate in enumerate(backups)]
    left = [candidate for candidate in pruned_at(candidates, [True], policy, zone) if not candidate.hold]
    places = policy.daily + policy.weekly + policy.monthly + policy.yearly + policy.min_keep
    assert len(left) <= places * len(set(states))
    assert not [candidate for candidate in candidates if not candidate.hold] or left  # never the last one
    for state in {candidate.state for candidate in candidates if not candidate.hold}:
        assert [candidate for candidate in candidates if candidate.state == state and not candidate.hold][-1] in left


@given(ANYTHING, POLICIES, ZONES, NOWS)
def test_floors_hold_for_any_backups(backups: list[Candidate], policy: Retention, zone: str, now: datetime) -> None:
    left = kept(backups, policy, zone, now)
    counted = [candidate for candidate in backups if candidate.started <= now + FUTURE]
    newest = complete(counted)[::-1]
    assert all(candidate.name in left for candidate in newest[: policy.min_keep])
    assert all(candidate.name in left for candidate in backups if candidate.in_use or candidate.started > now + FUTURE)
    assert all(
        candidate.name in left
        for candidate in backups
        if candidate.hold and (candidate.hold.until is None or candidate.hold.until > now)
    )
    for candidate in counted:
        if candidate.state == "suspect" and candidate.name in left:
            assert all(good.name in left for good in [good for good in newest if good.started < candidate.started][:1])
        newer = sum(good.started > candidate.started for good in newest)
        if candidate.state != "complete" and newer < 2:
            alike = [other for other in counted if other.state == candidate.state and other.started > candidate.started]
            assert candidate.name in left or sum(not good_between(newest, candidate, other) for other in alike) >= policy.min_keep


@given(ANYTHING, POLICIES, ZONES, NOWS)
def test_what_has_no_reason_of_its_own_is_kept_by_a_rule_that_has_room(
    backups: list[Candidate], policy: Retention, zone: str, now: datetime
) -> None:
    """Rules keep at most as many backups as they have periods, and only complete ones."""
    left = kept(backups, policy, zone, now)
    states = {candidate.name: candidate.state for candidate in backups}
    for rule in ("daily", "weekly", "monthly", "yearly"):
        held = [name for name, reasons in left.items() if any(reason.startswith(rule) for reason in reasons)]
        assert len(held) <= getattr(policy, rule)
        assert all(states[name] == "complete" for name in held)


@given(histories(), POLICIES, ZONES, OFTEN)
def test_the_result_does_not_depend_on_how_often_it_is_asked(
    backups: list[Candidate], policy: Retention, zone: str, when: list[bool]
) -> None:
    assert names(pruned_at(backups, when, policy, zone)) == names(prune(backups, policy, zone, backups[-1].started))


@given(histories(HOLDS), POLICIES.filter(lambda policy: policy.min_keep > 1), ZONES, OFTEN)
def test_nor_does_it_with_holds_that_end(backups: list[Candidate], policy: Retention, zone: str, when: list[bool]) -> None:
    assert names(pruned_at(backups, when, policy, zone)) == names(prune(backups, policy, zone, backups[-1].started))


@given(histories(), POLICIES, ZONES, OFTEN, st.timedeltas(timedelta(0), timedelta(days=60)))
def test_nor_does_it_when_what_goes_stays_for_its_grace(
    backups: list[Candidate], policy: Retention, zone: str, when: list[bool], later: timedelta
) -> None:
    """Marked backups count until they are deleted, so a mark changes no decision."""
    left: list[Candidate] = []
    for number, candidate in enumerate(backups):
        left.append(candidate)
        if when[number % len(when)]:
            left = expire(left, policy, zone, candidate.started)
    now = backups[-1].started + later
    assert names(prune(left, policy, zone, now)) == names(prune(backups, policy, zone, now))


@given(histories(), POLICIES, POLICIES, ZONES)
def test_a_policy_that_is_raised_during_the_grace_brings_back_what_it_would_have_kept(
    backups: list[Candidate], narrow: Retention, wide: Retention, zone: str
) -> None:
    now = backups[-1].started
    marked = expire(backups, narrow, zone, now)
    assert names(marked) == names(backups)
    assert kept(marked, wide, zone, now) == kept(backups, wide, zone, now)


@given(histories(), POLICIES, ZONES, st.data())
def test_a_clock_that_jumped_back_or_ahead_changes_nothing_once_it_is_right_again(
    backups: list[Candidate], policy: Retention, zone: str, data: st.DataObject
) -> None:
    left, now = backups, backups[-1].started
    clocks = st.sampled_from([candidate.started for candidate in backups]) | MOMENTS
    for clock in data.draw(st.lists(clocks, max_size=6)):
        left = prune(left, policy, zone, clock)
    assert names(prune(left, policy, zone, now)) == names(prune(backups, policy, zone, now))


@given(ANYTHING, POLICIES, ZONES, NOWS, NOWS)
def test_nothing_is_measured_from_now(
    backups: list[Candidate], policy: Retention, zone: str, now: datetime, then: datetime
) -> None:
    """Without holds and times in the future, two clocks that are years apart have the same result."""
    plain = [replace(candidate, hold=None) for candidate in backups if candidate.started <= min(now, then)]
    assert kept(plain, policy, zone, now) == kept(plain, policy, zone, then)


@given(ANYTHING, ANY_POLICY, ZONES, NOWS, st.data())
def test_a_stamp_in_the_future_is_kept_and_never_changes_what_happens_to_others(
    backups: list[Candidate], policy: Retention, zone: str, now: datetime, data: st.DataObject
) -> None:
    ahead = st.timedeltas(FUTURE + timedelta(microseconds=1), timedelta(days=30000))
    future = data.draw(st.lists(st.builds(lambda by, state: backup(now + by, state), ahead, STATES), min_size=1, unique=True))
    plain = decide([candidate for candidate in backups if candidate.started <= now + FUTURE], policy, ZoneInfo(zone), now)
    decisions = decide([*future, *backups], policy, ZoneInfo(zone), now)
    assert decisions[: len(plain)] == plain
    assert all(decision.keep for decision in decisions[len(plain) :])
    assert policy.missing or all(Reason(RetentionCode.IN_FUTURE) in decision.reasons for decision in decisions[len(plain) :])


@given(ANYTHING, POLICIES, ZONES, NOWS, NOWS)
@example([backup(FAR_OFF)], Retention(daily=1, min_keep=1), "UTC", LONG_AGO, LONG_AGO)
def test_adding_a_complete_backup_never_removes_the_last_good_one(
    backups: list[Candidate], policy: Retention, zone: str, now: datetime, started: datetime
) -> None:
    """The newest complete backup is kept while it is the newest, and afterwards while it is one of the last `min_keep`."""
    added = replace(backup(started), name="added")
    counted = complete([candidate for candidate in backups if candidate.started <= now + FUTURE])
    left = kept([*backups, added], policy, zone, now)
    if started > now + FUTURE or policy.min_keep > 1:
        assert not counted or counted[-1].name in left
    good = complete([*counted, *([added] if started <= now + FUTURE else [])])
    assert not good or good[-1].name in left


@given(histories(), POLICIES, ZONES)
def test_there_are_never_fewer_complete_ones_than_min_keep_when_there_were(
    backups: list[Candidate], policy: Retention, zone: str
) -> None:
    left: list[Candidate] = []
    for number, candidate in enumerate(backups, 1):
        left = prune([*left, candidate], policy, zone, candidate.started)
        assert len(complete(left)) >= min(policy.min_keep, len(complete(backups[:number])))


@given(histories(), POLICIES, ZONES)
def test_more_periods_never_keep_less(backups: list[Candidate], policy: Retention, zone: str) -> None:
    more = replace(
        policy, daily=policy.daily + 1, weekly=policy.weekly + 2, monthly=policy.monthly + 1, min_keep=policy.min_keep + 1
    )
    now = backups[-1].started
    assert set(kept(backups, policy, zone, now)) <= set(kept(backups, more, zone, now))


@given(ANYTHING, ZONES, NOWS)
def test_without_a_policy_everything_is_kept(backups: list[Candidate], zone: str, now: datetime) -> None:
    decisions = decide(backups, Retention(min_keep=1), ZoneInfo(zone), now)
    assert all(decision.keep and decision.reasons[0].code is RetentionCode.NO_POLICY for decision in decisions)


@given(ANYTHING, ANY_POLICY, ZONES, NOWS)
def test_of_a_forgotten_host_everything_goes(backups: list[Candidate], policy: Retention, zone: str, now: datetime) -> None:
    decisions = decide(backups, policy, ZoneInfo(zone), now, forgotten=now)
    assert all(
        decision.reasons == (Reason(RetentionCode.FORGOTTEN),) and decision.expires == now + timedelta(seconds=policy.grace)
        for decision in decisions
    )
