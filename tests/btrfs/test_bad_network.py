"""Hosts whose network fails in every way, together with good hosts, in one night; the long form is `python -m
bench.bad_network`.
"""

from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import bad_namespaces
from bench.bad_network import KINDS, Kind, Site, wrong
from tests.beds.nights import Nights
from tests.beds.proxy import faulty_proxy
from tests.beds.ssh import Sshd

pytestmark = [pytest.mark.slow]
FAST = [kind for kind in KINDS if kind != "stopped"]  # it leaves a process on the simulated host; test_stall.py has it


def test_one_night_with_every_kind_of_bad_network_completes_the_good_hosts_and_leaves_nothing(nights: Nights, sshd: Sshd) -> None:
    with faulty_proxy(sshd.port) as faults:
        place = Site(nights, sshd, faults, Namespace(files=30, concurrency=8))
        nights.settings("backup", attempts=1, stall="4s")
        for name in ("good1", "good2"):
            place.host(name, Kind())
        for kind in FAST:
            place.host(f"bad-{kind}", KINDS[kind])
        night = place.night(["good1", "good2", *(f"bad-{kind}" for kind in FAST)])
        assert [wrong(kind, night.results[f"bad-{kind}"]) for kind in FAST if wrong(kind, night.results[f"bad-{kind}"])] == []
        for name in ("good1", "good2", "bad-slow", "bad-lossy", "bad-banner"):
            assert nights.differences(name, place.tree) == []
        assert place.left() == []
        assert Path(f"/proc/{sshd.process.pid}").exists()


@pytest.mark.root
@pytest.mark.skipif(bool(bad_namespaces.why_not()), reason=f"left out: network namespaces ({bad_namespaces.why_not()})")
def test_packets_that_the_kernel_loses_and_links_that_go_down_cost_no_other_host_its_backup(nights: Nights, sshd: Sshd) -> None:
    """The long form has 50 hosts and each kind of fault: `python -m bench.bad_network --namespaces`."""
    bad = ("lossy", "flap", "down", "half-open")
    with ExitStack() as stack:
        place = bad_namespaces.NamespaceSite(nights, sshd, Namespace(files=30, concurrency=8), stack)
        nights.settings("backup", attempts=1, stall="4s")
        for name in ("good1", "good2"):
            place.host(name, Kind())
        for kind in bad:
            place.host(f"bad-{kind}", bad_namespaces.KINDS[kind])
        night = place.night(["good1", "good2", *(f"bad-{kind}" for kind in bad)])
        assert [output for kind in bad if (output := wrong(kind, night.results[f"bad-{kind}"], bad_namespaces.KINDS))] == []
        for name in ("good1", "good2", "bad-lossy", "bad-flap"):
            assert nights.differences(name, place.tree) == []
        assert place.left() == []
