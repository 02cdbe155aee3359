"""The commands of btrkeep-web that move users to another server."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.beds.leftout import needs_root
from tests.beds.remedies import Typist, types, typing
from tests.web.gate import CHEAP, PASSWORD, made
from web.auth import User
from web.auth.store import Store

pytestmark = [needs_root]
MOMENT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def typist(request: pytest.FixtureRequest) -> Iterator[Typist]:
    with typing(request.function) as made:
        yield made


@pytest.fixture
def call(tmp_path: Path) -> str:
    """A dashboard whose only user is in its own folder."""
    (top := tmp_path / "my dashboards").mkdir()
    settings = made(top)
    for folder in ("data", "users"):
        (top / folder).mkdir(mode=0o700)
    settings = replace(settings, data=top / "data")
    store = Store(settings.data)
    store.add_user(User("alice", "operator", None, CHEAP.hash(PASSWORD), MOMENT, MOMENT))
    places = {"state": settings.state, "data": settings.data, "users": top / "users"}
    return "btrkeep-web --pool demo " + " ".join(f"--{name} '{place}'" for name, place in places.items())


def listed(typist: Typist, call: str) -> str:
    return typist.type(f"{call} user list").stdout


@pytest.mark.slow
@types("btrkeep-web --users OLD-FOLDER user export")
def test_users_are_imported_from_the_output_of_the_command_that_is_named(call: str, typist: Typist, tmp_path: Path) -> None:
    refused = typist.type(f"echo nonsense | {call} user import", status=2)
    line = typist.find(refused, "btrkeep-web --users OLD-FOLDER user export")
    exported = line.replace("OLD-FOLDER", f"'{tmp_path}/my dashboards/data'")
    typist.typed.append(line)
    typist.type(f"{exported} | {call} user import")
    assert "alice" in listed(typist, call)
