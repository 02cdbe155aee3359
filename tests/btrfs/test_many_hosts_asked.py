"""One request for many hosts. Without this, 91 failing hosts are run again one by one, one refused host stops all others, or a host
of a neighbour in the list is reached.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from btrkeep.catalogue import Catalogue
from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import RequestRefused
from tests.beds.history import every, make_history, notes_of
from tests.beds.logins import logins_at
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.beds.watch import wait_for
from web.auth import Token, digest

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

RIGHTS = {"viewer": ("viewer", None), "olga": ("operator", ("web*",)), "otto": ("operator", None)}


@pytest.fixture
def service(nights: Nights, tmp_path: Path) -> Iterator[Service]:
    (nights.source / "file").write_text("text")
    for host in ("web1", "web2", "web3", "db1"):
        nights.host(host, nights.source)
    logins = logins_at(tmp_path / "s", tmp_path / "users")
    for name, (role, hosts) in RIGHTS.items():
        logins.store.add_token(Token(name, role, hosts, datetime(2026, 11, 23, tzinfo=UTC), None), digest(f"btrkeep_{name}"))
    with serving(nights.config, "--login", tmp_path / "s") as result:
        yield result


def asked(service: Service, name: str, **arguments: Any) -> dict[str, Any]:
    """Returns the result of each host."""
    answer = RootServiceClient(service.socket, "root", 60, f"btrkeep_{name}").ask("bulk", **arguments)
    return {result["host"]: result for result in answer}


def made(nights: Nights, *hosts: str) -> list[int]:
    """Returns the number of backups of each host."""
    return [len(nights.names(host)) if (nights.pool / "hosts" / host).exists() else 0 for host in hosts]


def kind(service: Service, name: str, **arguments: Any) -> str:
    with pytest.raises(RequestRefused) as refused:
        asked(service, name, **arguments)
    return refused.value.kind


def test_all_hosts_of_one_request_are_backed_up_and_a_refused_one_stops_no_other(nights: Nights, service: Service) -> None:
    results = asked(service, "otto", action="run", targets=["web1", "gone1", "web2"])
    assert "gone1 is not configured" in results["gone1"]["error"]
    assert results["web1"]["error"] is results["web2"]["error"] is None
    wait_for(lambda: all(job["state"] == "done" for job in service.agent().ask("jobs")))
    assert {job["job"] for job in service.agent().ask("jobs")} == {results[host]["job"] for host in ("web1", "web2")}
    assert made(nights, "web1", "web2", "web3") == [1, 1, 0]
    again = asked(service, "otto", action="run", targets=["web1", "web3"])
    assert "the next one may be requested from" in again["web1"]["error"]
    assert again["web3"]["error"] is None
    wait_for(lambda: all(job["state"] == "done" for job in service.agent().ask("jobs")))


def test_backups_of_many_hosts_are_held_and_accepted_by_name(nights: Nights, service: Service) -> None:
    last = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    names = {host: make_history(nights, host, every(1, 2, last), {1: "suspect"}) for host in ("web1", "web2")}
    held = asked(service, "olga", action="hold", targets=[f"{host}@{names[host][0]}" for host in names], why="audit")
    assert [result["error"] for result in held.values()] == [None, None]
    assert [notes_of(nights, host)["backups"][names[host][0]]["hold"]["why"] for host in names] == ["audit (token:olga)"] * 2
    targets = [f"web1@{names['web1'][1]}", f"web2@{names['web2'][0]}"]
    accepted = asked(service, "olga", action="accept", targets=targets, why="moved")
    assert accepted["web1"]["error"] is None
    assert "not suspect" in accepted["web2"]["error"]
    assert notes_of(nights, "web1")["backups"][names["web1"][1]]["accepted"]["why"] == "moved (token:olga)"


def test_a_neighbours_host_in_the_list_refuses_all_of_it_as_if_it_did_not_exist(nights: Nights, service: Service) -> None:
    assert kind(service, "olga", action="run", targets=["web1", "db1"]) == "missing"
    assert kind(service, "olga", action="run", targets=["web1", "nothing"]) == "missing"
    assert kind(service, "viewer", action="run", targets=["web1"]) == "refused"
    assert kind(service, "otto", action="run", targets=["web1", "web1"]) == "usage"
    assert kind(service, "otto", action="run", targets=["--all"]) == "usage"
    assert kind(service, "otto", action="run", targets=[f"h{number}" for number in range(501)]) == "usage"
    assert kind(service, "otto", action="delete", targets=["web1"]) == "usage"
    assert service.agent().ask("jobs") == []
    assert made(nights, "web1", "db1") == [0, 0]


def test_an_operator_silences_his_hosts_alone_and_not_for_ever(nights: Nights, service: Service) -> None:
    def answered(name: str, days: float = 9, **arguments: Any) -> str:
        until = (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            RootServiceClient(service.socket, "root", 60, f"btrkeep_{name}").ask("silence", until=until, **arguments)
        except RequestRefused as refused:
            return refused.kind
        return "ok"

    assert answered("olga", targets=["web1", "db1"]) == "missing"
    assert answered("olga", problem="room") == "refused"
    assert answered("olga", targets=["web1"], group="db") == "refused"
    assert answered("viewer", targets=["web1"]) == "refused"
    assert answered("otto", group="nothing") == "missing"
    assert answered("otto", problem="damaged") == "usage"
    assert answered("otto", 93, targets=["web1"]) == answered("otto", -1, targets=["web1"]) == answered("otto") == "usage"
    with Catalogue.open(nights.state) as catalogue:
        assert catalogue.silences() == []
        assert answered("olga", targets=["web1"], why="new disk") == "ok"
        assert answered("otto", problem="room") == "ok"
        assert [(row.key, row.who, row.why) for row in catalogue.silences()] == [
            (("host", "web1"), "token:olga", "new disk"),
            (("problem", "room"), "token:otto", ""),
        ]
