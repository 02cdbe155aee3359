"""What the units do under real systemd, in a machine on which install.sh has installed btrkeep; the pool is a real btrfs.

tests/systemd/inside has what is run in the machine. Everything that is looked at here was told by systemd, the kernel, or programs
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
JOBS = ("sample", "heatmap", "balance", "scrub", "news")
NIGHT = ("backup", "expire", "balance", "heatmap")

pytestmark = [
    pytest.mark.slow,
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
    told = [line.split() for line in source if line.startswith("home/alice/")]
    of_alice = {words[0].rpartition("/")[2]: words[1:5] for words in told if len(words) > 5}  # by find
    assert of_alice["setuid"] == ["f", "4755", "4242", "4242"]  # what was to be backed up was there
    assert of_alice["zero"][0] == of_alice["unknown"][0] == "c"
    assert of_alice["disk"][0] == "b"
    assert rights.read("capabilities").strip().endswith("alice/capable cap_net_raw=ep")
    for line in ("home/alice/unknown 1ff:7", "user:4243:rw-", 'user.note="kept"', "usr/lib/modules/6.0/kernel/a.ko", "etc/shadow"):
        assert any(line in found for found in source), line


def test_a_host_is_reached_over_ssh(rights: Booted) -> None:
    assert rights.read("over-ssh") == "secret\n"


def test_a_hook_may_become_another_user_and_may_not_write_into_the_system(rights: Booted) -> None:
    user, *rest = rights.read("hook-in-unit").splitlines()
    assert user == "4242"
    assert [line for line in rest if line.startswith("kept")] == [
        f"kept out of {folder}" for folder in ("/usr", "/etc", "/boot", "/home", "/root")
    ]


@pytest.mark.parametrize("job", ["backup", *JOBS])
def test_every_job_ends_well_in_its_unit(rights: Booted, job: str) -> None:
    assert rights.fields(job)["Result"] == "success"


def test_what_the_jobs_leave_is_there(rights: Booted) -> None:
    assert sorted(Path(name).suffix for name in rights.read("pictures").split()) == [".heatmap", ".png"]
    assert rights.read("samples") == "1\n"
    assert rights.read("scores") == "1\n"
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
    assert ended["backup"] - began["backup"] > 2e6  # its hook sleeps so long: the others were due before it ended
    for earlier, later in pairwise(NIGHT):
        assert ended[earlier] <= began[later], (earlier, later)
    assert began["sample"] < ended["backup"]


def test_systemd_is_told_how_far_a_job_is(night: Booted, rights: Booted) -> None:
    assert night.fields("status-meanwhile")["StatusText"] == "0 of 1 host done, under way: here"
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
