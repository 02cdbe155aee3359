"""The permissions, rates and simultaneous requests of each user: decided without a pool."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.serve import service_context
from backupd.serve.request_checks import Right, require, viewer_of
from backupd.serve.service_context import RateLimit, VerbLimits
from backupd.serve.verbs import VERBS
from btrkeep.choices import SERVICE_VERBS
from btrkeep.clock import Clock
from btrkeep.config import Config, load, load_usable
from btrkeep.errors import ConfigError
from btrkeep.serving.protocol import Request, RequestRefused
from btrkeep.serving.server import Peer
from btrkeep.serving.viewer import ROLES, Viewer, read_viewer, viewer_object

TOP = Path(__file__).parents[2]
CHANGES = {"hold", "release", "accept", "run", "restore", "preview", "reach", "propose"}
DECIDING = {"reject", "apply"}


def allowed(verb: str, viewer: Viewer, **arguments: object) -> bool:
    try:
        require(VERBS[verb].right, viewer, arguments)
    except RequestRefused:
        return False
    return True


def test_only_operators_change_anything_and_only_admins_choose_where_on_a_host() -> None:
    hosted = {verb for verb, entry in VERBS.items() if "host" in entry.arguments}
    for verb in hosted:
        may = [allowed(verb, Viewer("v", role), host="web1") for role in ROLES]
        assert may == ([False, True, True] if verb in CHANGES else [True, True, True]), verb
    for verb in ("restore", "preview"):
        assert [allowed(verb, Viewer("v", role), host="web1", to="host:/etc") for role in ROLES] == [False, False, True]
        assert [allowed(verb, Viewer("v", role), host="web1", to="folder") for role in ROLES] == [False, True, True]
        assert not allowed(verb, Viewer("v", "admin", ("web1",)), host="web1", to="folder"), "a customer has no folder here"


@given(st.sampled_from(sorted(VERBS)), st.sampled_from(ROLES), st.sampled_from(["web1", "db1", "web", "WEB1", "web1.example"]))
def test_no_verb_and_no_role_reaches_a_host_that_is_not_ones_own(verb: str, role: str, host: str) -> None:
    viewer = read_viewer({"name": "v", "role": role, "hosts": ["web?"], "session": ""})
    if "host" in VERBS[verb].arguments and host != "web1":
        with pytest.raises(RequestRefused) as refused:
            require(VERBS[verb].right, viewer, {"host": host})
        assert (refused.value.kind, refused.value.message) == ("missing", "there is no such host")


def test_requests_about_the_whole_pool_need_the_right_to_all_hosts() -> None:
    whole = {verb for verb, entry in VERBS.items() if entry.right is Right.POOL}
    assert whole == {"doctor", "plan", "extents", "proposals", "proposal"}
    for verb in whole:
        assert [allowed(verb, Viewer("v", "viewer", hosts)) for hosts in (None, ("*",))] == [True, False]
    unhosted = {verb for verb, entry in VERBS.items() if not {"host", "targets"} & entry.arguments.keys()} - whole - DECIDING
    assert unhosted == {"job", "jobs", "stop", "hello"} == {verb for verb, entry in VERBS.items() if entry.right is Right.LISTED}


def test_a_request_for_many_hosts_needs_the_right_to_each_of_them() -> None:
    for targets, may in (((("web1", ""), ("web2", "")), True), ((("web1", ""), ("db1", "")), False), ((("db1", ""),), False)):
        assert allowed("bulk", Viewer("v", "operator", ("web*",)), targets=targets) == may
        assert not allowed("bulk", Viewer("v", "viewer"), targets=targets)


def test_operators_of_all_hosts_propose_changes_and_only_admins_of_all_hosts_apply_them() -> None:
    deciding = {verb: entry.right for verb, entry in VERBS.items() if entry.right in (Right.PROPOSE, Right.APPLY)}
    assert deciding == {"propose": Right.PROPOSE, "reject": Right.PROPOSE, "apply": Right.APPLY}
    for verb, right in deciding.items():
        may = [allowed(verb, Viewer("v", role)) for role in ROLES]
        assert may == ([False, True, True] if right is Right.PROPOSE else [False, False, True])
        assert not any(allowed(verb, Viewer("v", role, ("*",))) for role in ROLES)


def test_an_unknown_role_is_only_that_of_a_viewer() -> None:
    assert read_viewer({"name": "v", "role": "root", "hosts": None, "session": ""}).role == "viewer"
    viewer = Viewer("v", "operator", ("a", "b*"), "12345678")
    assert read_viewer(viewer_object(viewer)) == viewer


@pytest.mark.parametrize("uid", [1, 998, 65534])
def test_only_root_may_name_the_user_of_a_request(uid: int) -> None:
    asked = Request("jobs", "root", {})
    with pytest.raises(RequestRefused) as refused:
        viewer_of(asked, Peer(1, uid), Path("/nowhere"))
    assert refused.value.kind == "refused"
    assert viewer_of(asked, Peer(1, 0), Path("/nowhere")).admin


def test_so_many_a_minute_and_then_as_fast_as_they_come_back() -> None:
    now = [0.0]
    rates = RateLimit(lambda: now[0])

    def taken(who: str = "carol") -> Iterator[bool]:
        for _ in range(100):
            try:
                rates.take(who, "browse", 60)
            except RequestRefused:
                yield False
            else:
                yield True

    assert sum(taken()) == 60
    assert sum(taken("olga")) == 60
    now[0] = 10.0
    assert sum(taken()) == 10
    now[0] = 1e6
    assert sum(taken()) == 60  # nothing is saved up for longer than a minute


def test_one_user_gets_half_of_the_slots_and_the_last_slot_is_for_a_user_without_one() -> None:
    limits = VerbLimits()
    carol, olga, ada = (Viewer(name, "viewer") for name in ("carol", "olga", "ada"))
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(limits.of("download", 4).taken(carol))
        with pytest.raises(RequestRefused), limits.of("download", 4).taken(carol):
            pass
        held.enter_context(limits.of("download", 4).taken(olga))
        with pytest.raises(RequestRefused), limits.of("download", 4).taken(olga):
            pass
        held.enter_context(limits.of("download", 4).taken(ada))
        with pytest.raises(RequestRefused), limits.of("download", 4).taken(Viewer("dave", "viewer")):
            pass
        with limits.of("download", None).taken(ada):
            pass
    with limits.of("download", 1).taken(carol):
        pass


def test_the_configuration_names_the_verbs_that_there_are(tmp_path: Path) -> None:
    file = tmp_path / "main.toml"
    begin = '[pool]\npath = "/srv/backup"\n[serve]\n'
    file.write_text(begin + 'rates = ["download 60", "run 5"]\nat_once = ["download 4"]\nno_restores = true\n')
    serve_settings = load("main", file).serve
    assert (serve_settings.rates, serve_settings.at_once) == ({"download": 60, "run": 5}, {"download": 4})
    assert (serve_settings.no_downloads, serve_settings.no_restores) == (False, True)
    for wrong in ("rates = 7", 'rates = ["dowload 60"]', 'rates = ["download"]', 'rates = ["download 0"]', 'at_once = ["run -1"]'):
        file.write_text(begin + wrong + "\n")
        with pytest.raises(ConfigError):
            load("main", file)


def test_the_documentation_has_the_rate_of_each_verb() -> None:
    text = (TOP / "docs" / "serve.rst").read_text(encoding="utf-8")
    answer = dict(re.findall(r"^``(\w+)`` +(\d+) ", text, re.MULTILINE))
    assert {verb: int(number) for verb, number in answer.items()} == SERVICE_VERBS


def test_a_change_of_the_configuration_that_comes_while_it_is_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a right or a limit that was changed at that moment would not apply until the next change or restart."""
    file = tmp_path / "main.toml"

    def write(rate: int) -> None:
        file.write_text(f'[pool]\npath = "/srv/backup"\nstate = "{tmp_path}"\n[serve]\nrates = ["retention {rate}"]\n')

    def read_and_change(pool: str, path: Path) -> Config:
        config = load_usable(pool, path)
        monkeypatch.undo()
        write(10)
        return config

    write(5)
    monkeypatch.setattr(service_context, "load_usable", read_and_change)
    service = service_context.ServiceContext("main", file, Clock(), systemd=False)
    assert service.config().serve.rates["retention"] == 5
    assert service.config().serve.rates["retention"] == 10
