"""Copies on the dashboard: of the pool that fetches, of the pool that is fetched from, and for users who see only some hosts."""

import json
import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import process_time

import pytest

from btrkeep.catalogue import Catalogue
from btrkeep.config import HostConfig
from btrkeep.config.published import FACT
from btrkeep.decisions.copy_status import (
    COPIES,
    HostBehind,
    KnownCopies,
    ReplicaSession,
    RunningFetch,
    copies_text,
    note_failure,
    note_running,
    note_session,
    note_stored,
    read_history,
)
from btrkeep.process.proc import start_time
from btrkeep.units import backup_name
from tests.web.made import DAY, EVENING, HOUR, NOW, backup, client, write
from web.source import RequestContext

NEWEST = backup_name(EVENING)


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


def second(state: Path, fetched_before: timedelta = 2 * HOUR, error: str = "", behind: tuple[HostBehind, ...] = ()) -> None:
    """A second pool's: web1 and db1 are fetched by `office`, own1 is its own."""
    with write(
        state, [HostConfig("own1", paths=("/etc",))], [backup(name, EVENING) for name in ("web1", "db1", "own1")]
    ) as catalogue:
        text = copies_text(KnownCopies({"web1": "office", "db1": "office"}, {"office": {"web1": NEWEST, "db1": NEWEST}}))
        catalogue.set_fact(COPIES, text)
        at = NOW - fetched_before
        note_session(catalogue, "office", ReplicaSession(at, at, "", "p", 2, 5, 7340032, 7.0, behind=behind))
        if error:
            note_failure(catalogue, "office", NOW, error)
        published = catalogue.get_fact(FACT)
        assert published
        catalogue.set_fact(FACT, published.replace('"replicas":{}', '"replicas":{"office":[172800.0,false]}'))


def test_hosts_that_are_fetched_are_copies_and_nothing_can_be_run(tmp_path: Path) -> None:
    second(tmp_path)
    visitor = client(tmp_path)
    states = {row["host"]: row["state"] for row in visitor.get("/api/v1/hosts").json["rows"]}  # type: ignore[index]
    assert states == {"web1": "copy", "db1": "copy", "own1": "ok"}
    assert [row["host"] for row in visitor.get("/api/v1/hosts?state=copy").json["rows"]] == ["db1", "web1"]  # type: ignore[index]
    page = visitor.get("/hosts/web1").text
    assert '/hosts/web1/run"' not in page
    assert f"Fetched by replica <b>office</b>; the newest backup in both pools is {NEWEST}" in page
    settings = visitor.get("/hosts/web1?tab=settings").text
    assert "backupd promote web1" in settings
    assert "forget web1" not in settings
    assert "everything is kept" not in page
    assert "/files/web1" in page
    assert '/hosts/own1/run"' in visitor.get("/hosts/own1").text


@pytest.mark.parametrize(("before", "late"), [(2 * HOUR, False), (3 * DAY, True)])
def test_the_overview_and_the_page_say_when_a_replica_is_late(tmp_path: Path, before: timedelta, late: bool) -> None:
    second(tmp_path, before)
    visitor = client(tmp_path)
    office = visitor.get("/api/v1/copies").json["replicas"][0]  # type: ignore[index]
    assert (office["hosts"], office["bytes"], office["rate"]) == (2, 7340032, 1048576.0)
    assert office["state"] == ("late" if late else "ok")
    assert visitor.get("/api/v1/copies").json["uncovered"] == ["own1"]  # type: ignore[index]
    assert ("ago, late" in visitor.get("/").text) is late
    assert ("backupd replicate office" in visitor.get("/copies").text) is late


@pytest.mark.slow
def test_an_offsite_repository_stands_beside_replicas_and_covers_hosts(tmp_path: Path) -> None:
    second(tmp_path)
    with Catalogue.open(tmp_path) as catalogue:
        published = catalogue.get_fact(FACT)
        assert published
        catalogue.set_fact(FACT, published.replace('"offsites":{}', '"offsites":{"far":172800.0}'))
        catalogue.set_fact("offsite-there:far", json.dumps({"incomplete": [], "newest": {"own1": NEWEST}}))
        note_failure(catalogue, "far", NOW, "wrong password", "offsite")
    visitor = client(tmp_path)
    result = visitor.get("/api/v1/copies").json
    assert result
    assert [(replica["name"], replica["kind"], replica["hosts"], replica["state"]) for replica in result["replicas"]] == [
        ("far", "offsite", 1, "failing"),
        ("office", "replica", 2, "ok"),
    ]
    assert result["uncovered"] == []
    page = visitor.get("/copies").text
    assert "wrong password" in page
    assert "backupd offsite run far" in page
    assert "far: 1 host, its newest backup is" in visitor.get("/").text
    assert f"Also in the offsite repository <b>far</b>; its newest backup is {NEWEST}" in visitor.get("/hosts/own1").text
    (answer,) = visitor.get("/api/v1/hosts/own1/backups").json["backups"]  # type: ignore[index]
    assert "common" not in answer["why"]
    stranger = client(tmp_path, "viewer", ("web1",)).get("/copies").text
    assert "wrong password" not in stranger
    assert ">far" not in stranger


@pytest.mark.slow
def test_a_push_stands_there_with_its_size_and_progress_and_a_backup_says_in_which_copies_it_lies(tmp_path: Path) -> None:
    second(tmp_path)
    with Catalogue.open(tmp_path) as catalogue:
        older = replace(backup("own1", EVENING - DAY), bytes=5 << 20)
        catalogue.put_backup(older)
        catalogue.put_backup(replace(backup("own1", EVENING), bytes=7 << 20))
        catalogue.put_backup(replace(backup("web1", EVENING), bytes=3 << 20))
        published = catalogue.get_fact(FACT)
        assert published
        published = published.replace('"pushes":{}', '"pushes":{"away":172800.0}')
        catalogue.set_fact(FACT, published.replace('"offsites":{}', '"offsites":{"far":172800.0}'))
        copies = KnownCopies({"web1": "office"}, {"office": {"web1": NEWEST}, "away": {"own1": older.name or "", "web1": NEWEST}})
        catalogue.set_fact(COPIES, copies_text(copies))
        catalogue.set_fact("offsite-there:far", json.dumps({"incomplete": [], "newest": {"own1": NEWEST}}))
        catalogue.set_fact("copied:far", json.dumps({"hosts": {"own1": [older.name, "2001-01-01T0000Z"]}}))
        catalogue.set_fact("copied:office", json.dumps({"hosts": {"own1": [older.name]}}))  # the copy no longer has own1
        note_stored(catalogue, "far", 12345)
        note_session(catalogue, "far", ReplicaSession(NOW, NOW, "", "p", 1, 1, 5, 1.0), "offsite")
        note_session(catalogue, "away", ReplicaSession(NOW - HOUR, NOW - HOUR, "", "p", 2, 4, 5 << 20, 5.0), "push")
        me = os.getpid()
        note_running(catalogue, "away", RunningFetch(me, start_time(me), NOW - HOUR, NOW, 12, 3, 36_000 << 10, ("own1",)))
    visitor = client(tmp_path)
    answer = {replica["name"]: replica for replica in visitor.get("/api/v1/copies").json["replicas"]}  # type: ignore[index]
    away = answer["away"]
    assert (away["kind"], away["state"], away["hosts"], away["rate"]) == ("push", "ok", 2, 1048576.0)
    assert {name: (row["size"], row["stored"]) for name, row in answer.items()} == {
        "away": (8 << 20, None),
        "far": (7 << 20, 12345),
        "office": (3 << 20, None),
    }
    page = visitor.get("/copies").text
    assert "away is being sent to: 3 of 12 backups" in page
    assert "12.1 KiB" in page
    listed = visitor.get("/api/v1/hosts/own1/backups").json["backups"]  # type: ignore[index]
    assert {row["name"]: row["copies"] for row in listed} == {NEWEST: ["far"], older.name: ["away", "far"]}
    assert "also in away, far" in visitor.get("/hosts/own1").text
    part = {replica["name"]: replica for replica in client(tmp_path, "viewer", ("own1",)).get("/api/v1/copies").json["replicas"]}  # type: ignore[index]
    assert {name: (row["size"], row["stored"]) for name, row in part.items()} == {"away": (5 << 20, None), "far": (7 << 20, None)}


def test_what_failed_is_said_to_who_may_see_it(tmp_path: Path) -> None:
    why = 'no room: ssh to backup1, open "/srv/pool/hosts/web1/.receiving/backup"'
    behind = tuple(HostBehind(host, "2026-03-02T220000Z", None, why) for host in ("web1", "db1"))
    second(tmp_path, error="ssh: no route to backup1", behind=behind)
    whole, part = client(tmp_path).get("/copies").text, client(tmp_path, "viewer", ("web1",)).get("/copies").text
    assert "no route to backup1" in whole
    assert whole.count("no room") == 2
    assert "failing" in whole
    assert "no route to backup1" not in part
    assert part.count("not all backups were copied") == 1
    part += client(tmp_path, "viewer", ("web1",)).get("/api/v1/copies").text
    assert not any(word in part for word in ("no room", "backup1", "/srv/pool"))
    assert "db1" not in part


def test_the_first_pool_tells_what_others_said_that_they_have(tmp_path: Path) -> None:
    with write(tmp_path, [HostConfig(name, paths=("/etc",)) for name in ("web1", "new1")], [backup("web1", EVENING)]) as catalogue:
        catalogue.set_fact(COPIES, copies_text(KnownCopies({}, {"disk": {"web1": NEWEST}})))
    visitor = client(tmp_path)
    assert f"Also on <b>disk</b>: the newest known copy is {NEWEST}" in visitor.get("/hosts/web1").text
    assert '/hosts/web1/run"' in visitor.get("/hosts/web1").text
    assert "disk has copies of 1 host; 1 host without a copy elsewhere." in visitor.get("/").text
    assert visitor.get("/api/v1/copies").json["uncovered"] == ["new1"]  # type: ignore[index]


def test_the_first_pool_says_so_when_a_disk_stays_away_for_too_long(tmp_path: Path) -> None:
    with write(tmp_path, [HostConfig("web1", paths=("/etc",))], [backup("web1", EVENING)]) as catalogue:
        catalogue.set_fact(COPIES, copies_text(KnownCopies({}, {"disk": {"web1": NEWEST}}, {"disk": NOW - 12 * DAY})))
        published = catalogue.get_fact(FACT)
        assert published
        catalogue.set_fact(FACT, published.replace('"fetched_by":{}', '"fetched_by":{"disk":864000.0}'))
    visitor = client(tmp_path)
    (disk,) = visitor.get("/api/v1/copies").json["replicas"]  # type: ignore[index]
    assert (disk["kind"], disk["state"], disk["hosts"], disk["bytes"]) == ("fetched_by", "late", 1, None)
    assert "disk: 1 host, last fetched 12d ago, late." in visitor.get("/").text
    assert "with its disk connected" in visitor.get("/copies").text


@pytest.mark.slow
def test_who_sees_one_host_sees_its_copies_alone(tmp_path: Path) -> None:
    second(tmp_path)
    visitor = client(tmp_path, "viewer", ("web1",))
    answer = visitor.get("/api/v1/copies").json
    assert answer
    assert [copy["host"] for copy in answer["copies"]] == ["web1"]
    assert answer["uncovered"] == []
    office = answer["replicas"][0]
    assert (office["hosts"], office["fetched"], office["bytes"], office["error"]) == (1, None, None, None)
    for address in ("/", "/copies", "/hosts/web1"):
        page = visitor.get(address).text
        assert "db1" not in page, address
        assert "own1" not in page, address
    stranger = client(tmp_path, "viewer", ("nobody",))
    assert "office" not in stranger.get("/copies").text + stranger.get("/").text + stranger.get("/api/v1/copies").text


def test_a_copy_is_kept_by_its_replicas_rules_and_the_newest_that_both_have_stays(tmp_path: Path) -> None:
    second(tmp_path)
    with Catalogue.open(tmp_path) as catalogue:
        for days in (1, 2, 3):
            catalogue.put_backup(backup("web1", EVENING - days * DAY))
        published = catalogue.get_fact(FACT)
        assert published
        kept = '"replica_retention":{"office":{"daily":2,"weekly":0,"monthly":0,"yearly":0,"min_keep":1,"grace":3600.0}},"replicas"'
        catalogue.set_fact(
            FACT, re.sub('"replica_retention":{[^}]*},"replicas"', '"replicas"', published).replace('"replicas"', kept, 1)
        )
        oldest = backup_name(EVENING - 3 * DAY)
        catalogue.set_fact(
            COPIES, copies_text(KnownCopies({"web1": "office"}, {"office": {"web1": NEWEST}, "third": {"web1": oldest}}))
        )
    answer = client(tmp_path).get("/api/v1/hosts/web1/backups").json
    assert answer
    assert [(row["keep"], row["why"]) for row in answer["backups"]] == [
        (True, "daily 1 of 2, newest complete, min_keep 1 of 1, common with replica office"),
        (True, "daily 2 of 2"),
        (False, answer["backups"][2]["why"]),
        (True, "common with replica third"),
    ]
    assert "daily 2" in answer["retention"]
    assert "set by the replica" in answer["retention"]


def test_what_is_fetched_now_and_what_is_not_listed_any_more_are_shown(tmp_path: Path) -> None:
    second(tmp_path)
    with Catalogue.open(tmp_path) as catalogue:
        me = os.getpid()
        note_running(catalogue, "office", RunningFetch(me, start_time(me), NOW - HOUR, NOW, 12, 3, 36_000 << 10, ("db1",)))
        note_session(catalogue, "office", ReplicaSession(NOW, NOW, "", "p", 2, 5, 7340032, 7.0, gone=("web1", "own1")))
    whole, part = client(tmp_path).get("/copies").text, client(tmp_path, "viewer", ("web1",)).get("/copies").text
    assert "office is being fetched: 3 of 12 backups, 35.2 MiB, 10.0 KiB/s, about 3h left, at db1" in whole
    assert "being fetched" not in part
    assert "office: the other pool had 1 host and no longer lists it" in whole
    assert "had 1 host and no longer lists it" in part
    assert hosts_of(client(tmp_path).get("/copies?state=gone").text) == ["web1"]
    (web1,) = [copy for copy in client(tmp_path).get("/api/v1/copies").json["copies"] if copy["host"] == "web1"]  # type: ignore[index]
    assert web1["gone"] is True
    with Catalogue.open(tmp_path) as catalogue:
        note_running(catalogue, "office", RunningFetch(me, "another start", NOW - HOUR, NOW, 12, 3, 36_000 << 10, ("db1",)))
    assert "being fetched" not in client(tmp_path).get("/copies").text  # its process no longer exists


@pytest.mark.parametrize("text", ["{", "[1]", '{"fetched": 5}', '{"common": {"office": {"web1": 5}}}', '{"common": [1]}'])
def test_a_fact_that_cannot_be_understood_breaks_no_page(tmp_path: Path, text: str) -> None:
    second(tmp_path)
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.set_fact(COPIES, text)
        catalogue.set_fact("replica:office", '{"at": null, "tried": "2026-03-20T11:00:00Z", "behind": 5}')
        catalogue.set_fact("replicating:office", text)
    visitor = client(tmp_path)
    for address in ("/", "/copies", "/hosts", "/hosts/web1", "/api/v1/copies"):
        assert visitor.get(address).status_code == 200, address


def test_a_pool_without_replicas_says_so(tmp_path: Path) -> None:
    write(tmp_path, [HostConfig("web1", paths=("/etc",))], [backup("web1", EVENING)]).close()
    visitor = client(tmp_path)
    assert "has no record of a copy of" in visitor.get("/copies").text
    assert "Copies</a>:" not in visitor.get("/").text


def hosts_of(page: str) -> list[str]:
    """Returns the hosts in the list, from top to bottom."""
    return re.findall(r'<th scope="row"><a href="/hosts/([^"]+)"', page)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """250 hosts in `office`, of which one is behind, and three hosts without a copy."""
    names = [f"host{number:03}" for number in range(250)]
    own = [HostConfig(f"own{number}", paths=("/etc",)) for number in range(3)]
    with write(tmp_path, own, [backup(host.name, EVENING) for host in own]) as catalogue:
        copies = KnownCopies(dict.fromkeys(names, "office"), {"office": dict.fromkeys(names, NEWEST), "third": {"host007": NEWEST}})
        catalogue.set_fact(COPIES, copies_text(copies))
        behind = (HostBehind("host123", "2026-03-02T220000Z", None, "its disk is full"),)
        note_failure(catalogue, "office", NOW - DAY, "ssh: no route to backup1")
        note_session(catalogue, "office", ReplicaSession(NOW, NOW, "", "p", 250, 5, 7340032, 7.0, behind=behind))
        published = catalogue.get_fact(FACT)
        assert published
        catalogue.set_fact(FACT, published.replace('"replicas":{}', '"replicas":{"office":[172800.0,false]}'))
    return tmp_path


def test_the_list_has_pages_filters_and_a_search_and_begins_with_the_worst(many: Path) -> None:
    visitor = client(many)
    first = visitor.get("/copies").text
    assert hosts_of(first)[:5] == ["host123", "own0", "own1", "own2", "host000"]
    assert "254 rows, page 1 of 3." in first
    assert "its disk is full (newest backup on the other server 2026-03-02T220000Z, on this server none)" in first
    every = [host for page in (1, 2, 3) for host in hosts_of(visitor.get(f"/copies?sort=host&page={page}").text)]
    assert len(every) == 254
    assert every == sorted(every)
    for query, hosts in (
        ("state=behind", ["host123"]),
        ("state=uncovered", ["own0", "own1", "own2"]),
        ("copy=third", ["host007"]),
        ("q=T24&sort=-host", [f"host{number}" for number in range(249, 239, -1)]),
        ("state=gone", []),
    ):
        assert hosts_of(visitor.get(f"/copies?{query}").text) == hosts, query
    assert "No host matches." in visitor.get("/copies?state=gone").text
    assert len(hosts_of(visitor.get("/copies", headers={"User-Agent": "Mozilla/5.0 (Android 14; Mobile)"}).text)) == 25


def test_a_limited_user_filters_and_counts_own_copies_alone(many: Path) -> None:
    mine = client(many, "viewer", ("host00*",))
    for query in ("", "state=behind", "state=uncovered", "copy=third", "q=own", "sort=-age", "csv=2"):
        page = mine.get(f"/copies?{query}").text
        assert not re.search(r"host1|host2|own\d|backup1|disk is full", page.replace("q=own", "")), query
    assert "11 rows" in mine.get("/copies").text


def test_each_copy_has_the_history_of_its_sessions_without_end_and_bounded(many: Path) -> None:
    page = client(many).get("/copies").text
    history = page[page.index("History of office") : page.index('id="hosts"')]
    assert history.index("state-partial") < history.index("state-failed"), "the newest first"
    assert "ssh: no route to backup1" in history
    with Catalogue.open(many) as catalogue:
        for number in range(40):
            note_failure(catalogue, "office", NOW + number * HOUR, "x" * 5000)
        assert len(read_history(catalogue, "office")) == 30
        assert len(catalogue.get_fact("copy-history:office") or "") < 15_000
        catalogue.set_fact("copy-history:office", "[5]")
        assert read_history(catalogue, "office") == []
    assert client(many).get("/copies").status_code == 200


def test_2800_copies_take_as_long_as_a_page_may(tmp_path: Path) -> None:
    names = [f"host{number:04}" for number in range(2800)]
    with write(tmp_path) as catalogue:
        catalogue.set_fact(
            COPIES, copies_text(KnownCopies(dict.fromkeys(names, "office"), {"office": dict.fromkeys(names, NEWEST)}))
        )
    visitor = client(tmp_path)
    begun = process_time()
    page = visitor.get("/copies").text
    assert process_time() - begun < 4.0  # the goal is a second, on a fast machine
    assert "2,800" in page
    assert page.count("<tr>") < 210
    assert len(page) < 100_000
