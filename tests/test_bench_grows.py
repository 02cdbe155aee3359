"""The benchmark of growth with the number of hosts: its parts, and once through in a tiny size. Its figures mean nothing here."""

import json
import sys

import pytest

from bench import make_catalogue
from bench.grows import CACHED, PARTS, measured
from bench.growth import COUNTERS, CPU, LIMIT, MEMORY, SECONDS, exponent, summary
from tests.beds import TOP, session, work

SIZES = (280, 2800, 28_000)


def test_a_made_catalogue_has_no_subvolume_id_twice_however_many_hosts_it_has() -> None:
    evenings = list(enumerate(make_catalogue.nights(4)))
    hosts = (0, 1, 2999, 3000, 3001, 6000, 9000, 27_999)
    ids = [make_catalogue.backup_of(host, night, evening).subvolume_id for night, evening in evenings for host in hosts]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.1, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power: float) -> None:
    assert exponent(SIZES, [0.003 * size**power for size in SIZES]) == pytest.approx(power, abs=1e-9)


def test_a_constant_start_up_lowers_the_exponent_of_all_sizes_more_than_that_of_the_two_largest() -> None:
    values = [1 + size / 1000 for size in SIZES]
    of_all, of_largest = exponent(SIZES, values), exponent(SIZES[-2:], values[-2:])
    assert of_all is not None
    assert of_largest is not None
    assert 0 < of_all < of_largest < 1


def test_there_is_no_exponent_of_one_size_nor_of_a_zero() -> None:
    assert exponent((280,), [1.0]) is None
    assert exponent((280, 2800), [0.0, 1.0]) is None


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


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.root
def test_the_bench_of_growth_runs_through_and_leaves_nothing() -> None:
    place = session.folder(4 << 30)
    words = ("--hosts", "5,10", "--backups", "2", "--rounds", "1", "--quiet", "0", "--image-dir", str(place), "--json")
    told = json.loads(work(sys.executable, "-m", "bench.grows", *words, cwd=TOP, timeout=110).stdout)
    for part in (*PARTS, CACHED):
        growth = told[f"{part}: {SECONDS}"]
        assert list(growth) == ["5 hosts", "10 hosts", "exponent, all sizes"]
        assert growth["exponent, all sizes"]["median"] == exponent(
            (5, 10), [growth[size]["median"] for size in ("5 hosts", "10 hosts")]
        )
        assert told[f"{part}: {MEMORY}"]["5 hosts"]["median"] > 10
        assert told[f"{part}: {COUNTERS['rchar']}"]["5 hosts"]["median"] > 0
    assert told["night: MB written to disks"]["10 hosts"]["median"] > 0
    assert not [*place.glob(f"{session.PREFIX}*")]
