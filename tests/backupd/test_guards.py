"""The safety limits of an expiry: how much may be deleted together, which clocks can be right, and the words of `--force`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.expire.report import expiry_words, skip_words
from backupd.expire.trust import clock_synchronised, judge_clock, keep_clocks, past_clocks, recall_clocks
from btrkeep.catalogue import Backup, Catalogue
from btrkeep.decisions.safety_limits import (
    ClockAhead,
    ClockBehind,
    ClockFact,
    ClockPast,
    ClockVerdict,
    DeletedShare,
    Forced,
    clock_verdict,
    force_word,
    past_after,
    too_many,
)
from btrkeep.errors import UsageError

NOTHING = Forced()
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("going", "total", "is_skipped"),
    [
        (11, 36, True),  # 30.6 %
        (11, 37, False),  # 29.7 %
        (30, 100, False),  # exactly 30 %
        (31, 100, True),
        (300, 1000, False),
        (10, 10, False),  # not more than 10
        (11, 11, True),
        (0, 0, False),
    ],
)
def test_a_host_is_left_out_beyond_30_percent_and_beyond_10(going: int, total: int, is_skipped: bool) -> None:
    guarded = too_many({"web1": DeletedShare(going, total), "web2": DeletedShare(0, 10_000)}, NOTHING)
    assert set(guarded.skipped_hosts) == ({"web1"} if is_skipped else set())
    assert guarded.stop is None


def test_a_host_left_out_of_an_expiry_is_reported_with_the_count_and_the_force_command() -> None:
    results = skip_words("web1", too_many({"web1": DeletedShare(24, 34)}, NOTHING).skipped_hosts["web1"])
    assert results == (
        "24 of 34 backups would be deleted at once, more than 30% and more than 10; if that is intended: "
        "`backupd expire --force web1`"
    )


@pytest.mark.parametrize(
    ("hosts", "going", "total", "stops"),
    [
        (10, 10, 33, False),  # 100 of 330: not more than 100
        (11, 10, 33, True),  # 110 of 363
        (11, 10, 34, False),  # 110 of 374: 29.4 %
        (20, 6, 20, False),  # 120 of 400: exactly 30 %
        (20, 7, 20, True),
    ],
)
def test_everything_stops_beyond_30_percent_and_beyond_100_of_the_pool(hosts: int, going: int, total: int, stops: bool) -> None:
    shares = {f"web{number}": DeletedShare(going, total) for number in range(hosts)}
    guarded = too_many(shares, NOTHING)
    assert (guarded.stop is not None, guarded.skipped_hosts) == (stops, {})
    assert too_many(shares, Forced(pool=True)).stop is None
    assert guarded.stop == (DeletedShare(hosts * going, hosts * total) if stops else None)


def test_the_limit_of_the_pool_counts_no_backups_of_hosts_that_are_left_out() -> None:
    """Of a skipped host nothing is deleted, so it stops no other host; if forced, it counts like any other."""
    hosts = {"big": DeletedShare(200, 300), "web1": DeletedShare(5, 34)}
    guarded = too_many(hosts, NOTHING)
    assert (set(guarded.skipped_hosts), guarded.stop) == ({"big"}, None)
    guarded = too_many(hosts, Forced(hosts=frozenset({"big"})))
    assert guarded.skipped_hosts == {}
    assert guarded.stop == DeletedShare(205, 334)
    assert expiry_words(guarded.stop) == (
        "in the whole pool, 205 of 334 backups would be deleted at once, more than 30% and more than 100; "
        "if that is intended: `backupd expire --force pool`"
    )


def test_a_host_is_forced_by_its_name_or_with_all_hosts() -> None:
    hosts = {"web1": DeletedShare(20, 34), "web2": DeletedShare(20, 34)}
    assert set(too_many(hosts, Forced(hosts=frozenset({"web1"}))).skipped_hosts) == {"web2"}
    assert too_many(hosts, Forced(every_host=True)).skipped_hosts == {}
    assert set(too_many(hosts, Forced(pool=True, clock=True)).skipped_hosts) == {"web1", "web2"}


def test_words_of_force_are_read_by_name() -> None:
    assert Forced.parse([], ["web1"]) == NOTHING
    assert Forced.parse(["pool"], ["web1"]) == Forced(pool=True)
    assert Forced.parse(["hosts", "clock"], ["web1"]) == Forced(every_host=True, clock=True)
    forced = Forced.parse(["web1", "host:web2"], {"web1": None, "web2": None})
    assert forced == Forced(hosts=frozenset({"web1", "web2"}))
    assert forced.covers("web1")
    assert not forced.covers("web3")


def test_a_host_that_is_called_like_one_of_the_words_is_named_with_host() -> None:
    hosts = ["pool", "clock", "hosts", "web1"]
    assert Forced.parse(["pool"], hosts) == Forced(pool=True)
    assert Forced.parse(["host:pool"], hosts) == Forced(hosts=frozenset({"pool"}))
    assert all(Forced.parse([force_word(host)], hosts) == Forced(hosts=frozenset({host})) for host in hosts)
    assert "--force host:pool" in skip_words("pool", too_many({"pool": DeletedShare(20, 34)}, NOTHING).skipped_hosts["pool"])


@pytest.mark.parametrize(
    ("word", "near"), [("web3", '"web1"'), ("clocks", '"clock"'), ("host:pool", '"pool"'), ("zzz", ""), ("", "")]
)
def test_an_unknown_word_of_force_is_wrong_usage_with_the_near_names(word: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        Forced.parse(["clock", word], ["web1", "mail"])
    assert f"--force {word}: no such host" in caught.value.message
    assert near in caught.value.message
    assert ("did you mean" in caught.value.message) is bool(near)
    assert "host:NAME" in caught.value.hint


def fact(wall: datetime, up: timedelta = DAY, boot: str = "one") -> ClockFact:
    return ClockFact(wall, up.total_seconds(), boot)


def verdict(
    wall: datetime, up: timedelta = DAY, boot: str = "one", newest: datetime | None = None, rehearsal: bool = False
) -> ClockVerdict:
    """After an expiry at noon, a day after boot."""
    return clock_verdict(ClockPast(fact(NOON)), fact(wall, up, boot), newest, rehearsal)


def test_without_an_earlier_expiry_or_run_every_clock_is_believed() -> None:
    assert clock_verdict(ClockPast(), fact(NOON), None, rehearsal=False) == ClockVerdict(None, None)


@pytest.mark.parametrize("rehearsal", [False, True])
@pytest.mark.parametrize("boot", ["one", "two"])
def test_a_clock_that_went_back_by_more_than_five_minutes_stops(boot: str, rehearsal: bool) -> None:
    back = timedelta(minutes=5)
    assert verdict(NOON - back, boot=boot, rehearsal=rehearsal) == ClockVerdict()
    result = verdict(NOON - back - timedelta(seconds=1), boot=boot, rehearsal=rehearsal)
    assert result.wait is None
    assert result.stop == ClockBehind(NOON - back - timedelta(seconds=1), NOON)
    for words in ("2026-11-20T11:54:59Z", "2026-11-20T12:00:00Z", "--force clock"):
        assert words in expiry_words(result.stop)


def test_the_newest_run_counts_as_well_as_the_last_expiry() -> None:
    assert verdict(NOON + HOUR, HOUR, "two", newest=NOON + 2 * HOUR).stop
    assert clock_verdict(ClockPast(), fact(NOON), NOON + HOUR, rehearsal=False).stop
    assert clock_verdict(ClockPast(), fact(NOON), NOON + timedelta(minutes=5), rehearsal=False) == ClockVerdict()
    assert verdict(NOON - HOUR, DAY, newest=NOON - DAY).stop  # the expiry is the later of the two


@pytest.mark.parametrize(
    ("passed", "waits"),
    [(HOUR, False), (HOUR + timedelta(minutes=10), False), (HOUR + timedelta(minutes=10, seconds=1), True), (500 * DAY, True)],
)
def test_a_clock_that_went_ahead_of_the_boot_clock_by_more_than_ten_minutes_waits(passed: timedelta, waits: bool) -> None:
    result = verdict(NOON + passed, DAY + HOUR)
    assert result.stop is None
    assert (result.wait is not None) is waits
    assert result.wait == (ClockAhead(passed, NOON, HOUR) if waits else None)
    assert result.wait is None or "but this machine has run only 1h in that time" in expiry_words(result.wait)


@pytest.mark.parametrize(
    ("passed", "waits"), [(DAY, False), (38 * HOUR, False), (38 * HOUR + timedelta(seconds=1), True), (500 * DAY, True)]
)
def test_after_a_boot_36_hours_and_the_time_since_boot_are_allowed(passed: timedelta, waits: bool) -> None:
    result = verdict(NOON + passed, 2 * HOUR, "two")
    assert result.stop is None
    assert (result.wait is not None) is waits


def test_a_clock_that_went_ahead_waits_and_is_believed_when_it_has_stayed_so_for_a_night() -> None:
    """It was corrected manually, after days in which it was behind."""
    past, result = expiry(ClockPast(fact(NOON)), fact(NOON + 30 * DAY, DAY + HOUR))
    assert result.wait
    second = timedelta(seconds=1)
    for later in (second, HOUR, 20 * HOUR - second):  # an expiry in between does not restart the night
        past, result = expiry(past, fact(NOON + 30 * DAY + later, DAY + HOUR + later))
        assert result.wait, later
    night = fact(NOON + 30 * DAY + 20 * HOUR, DAY + 21 * HOUR)
    ahead = timedelta(minutes=5)  # a run may have ended this far in the future
    assert expiry(past, night, newest=night.wall + ahead)[1] == ClockVerdict()
    assert expiry(past, night, newest=night.wall + ahead + second)[1].stop
    past, result = expiry(past, fact(NOON + 31 * DAY, 2 * DAY + HOUR))
    assert result == ClockVerdict()
    assert past == ClockPast(fact(NOON + 31 * DAY, 2 * DAY + HOUR))


def test_after_a_boot_a_clock_that_went_ahead_is_believed_a_night_later_too() -> None:
    past, result = expiry(ClockPast(fact(NOON)), fact(NOON + 30 * DAY, HOUR, "two"))
    assert result.wait
    past, result = expiry(past, fact(NOON + 30 * DAY + HOUR, timedelta(minutes=5), "three"))
    assert result.wait
    past, result = expiry(past, fact(NOON + 31 * DAY, timedelta(minutes=5), "four"))
    assert result == ClockVerdict()


@given(
    st.timedeltas(timedelta(minutes=20), 9000 * DAY),
    st.lists(st.timedeltas(timedelta(seconds=1), HOUR), min_size=1, max_size=15),
)
def test_however_many_expiries_of_a_few_hours_see_a_wrong_clock_the_boot_clock_disproves_it(
    ahead: timedelta, passed: list[timedelta]
) -> None:
    past, since = ClockPast(fact(NOON)), timedelta(0)
    for step in passed:
        since += step
        past, result = expiry(past, fact(NOON + ahead + since, DAY + since), newest=NOON + ahead)
        assert result.wait
    for morning in range(1, 4):
        right = NOON + morning * DAY
        past, result = expiry(past, fact(right, DAY + morning * DAY), newest=right - 4 * HOUR)
        assert result == ClockVerdict()


@given(
    st.timedeltas(2 * HOUR, 9000 * DAY),
    st.sampled_from(("one", "two")),
    st.timedeltas(timedelta(0), 12 * HOUR),
)
def test_a_clock_that_was_believed_too_far_ahead_is_overruled_by_a_night_under_the_right_one(
    ahead: timedelta, boot: str, drift: timedelta
) -> None:
    """It stops the expiry on one morning; by the next morning a run has ended under the present clock."""
    past, morning = ClockPast(fact(NOON + ahead + drift)), NOON + timedelta(minutes=10)
    past, result = expiry(past, fact(morning, DAY + HOUR, boot), newest=morning - 4 * HOUR)
    assert result.stop
    past, result = expiry(past, fact(morning + HOUR, DAY + 2 * HOUR, boot), newest=morning + timedelta(minutes=30))
    assert result.stop  # too soon
    without_a_run, result = expiry(past, fact(morning + DAY, 2 * DAY + HOUR, boot), newest=morning - 4 * HOUR)
    assert result.stop or ahead + drift < DAY + HOUR
    assert without_a_run == past or ahead + drift < DAY + HOUR
    past, result = expiry(past, fact(morning + DAY, 2 * DAY + HOUR, boot), newest=morning + 20 * HOUR)
    assert result == ClockVerdict()
    past, result = expiry(past, fact(morning + 2 * DAY, 3 * DAY + HOUR, boot), newest=morning + 44 * HOUR)
    assert result == ClockVerdict()


def test_a_clock_that_is_behind_is_not_believed_without_a_run_by_the_clock_of_now() -> None:
    past, tomorrow = ClockPast(fact(NOON + 30 * DAY), doubted=fact(NOON)), fact(NOON + DAY, 2 * DAY)
    assert clock_verdict(past, tomorrow, None, rehearsal=False).stop
    assert clock_verdict(past, tomorrow, NOON - timedelta(minutes=6), rehearsal=False).stop
    assert clock_verdict(past, tomorrow, NOON - timedelta(minutes=5), rehearsal=False) == ClockVerdict()


def test_a_doubted_clock_that_jumps_once_more_has_to_stay_so_for_a_whole_night() -> None:
    past = ClockPast(fact(NOON), doubted=fact(NOON + 30 * DAY, DAY + HOUR))
    again = fact(NOON + 60 * DAY, DAY + 2 * HOUR)
    result = clock_verdict(past, again, None, rehearsal=False)
    assert result.wait
    assert past_after(past, again, result) == ClockPast(fact(NOON), doubted=again)


@pytest.mark.parametrize("same_pool", [True, False])
def test_a_lost_catalogue_gets_the_clocks_back_from_the_dashboards_copy_of_the_same_pool(tmp_path: Path, same_pool: bool) -> None:
    kept = ClockPast(fact(NOON), doubted=fact(NOON + DAY))
    with Catalogue.open(tmp_path / "lost") as catalogue:
        catalogue.replace_backups("pool-1", [])
        keep_clocks(catalogue, kept)
    newest = Backup("web1", "2026-11-19T120000Z", "x", "complete", NOON - DAY, NOON - DAY, 1.0, 1, 1, 1, None)
    with Catalogue.open(tmp_path / "stand-in") as stand_in:
        stand_in.replace_backups("pool-1" if same_pool else "pool-2", [newest])
        recall_clocks(stand_in, tmp_path / "lost")
        past = past_clocks(stand_in)
    if same_pool:
        assert past == kept
    else:  # the newest backup stands for them
        assert past.trusted is not None
        assert (past.trusted.wall, past.doubted) == (NOON - DAY, None)


def test_the_next_expiry_reads_the_clocks_that_the_last_one_stored(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        assert past_clocks(catalogue) == ClockPast()
        for past in (ClockPast(fact(NOON)), ClockPast(fact(NOON), fact(NOON + DAY)), ClockPast(None, fact(NOON + DAY))):
            keep_clocks(catalogue, past)
            assert past_clocks(catalogue) == past


def test_a_clock_that_an_administrator_forces_is_believed_and_stored_as_the_only_one(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        keep_clocks(catalogue, ClockPast(fact(NOON), doubted=fact(NOON + DAY)))
        before = fact(NOON - 30 * DAY)
        assert judge_clock(catalogue, before, Forced(), rehearsal=False)[0].stop
        assert judge_clock(catalogue, before, Forced(clock=True), rehearsal=False) == (ClockVerdict(), ClockPast(before))


def test_without_a_stored_clock_the_end_of_the_newest_run_is_believed(tmp_path: Path) -> None:
    """Otherwise a clock that is ahead in a first night would be right, and all grace periods would be over."""
    with Catalogue.open(tmp_path) as catalogue:
        run_id = catalogue.start_run("web1", NOON - DAY, 1, "1", night=False)
        assert past_clocks(catalogue) == ClockPast()
        catalogue.finish_run(run_id, finished=NOON, outcome="complete")
        past = past_clocks(catalogue)
        assert past.trusted is not None
        assert (past.trusted.wall, past.trusted.boot_id, past.doubted) == (NOON, "", None)
        keep_clocks(catalogue, ClockPast(fact(NOON - DAY)))
        assert past_clocks(catalogue) == ClockPast(fact(NOON - DAY))


def test_a_run_that_a_wrong_clock_stamped_stops_until_there_is_a_newer_one() -> None:
    """The boot in which it ran is unknown, and a night without a run proves nothing."""
    past, newest = ClockPast(fact(NOON)), NOON + 2000 * DAY
    for morning in range(1, 4):
        past, result = expiry(past, fact(NOON + morning * DAY, morning * DAY, "two"), newest)
        assert result.stop
    past, result = expiry(past, fact(NOON + 4 * DAY, 4 * DAY, "two"), newest=NOON + 4 * DAY - HOUR)
    assert result == ClockVerdict()


def test_before_the_first_expiry_a_run_of_the_last_night_proves_a_clock_that_another_run_contradicted() -> None:
    past, result = expiry(ClockPast(), fact(NOON), newest=NOON + 2000 * DAY)
    assert result.stop
    assert past.trusted is None
    assert expiry(past, fact(NOON + DAY, 2 * DAY), newest=NOON + DAY - HOUR)[1] == ClockVerdict()


def expiry(past: ClockPast, now: ClockFact, newest: datetime | None = None) -> tuple[ClockPast, ClockVerdict]:
    """Returns the past with which the next expiry is compared, and the verdict."""
    result = clock_verdict(past, now, newest, rehearsal=False)
    return past_after(past, now, result), result


def test_the_boot_clock_is_believed_more_than_a_run_that_a_wrong_clock_stamped() -> None:
    """The clock was years ahead for a night between two expiries of one boot."""
    assert verdict(NOON + DAY, 2 * DAY, newest=NOON + 2000 * DAY) == ClockVerdict()
    assert verdict(NOON + 2 * HOUR, HOUR, "two", newest=NOON + 2000 * DAY).stop  # it is unknown which of the two was right


@given(
    st.lists(st.tuples(st.timedeltas(timedelta(minutes=1), 30 * HOUR), st.booleans(), st.booleans()), min_size=1, max_size=20),
    st.timedeltas(39 * HOUR, 3000 * DAY),
)
def test_one_expiry_under_a_clock_that_was_ahead_holds_up_no_other(
    mornings: list[tuple[timedelta, bool, bool]], ahead: timedelta
) -> None:
    """Every morning the machine may have been restarted, and the clock may be ahead, but not twice in a row."""
    past, right, up, boot, was_ahead = ClockPast(fact(NOON, boot="0")), NOON, DAY, 0, False
    for passed, boots, wrong in mornings:
        right, up, boot = right + passed, passed if boots else up + passed, boot + boots
        is_ahead = wrong and not was_ahead
        past, result = expiry(past, fact(right + is_ahead * ahead, up, str(boot)), newest=right)
        assert result.stop is None
        assert (result.wait is not None) is is_ahead
        was_ahead = is_ahead


@given(st.timedeltas(timedelta(minutes=6), 9000 * DAY), st.sampled_from(("one", "two")), st.booleans())
def test_a_clock_that_is_behind_the_last_one_that_was_right_stops_again_and_again(back: timedelta, boot: str, doubt: bool) -> None:
    past = ClockPast(fact(NOON), fact(NOON + 500 * DAY, DAY + HOUR) if doubt else None)
    for later in range(3):
        past, result = expiry(past, fact(NOON - back + later * timedelta(minutes=1), DAY + 2 * HOUR, boot), newest=NOON - DAY)
        assert result.stop or later * timedelta(minutes=1) >= back - timedelta(minutes=5)


def test_the_clock_of_a_rehearsal_may_be_set_ahead() -> None:
    assert verdict(NOON + 500 * DAY, rehearsal=True) == ClockVerdict()
    assert verdict(NOON + 500 * DAY, 2 * HOUR, "two", rehearsal=True) == ClockVerdict()


@given(
    st.timedeltas(timedelta(0), 3000 * DAY),
    st.timedeltas(timedelta(minutes=-5), timedelta(minutes=10)),
    st.sampled_from(("one", "two")),
)
def test_a_clock_that_goes_like_the_boot_clock_is_never_held_up(passed: timedelta, drift: timedelta, boot: str) -> None:
    up = DAY + passed if boot == "one" else passed
    assert verdict(NOON + passed + drift, up, boot) == ClockVerdict()


@pytest.mark.parametrize(
    ("error", "answer", "is_synchronised"),
    [(15_999_999, 0, True), (500, 5, True), (16_000_000, 0, False), (16_000_000, 5, False), (500, -1, None)],
)
def test_a_clock_is_synchronised_as_long_as_the_kernel_knows_its_error(
    monkeypatch: pytest.MonkeyPatch, error: int, answer: int, is_synchronised: bool | None
) -> None:
    """As in timedated. The return value of adjtimex does not show it: that is 5 also without a known leap second."""

    def adjtimex(words: Any) -> int:
        words._obj[3] = error
        return answer

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: SimpleNamespace(adjtimex=adjtimex))
    assert clock_synchronised() is is_synchronised
