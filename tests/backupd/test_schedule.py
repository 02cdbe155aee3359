"""Whether hosts are backed up in time: from timers, crontabs and past runs to one finding."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from backupd.health.start_lines import CommandReader, RunCall, cron_lines, cron_times
from backupd.health.starters import elapses_of_calendar, read_schedule, read_starts
from btrkeep.config import Config, HostConfig
from btrkeep.config.settings import PoolSettings
from btrkeep.config.values import parse_window
from btrkeep.decisions.schedule import (
    NOTHING_MISSED,
    ScheduleVerdict,
    Start,
    StartFacts,
    expected_calls,
    judge_schedule,
    parse_calls,
    schedule_findings,
    schedule_text,
    stored_schedule,
    with_call,
)
from tests.beds import TOP, work

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
UTC_ZONE, LOS_ANGELES = ZoneInfo("UTC"), ZoneInfo("America/Los_Angeles")
DAILY = HostConfig("web1", paths=("/etc",), window=parse_window("22:00-06:00"))
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def starts(*hours: float, every: timedelta = DAY, days: int = 9) -> tuple[Start, ...]:
    midnight = NOW.replace(hour=0)
    return tuple(Start(midnight + hour * HOUR + number * every) for number in range(int(days * DAY / every)) for hour in hours)


def judged(host: HostConfig, *coming: Start, zone: ZoneInfo = UTC_ZONE) -> ScheduleVerdict:
    return judge_schedule([host], zone, StartFacts(coming, NOW + 8 * DAY, ("a.timer",)), NOW)


EVERY_6H = HostConfig("web1", paths=("/etc",), every=6 * 3600.0)


@pytest.mark.parametrize(
    ("host", "coming", "zone", "is_missed"),
    [
        (DAILY, starts(22, 27), UTC_ZONE, False),
        (DAILY, (), UTC_ZONE, True),
        (DAILY, starts(22, 27), LOS_ANGELES, True),  # 14:00 and 19:00 there
        (DAILY, starts(0, every=timedelta(minutes=15)), LOS_ANGELES, False),
        (EVERY_6H, starts(22, 27), UTC_ZONE, True),  # one backup a day
        (EVERY_6H, starts(0, every=timedelta(minutes=15)), UTC_ZONE, False),
        (EVERY_6H, starts(0, 6, 12, 18), UTC_ZONE, False),
        (replace(EVERY_6H, window=DAILY.window), starts(0, every=timedelta(minutes=15)), UTC_ZONE, False),
        (replace(DAILY, every=7 * 86400.0), starts(22, 27), UTC_ZONE, False),
        (replace(DAILY, every=7 * 86400.0), starts(12), UTC_ZONE, True),  # never within the window
        (DAILY, starts(22, every=7 * DAY), UTC_ZONE, True),
        (replace(DAILY, late=8 * 86400.0), starts(22, every=7 * DAY), UTC_ZONE, False),
        (replace(DAILY, enabled=False), (), UTC_ZONE, False),
        (DAILY, tuple(replace(start, hosts=("web*",), regardless=True) for start in starts(12)), UTC_ZONE, False),
        (DAILY, tuple(replace(start, hosts=("db*",), regardless=True) for start in starts(12)), UTC_ZONE, True),
        (DAILY, tuple(replace(start, regardless=True) for start in starts(12)), UTC_ZONE, False),  # --all
    ],
)
def test_a_host_is_missed_when_it_becomes_late_although_each_backup_succeeds(
    host: HostConfig, coming: tuple[Start, ...], zone: ZoneInfo, is_missed: bool
) -> None:
    assert bool(judged(host, *coming, zone=zone).missed) is is_missed


def test_the_first_start_is_one_whose_run_takes_a_host() -> None:
    assert judged(DAILY, *starts(13, 23)).first == NOW + 11 * HOUR
    assert judged(DAILY, *starts(13)).first is None


def test_one_finding_names_the_hosts_and_its_hint_is_a_command() -> None:
    hosts = [DAILY, replace(DAILY, name="web2"), replace(DAILY, name="web3", every=40 * 86400.0, late=1e7)]
    verdict = judge_schedule(hosts, UTC_ZONE, StartFacts((), NOW + 8 * DAY), NOW)
    (finding,) = schedule_findings(verdict)
    assert (finding.check, finding.level, finding.count) == ("schedule", "warning", 3)
    assert "nothing starts the backups" in finding.text
    assert finding.hint == "`systemctl enable --now btrkeep-backup@main.timer`"
    too_rare = judge_schedule([EVERY_6H], UTC_ZONE, StartFacts(starts(22), NOW + 8 * DAY, ("btrkeep-backup@main.timer",)), NOW)
    (finding,) = schedule_findings(too_rare)
    assert "web1 will not be backed up in time (every 6h): btrkeep-backup@main.timer start runs" in finding.text
    assert "systemctl revert btrkeep-backup@main.timer" in finding.hint


def test_what_could_not_be_read_is_neither_well_nor_a_finding_unless_the_rest_is_enough() -> None:
    blind = StartFacts((), NOW + 8 * DAY, unknown="the timers could not be read: timed out")
    verdict = judge_schedule([DAILY], UTC_ZONE, blind, NOW)
    assert (verdict.missed, bool(verdict.unknown)) == ((), True)
    assert judge_schedule([DAILY], UTC_ZONE, replace(blind, starts=starts(22), starters=("x",)), NOW).unknown == ""


def test_a_configuration_that_no_unit_reads_and_nothing_starts_is_one_that_is_run_by_hand() -> None:
    facts = StartFacts((), NOW + 8 * DAY, by_units=False)
    assert judge_schedule([DAILY], UTC_ZONE, facts, NOW).by_hand
    at_noon = replace(facts, starters=("/etc/cron.d/x",), starts=starts(12))
    assert judge_schedule([DAILY], UTC_ZONE, at_noon, NOW).missed == ("web1",)


def test_a_caller_counts_when_it_came_on_two_days_and_is_expected_to_go_on() -> None:
    text = None
    for days in (5, 2, 1):
        text = with_call(text, NOW - days * DAY + 11 * HOUR, "jenkins.service")
    text = with_call(text, NOW - HOUR, "once.service")
    calls = parse_calls(text)
    assert [by for _, by in calls] == ["jenkins.service", "jenkins.service", "once.service"], "those of before are forgotten"
    coming, callers = expected_calls(calls, NOW + 8 * DAY, NOW)
    assert callers == ("jenkins.service (as its past runs show)",)
    assert [start.at - NOW for start in sorted(coming, key=lambda start: start.at)][:2] == [DAY + 11 * HOUR, 2 * DAY + 11 * HOUR]
    assert expected_calls(calls, NOW + 8 * DAY, NOW + 3 * DAY) == ((), ())
    assert parse_calls("nonsense") == ()


def test_the_answer_goes_through_the_catalogue() -> None:
    verdict = ScheduleVerdict(first=NOW + HOUR, starters=("a.timer",))
    stored = stored_schedule(schedule_text(verdict, NOW))
    assert stored
    assert (stored.looked, stored.first, stored.starters) == (NOW, NOW + HOUR, ("a.timer",))
    assert stored_schedule(None) is None


SCRIPTS = {
    "/usr/local/bin/nightly": "#!/bin/sh\nset -e\n# backupd run db9\nexec nice \\\n  backupd run\n",
    "/etc/cron.daily/btrkeep": "#!/bin/sh\nbackupd run\n",
}
READER = CommandReader(
    "main",
    Path("/etc/btrkeep/main.toml"),
    lambda file: SCRIPTS.get(file, ""),
    lambda folder: [file for file in SCRIPTS if file.startswith(f"{folder}/")],
)
DUE = RunCall()


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        ("/usr/local/sbin/backupd --pool main run --scheduled", [DUE]),
        ("backupd run >/dev/null 2>&1", [DUE]),
        ("cd / && nice -n 5 backupd -v run | logger -t backup", [DUE]),
        ("""sh -c 'backupd run || echo "it failed"'""", [DUE]),
        ("""bash -c "sh -c 'sleep 5; backupd run'" """, [DUE]),
        ("backupd run web1 web2", [RunCall(("web1", "web2"))]),
        ("backupd run --all", [RunCall(everything=True)]),
        ("backupd --config=/etc/btrkeep/main.toml run", [DUE]),
        ("sudo /usr/local/bin/nightly", [DUE]),
        ("test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }", [DUE]),
        ("systemctl start btrkeep-backup@main.service", [DUE]),
        ("backupd run; backupd expire", [DUE]),
        ("backupd --pool other run", []),
        ("backupd --config /srv/other.toml run", []),
        ("backupd offsite run", []),
        ("backupd expire --pool run", []),
        ("backupd run --dry-run", []),
        ("echo 'backupd is not to run'", []),
        ("systemctl start btrkeep-backup@other.service", []),
        ("btrkeep-offsite backupd-run run", []),
        ("# backupd run", []),
    ],
)
def test_calls_of_run_for_this_pool_are_found_in_commands(command: str, calls: list[RunCall]) -> None:
    assert list(READER.calls(command)) == calls


def test_lines_of_cron_have_their_times_zones_and_commands() -> None:
    text = "MAILTO=root\nCRON_TZ=Europe/Berlin\n# 1 1 * * * root x\n5 22 * * 1-5 root backupd run % input\n"
    text += "@daily root y\n@reboot root z\nbad line\n"
    first, second = cron_lines(text, has_user=True)
    assert (first.command.strip(), first.zone, second.command) == ("backupd run", "Europe/Berlin", "y")
    berlin = ZoneInfo("Europe/Berlin")
    times = list(first.times.between(NOW, NOW + 4 * DAY, berlin))  # 2026-11-20 is a Friday
    assert [at.isoformat() for at in times] == ["2026-11-20T21:05:00+00:00", "2026-11-23T21:05:00+00:00"]


@pytest.mark.parametrize("fields", ["61 * * * *", "* * * *", "a * * * *", "5-2 * * * *", "*/0 * * * *", "* * 0 * *"])
def test_what_cron_refuses_has_no_times(fields: str) -> None:
    assert cron_times(fields) is None


@pytest.mark.parametrize(
    ("fields", "calendar"),
    [
        ("*/15 * * * *", "*:0/15"),
        ("0 22 * * *", "22:00"),
        ("30 1,13 * * mon-fri", "Mon..Fri 1,13:30"),
        ("0 4 1 * *", "*-*-1 04:00"),
        ("10-40/10 6 * nov *", "*-11-* 06:10..40/10"),
        ("0 3 * * 7", "Sun 03:00"),
    ],
)
def test_times_of_cron_are_those_that_systemd_has_for_the_same(fields: str, calendar: str) -> None:
    times = cron_times(fields)
    assert times
    shown = work("systemd-analyze", "calendar", "--iterations=4", "--base-time=2026-11-20 12:00:00 UTC", "--", calendar).stdout
    expected = elapses_of_calendar(shown)
    assert expected
    ours = list(times.between(NOW, max(expected), UTC_ZONE))
    assert ours[: len(expected)] == expected


def test_a_day_of_the_month_and_one_of_the_week_are_either_as_cron_has_it() -> None:
    times = cron_times("0 0 22 * sat")
    assert times
    assert [at.day for at in times.between(NOW, NOW + 9 * DAY, UTC_ZONE)] == [21, 22, 28]


def test_files_of_cron_are_read_as_cron_reads_them(tmp_path: Path) -> None:
    for name, text in {
        "etc/crontab": "25 6 * * * root test -x /usr/sbin/anacron || run-parts --report /etc/cron.daily\n",
        "etc/debian_version": "12\n",
        "etc/cron.d/btrkeep": "0 22 * * * root backupd run\n",
        "etc/cron.d/btrkeep.bak": "0 1 * * * root backupd run\n",
        "etc/cron.daily/nightly": "#!/bin/sh\nbackupd run\n",
        "var/spool/cron/crontabs/root": "0 3 * * * backupd run web1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "etc/cron.daily/nightly").chmod(0o755)
    config = Config(
        Path("/etc/btrkeep/main.toml"), "main", PoolSettings(Path("/srv"), tmp_path, zone=UTC_ZONE), hosts={"web1": DAILY}
    )
    facts = read_starts(config, None, NOW, DAY, tmp_path)
    assert set(facts.starters) == {"/etc/crontab", "/etc/cron.d/btrkeep", "/var/spool/cron/crontabs/root"}
    assert {(start.at - NOW, start.hosts) for start in facts.starts} == {
        (10 * HOUR, ()),
        (18.41666666666666666 * HOUR, ()),
        (15 * HOUR, ("web1",)),
    }


def test_anacron_starts_what_its_lines_and_their_folders_have(tmp_path: Path) -> None:
    (tmp_path / "etc/cron.weekly").mkdir(parents=True)
    (tmp_path / "etc/cron.weekly/nightly").write_text("#!/bin/sh\nbackupd run web1\n")
    (tmp_path / "etc/cron.weekly/nightly").chmod(0o755)
    lines = "# 1 5 x backupd run\n1 5 btrkeep backupd run\n@weekly 10 w run-parts --report /etc/cron.weekly\nx 1 y backupd run\n"
    (tmp_path / "etc/anacrontab").write_text(lines)
    config = Config(
        Path("/etc/btrkeep/main.toml"), "main", PoolSettings(Path("/srv"), tmp_path, zone=UTC_ZONE), hosts={"web1": DAILY}
    )
    facts = read_starts(config, None, NOW, 8 * DAY, tmp_path)
    assert facts.starters == ("/etc/anacrontab",)
    daily = [start.at for start in facts.starts if not start.hosts]
    assert daily == [NOW + 19.5 * HOUR + number * DAY for number in range(8)]  # 07:30 of each day
    assert [start.at for start in facts.starts if start.hosts] == [NOW + 6 * DAY + 19.5 * HOUR]


def test_a_user_without_rights_cannot_hide_that_nothing_starts_the_backups(tmp_path: Path) -> None:
    for folder in ("var/spool/cron/crontabs", "var/spool/cron"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "mallory").write_text("0 * * * * backupd run --all\n")
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "script")
    (tmp_path / "etc/crontab").write_text(f"0 1 * * * mallory {tmp_path}/script\n0 2 * * * mallory /script\n")
    with (tmp_path / "var/spool/cron/root").open("wb") as file:
        file.truncate(1 << 40)
    config = Config(
        Path("/etc/btrkeep/main.toml"), "main", PoolSettings(Path("/srv"), tmp_path, zone=UTC_ZONE), hosts={"web1": DAILY}
    )
    facts = read_starts(config, None, NOW, DAY, tmp_path)
    assert not facts.starts
    assert not facts.starters
    assert "var/spool/cron/root: File too large" in facts.unknown


def test_a_host_that_calls_needs_no_timer_of_the_server(tmp_path: Path) -> None:
    config = Config(
        Path("/etc/btrkeep/main.toml"),
        "main",
        PoolSettings(Path("/srv"), tmp_path, zone=UTC_ZONE),
        hosts={"laptop7": replace(DAILY, name="laptop7", calls=True)},
    )
    assert read_schedule(config, None, frozenset(), NOW) == NOTHING_MISSED


def test_the_shipped_timer_starts_hosts_of_every_hour_in_time() -> None:
    """Both are read as shipped, so that one cannot change without the other."""
    unit = (TOP / "systemd/btrkeep-backup@.timer").read_text(encoding="utf-8")
    (calendar,) = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("OnCalendar=")]
    shown = work("systemd-analyze", "calendar", "--iterations=900", "--base-time=2026-11-20 12:00:00 UTC", "--", calendar).stdout
    coming = tuple(Start(at) for at in elapses_of_calendar(shown))
    for every in (3600.0, 6 * 3600.0, 86400.0):
        assert not judged(replace(EVERY_6H, every=every), *coming).missed
    service = (TOP / "systemd/btrkeep-backup@.service").read_text(encoding="utf-8")
    (command,) = [line.partition("=")[2] for line in service.splitlines() if line.startswith("ExecStart=")]
    assert list(READER.calls(command.replace("%i", "main"))) == [DUE]
