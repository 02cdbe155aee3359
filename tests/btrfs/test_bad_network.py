"""Hosts whose network fails in every way, beside good ones, in one night; the long form is `python -m bench.bad_network`."""

from argparse import Namespace
from pathlib import Path

import pytest

from bench.bad_network import KINDS, Kind, Site, wrong
from tests.beds.nights import Nights
from tests.beds.proxy import faulty_proxy
from tests.beds.ssh import Sshd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
FAST = [kind for kind in KINDS if kind != "stopped"]  # which leaves a process on what stands for the host; test_stall.py has it


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
