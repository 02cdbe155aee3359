"""What stops an expiry: how much may go at once, which clocks can be right, and what `--force` names."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.guards import ClockFact, ClockVerdict, Forced, Share, clock_verdict, force_word, too_many
from btrkeep.errors import UsageError

NOTHING = Forced()
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("going", "total", "left_out"),
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
def test_a_host_is_left_out_beyond_30_percent_and_beyond_10(going: int, total: int, left_out: bool) -> None:
    guarded = too_many({"web1": Share(going, total), "web2": Share(0, 10_000)}, NOTHING)
    assert set(guarded.left_out) == ({"web1"} if left_out else set())
    assert guarded.stop is None


def test_who_is_left_out_hears_how_many_would_go_and_how_to_let_them() -> None:
    said = too_many({"web1": Share(24, 34)}, NOTHING).left_out["web1"]
    assert said == "24 of 34 backups would go at once, more than 30% and more than 10: if that is right, say --force web1"


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
    shares = {f"web{number}": Share(going, total) for number in range(hosts)}
    guarded = too_many(shares, NOTHING)
    assert (guarded.stop is not None, guarded.left_out) == (stops, {})
    assert too_many(shares, Forced(pool=True)).stop is None
    assert not stops or "of the pool" in str(guarded.stop)
    assert not stops or "--force pool" in str(guarded.stop)


def test_the_pools_limit_is_about_what_would_really_go() -> None:
    """Of a host that is left out nothing goes, so it stops no other; forced, it counts like any."""
    hosts = {"big": Share(200, 300), "web1": Share(5, 34)}
    guarded = too_many(hosts, NOTHING)
    assert (set(guarded.left_out), guarded.stop) == ({"big"}, None)
    guarded = too_many(hosts, Forced(hosts=frozenset({"big"})))
    assert guarded.left_out == {}
    assert guarded.stop == (
        "of the pool 205 of 334 backups would go at once, more than 30% and more than 100: if that is right, say --force pool"
    )


def test_a_host_is_forced_by_its_name_or_with_all_hosts() -> None:
    hosts = {"web1": Share(20, 34), "web2": Share(20, 34)}
    assert set(too_many(hosts, Forced(hosts=frozenset({"web1"}))).left_out) == {"web2"}
    assert too_many(hosts, Forced(every_host=True)).left_out == {}
    assert set(too_many(hosts, Forced(pool=True, clock=True)).left_out) == {"web1", "web2"}


def test_words_of_force_are_read_by_name() -> None:
    assert Forced.parse([], ["web1"]) == NOTHING
    assert Forced.parse(["pool"], ["web1"]) == Forced(pool=True)
    assert Forced.parse(["hosts", "clock"], ["web1"]) == Forced(every_host=True, clock=True)
    found = Forced.parse(["web1", "host:web2"], {"web1": None, "web2": None})
    assert found == Forced(hosts=frozenset({"web1", "web2"}))
    assert found.covers("web1")
    assert not found.covers("web3")


def test_a_host_that_is_called_like_one_of_the_words_is_named_with_host() -> None:
    hosts = ["pool", "clock", "hosts", "web1"]
    assert Forced.parse(["pool"], hosts) == Forced(pool=True)
    assert Forced.parse(["host:pool"], hosts) == Forced(hosts=frozenset({"pool"}))
    assert all(Forced.parse([force_word(host)], hosts) == Forced(hosts=frozenset({host})) for host in hosts)
    assert "--force host:pool" in too_many({"pool": Share(20, 34)}, NOTHING).left_out["pool"]


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
    return clock_verdict(fact(NOON), fact(wall, up, boot), newest, rehearsal)


def test_without_anything_known_every_clock_is_believed() -> None:
    assert clock_verdict(None, fact(NOON), None, rehearsal=False) == ClockVerdict(None, None)


@pytest.mark.parametrize("rehearsal", [False, True])
@pytest.mark.parametrize("boot", ["one", "two"])
def test_a_clock_that_went_back_by_more_than_five_minutes_stops(boot: str, rehearsal: bool) -> None:
    back = timedelta(minutes=5)
    assert verdict(NOON - back, boot=boot, rehearsal=rehearsal) == ClockVerdict()
    found = verdict(NOON - back - timedelta(seconds=1), boot=boot, rehearsal=rehearsal)
    assert found.wait is None
    assert found.stop
    assert "2026-11-20T11:54:59Z" in found.stop
    assert "2026-11-20T12:00:00Z" in found.stop
    assert "--force clock" in found.stop


def test_the_newest_run_counts_as_well_as_the_last_expiry() -> None:
    assert verdict(NOON + HOUR, DAY + HOUR, newest=NOON + 2 * HOUR).stop
    assert clock_verdict(None, fact(NOON), NOON + HOUR, rehearsal=False).stop
    assert clock_verdict(None, fact(NOON), NOON + timedelta(minutes=5), rehearsal=False) == ClockVerdict()
    assert verdict(NOON - HOUR, DAY, newest=NOON - DAY).stop  # the expiry is the later of the two


@pytest.mark.parametrize(
    ("passed", "waits"),
    [(HOUR, False), (HOUR + timedelta(minutes=10), False), (HOUR + timedelta(minutes=10, seconds=1), True), (500 * DAY, True)],
)
def test_a_clock_that_went_ahead_of_the_boot_clock_by_more_than_ten_minutes_waits(passed: timedelta, waits: bool) -> None:
    found = verdict(NOON + passed, DAY + HOUR)
    assert found.stop is None
    assert (found.wait is not None) is waits
    assert not waits or "of which this machine's boot clock explains 1h" in str(found.wait)


@pytest.mark.parametrize(
    ("passed", "waits"), [(DAY, False), (38 * HOUR, False), (38 * HOUR + timedelta(seconds=1), True), (500 * DAY, True)]
)
def test_after_a_boot_36_hours_and_the_time_since_boot_are_allowed(passed: timedelta, waits: bool) -> None:
    found = verdict(NOON + passed, 2 * HOUR, "two")
    assert found.stop is None
    assert (found.wait is not None) is waits


def test_a_clock_that_was_wrong_waits_once_and_is_believed_when_it_stays() -> None:
    first, ahead = fact(NOON), fact(NOON + 30 * DAY, DAY + HOUR)
    assert clock_verdict(first, ahead, NOON, rehearsal=False).wait
    assert clock_verdict(ahead, fact(NOON + 30 * DAY + HOUR, DAY + 2 * HOUR), NOON, rehearsal=False) == ClockVerdict()


def test_a_rehearsals_clock_may_go_ahead_as_it_likes() -> None:
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
