"""Rehearsals, the pure part: learning from hosts, what fits into the pool, what a night changes, which settings are better."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import fmean
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.rehearse.cli.rehearsal_page import COLOURS, look_of
from backupd.rehearse.cli.rehearsal_words import RehearsalResult, conclusion, range_words
from backupd.rehearse.fill import ChangeFile, DeleteFile, HostFiles, WriteFile, new_bytes
from backupd.rehearse.fleet import MOST_FILES, MOST_HOSTS, TYPICAL, expected_bytes, learn_fleet, scale_fleet
from backupd.rehearse.rehearsal_types import Fleet, HostModel, NightReading, RehearsedBalance, RehearsedRun, VariantSettings
from backupd.rehearse.variants import (
    CONFIGURED,
    FEWEST,
    KEYS,
    QUESTIONS,
    Verdict,
    best,
    compare,
    judged,
    parse_variant,
    sign_test,
    variants_of,
)
from btrkeep.catalogue import Backup
from btrkeep.errors import UsageError

NIGHT = datetime(2026, 11, 1, 22, tzinfo=UTC)
MIB = 1 << 20


def backups(host: str, nights: Sequence[tuple[int, int, dict[str, int]]], literal: Sequence[int]) -> list[Backup]:
    """Returns backups with files, bytes and rsync's numbers of each night, as the catalogue has them."""
    rows = []
    for number, ((files, size, numbers), new) in enumerate(zip(nights, literal, strict=True)):
        when = NIGHT + timedelta(days=number)
        row = Backup(host, f"{number}", "", "complete", when, when, 9.0, files, size, new, None)
        rows.append(replace(row, detail={"paths": [{"numbers": numbers}]}))
    return rows


def steady(host: str, count: int = 10) -> list[Backup]:
    """1,000 files of 10 KB; each night 10 are made, 5 deleted, 20 others changed by a quarter: 10 * 10 KB and 20 * 2.5 KB new."""
    numbers = {"created": 10, "deleted": 5, "transferred": 30, "matched": 150_000}
    return backups(host, [(1000, 10_000_000, numbers)] * count, [10_000_000, *([150_000] * (count - 1))])


def test_rates_are_those_of_the_nights_after_the_first_copy() -> None:
    [host] = learn_fleet(["web"], steady("web")).hosts
    assert (host.files, host.mean_size, host.nights) == (1000, 10_000, 9)
    assert (host.created, host.deleted, host.changed) == (10, 5, 20)
    assert host.new_bytes == pytest.approx(150_000)
    assert host.rewritten == pytest.approx(0.25)
    assert host.nightly == (1.0,) * 9


def test_files_that_change_are_large_ones_where_so_much_of_them_was_transferred() -> None:
    numbers = {"transferred": 2, "matched": 1_900_000}
    [host] = learn_fleet(["db"], backups("db", [(1000, 10_000_000, numbers)] * 5, [10_000_000, *([100_000] * 4)])).hosts
    assert host.changed_size == pytest.approx(host.mean_size * 54.6, rel=0.05)  # as far as the power goes: exp(4)
    assert host.bias == 1.0


def test_a_host_with_too_few_nights_is_like_the_others_and_named() -> None:
    fleet = learn_fleet(["web", "new", "young"], [*steady("web"), *steady("young", 2)])
    web, new, young = fleet.hosts
    assert fleet.assumed == ("new", "young")
    assert (new.files, new.changed, new.nights) == (web.files, web.changed, 0)
    assert (young.files, young.nights) == (1000, 0)


def test_without_any_backup_hosts_are_typical() -> None:
    fleet = learn_fleet(["web"], [])
    assert fleet.hosts == (replace(TYPICAL, name="web"),)


def test_backups_that_are_not_complete_teach_nothing() -> None:
    rows = [replace(backup, state="failed", outcome="failed") for backup in steady("web")]
    assert learn_fleet(["web"], rows).assumed == ("web",)


MODELS = st.builds(
    HostModel,
    name=st.just("h"),
    files=st.integers(1, 3_000_000),
    mean_size=st.floats(100, 1e8),
    sigma=st.floats(0.5, 2.5),
    created=st.floats(0, 500),
    created_size=st.floats(1, 1e6),
    deleted=st.floats(0, 100),
    changed=st.floats(0, 1000),
    bias=st.floats(-0.4, 1.0),
    rewritten=st.floats(0, 1),
)
FLEETS = st.lists(MODELS, min_size=1, max_size=60).map(
    lambda host_models: Fleet(tuple(replace(host_model, name=f"host{number}") for number, host_model in enumerate(host_models)))
)


@given(FLEETS, st.sampled_from([300 * MIB, 2048 * MIB]), st.integers(1, 60), st.integers(0, 40))
def test_a_fleet_fits_and_changes_in_proportion_as_before(fleet: Fleet, size: int, nights: int, kept: int) -> None:
    result = scale_fleet(fleet, size, 0.6, nights, kept)
    before = {host.name: host for host in fleet.hosts}
    assert 0 < result.fraction <= 1 + 1e-9
    assert 0 < len(result.fleet.hosts) <= MOST_HOSTS
    assert result.size <= size
    assert sum(expected_bytes(host, nights, kept) for host in result.fleet.hosts) <= size * 0.6 * 1.01
    for host in result.fleet.hosts:
        old = before[host.name]
        assert host.files <= old.files
        assert (host.changed / host.files, host.created / host.files) == pytest.approx(
            (old.changed / old.files, old.created / old.files)
        )
        assert host.sigma == old.sigma


def test_what_fits_stays_as_it_is_and_small_and_large_hosts_are_both_left() -> None:
    small = learn_fleet(["web"], steady("web"))
    assert scale_fleet(small, 2048 * MIB, 0.6, 30, 20).fleet == small
    many = Fleet(tuple(replace(TYPICAL, name=f"h{n}", mean_size=1000.0 * (n + 1)) for n in range(100)))
    left = scale_fleet(many, 512 * MIB, 0.6, 30, 20).fleet
    assert sum(host.files for host in left.hosts) <= MOST_FILES * 1.01
    numbers = [int(host.name[1:]) for host in left.hosts]
    assert min(numbers) < 15
    assert max(numbers) >= 85


@pytest.mark.slow
@given(MODELS, st.integers(0, 9))
def test_the_same_seed_gives_the_same_nights_and_no_change_is_of_a_file_that_is_not_there(model: HostModel, seed: int) -> None:
    model = replace(model, files=min(model.files, 200), created=min(model.created, 20))
    host_files, other = (HostFiles(model, seed, 4 * MIB) for _ in range(2))
    lines = {change.name for change in host_files.first() if isinstance(change, WriteFile)}
    other.first()
    for _ in range(4):
        changes = host_files.night()
        assert changes == other.night()
        for change in changes:
            match change:
                case WriteFile():
                    assert change.name not in lines
                    lines.add(change.name)
                case DeleteFile():
                    lines.remove(change.name)
                case ChangeFile():
                    assert change.name in lines
                    ends = [0, *(offset + length for offset, length in change.pieces)]
                    assert all(offset >= end for (offset, _), end in zip(change.pieces, ends, strict=False))
                    assert 0 < ends[-1] <= change.size <= 4 * MIB
    assert len(host_files) == len(lines)


def test_nights_change_as_much_as_was_learned() -> None:
    [host] = learn_fleet(["web"], steady("web")).hosts
    new, changed = [], []
    for seed in range(6):
        files = HostFiles(replace(host, sigma=0.5, bias=0.0), seed, 64 * MIB)
        assert sum(map(new_bytes, files.first())) == pytest.approx(10_000_000, rel=0.15)
        for _ in range(10):
            night = files.night()
            new.append(sum(map(new_bytes, night)))
            changed.append(sum(isinstance(change, ChangeFile) for change in night))
    assert fmean(changed) == pytest.approx(20, rel=0.1)
    assert fmean(new) == pytest.approx(host.new_bytes, rel=0.4)  # a changed place has a whole block at least


BASE = VariantSettings(allocator="ssd", expiry="ssd", retention={"daily": 14})


def test_a_variant_is_the_configuration_but_for_what_it_names() -> None:
    variant = parse_variant("tight: inplace=never, balance=score:2%,compression=zstd:3,nodesize=4KiB,daily=7,grace=2d", BASE)
    assert variant.name == "tight"
    assert variant.settings == VariantSettings(
        allocator="ssd",
        expiry="ssd",
        balance=RehearsedBalance("score", 0.02),
        inplace="never",
        compression="zstd:3",
        nodesize=4096,
        retention={"daily": 7, "grace": 172800.0},
    )
    assert parse_variant("compression=zstd:1", BASE).name == "compression=zstd:1"
    assert parse_variant(CONFIGURED, BASE).settings == BASE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:inplce=never", "did you mean inplace?"),
        ("a:inplace=sometimes", "always, large, never"),
        ("a:inplace", "inplace=VALUE"),
        ("a:balance=best:5%", "score:5%"),
        ("a:balance=score:0%", "score:5%"),
        ("a:compression=lzo:3", "zstd:15"),
        ("a:nodesize=5KiB", "16KiB"),
        ("a:daily=many", "a number"),
        ("a:daily=1,daily=2", "once"),
        (":daily=1", "NAME"),
        ("word", "NAME"),
    ],
)
def test_what_is_no_variant_is_refused_with_what_would_be_one(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_variant(text, BASE)
    assert words in refused.value.hint


def test_one_variant_is_compared_with_the_settings_as_they_are() -> None:
    assert [variant.name for variant in variants_of(None, ("a:daily=7",), BASE)] == [CONFIGURED, "a"]
    assert [variant.name for variant in variants_of("holes", (), BASE)] == ["ssd", "nossd"]
    for text in ((), (CONFIGURED,), ("a:daily=1", "a:daily=2")):
        with pytest.raises(UsageError):
            variants_of(None, text, BASE)


def test_every_question_can_be_asked_and_measures_what_there_is() -> None:
    from backupd.rehearse.variants import MEASURES

    for name, question in QUESTIONS.items():
        assert len(variants_of(name, (), BASE)) == len(question.variants)
        assert {*question.measures} <= {*MEASURES}
    assert {"allocator", "expiry", "balance", "inplace", "compression", "nodesize", "daily"} <= {*KEYS}


def test_the_sign_test_is_that_of_the_textbook() -> None:
    """Values of Dixon and Mood's table, two-sided."""
    assert sign_test(5, 0) == 0.0625
    assert sign_test(1, 7) == pytest.approx(0.0703, abs=1e-4)
    assert sign_test(10, 0) == pytest.approx(0.00195, abs=1e-5)
    assert sign_test(0, 0) == 1.0
    assert sign_test(3, 3) == 1.0


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e12)), min_size=1, max_size=12))
def test_a_verdict_is_turned_round_with_its_pairs(pairs: list[tuple[float, float]]) -> None:
    turned = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    measure_comparison, other = compare("score", pairs), compare("score", [(b, a) for a, b in pairs])
    assert other.verdict is turned.get(measure_comparison.verdict, measure_comparison.verdict)
    assert other.chance == measure_comparison.chance
    assert -1 <= measure_comparison.least <= measure_comparison.median <= measure_comparison.most <= 1
    if len(pairs) < FEWEST:
        assert measure_comparison.verdict is Verdict.TOO_FEW


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([(10, 5)] * 5, Verdict.BETTER),
        ([(5, 10)] * 5, Verdict.WORSE),
        ([(10, 5)] * 4, Verdict.TOO_FEW),
        ([(10, 5)] * 4 + [(5, 10)], Verdict.NO_DIFFERENCE),
        ([(1000, 999)] * 9, Verdict.NO_DIFFERENCE),
        ([(10, 10)] * 9, Verdict.NO_DIFFERENCE),
        ([(0, 0)] * 9, Verdict.NO_DIFFERENCE),
    ],
)
def test_a_difference_counts_when_all_of_five_pairs_agree_and_it_matters(
    pairs: list[tuple[float, float]], verdict: Verdict
) -> None:
    assert compare("score", pairs).verdict is verdict


def reading(score: float, used: int = 50) -> NightReading:
    return NightReading(1, 100, 80, used, 70, 40, 5, score, 9, 10, 20, 5, 0, 1.0, 0.5, 0.0, 2, 0)


def test_the_best_is_better_in_something_and_worse_in_nothing() -> None:
    runs = [RehearsedRun("a", seed, (reading(100 + seed),)) for seed in range(5)]
    runs += [RehearsedRun("b", seed, (reading(50 + seed),)) for seed in range(5)]
    runs += [RehearsedRun("c", seed, (reading(40 + seed, used=60),)) for seed in range(5)]
    b, c = variant_judgements = judged(runs, ["a", "b", "c"])
    assert [measure_comparison.measure for measure_comparison in b.named(Verdict.BETTER)] == ["score"]
    assert [measure_comparison.measure for measure_comparison in c.named(Verdict.WORSE)] == ["used"]
    assert best(variant_judgements) == ("b",)
    assert best([c]) == ()
    d = replace(b, variant="d")
    assert best([b, c, d]) == ("b", "d")


def test_the_answer_says_in_what_a_variant_is_better_also_if_that_was_not_asked() -> None:
    """Otherwise it would be called better right after a line that reports no difference."""
    runs = [RehearsedRun("a", seed, (reading(100 + seed, used=60),)) for seed in range(5)]
    runs += [RehearsedRun("b", seed, (reading(50 + seed, used=50),)) for seed in range(5)]
    (b,) = judged(runs, ["a", "b"])
    words = {}
    for question in ("holes", "compression", "expiry"):
        result = SimpleNamespace(judgements=(b,), question=question, plan=SimpleNamespace(seeds=5))
        words[question], answer = conclusion(cast("RehearsalResult", result))
        assert answer == "Better for this server than a, by this rehearsal: b."
    chance = "By chance alone, the same agreement occurs in 6.2% of cases."
    score, used = "score of the free space (-49%)", "used (-17%)"
    assert words == {
        "holes": f"b is better in {score} than a; besides, it is better in {used}. {chance}",
        "compression": f"b is better in {used} than a; besides, it is better in {score}. {chance}",
        "expiry": "b: shows no difference from a in the measures of the question; "
        f"it is better in {used}, {score} than that. {chance}",
    }


def test_only_seeds_that_both_have_come_to_are_compared() -> None:
    runs = [RehearsedRun("a", 1, (reading(1),)), RehearsedRun("a", 2, (reading(1),)), RehearsedRun("b", 1, (reading(2),))]
    [variant_judgement] = judged(runs, ["a", "b"])
    assert all(comparison.lower + comparison.higher <= 1 for comparison in variant_judgement.comparisons)
    [nothing] = judged(runs[:2], ["a", "b"])
    assert nothing.comparisons == ()


def test_no_two_of_many_variants_look_alike() -> None:
    """There are more variants than colours; line and mark distinguish two with the same colour."""
    looks = [look_of(number) for number in range(2 * COLOURS)]
    assert len({(look.colour, look.border) for look in looks}) == len(looks)
    assert len({(look.colour, look.dash) for look in looks}) == len(looks)
    assert len({(look.colour, look.mark) for look in looks}) == len(looks)


@pytest.mark.parametrize(
    ("least", "most", "words"), [(0, 0, "same"), (1, 1, "from 0"), (-0.25, 0, "-25% to same"), (-0.1, 0.5, "-10% to x 2.0")]
)
def test_a_range_of_one_value_is_that(least: float, most: float, words: str) -> None:
    assert range_words(least, most) == words
