"""The figures of the benchmark of growth with the number of hosts."""

import sys

import pytest

from bench.grows import measured
from bench.growth import COUNTERS, CPU, LIMIT, MEMORY, SECONDS, exponent, summary

SIZES = (280, 2800, 28_000)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.1, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power: float) -> None:
    assert exponent(SIZES, [0.003 * size**power for size in SIZES]) == pytest.approx(power, abs=1e-9)


def test_the_summary_takes_medians_and_leaves_out_what_is_always_zero() -> None:
    nothing = dict.fromkeys((SECONDS, CPU, MEMORY, *COUNTERS.values()), 0.0)
    told = summary({"status": {10: [{**nothing, SECONDS: one} for one in (1.0, 2.0, 9.0)], 100: [{**nothing, SECONDS: 20.0}]}})
    assert list(told) == [f"status: {SECONDS}"]
    growth = told[f"status: {SECONDS}"]
    assert growth["10 hosts"] == {"median": 2.0, "min": 1.0, "max": 9.0}
    assert growth["exponent, all sizes"]["median"] == pytest.approx(1.0)
    assert growth["exponent, all sizes"]["limit"] == LIMIT
    assert "exponent, the two largest" not in growth


@pytest.mark.slow
@pytest.mark.root  # the kernel shows the counters of a process that has ended to root alone
def test_figures_are_of_the_command_with_its_children() -> None:
    """A child of the shell reads 20 MB, writes them into a pipe and has 50 MB of memory."""
    child = "import sys; held = b'x' * 50_000_000; sys.stdout.write('y' * 20_000_000)"
    figures, output = measured(("/bin/sh", "-c", f'"$0" -I -S -c "{child}" | wc -c; sleep 0.3', sys.executable))
    assert output.strip() == "20000000"
    assert 0.3 < figures[SECONDS] < 60
    assert figures[CPU] > 0
    assert 50 < figures[MEMORY] < 200
    assert 20 < figures[COUNTERS["rchar"]] < 40
    assert 20 < figures[COUNTERS["wchar"]] < 21


def test_a_command_that_fails_ends_the_bench() -> None:
    with pytest.raises(SystemExit, match="nothing to see"):
        measured(("/bin/sh", "-c", "echo nothing to see; exit 3"))
