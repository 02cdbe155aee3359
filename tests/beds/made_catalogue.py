"""The made-up site of bench/make_site.py, small and full of text that nobody should trust, as a state folder for tests."""

import os
from datetime import datetime
from pathlib import Path

from bench.make_site import Made, make
from tests.beds.session import start_time


def made_catalogue(state: Path, hosts: int = 120, count: int = 34, *, now: datetime | None = None, hostile: bool = True) -> Made:
    """What runs in it is done by this process, which lives; so it counts as running."""
    me = os.getpid()
    return make(state, hosts, count, now=now, hostile=hostile, pid=me, pid_started=str(start_time(me)), pictures=5)
