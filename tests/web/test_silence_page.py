"""Hosts are silenced or disabled until a date in the browser. Without this, a silenced failure disappears from the overview, turns
it green, or shows a customer the name or the reason of another's maintenance.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from btrkeep.catalogue import Catalogue, Silence
from btrkeep.config import HostConfig
from btrkeep.decisions.findings import FACT, PoolVerdict, StoredVerdict, as_text
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.web.made import EVENING, backup, client, login_of, run, token, write

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=20)


def silence(kind: str, name: str, why: str = "moved", **more: object) -> Silence:
    fields = {"kind": kind, "name": name, "until": LATER, "who": "alice", "why": why, "since": EVENING, "paused": False}
    return Silence(**{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """web1 and web2 are failing, db1 is well; web1 is silenced."""
    now = datetime.now(UTC).replace(microsecond=0)
    hosts = [HostConfig(name, address=name, paths=("/srv",), group=name[:-1]) for name in ("web1", "web2", "db1")]
    backups = [backup(host.name, now - timedelta(hours=20)) for host in hosts]
    failed = [run(name, now - timedelta(hours=8), "failed", error="could not connect") for name in ("web1", "web2")]
    with write(tmp_path / "state", hosts, backups, failed) as catalogue:
        catalogue.put_silences([silence("host", "web1")])
        catalogue.set_fact(FACT, as_text(StoredVerdict(now, PoolVerdict())))
    return tmp_path / "state"


def test_a_silenced_problem_is_listed_apart_with_user_and_reason_and_is_not_green(state: Path) -> None:
    olga = client(state)
    page = olga.get("/").text
    assert "1 host failing" in page
    assert ">1 silenced</a>" in page
    assert '<h2 id="silenced">Silenced</h2>' in page
    assert "by alice: moved" in page
    listed = page.partition('id="silenced"')[2]
    assert "failing" in listed
    with Catalogue.open(state) as catalogue:
        catalogue.put_silences([silence("host", "web1"), silence("host", "web2")])
    page = client(state).get("/").text
    assert "Nothing else needs attention:" in page
    assert "All is well" not in page
    assert "state-good" not in page.partition('class="counts"')[0]


def test_lists_and_the_page_of_the_host_show_it_too(state: Path) -> None:
    olga = client(state)
    assert "silenced until" in olga.get("/hosts").text
    assert olga.get("/hosts?state=silenced").text.count('<th scope="row">') == 1
    assert '"web1"' not in olga.get("/api/v1/hosts?state=problems").text
    page = olga.get("/hosts/web1").text
    assert "This host is silenced until" in page
    assert "/hosts/-/actions?action=enable&amp;host=web1" in page
    assert "/hosts/-/actions?action=enable" not in client(state, "viewer").get("/hosts/web1").text


def test_of_a_group_a_customer_sees_only_the_date_and_of_other_hosts_nothing(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.put_silences([silence("group", "db", "the disk of rival7"), silence("problem", "room", "rival8")])
    carol = client(state, hosts=("db1",))
    for path in ("/", "/hosts", "/hosts/db1", "/hosts/-/actions?action=silence&all=1"):
        page = carol.get(path).text
        assert not {word for word in ("rival", "web1", "alice") if word in page}, path
    assert "silenced until" in carol.get("/hosts/db1").text
    assert carol.get("/overview/silence?problem=room").status_code == 403
    assert "rival8" in client(state).get("/").text


def test_what_can_be_silenced_has_a_form_and_damage_has_none(state: Path) -> None:
    olga = client(state)
    assert "Silence problem room" in olga.get("/overview/silence?problem=room").text
    assert "Silence group web" in olga.get("/overview/silence?group=web").text
    for query in ("problem=damaged", "problem=missing", "problem=failing", "group=nothing", ""):
        assert olga.get(f"/overview/silence?{query}").status_code == 404
    assert client(state, "viewer").get("/overview/silence?problem=room").status_code == 403


def test_a_disabled_host_is_not_counted_as_left_out_by_the_night(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    hosts = [HostConfig(name, address=name, paths=("/srv",)) for name in ("web1", "web2")]
    backups = [backup("web1", now - timedelta(hours=30)), backup("web2", now - timedelta(days=5))]
    done = [run("web1", now - timedelta(hours=30))]
    with write(tmp_path / "state", hosts, backups, done) as catalogue:
        assert "not tried" in client(tmp_path / "state").get("/overview/night").text
        catalogue.put_silences([silence("host", "web2", paused=True)])
        catalogue.set_fact(FACT, as_text(StoredVerdict(now, PoolVerdict())))
    assert "web2" not in client(tmp_path / "state").get("/overview/night").text


def test_the_page_before_it_shows_what_would_not_change(state: Path) -> None:
    page = client(state).get("/hosts/-/actions?action=enable&all=1").text
    assert 'name="target" value="web1"' in page
    assert page.count("nothing: it is not silenced") == 2


@pytest.fixture
def service(shared_btrfs: Path) -> Iterator[tuple[Nights, Service]]:
    nights = Nights(shared_btrfs)
    for host in ("web1", "web2"):
        nights.host(host, nights.source)
    nights.backupd("check", check=False)  # publishes the configuration
    with serving(nights.config, "--login", login_of()) as result:
        yield nights, result


@pytest.mark.btrfs
@pytest.mark.slow
def test_hosts_are_disabled_and_enabled_again_and_nights_follow(service: tuple[Nights, Service]) -> None:
    nights, result = service
    olga = client(nights.state, socket=result.socket)
    page = olga.get("/hosts/-/actions?action=disable&host=web1").text
    day = LATER.date().isoformat()
    form = {"csrf_token": token(page), "target": ["web1"], "why": "new disk", "until": day}
    assert olga.post("/hosts/-/disable", data={**form, "until": ""}).status_code == 400
    assert olga.post("/hosts/-/disable", data={**form, "until": "2031-01-01"}).status_code == 400
    assert "1 of 1 host" in olga.post("/hosts/-/disable", data=form).text
    assert "disabled until" in olga.get("/hosts/web1").text
    assert "new disk" in olga.get("/").text
    assert "disabled until" in nights.backupd("run", "--dry-run").stdout
    assert "by somebody: new disk" in nights.backupd("status", check=False).stdout.replace("\n", " ")
    page = olga.get("/hosts/-/actions?action=enable&all=1").text
    olga.post("/hosts/-/enable", data={"csrf_token": token(page), "target": ["web1"]})
    assert "disabled until" not in nights.backupd("run", "--dry-run").stdout
    assert [row.key for row in _silences(nights)] == []
    page = olga.get("/overview/silence?problem=room").text
    olga.post("/overview/silence", data={"csrf_token": token(page), "problem": "room", "until": day})
    assert [row.key for row in _silences(nights)] == [("problem", "room")]
    olga.post("/overview/silence", data={"csrf_token": token(page), "problem": "room", "end": "1"})
    assert [row.key for row in _silences(nights)] == []


def _silences(nights: Nights) -> list[Silence]:
    with Catalogue.open(nights.state) as catalogue:
        return catalogue.silences()
