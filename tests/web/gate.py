"""A dashboard of three hosts without any backup, to test the steps before a page: logins, forms, headers, errors."""

import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import CodeType
from zoneinfo import ZoneInfo

from argon2 import PasswordHasher
from flask import Flask
from flask.testing import FlaskClient
from jinja2.bccache import Bucket, BytecodeCache
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from btrkeep.catalogue import Catalogue
from btrkeep.config import Config, HostConfig, PoolSettings, publish
from tests.beds import session
from tests.beds.copied import copied
from tests.beds.logins import logins_at
from web.app import create_app
from web.auth import User
from web.auth.store import Store
from web.dashboard_settings import Settings

PASSWORD = "correct horse battery"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HOSTS = ("db1", "web1", "web2")
FILESYSTEM = "11111111-2222-4333-8444-555555555555"


def made(top: Path, zone: str = "Europe/Berlin") -> Settings:
    """Returns settings of a dashboard below `top`, with a catalogue that programs have opened and published to."""
    state = top / "state"
    for file in _pattern(zone).iterdir():
        state.mkdir(exist_ok=True)
        shutil.copy(file, state)
    return Settings("demo", state, top / "data", top / "no.sock", hosts=("backup.example.org",), proxies=("10.0.0.1",))


@lru_cache
def _pattern(zone: str) -> Path:
    top = Path(tempfile.mkdtemp(prefix="gate-", dir=session.folder()))
    state = top / "state"
    hosts = {name: HostConfig(name, address=f"root@{name}.example.org", paths=("/etc",)) for name in HOSTS}
    config = Config(top / "demo.toml", "demo", PoolSettings(top / "pool", state, ZoneInfo(zone)), hosts=hosts)
    with Catalogue.open(state) as catalogue:
        publish(config, catalogue, filesystem=FILESYSTEM)
    return state


def add_user(settings: Settings, name: str, role: str = "operator", hosts: tuple[str, ...] | None = None) -> None:
    """Adds a user with the password above."""
    now = datetime.now(UTC)
    assert Store(settings.data).add_user(User(name, role, hosts, CHEAP.hash(PASSWORD), now, now))


class _CompiledTemplates(BytecodeCache):
    """The templates that dashboards of this process have compiled. Each test has a new dashboard, and compiling takes the most
    time.
    """

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code
        self._code[bucket.key, bucket.checksum] = bucket.code


_compiled = _CompiledTemplates()


def _built_once(
    build: Callable[[Rule, bool], Callable[..., tuple[str, str]]],
) -> Callable[[Rule, bool], Callable[..., tuple[str, str]]]:
    """Shares the builders of addresses, which do not depend on the dashboard: compiling them is half of a dashboard's start."""
    built: dict[object, Callable[..., tuple[str, str]]] = {}

    def building(rule: Rule, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        key = (rule.rule, append_unknown, tuple(rule._trace), tuple(sorted((rule.defaults or {}).items())))
        if key not in built:
            built[key] = build(rule, append_unknown)
        return built[key]

    return building


Rule._compile_builder = _built_once(Rule._compile_builder)  # type: ignore[method-assign, assignment]


def dashboard(settings: Settings) -> Flask:
    """Returns the application with its login service. Each request sees all earlier commits; a real site copies them soon."""
    logins_at(settings.logins, settings.data)
    app = create_app(settings)
    app.jinja_env.bytecode_cache = _compiled
    app.before_request_funcs[None].insert(0, lambda: copied(settings.state))
    return app


class Gate:
    """A browser in front of the dashboard: it keeps cookies, and sends the token of a form."""

    def __init__(self, app: Flask, **environ: str) -> None:
        self.app = app
        self.client: FlaskClient = app.test_client()
        self.client.environ_base.update({"HTTP_HOST": "localhost", **environ})

    def get(self, address: str, **more: object) -> TestResponse:
        return self.client.get(address, **more)

    def token(self, address: str = "/login") -> str:
        page = self.get(address)
        if page.location == "/":  # the login page's, for a user who is logged in
            page = self.get("/account")
        match = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
        return match[1] if match else ""

    def post(self, address: str, form: dict[str, str], page: str = "/account") -> TestResponse:
        """Sends a form as its page would."""
        return self.client.post(address, data={"csrf_token": self.token(page), **form})

    def log_in(self, name: str = "alice", password: str = PASSWORD, **more: str) -> TestResponse:
        return self.post("/login", {"name": name, "password": password, **more}, "/login")


def gate(settings: Settings, **environ: str) -> Gate:
    return Gate(dashboard(settings), **environ)
