"""The figures of the benchmark of growth with the number of hosts.

If they are wrong, a command that becomes slow with many hosts has a good figure.
"""

import sys

import pytest

from bench.grows import measured
from bench.growth import COUNTERS, CPU, MEMORY, SECONDS, exponent

SIZES = (280, 2800, 28_000)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.1, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power: float) -> None:
    assert exponent(SIZES, [0.003 * size**power for size in SIZES]) == pytest.approx(power, abs=1e-9)


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
