"""Data sent to a user who is limited to one host: nothing about other hosts, the configuration or the pool's paths, by any address,
whatever is broken.
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from btrkeep.catalogue import Catalogue, StoredAlarm
from btrkeep.pool.locks import take_lock
from tests.beds import btrfs
from tests.beds.dashboard import LOGIN, PASSWORD, Answer, Dashboard, csrf_of, own_folder, user_id
from tests.beds.dashboard import serving as dashboard
from tests.beds.nights import Nights
from tests.beds.serving import serving
from tests.web.test_hostile import VALUES, filled, rules
from web.auth import Token, User, digest
from web.auth.passwords import hashed
from web.auth.store import Store

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

SECRET = "zzsecret"
_LINK = re.compile(r'(?:href|action|data-live|src)="(/[^"#]*)')


@dataclass
class Site:
    """The hosts `lab`, which is otto's, and SECRET, which is not."""

    web: Dashboard
    nights: Nights
    job: str = ""

    def __post_init__(self) -> None:
        self.token, now = "btrkeep_otto" + "x" * 40, datetime.now(UTC)
        store = Store(self.web.users)
        store.add_user(User("otto", "operator", ("lab",), hashed(PASSWORD), now, now))
        store.add_token(Token("otto", "operator", ("lab",), now, None), digest(self.token))
        self.cookie = self.web.log_in("otto")
        self.csrf = csrf_of(self.web.ask("GET", "/account", Cookie=self.cookie).text)
        assert self.web.service
        nights = self.nights
        self.backup = nights.names("lab")[-1]
        self.tells = [SECRET, str(nights.pool), str(nights.state), str(nights.config), "/etc/btrkeep", str(self.web.service.socket)]

    def get(self, path: str) -> Answer:
        if path.startswith("/api/"):
            return self.web.ask("GET", path, Authorization=f"Bearer {self.token}")
        return self.web.ask("GET", path, Cookie=self.cookie)

    def post(self, path: str) -> Answer:
        if path.startswith("/api/"):
            body = json.dumps({"paths": [str(self.nights.source / "lab")]} if "restore" in path else {})
            return self.web.ask("POST", path, body, Authorization=f"Bearer {self.token}", Content_Type="application/json")
        form = {"csrf_token": self.csrf, "path": str(self.nights.source / "lab"), "place": "original", "overwrite": "never"}
        form["backup"] = self.backup
        return self.web.ask("POST", path, urlencode(form), Cookie=self.cookie, Content_Type="application/x-www-form-urlencoded")

    def leaks(self, method: str, path: str, answer: Answer) -> list[str]:
        """Returns tell-tale texts in an answer and its headers, each with its place."""
        output = f"{answer.headers}\n{answer.text}"
        return [
            f"{method} {path} ({answer.status}): {output[max(0, at - 90) : at + 60]!r}"
            for tell in self.tells
            if (at := output.find(tell)) >= 0
        ]

    def addresses(self, method: str) -> list[str]:
        """Returns every route, for his host and for a name that is nearly the other host's."""
        values = {**VALUES, "host": "lab", "job": self.job, "task": self.job, "backup": self.backup}
        return [
            filled(rule, {**values, "host": host})
            for rule in rules(self.web, method)
            for host in (("lab", SECRET[:-1]) if "<host>" in rule.rule else ("lab",))
            if "/logout" not in rule.rule and "/elsewhere" not in rule.rule and "/password" not in rule.rule
        ]


@pytest.fixture(scope="module")
def site(_shared_mount: Path) -> Iterator[Site]:
    top = Path(tempfile.mkdtemp(prefix="leaves-", dir=_shared_mount)) / "top"
    subprocess.run(["btrfs", "-q", "subvolume", "create", top], check=True)
    nights = Nights(top)
    nights.state.parent.chmod(0o755)
    nights.tables["serve"] = {"run_distance": "1s", "runs_a_day": 1000}
    for host in ("lab", SECRET):
        (nights.source / host).mkdir()
        (nights.source / host / f"file of {host}").write_text(host)
        nights.tables[f"group.{host}"] = {"attempts": 1}
        nights.host(host, nights.source / host, group=host)
    nights.run()
    nights.backupd("hold", SECRET, nights.names(SECRET)[-1], "--why", f"{SECRET} pays for it")
    output = f"echo {SECRET} is not frozen, see {nights.pool} >&2; exit 1"
    nights.host("lab", nights.source / "lab", before=["sh", "-c", output])
    nights.run("lab", status=1)  # now the log has it
    plant(nights)
    with (
        own_folder() as folder,
        serving(nights.config, "--allow", str(user_id()), "--login", folder / LOGIN) as service,
        dashboard(folder, nights.state, service.socket, ("lab",)) as web,
    ):
        web.service = service
        result = Site(web, nights)
        result.job = ended(result, json.loads(result.post("/api/v1/hosts/lab/run").body)["job"])
        yield result
    btrfs.delete_subvolume(top, _shared_mount)
    top.parent.rmdir()


def plant(nights: Nights) -> None:
    """Writes texts of both hosts to every column that the catalogue has for texts.

    A column with the host's own text (a run's last lines, a backup's warnings) has such text, which reveals nothing.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    with Catalogue.open(nights.state) as catalogue:
        for host in ("lab", SECRET):
            words = f"{SECRET}: no room at {nights.pool}"
            (row,) = (backup for backup in catalogue.backups(host) if backup.name)
            catalogue.put_backup(
                replace(row, error=words, warnings=("a file vanished", f"{nights.pool}/hosts/lab/.working/y: not kept"))
            )
            for run in catalogue.runs(host, 10):
                catalogue.update_run(
                    run.id, last_lines=("see /etc/btrkeep/key", f"rsync: mkstemp {nights.pool}/hosts/lab/.working/x: no room")
                )
            catalogue.put_alarms([StoredAlarm("failure", f"host {host}", words, 1, now, 1, now, None, None)])
        catalogue.put_alarms([StoredAlarm("room", "pool", words, 1, now, 1, now, None, None)])


def ended(site: Site, job: str) -> str:
    assert site.web.service
    end = time.monotonic() + 60
    while site.web.service.agent().ask("job", job=job)["state"] in ("queued", "running"):
        assert time.monotonic() < end
        time.sleep(0.05)
    return job


@contextmanager
def all_well(site: Site) -> Iterator[None]:
    yield


@contextmanager
def a_broken_configuration(site: Site) -> Iterator[None]:
    """Breaks the configuration for a while: a mistake of a host that is not known yet, and a section that stops everything."""
    was = site.nights.config.read_text()
    site.nights.config.write_text(f"{was}\n[host.{SECRET}-new]\nadress = '{SECRET}.example.org'\n[{SECRET}]\nx = 1\n")
    try:
        yield
    finally:
        site.nights.config.write_text(was)


@contextmanager
def a_lock_that_somebody_holds(site: Site) -> Iterator[None]:
    with take_lock(site.nights.pool / ".btrkeep" / "host-lab", f"backup of {SECRET}", "2026-11-20T22:00:03Z"):
        yield


@contextmanager
def a_pool_that_is_gone(site: Site) -> Iterator[None]:
    marker = site.nights.pool / ".btrkeep" / "pool.json"
    marker.rename(marker.with_suffix(".away"))
    try:
        yield
    finally:
        marker.with_suffix(".away").rename(marker)


@contextmanager
def a_host_whose_folder_is_gone(site: Site) -> Iterator[None]:
    """Renames the host's folder for a while. The new name is similar, so the root service asks whether that host was meant."""
    folder = site.nights.pool / "hosts" / "lab"
    folder.rename(folder.with_name(f"{SECRET}-lab"))
    try:
        yield
    finally:
        folder.with_name(f"{SECRET}-lab").rename(folder)


@contextmanager
def a_catalogue_that_cannot_be_read(site: Site) -> Iterator[None]:
    site.nights.state.chmod(0)
    try:
        yield
    finally:
        site.nights.state.chmod(0o2750)
        Catalogue.open(site.nights.state).close()  # a copy made in between belonged to root alone


@contextmanager
def a_root_service_that_does_not_listen(site: Site) -> Iterator[None]:
    assert site.web.service
    socket = site.web.service.socket
    socket.rename(socket.with_suffix(".away"))
    try:
        yield
    finally:
        socket.with_suffix(".away").rename(socket)


STATES = (
    all_well,
    a_broken_configuration,
    a_lock_that_somebody_holds,
    a_pool_that_is_gone,
    a_host_whose_folder_is_gone,
    a_catalogue_that_cannot_be_read,
    a_root_service_that_does_not_listen,
)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_nothing_of_another_host_or_of_this_machines_places_leaves(
    site: Site, state: Callable[[Site], AbstractContextManager[None]]
) -> None:
    leaks, seen = list[str](), set[str]()
    with state(site):
        todo = [*site.addresses("GET"), *more(site)]
        while todo and len(seen) < 400:
            path = todo.pop(0)
            if path in seen or "/logout" in path or path.startswith("/docs/"):  # the same pages everywhere
                continue
            seen.add(path)
            answer = site.get(path)
            leaks += site.leaks("GET", path, answer)
            if answer.headers.get("Content-Type", "").startswith("text/html") and state is all_well:
                todo += [unescape(link) for link in _LINK.findall(answer.text)]
        for path in site.addresses("POST"):
            answer = site.post(path)
            leaks += site.leaks("POST", path, answer)
            if path.endswith("/run") and answer.status == 200:
                ended(site, json.loads(answer.body)["job"])
        leaks += site.leaks("GET", "/login", site.web.ask("GET", "/login"))
    assert not leaks, "\n".join(leaks)
    assert len(seen) > 50


def more(site: Site) -> list[str]:
    """Returns addresses with parameters."""
    path = quote(str(site.nights.source / "lab"))
    listed = [
        "/hosts?q=zz",
        "/hosts?group=zzsecre",
        "/log?host=zzsecre",
        "/log?outcome=failed",
        "/jobs?part=asked",
        "/jobs?days=366",
    ]
    listed += [f"/files/lab{page}?path={at}" for page in ("", "/versions", "/compare") for at in ("/", path, "/nowhere")]
    listed += [
        "/hosts/lab?exact=1",
        f"/restore/lab?path={path}",
        "/files/lab?path=/&backup=2001",
        "/jobs/night-1",
        "/log/1",
        "/log/2",
    ]
    listed += [
        f"/api/v1/hosts/lab/{operation}?path={path}&before=2001" for operation in ("files", "versions", "compare", "download")
    ]
    listed += ["/api/v1/runs?host=zzsecre", "/api/v1/runs?limit=500", "/api/v1/hosts?q=zz", f"/api/v1/tasks/{site.job}?lines=1000"]
    return listed


def test_who_sees_all_hosts_reads_all_of_it(site: Site) -> None:
    """A user of all hosts sees the texts that are withheld from the other user."""
    assert SECRET in site.web.get(f"/api/v1/tasks/{site.job}").text
    with a_broken_configuration(site):
        output = site.web.ask("POST", "/api/v1/hosts/lab/run", "{}", Authorization=f"Bearer {site.web.tokens['olga']}").text
    assert SECRET in output
    assert str(site.nights.config) in output


def test_what_is_withheld_has_a_reference_that_the_journal_has_with_the_whole_of_it(site: Site) -> None:
    with a_broken_configuration(site):
        answer = json.loads(site.post("/api/v1/hosts/lab/run").body)
    match = re.search(r"administrator for ([0-9a-f]{8})", answer["hint"])
    assert match, answer
    (line,) = (line for line in site.web.log_text.splitlines() if match[1] in line)
    assert SECRET in line


def test_a_host_that_prints_names_hears_nothing_of_which_of_them_there_are(site: Site) -> None:
    """An attacker on a host may read its runs: right and wrong guesses of names must look the same."""
    nights = site.nights
    guessed = [SECRET, "zzsecre", str(nights.pool), f"{nights.pool}x", str(nights.state), "/srv/state"]
    below = [f"{nights.pool}/hosts/lab/key", "/srv/guess/hosts/lab/key"]
    script = nights.top / "guesses.py"
    output = "".join(f"guess {guess} was made\n" for guess in (*guessed, *below))
    script.write_text(f"import os, sys\nos.write(2, {output.encode()!r})\nos.execvp(sys.argv[1], sys.argv[1:])\n")
    before = nights.tables["host"]["lab"]
    nights.host("lab", nights.source / "lab", rsync_path=shlex.join([sys.executable, str(script), "rsync"]))
    try:
        nights.run("lab")
        lines = json.loads(site.get("/api/v1/runs?host=lab&limit=1").body)["runs"][0]["last_lines"]
    finally:
        with Catalogue.open(nights.state) as catalogue:
            catalogue.update_run(catalogue.runs("lab", 1)[0].id, last_lines=())
        nights.tables["host"]["lab"] = before
        nights.write()
    heard = [line for line in lines if line.startswith("guess ")]
    assert heard == [f"guess {guess} was made" for guess in (*guessed, "key", "key")]


def test_what_is_about_his_own_host_is_told_as_ever(site: Site) -> None:
    answer = site.get("/api/v1/hosts/lab/files?path=/nowhere")
    assert "has no /nowhere" in json.loads(answer.body)["error"]
    run = json.loads(site.get("/api/v1/runs?host=lab&limit=500").body)["runs"]
    assert any("rsync: mkstemp .working/x: no room" in row["last_lines"] for row in run)
    assert "is not held" in json.loads(site.post(f"/api/v1/hosts/lab/backups/{site.backup}/release").body)["error"]
