"""systemd accepts the units, they are no more exposed than necessary, and each hardening line has a reason."""

import json
import re
import shutil
from pathlib import Path

import pytest

from btrkeep.serving.protocol import socket_of
from tests.beds import TOP, work

UNITS = TOP / "systemd"
JOBS = ("backup", "expire", "balance", "heatmap", "sample", "scrub", "news", "replicate", "offsite", "drill", "verify", "boot")
ASKED = ("run", "restore")  # started by the root service
SERVICES = (*JOBS, "notify", "serve", "web", *ASKED)
UNTOLD = ("news", "notify", "serve", *ASKED)  # units without OnFailure=
INSTANCE = {"notify": "btrkeep-backup@main.service"}

# Tenths, by `systemd-analyze security`: docs/systemd.rst explains them. Another systemd may rate a little differently.
EXPOSURE = {
    "backup": 48,
    "expire": 14,
    "balance": 12,
    "heatmap": 12,
    "sample": 12,
    "scrub": 19,
    "replicate": 35,
    "offsite": 29,
    "drill": 30,
    "verify": 21,
    "boot": 16,
    "news": 18,
    "notify": 18,
    "serve": 14,
    "web": 11,
    "login": 4,
    "run": 48,
    "restore": 38,
}
TOLERANCE = 2

pytestmark = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="left out: of units (systemd-analyze is not installed)")


def text_of(name: str) -> str:
    return (UNITS / name).read_text(encoding="utf-8")


def settings(name: str) -> list[tuple[str, str]]:
    lines = (line for line in text_of(name).splitlines() if line and line[0] not in "#[")
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes copies of the units that call existing programs, because systemd checks that the programs exist."""
    top = tmp_path_factory.mktemp("units")
    for program in {
        row for name in SERVICES for row in re.findall(r"/usr/local/sbin/([\w-]+)", text_of(f"btrkeep-{name}@.service"))
    }:
        (top / program).write_text("#!/bin/sh\n")
        (top / program).chmod(0o755)
    for path in UNITS.glob("btrkeep*"):
        (top / path.name).write_text(path.read_text(encoding="utf-8").replace("/usr/local/sbin/", f"{top}/"))
    return top


def instance(name: str) -> str:
    return f"btrkeep-{name}@{INSTANCE.get(name, 'main')}.service"


def verified(folder: Path) -> list[str]:
    names = [*map(instance, SERVICES), *(f"btrkeep-{job}@main.timer" for job in JOBS), "btrkeep-serve@main.socket", "btrkeep.slice"]
    words = ("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", *names)
    done = work(*words, env={"SYSTEMD_UNIT_PATH": f"{folder}:"}, check=False, cwd=folder)
    lines = [line for line in f"{done.stdout}{done.stderr}".splitlines() if "btrkeep" in line]
    return lines or ([f"exit status {done.returncode}"] if done.returncode else [])


def test_systemd_has_nothing_to_complain_about(installed: Path) -> None:
    assert verified(installed) == []


def test_systemd_has_nothing_to_complain_about_in_the_units_of_a_host_that_calls(tmp_path: Path) -> None:
    program = tmp_path / "btrkeep-source"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in (UNITS / "host").iterdir():
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").replace("/usr/local/bin/btrkeep-source", str(program)))
    names = [f"btrkeep-call@root@backup-1.example.org.{kind}" for kind in ("service", "timer")]
    words = ("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", *names)
    done = work(*words, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}, check=False, cwd=tmp_path)
    assert [line for line in f"{done.stdout}{done.stderr}".splitlines() if "btrkeep" in line] == []
    (condition,) = re.findall(r"ExecCondition=/bin/sh -c '(.*)'", (tmp_path / "btrkeep-call@.service").read_text())
    for metered, status in (("u 0", 0), ("u 1", 1), ("u 2", 0), ("u 3", 1), ("u 4", 0), ("", 0)):
        busctl = tmp_path / "busctl"
        busctl.write_text(f"#!/bin/sh\necho {metered}\n" if metered else "#!/bin/sh\necho no bus >&2\nexit 1\n")
        busctl.chmod(0o755)
        assert work("sh", "-c", condition, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False).returncode == status, metered


@pytest.mark.parametrize(
    ("unit", "was", "wrong"),
    [
        ("btrkeep-expire@.service", "ProtectClock=yes", "ProtectClok=yes"),
        ("btrkeep-backup@.timer", "OnCalendar=*:0/15", "OnCalendar=*-*-* 25:00"),
        ("btrkeep-backup@.service", "SystemCallFilter=@system-service", "SystemCallFilter=@system-services"),
        ("btrkeep-sample@.service", "/backupd --pool", "/backup --pool"),
        ("btrkeep-serve@.socket", "SocketMode=0660", "SocketMod=0660"),
    ],
)
def test_what_is_wrong_with_a_unit_is_found(installed: Path, tmp_path: Path, unit: str, was: str, wrong: str) -> None:
    folder = shutil.copytree(installed, tmp_path / "units")
    text = (folder / unit).read_text()
    assert was in text
    (folder / unit).write_text(text.replace(was, wrong))
    assert verified(folder)


@pytest.mark.parametrize("name", SERVICES)
def test_no_unit_is_more_exposed_than_its_work_asks_for(installed: Path, name: str) -> None:
    words = ("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE[name] + TOLERANCE}")
    done = work(*words, instance(name), env={"SYSTEMD_UNIT_PATH": f"{installed}:"}, check=False, cwd=installed)
    assert done.returncode == 0, done.stdout
    (answer,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert abs(round(float(answer) * 10) - EXPOSURE[name]) <= TOLERANCE, (
        f"{name} is at {answer}: put that down here and in docs/systemd.rst"
    )


def test_what_is_left_open_is_what_the_units_say(installed: Path) -> None:
    """Of balance, whose work is the simplest: root with CAP_SYS_ADMIN, which sees other processes and writes to the pool."""
    words = ("systemd-analyze", "security", "--offline=true", "--json=short", instance("balance"))
    answer = json.loads(work(*words, env={"SYSTEMD_UNIT_PATH": f"{installed}:"}, cwd=installed).stdout)
    opened = {check["json_field"] for check in answer if not check["set"]}
    assert opened == {
        "CapabilityBoundingSet_CAP_SYS_ADMIN",
        "DeviceAllow",  # null, zero and their like; and the clock for reading, which is how ProtectClock= keeps it from being set
        "PrivateUsers",  # root of a user namespace is not root of the filesystem
        "ProcSubset",
        "ProtectProc",
        "ProtectSystem",  # "full" of "strict"
        "RemoveIPC",  # there is no user whose IPC it would be
        "RestrictAddressFamilies_AF_UNIX",  # for sd_notify
        "RootDirectoryOrRootImage",
        "SupplementaryGroups",  # means a user as well
        "UserOrDynamicUser",
    }


@pytest.mark.parametrize("name", SERVICES)
def test_each_line_of_hardening_has_its_reason(name: str) -> None:
    """A comment is before the line, or before the lines above it that belong together."""
    lines = text_of(f"btrkeep-{name}@.service").partition("# --- Hardening")[2].partition("\n[Install]")[0].splitlines()[1:]
    assert len(lines) > 20
    reason, since = False, 0
    for line in lines:
        if line.startswith("#"):
            reason, since = True, 0
        elif not line:
            reason = False
        else:
            since += 1
            assert reason, line
            assert since <= 4, f"{line}: a reason for so many lines says little"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_ends_tells_how_far_it_is_and_has_its_place(name: str) -> None:
    given = dict(settings(f"btrkeep-{name}@.service"))
    kind = "notify" if name in ("serve", "web") else "oneshot"
    assert (given["Type"], given["NotifyAccess"], given["Slice"]) == (kind, "main", "btrkeep.slice")
    output = given.get("OnFailure")
    assert output == (None if name in UNTOLD else "btrkeep-notify@%n.service")


def test_what_reads_what_others_say_has_a_limit_of_memory() -> None:
    limited = {"replicate", "serve", "web", "heatmap", "news", "notify", "sample"}
    assert {name for name in SERVICES if "MemoryMax" in dict(settings(f"btrkeep-{name}@.service"))} == limited


def test_a_program_that_the_kernel_ends_for_want_of_memory_does_not_end_the_service_that_started_it() -> None:
    """By default systemd then stops the whole service: a whole night because of one host's rsync."""
    start_programs = {name for name in SERVICES if dict(settings(f"btrkeep-{name}@.service")).get("KillMode") == "mixed"}
    assert {"backup", "run", "replicate", "restore", "offsite", "drill", "verify", "serve"} <= start_programs
    assert {
        name for name in SERVICES if dict(settings(f"btrkeep-{name}@.service")).get("OOMPolicy") == "continue"
    } == start_programs


def test_only_root_and_the_dashboards_user_can_reach_the_root_service() -> None:
    given = dict(settings("btrkeep-serve@.socket"))
    assert (given["SocketMode"], given["SocketUser"], given["SocketGroup"]) == ("0660", "root", "btrkeep")
    assert given["Accept"] == "no"
    assert given["ListenStream"] == str(socket_of("%i"))


def test_the_root_service_has_no_network_and_the_powers_to_read_alone() -> None:
    given = settings("btrkeep-serve@.service")
    assert {("PrivateNetwork", "yes"), ("RestrictAddressFamilies", "AF_UNIX"), ("IPAddressDeny", "any")} <= set(given)
    powers = {word for key, value in given if key == "CapabilityBoundingSet" for word in value.split()}
    assert powers == {"CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_SYS_ADMIN"}


def test_the_dashboard_has_no_rights_and_starts_only_where_it_is_enabled() -> None:
    given = settings("btrkeep-web@.service")
    assert {("User", "btrkeep"), ("Group", "btrkeep"), ("CapabilityBoundingSet", ""), ("IPAddressDeny", "any")} <= set(given)
    assert ("WantedBy", "multi-user.target") in given
    written = {key for key, _ in given if key.endswith("Directory") or key == "ReadWritePaths"}
    assert written == {"StateDirectory"}


def test_jobs_wait_for_the_end_of_those_before_them() -> None:
    after = {
        job: {word for key, value in settings(f"btrkeep-{job}@.service") if key == "After" for word in value.split()}
        for job in JOBS
    }
    assert "btrkeep-backup@%i.service" in after["expire"]
    assert {"btrkeep-backup@%i.service", "btrkeep-expire@%i.service"} <= after["balance"]
    assert {"btrkeep-expire@%i.service", "btrkeep-balance@%i.service"} <= after["heatmap"]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("backup", ["2026-11-20 12:15:00", "2026-11-20 12:30:00"]),
        ("expire", ["2026-11-21 07:00:00"]),
        ("balance", ["2026-11-21 10:00:00"]),
        ("heatmap", ["2026-11-20 18:00:00", "2026-11-21 18:00:00"]),
        ("scrub", ["2026-12-06 09:00:00"]),
    ],
)
def test_timers_go_off_when_they_should_and_make_up_for_what_was_missed(job: str, expected: list[str]) -> None:
    given = settings(f"btrkeep-{job}@.timer")
    lines: list[str] = []
    for spec in (value for key, value in given if key == "OnCalendar"):
        words = ("systemd-analyze", "calendar", "--iterations=2", "--base-time=2026-11-20 12:00:00 UTC", f"{spec} UTC")
        lines += re.findall(r"(?:Next elapse|Iter\. #2|Iteration #2): \w+ (\S+ \S+) UTC", work(*words, env={"TZ": "UTC"}).stdout)
    limit = "2026-12-31" if job == "scrub" else "2026-11-21 21"
    assert sorted(moment for moment in lines if moment < limit) == expected
    assert ("Persistent", "true") in given
    assert any(key == "RandomizedDelaySec" for key, _ in given)


def test_samples_are_taken_every_five_minutes_to_the_second() -> None:
    given = dict(settings("btrkeep-sample@.timer"))
    words = ("systemd-analyze", "calendar", "--iterations=3", "--base-time=2026-11-20 12:01:00 UTC", f"{given['OnCalendar']}")
    moments = re.findall(r"\d\d:\d\d:\d\d", work(*words, env={"TZ": "UTC"}).stdout)
    assert {"12:05:00", "12:10:00", "12:15:00"} <= set(moments)
    assert given["AccuracySec"] == "1s"
    assert not {"Persistent", "RandomizedDelaySec"} & given.keys()


@pytest.mark.root
def test_the_user_and_the_folders_are_made_where_they_belong(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    work("systemd-sysusers", f"--root={tmp_path}", UNITS / "sysusers.d" / "btrkeep.conf")
    work("systemd-tmpfiles", "--create", f"--root={tmp_path}", UNITS / "tmpfiles.d" / "btrkeep.conf")
    (user,) = [line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines() if line.startswith("btrkeep:")]
    assert user[-1] == "/usr/sbin/nologin"
    state = (tmp_path / "var/lib/btrkeep").stat()
    assert (state.st_mode & 0o7777, state.st_uid, str(state.st_gid)) == (0o2750, 0, user[3])
    own = (tmp_path / "var/lib/btrkeep-web").stat()
    assert (own.st_mode & 0o7777, str(own.st_uid), str(own.st_gid)) == (0o700, user[2], user[3])
