"""Proposed changes on a real pool, through the real root and login services.

Otherwise a stolen session of an operator or an admin could configure the server, a proposal could undo what was changed by hand
meanwhile, a full disk could leave half a configuration, and an approved retention could delete more backups than was shown.
"""

import json
import shutil
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.proposals.proposal_store import ProposalStore, proposal_of
from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import RequestRefused
from tests.beds import work
from tests.beds.history import every, make_history, notes_of
from tests.beds.logins import logins_at
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from web.auth import LoginSession, Token, User, digest
from web.auth.passwords import hashed
from web.auth.store import Store

pytestmark = [pytest.mark.btrfs]
NOW = datetime.now(UTC).replace(microsecond=0)
PASSWORDS = {name: f"the password of {name}" for name in ("ada", "olga", "carol")}
RIGHTS = {"ada": ("admin", None), "olga": ("operator", None), "carol": ("operator", ("web*",)), "viewer": ("viewer", None)}
ADDRESS = "198.51.100.7"


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store of a login service; the word of each user's session is session_ and the name, the token btrkeep_ and the name."""
    top = tmp_path_factory.mktemp("logins")
    store = logins_at(top / "s", top / "users").store
    for name, (role, hosts) in RIGHTS.items():
        user = User(name, role, hosts, hashed(PASSWORDS.get(name, "another password")), NOW, NOW)
        store.add_user(user)
        store.add_session(LoginSession(digest(f"session_{name}"), name, NOW, NOW, ADDRESS, ""), user.hash)
        store.add_token(Token(name, role, hosts, NOW, None), digest(f"btrkeep_{name}"))
    return store


@pytest.fixture
def pool(shared_btrfs: Path) -> Nights:
    nights = Nights(shared_btrfs)
    nights.tables |= {"web": {}, "retention": {"daily": 30}}
    nights.host("web1", "/srv/www", exclude=["/srv/www/cache/*"], before=["/bin/echo", "p4ssw0rd"])
    nights.host("here", "/srv/here", address=None)
    return nights


@pytest.fixture
def service(pool: Nights, login: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    socket = next(tmp_path_factory.getbasetemp().glob("logins*/s"))
    with serving(pool.config, "--login", socket) as result:
        yield result


def ask(service: Service, word: str, verb: str, **arguments: Any) -> Any:
    return RootServiceClient(service.socket, "root", 30, word).ask(verb, **arguments)


def refused(service: Service, word: str, verb: str, **arguments: Any) -> str:
    with pytest.raises(RequestRefused) as error:
        ask(service, word, verb, **arguments)
    return error.value.kind


def proposed(service: Service, **keys: Any) -> dict[str, Any]:
    return dict(ask(service, "session_olga", "propose", host="web1", keys=keys, why="the audit"))


def actions(pool: Nights) -> list[tuple[str, str]]:
    lines = (pool.pool / ".btrkeep" / "actions.jsonl").read_text().splitlines()
    return [(action["what"], action["by"]) for action in map(json.loads, lines)]


def applied(service: Service, word: str, proposal: dict[str, Any], password: str) -> str:
    words = {"id": proposal["id"], "digest": proposal["digest"], "password": password, "address": ADDRESS}
    return str(ask(service, word, "apply", **words)["outcome"])


@pytest.mark.parametrize(
    ("policy", "skipped"), [({"retention.daily": 5}, False), ({"retention.daily": 2, "retention.min_keep": 1}, True)]
)
def test_the_shown_effect_is_what_an_expiry_then_does(
    pool: Nights, service: Service, policy: dict[str, int], skipped: bool
) -> None:
    """The independent truth is in notes.json after a real expiry: the marked backups."""
    make_history(pool, "web1", every(1, 14, NOW - timedelta(hours=1)))
    proposal = proposed(service, **policy)
    effect = proposal["effect"]
    assert (effect["total"], any("would skip web1" in sentence for sentence in effect["sentences"])) == (14, skipped)
    pool.backupd("expire")
    assert "backups" not in (notes := _notes(pool)) or not notes["backups"]
    pool.backupd("apply", proposal["id"])
    pool.backupd("expire", *(("--force", "web1") if skipped else ()), check=False)
    marked = [name for name, note in notes_of(pool, "web1")["backups"].items() if "expired" in note]
    assert len(marked) == effect["expires"] > 0
    assert f"{min(marked)} to {max(marked)}" in effect["sentences"][0]


def _notes(pool: Nights) -> dict[str, Any]:
    path = pool.pool / "hosts" / "web1" / "notes.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def test_root_applies_what_was_shown_and_nothing_else(pool: Nights, service: Service) -> None:
    proposal = proposed(service, **{"exclude+": ["/srv/www/tmp/*"], "retention.daily": 7})
    (listed,) = pool.json("proposals")
    assert listed == proposal
    status = pool.backupd("status", check=False).stdout
    assert "1 proposed change waits: `backupd" in status
    assert "p4ssw0rd" not in json.dumps(proposal)
    shown = pool.backupd("apply", proposal["id"], "--dry-run").stdout
    assert '+    "/srv/www/tmp/*",' in shown

    text = pool.config.read_text().replace('["/srv/www/cache/*"]', '["/srv/www/other/*"] # by hand')
    pool.config.write_text(text)
    done = pool.backupd("apply", proposal["id"], check=False)
    assert done.returncode == 1
    assert '     "/srv/www/other/*",' in done.stdout
    assert "changed since this was checked" in done.stderr
    assert pool.config.read_text() == text

    pool.backupd("apply", proposal["id"])  # what was shown now
    host = tomllib.loads(pool.config.read_text())["host"]["web1"]
    assert (host["exclude"], host["retention"]) == (["/srv/www/other/*", "/srv/www/tmp/*"], {"daily": 7})
    assert "# by hand" in pool.config.read_text()
    assert pool.config.with_name(".main.toml.old").read_text() == text
    assert (pool.json("proposals"), pool.json("status")["proposals"]) == ([], 0)
    assert pool.backupd("apply", proposal["id"], check=False).returncode == 2
    assert [action for action, _ in actions(pool)] == ["propose", "apply"]
    assert actions(pool)[0] == ("propose", "olga")

    second = proposed(service, window="22:00-06:00")
    before = pool.config.read_bytes()
    pool.backupd("reject", second["id"], "--why", "the night is too short")
    assert (pool.json("proposals"), pool.config.read_bytes()) == ([], before)
    assert actions(pool)[-1][0] == "reject"


def test_a_proposal_whose_new_difference_is_too_large_can_still_be_read_and_rejected(pool: Nights, service: Service) -> None:
    """Otherwise `status` says for ever that a change waits, which no command finds."""
    proposal = proposed(service, paths=[f"/srv/{number}{'x' * 150}" for number in range(120)])
    by_hand = ", ".join(f'"/srv/{number}{"y" * 150}"' for number in range(300))
    pool.config.write_text(pool.config.read_text().replace('["/srv/www"]', f"[{by_hand}]", 1))
    assert "more text than a proposal may have" in pool.backupd("apply", proposal["id"], check=False).stderr
    assert [waiting["id"] for waiting in pool.json("proposals")] == [proposal["id"]]
    pool.backupd("reject", proposal["id"])
    assert pool.json("status")["proposals"] == 0


def test_a_stolen_session_changes_no_configuration(pool: Nights, service: Service) -> None:
    proposal = proposed(service, **{"exclude+": ["/srv/www/tmp/*"]})
    before = pool.config.read_bytes()
    request = {"id": proposal["id"], "digest": proposal["digest"], "address": ADDRESS}
    everyone = [f"{kind}_{name}" for kind in ("session", "btrkeep") for name in RIGHTS]
    for word in everyone:  # it is switched off, whatever is known
        assert refused(service, word, "apply", **request, password=PASSWORDS["ada"]) == "refused"
    pool.settings("web", apply=True)
    before = pool.config.read_bytes()
    for word in everyone:
        if word != "session_ada":
            assert refused(service, word, "apply", **request, password=PASSWORDS["ada"]) == "refused"
    for password in ("", "guessed password", PASSWORDS["olga"]):
        assert applied(service, "session_ada", proposal, password) == "wrong"
    assert refused(service, "session_ada", "apply", **{**request, "digest": "x"}, password=PASSWORDS["ada"]) == "usage"
    assert applied(service, "session_ada", {**proposal, "digest": "0" * 32}, PASSWORDS["ada"]) == "changed"
    assert pool.config.read_bytes() == before
    for _ in range(6):
        applied(service, "session_ada", proposal, "guessed password")
    assert applied(service, "session_ada", proposal, PASSWORDS["ada"]) == "wait"
    assert pool.config.read_bytes() == before
    assert "guessed" not in service.log_text
    assert PASSWORDS["ada"] not in service.log_text


def test_an_admin_with_the_password_applies_it_where_that_is_allowed(pool: Nights, service: Service, login: Store) -> None:
    pool.settings("web", apply=True)
    login.forget_attempts("ada", ADDRESS, datetime.now(UTC), 1.0)
    proposal = proposed(service, **{"exclude+": ["/srv/www/tmp/*"]})
    assert ask(service, "session_ada", "proposal", id=proposal["id"])["may_apply"] is True
    assert applied(service, "session_ada", proposal, PASSWORDS["ada"]) == "applied"
    assert tomllib.loads(pool.config.read_text())["host"]["web1"]["exclude"] == ["/srv/www/cache/*", "/srv/www/tmp/*"]
    assert actions(pool) == [("propose", "olga"), ("apply", "ada")]
    assert ask(service, "session_olga", "proposals") == []


def test_nobody_proposes_what_is_not_his_or_not_on_the_list(pool: Nights, service: Service) -> None:
    before = pool.config.read_bytes()
    for keys in (
        {"before": ["/bin/sh", "-c", "id"]},
        {"ssh_options": ["ProxyCommand=id"]},
        {"address": "root@attacker.example.org"},
        {"rsync_path": "id"},
        {"web.apply": "true"},
        {"window": '22:00-06:00"\n[web]\napply = true'},
        {"paths": ['/x"]\nbefore = ["id']},
    ):
        assert refused(service, "session_ada", "propose", host="web1", keys=keys) == "usage", keys
    assert refused(service, "session_ada", "propose", host="here", keys={"paths": ["/etc"]}) == "refused"
    assert refused(service, "session_ada", "propose", host="new", new=True, keys={"paths": ["/etc"]}) == "usage"
    for word in ("session_carol", "session_viewer", "btrkeep_carol"):
        assert refused(service, word, "propose", host="web1", keys={"window": "22:00-06:00"}) == "refused"
    assert refused(service, "session_carol", "proposals") == "refused"
    proposal = ask(service, "session_ada", "propose", host="web1", keys={"window": "22:00-06:00"})
    assert refused(service, "session_olga", "reject", id=proposal["id"]) == "refused"
    assert refused(service, "session_carol", "reject", id=proposal["id"]) == "refused"
    for _ in range(10):
        proposed(service, window="23:00-06:00")
    assert refused(service, "session_olga", "propose", host="web1", keys={"window": "21:00-06:00"}) == "busy"
    assert pool.config.read_bytes() == before
    assert ask(service, "session_ada", "reject", id=proposal["id"])["unrecorded"] == ""


@pytest.mark.root
def test_where_the_unit_may_not_write_the_configuration_the_refusal_names_the_drop_in(
    pool: Nights, login: Store, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """[web] apply alone does not give the root service the right to write /etc."""
    pool.settings("web", apply=True)
    login.forget_attempts("ada", ADDRESS, datetime.now(UTC), 1.0)
    etc = tmp_path / "etc"
    etc.mkdir()
    work("mount", "-t", "tmpfs", "none", etc)
    try:
        pool.config = Path(shutil.copy(pool.config, etc / "main.toml"))
        work("mount", "-o", "remount,ro", etc)
        with serving(pool.config, "--login", next(tmp_path_factory.getbasetemp().glob("logins*/s"))) as service:
            proposal = proposed(service, window="22:00-06:00")
            with pytest.raises(RequestRefused) as error:
                applied(service, "session_ada", proposal, PASSWORDS["ada"])
            assert f"ReadWritePaths={etc}" in error.value.hint
            assert ask(service, "session_ada", "proposals") == [proposal]
    finally:
        work("umount", etc)


@pytest.mark.root
def test_a_full_disk_leaves_no_half_proposal_and_no_half_configuration(pool: Nights, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=1M", "none", small)
    try:
        pool.config = Path(shutil.copy(pool.config, small / "main.toml"))
        pool.backupd("check", check=False)
        with serving(pool.config) as service:
            proposal = service.agent("root").ask("propose", host="web1", keys={"exclude+": ["/srv/www/tmp/*"]})
        store = ProposalStore(small)
        with store.alone():
            work("sh", "-c", f"dd if=/dev/zero of={small}/ballast bs=1k 2>/dev/null; true")
            with pytest.raises(OSError, match="No space left"):
                store.put(proposal_of(json.loads((pool.state / "proposals" / f"{proposal['id']}.json").read_text())))
        assert list((small / "proposals").iterdir()) == []

        before = pool.config.read_bytes()
        done = pool.backupd("apply", proposal["id"], check=False)
        assert (done.returncode, "No space left" in done.stderr, "Traceback" in done.stderr) == (1, True, False)
        assert pool.config.read_bytes() == before
        assert pool.json("proposals") == [proposal]
        (small / "ballast").unlink()
        pool.backupd("apply", proposal["id"])
        assert tomllib.loads(pool.config.read_text())["host"]["web1"]["exclude"] == ["/srv/www/cache/*", "/srv/www/tmp/*"]
    finally:
        work("umount", small)
