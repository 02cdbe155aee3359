"""Cached results between requests: how long they are valid, which request computes them, and which changes end them."""

import html
import json
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from bench.make_catalogue import add_runs
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.catalogue import Catalogue
from btrkeep.config import HostConfig
from btrkeep.config.config_model import Config
from btrkeep.config.published import publish
from btrkeep.config.settings import NotifySettings, PoolSettings
from btrkeep.errors import OperatorError
from btrkeep.serving.protocol import RequestRefused
from tests.web.made import BERLIN, EVENING, FILESYSTEM, backup, client, run, write
from web.jobs import data
from web.result_cache import ResultCache, catalogue_version
from web.service_client import Answers
from web.source import Caches


class Clock:
    """A clock that only moves when set. Its date is the present date, unless a test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.date_ns: int | None = None

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns() if self.date_ns is None else self.date_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr("web.result_cache.time", result)
    return result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a catalogue that was written some time ago."""
    touch(tmp_path, "0")
    time.sleep(0.06)
    return tmp_path / "dashboard.sqlite"


def of(file: Path) -> Callable[[], Hashable | None]:
    return partial(catalogue_version, file)


def touch(state: Path, words: str) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", words)


def counting() -> Callable[[], int]:
    numbers = iter(range(10_000))
    return lambda: next(numbers)


def test_a_result_stands_while_the_catalogue_does_and_half_a_minute_at_the_most(file: Path, clock: Clock) -> None:
    kept, compute, numbers = Caches().current, counting(), []
    for now in (0.0, 29.0, 30.5, 31.0):
        clock.now = 1000 + now
        numbers.append(kept.get("key", compute, of(file)))
    assert numbers == [0, 0, 1, 1]
    assert kept.get("other", compute, of(file)) == 2


def test_what_is_too_old_to_be_used_takes_no_memory(file: Path, clock: Clock) -> None:
    """Otherwise requests for 3,650 spans of days would keep five hundred results until the dashboard is restarted."""
    kept = Caches().current
    results = [weakref.ref(kept.get(number, Counter[str], of(file))) for number in range(100)]
    clock.now += 31
    last = kept.get("last", Counter[str], of(file))
    assert [result() for result in results] == [None] * 100
    assert kept.get("last", Counter[str], of(file)) is last


def test_a_change_is_seen_after_a_second(file: Path, clock: Clock) -> None:
    kept, compute = Caches().current, counting()
    assert kept.get("key", compute, of(file)) == 0
    touch(file.parent, "1")
    clock.now += 0.9
    assert kept.get("key", compute, of(file)) == 0
    clock.now += 0.2
    assert kept.get("key", compute, of(file)) == 1


def test_what_is_computed_just_after_a_change_stands_for_a_second_only(file: Path, clock: Clock) -> None:
    """The next change may come within the same tick of the filesystem's clock, and leave the file's times as they are."""
    kept, compute = Caches().current, counting()
    touch(file.parent, "1")
    clock.date_ns = file.stat().st_ctime_ns  # on a busy machine, more than a tick may have passed since
    assert [kept.get("key", compute, of(file)) for _ in range(2)] == [0, 0]
    clock.now += 1.1
    clock.date_ns += 60_000_000
    assert [kept.get("key", compute, of(file)) for _ in range(2)] == [1, 1]
    clock.now += 20
    assert kept.get("key", compute, of(file)) == 1


def test_what_is_made_of_older_results_is_no_younger_than_they(file: Path, clock: Clock) -> None:
    """Otherwise a list that is a second old would count as current for half a minute."""
    kept, inner, outer = Caches().current, counting(), counting()
    both = lambda: (outer(), kept.get("inner", inner, of(file)))  # noqa: E731
    kept.get("inner", inner, of(file))
    touch(file.parent, "1")
    time.sleep(0.06)
    clock.now += 0.9
    assert kept.get("outer", both, of(file)) == (0, 0)  # young enough
    clock.now += 0.2
    assert kept.get("outer", both, of(file)) == (1, 1)


def test_a_form_that_was_sent_ends_all_results_also_those_that_are_being_computed(file: Path) -> None:
    kept, compute = Caches().current, counting()

    def slowly() -> int:
        kept.drop()  # as another request may do
        return compute()

    assert kept.get("key", slowly, of(file)) == 0
    assert kept.get("key", compute, of(file)) == 1
    kept.drop()
    assert kept.get("key", compute, of(file)) == 2


def together(count: int, ask: Callable[[], object]) -> list[object]:
    """Returns the results of that many parallel threads; an OperatorError as its message."""
    rows: list[object] = []

    def try_once() -> None:
        try:
            rows.append(ask())
        except OperatorError as error:
            rows.append(error.message)

    threads = [threading.Thread(target=try_once) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return rows


def test_twenty_who_ask_at_once_have_it_computed_once(file: Path) -> None:
    kept, compute, begun = Caches().current, counting(), threading.Barrier(20)

    def slowly() -> int:
        time.sleep(0.3)
        return compute()

    def ask() -> int:
        begun.wait(60)
        return kept.get("key", slowly, of(file))

    assert together(20, ask) == [0] * 20


def test_who_asks_after_a_form_was_sent_does_not_wait_for_what_was_begun_before(file: Path) -> None:
    kept, go_on, begun = Caches().current, threading.Event(), threading.Event()

    def before() -> str:
        begun.set()
        go_on.wait(60)
        return "before"

    slow = threading.Thread(target=kept.get, args=("key", before, of(file)))
    slow.start()
    assert begun.wait(60)
    kept.drop()
    assert kept.get("key", lambda: "after", of(file)) == "after"
    go_on.set()
    slow.join(60)
    assert kept.get("key", lambda: "later", of(file)) == "after"


def test_all_who_waited_hear_why_there_is_none_and_the_next_one_tries_again(file: Path) -> None:
    kept, begun = Caches().current, threading.Barrier(5)

    def fails() -> str:
        time.sleep(0.3)
        raise OperatorError("the catalogue is busy", "wait")

    def ask() -> str:
        begun.wait(60)
        return kept.get("key", fails, of(file))

    assert together(5, ask) == ["the catalogue is busy"] * 5
    assert kept.get("key", lambda: "well", of(file)) == "well"


def test_no_more_is_kept_than_there_is_room_for(file: Path) -> None:
    kept = Caches().current
    for number in range(2000):
        kept.get(number, lambda: 0, of(file))
    assert len(kept._results) <= 500
    assert not kept._flights


def test_an_answer_is_there_however_old_it_is_and_is_asked_for_anew_when_it_was_a_problem(clock: Clock) -> None:
    answers, compute = ResultCache(longest=20.0), counting()
    assert answers.last("doctor") is None
    assert [answers.get("doctor", compute) for _ in range(2)] == [0, 0]
    assert answers.get("doctor", compute, renew=True) == 1
    clock.now += 21
    assert answers.last("doctor") == 1
    assert answers.get("doctor", compute) == 2


def test_an_answer_that_took_long_is_as_new_as_its_end(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Slow:
        def ask(self, verb: str) -> None:
            asked.append(verb)
            clock.now += 25

    monkeypatch.setattr("web.service_client.root_service", Slow)
    answers = Answers()
    answers.ask("doctor")
    answers.ask("doctor")
    assert asked == ["doctor"], "the second found the answer of the first"


def test_who_may_not_ask_is_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later and waiting requests of other users do not get the error that this user's session has ended."""
    under_way, go_on = threading.Event(), threading.Event()

    class Service:
        def __init__(self) -> None:
            self.calls = 0

        def ask(self, _verb: str) -> str:
            self.calls += 1
            if self.calls > 1:
                return "fine"
            under_way.set()
            assert go_on.wait(60)
            raise RequestRefused("your session has ended", "log in", "refused")

    service = Service()
    monkeypatch.setattr("web.service_client.root_service", lambda: service)
    answers, lines = Answers(), []

    def ask() -> None:
        try:
            answers.ask("doctor")
        except RequestRefused as error:
            lines.append(error.message)

    first, second = threading.Thread(target=ask), threading.Thread(target=ask)
    first.start()
    assert under_way.wait(60)
    second.start()
    time.sleep(0.1)  # it waits for the first one's answer now
    assert answers.last("doctor") is None
    go_on.set()
    first.join()
    second.join()
    assert lines == ["your session has ended"]
    last = answers.last("doctor")
    assert last is not None
    assert (last.content, last.problem) == ("fine", "")


def test_a_page_after_a_form_shows_what_was_written_meanwhile(tmp_path: Path, clock: Clock) -> None:
    """The form may be of any kind: here, logging out and in again."""
    write(tmp_path, [HostConfig("web1")], [backup("web1", EVENING)], [run("web1", EVENING)]).close()
    time.sleep(0.06)  # a file written just now is not cached
    visitor = client(tmp_path)
    assert ">web1</a>" in visitor.get("/hosts").text
    with Catalogue.open(tmp_path) as catalogue:
        add_runs(catalogue, [run("web2", EVENING)])
        catalogue.replace_backups("pool", [backup("web1", EVENING), backup("web2", EVENING)])
    assert ">web2</a>" not in visitor.get("/hosts").text
    visitor.post("/nowhere")
    assert ">web2</a>" in visitor.get("/hosts").text


def test_a_night_is_judged_alike_on_the_page_and_by_the_api_in_either_order(tmp_path: Path) -> None:
    runs = [run("web", EVENING), run("db", EVENING), run("old", EVENING, "failed")]
    with write(tmp_path, [HostConfig(name) for name in ("web", "db", "old")], runs=runs) as catalogue:
        settings = PoolSettings(Path("/srv/backup"), tmp_path, BERLIN)
        config = Config(Path("/etc/btrkeep/main.toml"), "main", settings, notify=NotifySettings(ping_goal=0.6))
        publish(config, catalogue, rehearsal=False, filesystem=FILESYSTEM)
    for addresses in (("/api/v1/jobs?days=366", "/jobs?days=366"), ("/jobs?days=366", "/api/v1/jobs?days=366")):
        visitor = client(tmp_path)
        by_name = {address: visitor.get(address).text for address in addresses}
        (night,) = json.loads(by_name["/api/v1/jobs?days=366"])["jobs"]
        assert night["state"] == "mostly"
        assert "mostly complete" in by_name["/jobs?days=366"]
        alone = visitor.get(f"/api/v1/nights/{night['id'].removeprefix('night-')}").text
        assert json.loads(alone)["row"]["state"] == "mostly"


def test_the_runs_of_a_night_that_are_not_complete_are_grouped_by_cause_and_each_cause_is_a_filter(tmp_path: Path) -> None:
    away = [Cause(CauseCode.RSYNC_FAILED, facts={"exit_cause": "no-route", "exit_code": 255, "line": str(n)}) for n in range(60)]
    gone = Cause(CauseCode.NO_FILE_LEFT, facts={"before": 7})
    runs = [
        run(f"h{number:02}", EVENING, "failed", error="failed", cause=cause) for number, cause in enumerate((*away, gone, gone))
    ]
    runs += [run("old", EVENING, "failed", error="old: <b>no cause</b>"), run("web", EVENING)]
    write(tmp_path, [HostConfig(run.host) for run in runs], runs=runs).close()
    visitor = client(tmp_path)
    (night,) = json.loads(visitor.get("/api/v1/jobs?days=366&kind=night").text)["jobs"]
    answer = json.loads(visitor.get(f"/api/v1/nights/{night['id'].removeprefix('night-')}").text)
    assert [(group["cause"], group["count"], group["hosts"]) for group in answer["causes"]] == [
        ("there is no route to the host", 60, [f"h{number:02}" for number in range(5)]),
        ("no file is left", 2, ["h60", "h61"]),
        ("*: <b>no cause</b>", 1, ["old"]),
    ]
    page = visitor.get(f"/jobs/{night['id']}").text
    addresses = dict(re.findall(r'<a href="([^"]*cause=[^"]*)">([^<]*)</a>', page))
    assert sorted(addresses.values()) == [
        "1 x *: &lt;b&gt;no cause&lt;/b&gt;",
        "2 x no file is left",
        "60 x there is no route to the host",
    ]
    assert "1 of 64 hosts complete" in page
    for address, words in addresses.items():
        text = visitor.get(html.unescape(address)).text
        hosts = set(re.findall(r'data-label="Host"><a href="/hosts/(\w+)"', text))
        while older := re.search(r'rel="next" href="([^"]*)"', text):
            text = visitor.get(html.unescape(older[1])).text
            hosts |= set(re.findall(r'data-label="Host"><a href="/hosts/(\w+)"', text))
        assert len(hosts) == int(words.split()[0])


def test_jobs_name_the_kinds_of_which_they_may_not_have_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = [run("web", EVENING + timedelta(minutes=20 * number), night=False) for number in range(3)]
    write(tmp_path, [HostConfig("web")], runs=by_hand).close()
    for limit, wanted in ((3, ["backup"]), (4, [])):
        monkeypatch.setattr(data, "LIMIT", limit)
        assert json.loads(client(tmp_path).get("/api/v1/jobs?days=366").text)["cut"] == wanted
