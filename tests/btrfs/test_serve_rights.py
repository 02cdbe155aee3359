"""Requests to the root service with sessions and tokens: what each permits on a real pool, and disabled features."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import open_pool
from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import parse_backup_name
from tests.beds import work
from tests.beds.anyone import readable
from tests.beds.logins import logins_at
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from web.auth import Token, digest
from web.auth.store import Store

NOW = datetime(2026, 11, 23, tzinfo=UTC)
RIGHTS = {"viewer": ("viewer", None), "carol": ("viewer", ("web1",)), "olga": ("operator", ("web*",)), "ada": ("admin", None)}
ASK = """
import sys
from pathlib import Path
from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient
try:
    print(RootServiceClient(Path(sys.argv[1]), "x", 10, *sys.argv[2:]).ask("jobs"))
except OperatorError as error:
    print(getattr(error, "kind", "absent"))
"""


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The login service's socket; each user's token is btrkeep_ and the name."""
    top = tmp_path_factory.mktemp("logins")
    service = logins_at(top / "s", top / "users")
    for name, (role, hosts) in RIGHTS.items():
        service.store.add_token(Token(name, role, hosts, NOW, None), digest(f"btrkeep_{name}"))
    return top / "s"


@pytest.fixture
def pool(shared_btrfs: Path) -> Nights:
    nights = Nights(shared_btrfs)
    nights.tables["serve"] = {}
    (nights.source / "file").write_text("one line\n")
    for host in ("web1", "web2", "db1"):
        nights.host(host, nights.source)
    nights.run()
    return nights


@pytest.fixture
def service(pool: Nights, login: Path) -> Iterator[Service]:
    with serving(pool.config, "--allow", "65534", "--login", login) as result:
        yield result


def kind(service: Service, name: str, verb: str, **arguments: object) -> str:
    """Returns how it is answered: "ok", or the kind of the refusal."""
    try:
        RootServiceClient(service.socket, "root", 20, f"btrkeep_{name}").ask(verb, **arguments)
    except RequestRefused as refused:
        return refused.kind
    return "ok"


def test_whom_the_administrator_allows_is_answered_by_a_session_alone(service: Service) -> None:
    def asked_by(user: int, *session: str) -> str:
        words = readable().run_as(user, "-c", ASK, service.socket, *session)
        return work(*words, env=readable().environment, cwd=Path("/")).stdout.strip()

    assert asked_by(65534) == "refused"
    assert asked_by(65534, "btrkeep_nobody") == "refused"
    assert asked_by(65534, "btrkeep_viewer") == "[]"
    assert asked_by(65533, "btrkeep_viewer") == "absent"


def test_each_does_what_his_role_and_hosts_give_and_the_pool_is_as_before_where_they_give_nothing(
    service: Service, pool: Nights
) -> None:
    hold = {"backup": "latest", "why": "kept"}
    notes = pool.pool / "hosts" / "web1" / "notes.json"
    before = notes.read_bytes() if notes.exists() else b""
    for name in ("viewer", "carol"):
        assert kind(service, name, "hold", host="web1", **hold) == "refused"
        assert kind(service, name, "run", host="web1") == "refused"
    assert (notes.read_bytes() if notes.exists() else b"") == before
    listing = {"backup": "latest", "path": "/"}
    seen = {name: [kind(service, name, "browse", host=host, **listing) for host in ("web1", "web2", "db1")] for name in RIGHTS}
    assert seen == {
        "viewer": ["ok", "ok", "ok"],
        "carol": ["ok", "missing", "missing"],
        "olga": ["ok", "ok", "missing"],
        "ada": ["ok", "ok", "ok"],
    }
    assert [kind(service, name, "plan") for name in ("carol", "olga")] == ["refused", "refused"]
    assert kind(service, "olga", "hold", host="db1", **hold) == "missing"
    assert kind(service, "olga", "hold", host="web1", **hold) == "ok"
    assert b"kept (token:olga)" in notes.read_bytes()
    assert "for token:olga (session " in service.log_text


def test_what_is_not_his_looks_like_what_is_not_there(service: Service) -> None:
    def refusal_of(host: str) -> tuple[str, str, str]:
        with pytest.raises(RequestRefused) as refused:
            RootServiceClient(service.socket, "", 20, "btrkeep_carol").ask("browse", host=host, backup="latest", path="/")
        return refused.value.message, refused.value.hint, refused.value.kind

    assert refusal_of("db1") == refusal_of("no-such-host")


def test_jobs_of_other_hosts_are_not_told_and_what_commands_print_is_for_who_sees_all(service: Service, pool: Nights) -> None:
    jobs = {host: service.agent("root").ask("run", host=host)["job"] for host in ("web1", "db1")}
    carol, viewer = (RootServiceClient(service.socket, "", 20, f"btrkeep_{name}") for name in ("carol", "viewer"))
    for job in jobs.values():
        while viewer.ask("job", job=job)["state"] not in ("done", "failed"):
            time.sleep(0.05)
    assert [job["host"] for job in carol.ask("jobs")] == ["web1"]
    assert {job["host"] for job in viewer.ask("jobs")} == {"web1", "db1"}
    assert carol.ask("job", job=jobs["web1"])["lines"] == []
    assert viewer.ask("job", job=jobs["web1"])["lines"] != []
    with pytest.raises(RequestRefused, match="there is no job"):
        carol.ask("job", job=jobs["db1"])


def test_downloads_and_restores_can_be_disabled_for_all_users_at_once(service: Service, pool: Nights) -> None:
    file = {"host": "web1", "path": str(pool.source / "file")}
    ada = RootServiceClient(service.socket, "", 20, "btrkeep_ada")
    with ada.stream("download", backup="latest", **file) as stream:
        assert b"".join(stream) == b"one line\n"
    pool.settings("serve", no_downloads=True, no_restores=True)
    for asks in (ada, service.agent("root")):
        with pytest.raises(RequestRefused, match="downloads are switched off"):
            asks.stream("download", backup="latest", **file)
        for verb in ("restore", "preview"):
            with pytest.raises(RequestRefused, match="restores are switched off"):
                asks.ask(verb, host="web1", backup="latest", paths=[file["path"]])
    assert ada.ask("browse", backup="latest", **file)["entry"]["size"] == 9
    compared = ada.ask("compare", before="latest", **file)
    assert (compared["text"], "switched off" in compared["note"]) == (None, True)


def _logged_out(pool: Nights, store: Store) -> None:
    store.remove_token("leaver")


def _limited(pool: Nights, store: Store) -> None:
    store.remove_token("leaver")
    store.add_token(Token("leaver", "viewer", ("db1",), NOW, None), digest("btrkeep_leaver"))


def _switched_off(pool: Nights, store: Store) -> None:
    pool.settings("serve", no_downloads=True)


@pytest.mark.parametrize(("change", "form"), [(_logged_out, "file"), (_limited, "tar"), (_switched_off, "file")])
def test_a_download_ends_with_the_right_to_it(
    service: Service, pool: Nights, login: Path, form: str, change: Callable[[Nights, Store], None]
) -> None:
    """On a slow line it takes days: a user who is dismissed today must not have all of it tomorrow."""
    large = pool.source / "large"
    large.write_bytes(b"1" * (16 << 20))  # more than the sockets and one piece hold
    pool.run("web1")
    store = logins_at(login, login.parent / "users").store
    store.remove_token("leaver")
    store.add_token(Token("leaver", "viewer", ("web*",), NOW, None), digest("btrkeep_leaver"))
    leaver = RootServiceClient(service.socket, "", 20, "btrkeep_leaver")
    with leaver.stream("download", host="web1", backup="latest", path=str(large), **{"as": form}) as stream:
        got = [next(pieces := iter(stream))]
        change(pool, store)
        time.sleep(1.1)
        with pytest.raises(RequestRefused) as refused:
            got.extend(pieces)
    assert refused.value.kind in ("refused", "missing")
    assert sum(map(len, got)) < 4 << 20


def test_a_user_with_too_many_requests_waits_and_no_other_user_does(service: Service, pool: Nights) -> None:
    pool.settings("serve", rates=["retention 5"])
    assert [kind(service, "carol", "retention", host="web1") for _ in range(7)] == ["ok"] * 5 + ["busy"] * 2
    assert kind(service, "carol", "browse", host="web1", backup="latest", path="/") == "ok"
    assert kind(service, "olga", "retention", host="web1") == "ok"


def test_backups_on_request_have_a_least_distance_and_a_number_a_day_except_for_root(service: Service, pool: Nights) -> None:
    def run(word: str | None) -> None:
        agent = RootServiceClient(service.socket, "root", 20, word)
        job = agent.ask("run", host="web1")["job"]
        while service.agent("root").ask("job", job=job)["state"] not in ("done", "failed"):
            time.sleep(0.05)

    def refusal(words: str) -> RequestRefused:
        with pytest.raises(RequestRefused, match=f"web1: {words}") as refused:
            run("btrkeep_olga")
        assert (refused.value.kind, refused.value.is_public) == ("busy", True)
        return refused.value

    run(None)
    pool.settings("serve", run_distance="1h")
    newest = parse_backup_name(pool.names("web1")[-1])
    assert newest is not None
    message = refusal("the previous manual backup began at ").message
    assert f"may be requested from {(newest + timedelta(hours=1)).isoformat()[:14]}" in message
    lock = take_lock(open_pool(pool.pool).host_lock("web1"), "backup of web1", "2026-11-20T22:00:00Z")
    with lock:
        assert kind(service, "olga", "run", host="web1") == "locked"  # the error names the running job
    run(None)  # root is not limited
    pool.settings("serve", run_distance="1s", runs_a_day=2)
    time.sleep(1.1)
    refusal("2 backups started manually within 24 hours; ")
    pool.settings("serve", run_distance="1s", runs_a_day=24)
    run("btrkeep_olga")
    pool.settings("serve", run_distance="1h")
    pool.host("web1", pool.top / "nowhere")
    time.sleep(1.1)
    run(None)
    refusal("the previous manual backup began at ")  # the one before, which did not fail
    pool.settings("serve", run_distance="1m")
    refusal("the previous manual backup, which failed, began at ")


def test_without_a_login_service_no_session_is_trusted(pool: Nights, tmp_path: Path) -> None:
    with serving(pool.config, "--login", tmp_path / "nobody") as result:
        assert kind(result, "ada", "jobs") == "unusable"
        assert result.agent("root").ask("jobs") == []  # root names the user itself
