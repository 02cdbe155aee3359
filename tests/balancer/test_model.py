"""The cost model: it learns, it is not misled, and its least squares are the minimum."""

import random
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.cost_model import DEFAULT, FEW, SOME, MeasuredBalance, Model, Rates, fit, non_negative
from balancer.survey import Cost
from tests.beds.gate import examples

MIB = 1 << 20
OTHER = Model(Rates(2e6, 0.03, 0.0, 300.0, 5000.0, 10_000.0), Rates(0.3, 6e-9, 0.0, 1e-4))
"""A filesystem unlike the one that DEFAULT was measured on."""


def steps(count: int, model: Model = OTHER, seed: int = 1, noise: float = 0.0) -> list[MeasuredBalance]:
    """Returns the cost of block groups of all kinds by this model."""
    rng, measured_balances = random.Random(seed), []
    for _ in range(count):
        moved, extents = rng.randrange(10 * MIB, 1000 * MIB), int(2 ** rng.uniform(0, 14))
        references = extents * rng.randrange(1, 9)
        estimate = model.estimate(Cost(extents, references, moved, 0))
        off = 1 + rng.uniform(-noise, noise)
        measured_balances.append(
            MeasuredBalance(moved, extents, references, moved + round(estimate.metadata * off), estimate.seconds * off)
        )
    return measured_balances


def worst(model: Model, measured_balances: list[MeasuredBalance]) -> float:
    """Returns the largest relative error of the estimates of metadata and seconds."""
    off = []
    for step in measured_balances:
        estimate = model.estimate(Cost(step.extents, step.references, step.moved, 0))
        off += [abs(estimate.metadata / (step.written - step.moved) - 1), abs(estimate.seconds / step.seconds - 1)]
    return max(off)


def test_an_estimate_is_the_sum_of_what_each_takes() -> None:
    model = Model(Rates(1000, 0.5, 10, 1, 0.5, 0.25), Rates(1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    estimate = model.estimate(Cost(extents=7, references=20_000, moves=100, largest=50))
    assert (estimate.moved, estimate.metadata, estimate.seconds) == (100, 1000 + 50 + 70 + 20_000 + 5_000 + 250, 1.0)
    assert (FEW, SOME) == (1000, 10_000)


def test_with_no_steps_it_is_the_default_and_with_steps_as_the_default_says_it_stays_near() -> None:
    assert fit([]) == DEFAULT
    assert worst(fit(steps(30, DEFAULT)), steps(50, DEFAULT, seed=2)) < 0.02


def test_it_learns_what_another_filesystem_takes() -> None:
    unseen = steps(100, seed=2)
    assert worst(DEFAULT, unseen) > 0.5
    assert worst(fit(steps(100)), unseen) < 0.15


def test_the_default_counts_less_with_each_step() -> None:
    unseen = steps(100, seed=2)
    errors = [worst(fit(steps(count)), unseen) for count in (0, 5, 40, 150)]
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < errors[0] * 0.9


def test_one_step_does_not_turn_everything_over() -> None:
    odd = MeasuredBalance(moved=MIB, extents=1, references=1, written=900 * MIB, seconds=500.0)
    for model in (fit([odd]), fit([*steps(20), odd])):
        estimate = model.estimate(Cost(700, 3000, 400 * MIB, MIB))
        assert 0 < estimate.metadata < 900 * MIB
        assert 0 < estimate.seconds < 100


@pytest.mark.parametrize("times", [20, 0])
def test_a_few_steps_that_were_measured_wrong_change_little(times: int) -> None:
    """Other programs wrote during the step, or its writes were counted with the next step."""
    measured_balances = steps(40, noise=0.05)
    wrong = [
        MeasuredBalance(
            measured_balance.moved,
            measured_balance.extents,
            measured_balance.references,
            measured_balance.moved + (measured_balance.written - measured_balance.moved) * times,
            measured_balance.seconds * times,
        )
        if number % 10 == 3
        else measured_balance
        for number, measured_balance in enumerate(measured_balances)
    ]
    assert worst(fit(wrong), steps(100, seed=2)) < 0.1


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            MeasuredBalance,
            st.integers(0, 1 << 40),
            st.integers(0, 10**7),
            st.integers(0, 10**9),
            st.integers(0, 1 << 50),
            st.floats(0, 1e6),
        ),
        max_size=8,
    )
)
@settings(max_examples=30, deadline=None)
def test_no_rate_is_below_zero_whatever_was_measured(measured_balances: list[MeasuredBalance]) -> None:
    model = fit(measured_balances)
    assert all(0 <= rate < float("inf") for rates in astuple(model) for rate in rates)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 12))
@settings(max_examples=examples(60), deadline=None)
def test_no_other_rates_above_zero_come_nearer(seed: int, columns: int, count: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: no rate can be changed within its bounds so that the error becomes smaller."""
    rng = np.random.default_rng(seed)
    features, took = rng.normal(size=(count, columns)), rng.normal(size=count)
    result = non_negative(features, took)
    slope = features.T @ (features @ result - took)
    assert (result >= 0).all()
    assert (slope > -1e-8).all()
    assert slope[result > 1e-12] == pytest.approx(0, abs=1e-8)
