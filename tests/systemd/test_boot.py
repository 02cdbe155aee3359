"""The units under real systemd, in a machine on which install.sh has installed btrkeep; the pool is a real btrfs.

tests/systemd/inside has the programs that run in the machine. All checked facts come from systemd, the kernel, or programs
such as find, getfacl and findmnt.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.beds import btrfs, session
from tests.beds.machine import Booted, booted, why_not

INSIDE = Path(__file__).resolve().parent / "inside"
JOBS = ("sample", "heatmap", "balance", "scrub", "verify", "news", "drill")
NIGHT = ("backup", "expire", "balance", "heatmap")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.takes(100),
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_not()), reason=f"left out: under real systemd ({why_not()})"),
    pytest.mark.timeout(600),  # the machine may have to be made first
]


def boot(script: str) -> Iterator[Booted]:
    point = btrfs.make(size="3G")
    try:
        files = {path.name: path.read_text(encoding="utf-8") for path in INSIDE.iterdir()}
        with booted({**files, "main.sh": files[script]}, [(point, "/srv")]) as done:
            yield done
    finally:
        problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def rights(no_leftovers: None) -> Iterator[Booted]:
    yield from boot("rights.sh")


@pytest.fixture(scope="module")
def night(no_leftovers: None) -> Iterator[Booted]:
    yield from boot("night.sh")


# --- hardening does not break the work


def test_a_backup_keeps_everything_through_the_hardened_unit(rights: Booted) -> None:
    source = rights.read("source").splitlines()
    assert rights.read("backup-has").splitlines() == source
    rows = [line.split() for line in source if line.startswith("home/alice/")]
    of_alice = {words[0].rpartition("/")[2]: words[1:5] for words in rows if len(words) > 5}  # by find
    assert of_alice["setuid"] == ["f", "4755", "4242", "4242"]  # the files to back up existed
    assert of_alice["zero"][0] == of_alice["unknown"][0] == "c"
    assert of_alice["disk"][0] == "b"
    assert rights.read("capabilities").strip().endswith("alice/capable cap_net_raw=ep")
    for line in ("home/alice/unknown 1ff:7", "user:4243:rw-", 'user.note="kept"', "usr/lib/modules/6.0/kernel/a.ko", "etc/shadow"):
        assert any(line in name for name in source), line


def test_a_host_is_reached_over_ssh(rights: Booted) -> None:
    assert rights.read("over-ssh") == "secret\n"
    assert json.loads(rights.read("over-ssh-record"))["confined"] is True


def test_a_hook_may_become_another_user_and_may_not_write_into_the_system(rights: Booted) -> None:
    user, *rest = rights.read("hook-in-unit").splitlines()
    assert user == "4242"
    assert [line for line in rest if line.startswith("kept")] == [
        f"kept out of {folder}" for folder in ("/usr", "/etc", "/boot", "/home", "/root")
    ]


@pytest.mark.parametrize("job", ["backup", *JOBS])
def test_every_job_ends_well_in_its_unit(rights: Booted, job: str) -> None:
    assert rights.fields(job)["Result"] == "success"


def test_what_was_written_last_is_read_after_a_crash_and_an_end_in_order_is_noted(rights: Booted) -> None:
    assert rights.fields("boot") == {"Result": "success", "SubState": "exited"}
    assert rights.read("boot-read").split() == ["here", "web1"]
    assert rights.fields("boot-stopped") == {"Result": "success", "SubState": "dead"}
    ended = json.loads(rights.read("boot-ended"))
    assert (ended["stopped"], ended["unread"]) == (True, [])
    assert ended["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()  # the kernel of the container is this one


def test_what_the_jobs_leave_is_there(rights: Booted) -> None:
    assert sorted(Path(name).suffix for name in rights.read("pictures").split()) == [".heatmap", ".png"]
    assert rights.read("samples") == "1\n"
    assert rights.read("scores") == "1\n"
    load, restore = json.loads(rights.read("drilled"))
    assert (load["kind"], load["outcome"], load["text"]) == ("load", "proven", "/root/own/secret: secret")
    assert restore["outcome"] == "proven"
    scrubbed = dict(line.strip().split(": ", 1) for line in rights.read("scrubbed").splitlines() if ": " in line)
    assert scrubbed["Status"].strip() == "finished"
    assert int(scrubbed["data_bytes_scrubbed"]) > 100_000


def test_the_mount_option_is_switched_by_the_unit_and_is_back_after_a_kill(rights: Booted) -> None:
    options = {when: rights.read(f"option-{when}").split(",") for when in ("before", "meanwhile", "after", "at-last")}
    assert "nossd" in options["meanwhile"]
    assert [word for word in options["meanwhile"] if word != "nossd"] == [word for word in options["before"] if word != "ssd"]
    assert rights.fields("expire") == {"Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"}
    assert options["after"] == options["before"] == options["at-last"]
    assert (rights.read("there"), rights.read("left")) == ("3\n", "2\n")


# --- timers


def test_a_night_that_was_missed_is_made_up_for_and_one_that_was_not_is_not(night: Booted) -> None:
    assert night.fields("missed") == {"Result": "success", "ExecMainStatus": "0"}
    assert night.read("made") == "1\n"
    assert night.fields("not-missed") == {"ExecMainStartTimestampMonotonic": "0"}


def test_jobs_that_are_due_at_once_run_one_after_the_other_and_the_sample_meanwhile(night: Booted) -> None:
    began, ended = {}, {}
    for job in (*NIGHT, "sample"):
        fields = night.fields(f"night-{job}")
        assert (fields["Result"], fields["ExecMainStatus"]) == ("success", "0"), job
        began[job], ended[job] = int(fields["ExecMainStartTimestampMonotonic"]), int(fields["ExecMainExitTimestampMonotonic"])
    assert began["backup"] > float(night.read("night-began")) * 1e6
    waiting = [line.split()[1] for line in night.read("jobs-meanwhile").splitlines() if line.split()[3] == "waiting"]
    assert sorted(waiting) == sorted(f"btrkeep-{job}@main.service" for job in NIGHT[1:])
    for earlier, later in pairwise(NIGHT):
        assert ended[earlier] <= began[later], (earlier, later)
    assert began["backup"] < began["sample"] <= ended["sample"] < ended["backup"]


def test_systemd_is_told_how_far_a_job_is(night: Booted, rights: Booted) -> None:
    assert night.fields("status-meanwhile")["StatusText"] == "0 of 1 host done, running: here"
    assert re.match(r"1 backup to delete|1 of 1 deleted", rights.fields("expire-status")["StatusText"])


def test_a_failure_reaches_who_is_to_be_told_once(night: Booted) -> None:
    assert night.read("failed").strip() == "failed"
    assert night.fields("notified")["Result"] == "success"
    (message,) = map(json.loads, night.read("told-of-failure").splitlines())
    assert "btrkeep-backup@main.service failed" in message["title"]
    assert "/srv/source: the source is missing" in message["message"]


def test_a_job_that_is_stopped_has_not_failed_and_leaves_no_process(night: Booted) -> None:
    assert night.fields("stopped")["Result"] == "success"
    assert night.fields("stopped")["ActiveState"] == "inactive"
    assert "stopped by SIGTERM" in night.read("journal")
    assert not (night.payload / "told-of-stop").exists()
    assert night.read("left-behind") == ""


# --- the root service


@pytest.fixture(scope="module")
def served(no_leftovers: None) -> Iterator[Booted]:
    yield from boot("serve.sh")


def test_the_dashboards_user_is_answered_and_others_are_not(served: Booted) -> None:
    assert served.read("socket").split() == ["660", "root", "btrkeep"]
    assert [entry["name"] for entry in json.loads(served.read("browsed"))["entries"]] == ["hard", "file"]
    assert served.fields("while-answering")["ActiveState"] == "active"
    assert json.loads(served.read("by-nobody"))["kind"] == "absent"  # the kernel refuses this user at the socket
    assert json.loads(served.read("by-nobody-let-in"))["kind"] == "refused"


def test_the_hardened_root_service_sees_what_root_sees(served: Booted) -> None:
    def finding_names(name: str) -> set[str]:
        return {finding["name"] for finding in json.loads(served.read(name))["findings"]}

    assert finding_names("doctor-inside") == finding_names("doctor-outside")
    blind = {row["name"] for row in json.loads(served.read("doctor-inside"))["not_looked_at"]}
    assert blind == {"clock"}, "its sandbox keeps it from asking the kernel, and that is no clock that is well"
    assert "policy" in json.loads(served.read("planned"))
    assert json.loads(served.read("held"))["why"] == "kept (alice)"


def test_a_backup_that_is_asked_for_runs_in_a_unit_of_its_own(served: Booted) -> None:
    begun, job = json.loads(served.read("begun")), json.loads(served.read("job"))
    assert begun["unit"] == f"btrkeep-run@main:{begun['job']}.service"
    assert (job["state"], job["exit"], job["who"]) == ("done", 0, "alice")
    assert served.read("made") == "2\n"
    assert "complete" in served.read("journal-run")
    left = [line.rsplit(" ", 2) for line in served.read("left").splitlines()]
    assert not [name for name, *_ in left if name.startswith("jobs/") and name.endswith(".json")]  # the request is taken
    assert {(mode, user) for name, mode, user in left if name.startswith("20")} == {("600", "0")}


def test_a_restore_that_is_asked_for_keeps_everything_through_its_hardened_unit(served: Booted) -> None:
    job = json.loads(served.read("restored"))
    assert (job["state"], job["result"]["good"], job["unit"]) == ("done", True, f"btrkeep-restore@main:{job['job']}.service"), job
    assert json.loads(served.read("previewed"))["new"]["count"] > 5
    lines = served.read("hard").splitlines()
    assert served.read("hard-restored").splitlines() == lines
    assert (served.read("powerful"), served.read("in-folder") != "") == ("", True)
    assert any("./setuid f 4755 4242 4243  2 " in line for line in lines)
    assert {"user:4243:rw-", 'trusted.note="kept"', "./zero 1:5"} <= set(lines)
    assert any(line.startswith("security.capability=") for line in lines)


def test_a_restore_to_a_host_is_confined_in_its_hardened_unit(served: Booted) -> None:
    """The configuration is set to `always`, so without confinement nothing would be restored."""
    job = json.loads(served.read("restored-far"))
    assert (job["state"], job["result"]["good"]) == ("done", True), job
    assert served.read("far-file") == "one\n"


def test_of_many_that_are_asked_for_few_have_a_unit_and_the_others_begin_without_being_asked_again(served: Booted) -> None:
    assert len(served.read("asked-for").splitlines()) == 3
    assert served.read("under-way") == "start\n"
    assert served.fields("while-waiting") == {"ActiveState": "active", "NRestarts": "1"}
    assert served.read("requests-left") == ""


def test_every_request_is_in_the_journal(served: Booted) -> None:
    output = served.read("journal-serve")
    assert 'run {"host": "here"} for alice' in output
    assert "may not connect" in output
    assert "job {" not in output  # polled requests are not logged
    assert "Traceback" not in output


def test_a_mistake_in_the_configuration_is_told_and_does_not_end_the_service_for_good(served: Booted) -> None:
    assert {json.loads(line)["kind"] for line in served.read("misconfigured").splitlines()} == {"unusable"}


def test_the_root_service_is_gone_when_idle_and_the_pool_can_be_unmounted(served: Booted) -> None:
    assert served.fields("idle")["Result"] == "success"
    assert served.read("unmounted") == "unmounted\n"
    assert json.loads(served.read("without-pool"))["kind"] == "unusable"


# --- the dashboard


@pytest.fixture(scope="module")
def web(no_leftovers: None) -> Iterator[Booted]:
    yield from boot("web.sh")


def test_the_dashboard_runs_as_its_user_and_shows_every_page(web: Booted) -> None:
    assert web.fields("started") == {"ActiveState": "active", "User": "btrkeep"}
    assert web.read("user-of").strip() == "btrkeep"
    pages = {line.split()[0]: line.split()[1] for line in web.read("visited").splitlines()}
    assert set(pages.values()) == {"200"}, pages
    assert len(pages) == 9
    assert "/hosts 200 True" in web.read("visited-again")


def test_what_hardened_jobs_write_can_be_read_by_the_dashboard_and_nothing_else_changes_hands(web: Booted) -> None:
    by_name = {name: (mode, group) for name, mode, group in (line.rsplit(" ", 2) for line in web.read("state").splitlines())}
    assert by_name["main"] == ("2750", "btrkeep")
    assert by_name["main/catalogue.sqlite"] == ("600", "btrkeep")
    assert by_name["main/dashboard.sqlite"] == ("640", "btrkeep")
    assert by_name["main/pictures"] == ("2750", "btrkeep")
    pictures = {value for name, value in by_name.items() if name.startswith("main/pictures/")}
    assert pictures == {("640", "btrkeep")}


def test_users_and_sessions_are_the_login_services_alone(web: Booted) -> None:
    assert web.read("own").split() == ["700", "btrkeep-login", "700", "btrkeep-login", "600", "btrkeep-login"]
    assert {line.split()[-1] for line in web.read("own-after").splitlines()} == {"btrkeep", "btrkeep-login"}


COULD = {
    "carol browses web1": "could",
    "carol sees versions of web1": "could",
    "carol is told jobs": "could",
    "olga holds web1": "could",
    "reads the copy of the catalogue": "could",
    "somebody else is answered meanwhile": "could",
}
"""What the sessions of carol and olga give, and what the dashboard reads to show it."""


def test_a_dashboard_that_was_taken_over_does_what_its_present_users_may_and_nothing_else(web: Booted) -> None:
    assert web.read("taken-over-errors") == ""
    outcomes = dict(json.loads(line) for line in web.read("taken-over").splitlines())
    assert len(outcomes) > 45
    assert {name: outcome for name, outcome in outcomes.items() if outcome == "could"} == COULD
    refusals = {"missing", "refused", "usage", "busy", "permission denied", "operation not permitted", "could not"}
    assert {name: outcome for name, outcome in outcomes.items() if outcome not in refusals | {"could"}} == {}
    assert {outcome for name, outcome in outcomes.items() if name.startswith("a session")} == {"refused"}
    assert {outcome for name, outcome in outcomes.items() if name.endswith("of here")} == {"missing"}
    assert outcomes["a flood is cut"] == "busy"
    assert web.read("users-after") == web.read("users-before")
    assert "bob" in web.read("users-after")
    assert web.read("holds").count('"hold":') == 1  # olga's
    output = web.read("journal-serve")
    assert re.search(r'browse .*"here".* for carol \(session [0-9a-f]{8}, user \d+\): there is no such host', output)
    assert "no user is logged in" in output


def test_the_dashboard_comes_back_after_a_kill_and_ends_at_once_when_it_is_stopped(web: Booted) -> None:
    assert web.read("after-kill") == "/login 200\n"
    assert web.fields("stopped")["Result"] == "success"
    assert int(web.read("stop-took")) < 8000


def test_a_second_pool_has_a_dashboard_too_wherever_its_state_folder_is_once_it_has_a_port_of_its_own(web: Booted) -> None:
    output = web.read("journal-clash")
    assert "could not listen on 127.0.0.1:8765: Address already in use" in output
    assert "choose another port with `listen` in [web]" in output
    pages = [line.split()[:2] for line in web.read("visited-other").splitlines()]
    assert pages == [[page, "200"] for page in ("/login", "/", "/hosts", "/hosts/there")]


def test_the_journal_says_who_logged_in_and_no_password(web: Booted) -> None:
    output = web.read("journal-web")
    assert "login: alice from 127.0.0.1" in output
    assert "four words" not in output
    assert "Traceback" not in output
