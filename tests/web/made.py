"""Makes a catalogue for the pages of the overview and of hosts, and the pages in Flask's test client."""

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask.testing import FlaskClient

from bench.make_catalogue import add_runs
from btrkeep.catalogue import Backup, Catalogue, Run
from btrkeep.config.config_model import Config, HostConfig
from btrkeep.config.published import publish
from btrkeep.config.settings import PoolSettings
from btrkeep.decisions.findings import FACT, PoolVerdict, StoredVerdict, as_text
from btrkeep.serving.viewer import Role
from btrkeep.units import backup_name
from tests.beds import session
from tests.beds.session import start_time
from tests.web.gate import CHEAP, dashboard
from web.auth import User, passwords
from web.auth.store import Store
from web.dashboard_settings import Settings

FILESYSTEM = "0b1c2d3e-0000-4000-8000-000000000001"
BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)  # nine in the morning in Berlin
EVENING = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)  # ten o'clock the evening before
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PASSWORD = "a long enough password"
ME = os.getpid()
MY_START = str(start_time(ME))
_CSRF = re.compile(r'name="csrf_token"[^>]*value="([^"]+)"')


def backup(host: str, started: datetime, state: str = "complete", **more: Any) -> Backup:
    """Returns a backup of ten minutes, 2 GiB, 1,000 files and 5 MiB of new data, unless given otherwise."""
    name = None if state in ("partial", "running") else backup_name(started)
    plain = Backup(
        host=host,
        name=name,
        path=f"hosts/{host}/{name or '.working'}",
        state=state,
        started=started,
        finished=started + timedelta(minutes=10),
        duration=600.0,
        files=1000,
        bytes=2 << 30,
        new_bytes=5 << 20,
        error=None if state in ("complete", "expired", "deleting") else f"{state} for a reason",
        outcome=state if state in ("complete", "suspect", "failed") else None,
    )
    return replace(plain, **more)


def run(host: str, started: datetime, outcome: str | None = "complete", **more: Any) -> Run:
    """Returns a run of ten minutes; it made a backup if it was complete or suspect."""
    made = backup_name(started) if outcome in ("complete", "suspect") else None
    plain = Run(
        id=0,
        host=host,
        started=started,
        finished=started + timedelta(minutes=10) if outcome else None,
        outcome=outcome,
        backup=made,
        attempts=1,
        exit_code=0 if outcome == "complete" else 23,
        meaning="complete" if outcome == "complete" else "some files could not be transferred",
        error=None if outcome in ("complete", None) else f"{outcome} for a reason",
        last_lines=(),
        literal_bytes=5 << 20,
        matched_bytes=0,
        received_bytes=6 << 20,
        rsync_version="3.4.3",
        protocol=32,
        pid=ME,
        pid_started="1",  # dead: no running process started at that time
        night=True,
    )
    return replace(plain, **more)


def write(
    state: Path, hosts: Sequence[HostConfig] = (), backups: Sequence[Backup] = (), runs: Sequence[Run] = (), **pool: Any
) -> Catalogue:
    """Fills the catalogue in `state` and returns it open. `pool`: settings of the pool."""
    catalogue = Catalogue.open(state)
    settings = PoolSettings(Path("/srv/backup"), state, **{"zone": BERLIN, **pool})
    config = Config(Path("/etc/btrkeep/main.toml"), "main", settings, hosts={host.name: host for host in hosts})
    publish(config, catalogue, rehearsal=False, filesystem=FILESYSTEM)
    catalogue.set_fact(FACT, as_text(StoredVerdict(NOW, PoolVerdict())))
    for backup in backups:
        catalogue.put_backup(backup)
    add_runs(catalogue, runs)
    return catalogue


@cache
def _somebody(role: Role, hosts: tuple[str, ...] | None) -> tuple[Path, str]:
    """Makes a folder with the users of a dashboard, one of whom is logged in, and returns it with the cookie."""
    data = Path(tempfile.mkdtemp(prefix="people-", dir=session.folder()))
    Store(data).add_user(User("somebody", role, hosts, CHEAP.hash(PASSWORD), NOW, NOW))
    state = data / "state"
    write(state).close()
    flask_client = dashboard(Settings("main", state, data, state / "nobody.sock", testing=True)).test_client()
    words = {"name": "somebody", "password": PASSWORD, "csrf_token": token(flask_client.get("/login").text)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_HASHER", CHEAP)  # to log in takes a while, on purpose
        assert flask_client.post("/login", data=words).status_code == 303
    flask_client.get("/account")  # now there is a token against forgery in it
    cookie = flask_client.get_cookie("btrkeep")
    assert cookie
    return data, cookie.value


def login_of(role: Role = "operator", hosts: tuple[str, ...] | None = None) -> Path:
    """Returns the socket of the login service that has the sessions of `client`, for a root service that connects to it."""
    return _somebody(role, hosts)[0] / "login.sock"


def client(
    state: Path, role: Role = "operator", hosts: tuple[str, ...] | None = None, socket: Path | None = None, pool: str = "main"
) -> FlaskClient:
    """Returns the dashboard of that catalogue, for a user who is logged in."""
    data, cookie = _somebody(role, hosts)
    flask_client = dashboard(Settings(pool, state, data, socket or state / "nobody.sock", testing=True)).test_client()
    flask_client.set_cookie("btrkeep", cookie)
    return flask_client


def token(page: str) -> str:
    """Returns the token of a form against forgery."""
    match = _CSRF.search(page)
    assert match, page
    return match[1]
