"""State folders for tests: the invented site of bench/make_site.py, small and full of hostile text; and a large one."""

import functools
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from bench import make_catalogue
from bench.make_site import Made, make
from tests.beds import session
from tests.beds.session import start_time
from tests.beds.work import work
from tests.beds.workers import made_once


def made_catalogue(
    state: Path, hosts: int = 120, count: int = 34, *, now: datetime | None = None, hostile: bool = True, copies: bool = False
) -> Made:
    """Makes the site; its running jobs belong to this process, which lives, so they count as running."""
    me = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    started = str(start_time(me))
    return make(state, hosts, count, now=now, hostile=hostile, copies=copies, pid=me, pid_started=started, pictures=5)


def shared_site(factory: pytest.TempPathFactory) -> Made:
    """Returns a site of 40 hosts with 20 backups each, made once for all workers of the session. Tests may read it, but not change
    it.
    """
    return _made_once(factory, "site-of-40", lambda state: made_catalogue(state, 40, 20))


def copied_site(factory: pytest.TempPathFactory, state: Path) -> Made:
    """The invented site of 120 hosts at `state`: a copy, to be changed, of one that is made once for all workers."""
    made = _made_once(factory, "site-of-120", lambda state: made_catalogue(state, copies=True))
    work("cp", "-a", made.state, state)
    return replace(made, state=state)


def _made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    def make_and_note(folder: Path) -> None:
        (folder / "made.pickle").write_bytes(pickle.dumps(make(folder / "state")))

    made: Made = pickle.loads((made_once(factory, name, "site", make_and_note) / "made.pickle").read_bytes())
    return made


WHOLE = 3000
HOSTS = [pytest.param(320, id="a tenth"), pytest.param(WHOLE, id="whole", marks=[pytest.mark.long, pytest.mark.alone])]
"""How many hosts a test of speed has: limits are for the full number; ordinary tests only notice large slowdowns."""
EACH = 32  # backups of a host


@functools.cache
def many_backups(hosts: int) -> Path:
    """Returns a catalogue with 32 backups of each of that many hosts, made once a session: to be copied, not changed."""
    state = Path(tempfile.mkdtemp(prefix="many-", dir=session.folder())) / "state"
    assert make_catalogue.make(state, hosts, EACH) == hosts * EACH
    return state
