"""`retention explain`: compared with calendars, JSON and counts of the tests; it changes nothing."""

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.backupd.test_cli_output import on_a_terminal
from tests.beds import btrfs, work
from tests.beds.history import every, make_history, moment, name_of, write_down
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs]

NOW = "2026-11-20T12:00:00Z"  # a Friday
LAST = moment("2026-11-20 03:00")
DAYS = 45


@pytest.fixture(scope="module")
def site(_shared_mount: Path) -> Iterator[Nights]:
    """web1 has a backup a day, web2 one a week, left is not configured, none has no backup. Tests undo their changes."""
    top = Path(tempfile.mkdtemp(prefix="explain-", dir=_shared_mount)) / "top"
    work("btrfs", "-q", "subvolume", "create", top)
    nights = Nights(top, "--rehearsal")
    nights.tables["retention"] = {"daily": 7, "weekly": 4, "monthly": 2}
    for host in ("web1", "web2", "none"):
        nights.host(host, nights.source)
    make_history(nights, "web1", every(1, DAYS, LAST), {20: "suspect", 44: "suspect"})
    make_history(nights, "web2", every(7, 5, LAST))
    make_history(nights, "left", every(1, 20, moment("2026-06-30 03:00")))
    yield nights
    btrfs.delete_subvolume(top, _shared_mount)
    top.parent.rmdir()


def explained(site: Nights, *words: str, now: str = NOW) -> list[dict[str, Any]]:
    return json.loads(site.backupd("retention", "explain", *words, "--json", "--now", now).stdout)


def output_of(site: Nights, *words: str, now: str = NOW) -> str:
    return site.backupd("retention", "explain", *words, "--now", now).stdout


def by_hand(complete: list[datetime], daily: int, weekly: int, monthly: int, at_least: int = 3) -> set[str]:
    """Computes, from the calendar alone, the names that a policy with these counts keeps."""
    kept = set(complete[-at_least:])
    for count, period in ((daily, "%Y-%m-%d"), (weekly, "%G-%V"), (monthly, "%Y-%m")):
        first: dict[str, datetime] = {}
        for started in complete:
            first.setdefault(started.strftime(period), started)
        kept |= set([first[key] for key in sorted(first)][-count:]) if count else set()
    return {name_of(started) for started in kept}


def complete_ones() -> list[datetime]:
    return [started for number, started in enumerate(every(1, DAYS, LAST)) if number not in (20, 44)]


def test_every_backup_is_there_with_its_reasons_and_those_that_go_with_their_time(site: Nights) -> None:
    rows = explained(site, "web1")
    assert [row["name"] for row in rows] == site.names("web1")
    assert all(list(row) == ["host", "name", "keep", "reasons", "rules", "expires"] and row["host"] == "web1" for row in rows)
    wanted = by_hand(complete_ones(), 7, 4, 2) | {name_of(LAST)}  # the newest is suspect, with nothing newer than it
    assert {row["name"] for row in rows if row["keep"]} == wanted
    by_name = {row["name"]: row for row in rows}
    assert by_name["2026-11-19T030000Z"]["reasons"] == [
        "daily 1 of 7",
        "newest complete",
        "min_keep 1 of 3",
        f"last complete before the suspect {name_of(LAST)}",
    ]
    assert by_name["2026-11-16T030000Z"]["reasons"] == ["daily 4 of 7", "weekly 1 of 4"]  # a Monday
    assert by_name["2026-11-01T030000Z"]["reasons"] == ["monthly 1 of 2"]
    assert by_name[name_of(LAST)]["reasons"] == [
        "suspect: daily 1 of 7",
        "suspect: weekly 1 of 4",
        "suspect: monthly 1 of 2",
        "suspect: newest 1 of 3",
    ]
    for row in rows:
        assert (row["expires"] is None) == row["keep"]
        assert row["keep"] or row["expires"] in ("2026-11-21T12:00:00Z", "2026-11-21T12:00:01Z")
    assert by_name[site.names("web1")[20]]["reasons"] == ["suspect: two newer complete backups"]
    assert by_name[site.names("web1")[20]]["rules"] == ["replaced"]
    assert by_name["2026-11-19T030000Z"]["rules"] == ["daily", "newest-complete", "min_keep", "before-suspect"]


def test_the_table_says_the_same_in_words(site: Nights) -> None:
    lines = output_of(site, "web1").splitlines()
    assert lines[0] == "web1: daily 7, weekly 4, monthly 2; min_keep 3, grace 1d"
    rows = {words[0]: words for line in lines if (words := line.split(None, 3)) and words[0][:2] == "20" and len(words[0]) == 18}
    for row in explained(site, "web1"):
        name, state, verified, why = rows[row["name"]]
        assert verified == "never"
        assert state == ("suspect" if name in (site.names("web1")[20], name_of(LAST)) else "complete")
        reasons = ", ".join(row["reasons"])
        assert why == reasons if row["keep"] else why[:9] == "expires 2" and why.endswith(f"Z: {reasons}")
    kept = sum(row["keep"] for row in explained(site, "web1"))
    assert lines[-1] == f"{kept} kept, {DAYS - kept} to delete"


def test_the_strip_has_a_letter_for_each_day(site: Nights) -> None:
    lines = output_of(site, "web1").splitlines()
    (october,) = [line for line in lines if line.startswith("2026-10  ")]
    (november,) = [line for line in lines if line.startswith("2026-11  ")]
    kept = {row["name"]: row for row in explained(site, "web1") if row["keep"]}
    for number, letter in enumerate(november[9:29], start=1):
        answer = kept.get(f"2026-11-{number:02}T030000Z", {"rules": []})
        words = set(answer["rules"])
        wanted = "M" if "monthly" in words else "W" if "weekly" in words else "d" if "daily" in words else "x"
        assert letter == ("?" if number == 20 else wanted)
    assert october.startswith("2026-10  " + " " * 6 + "Mxxx")  # the first one is of the 7th
    assert november[29:].strip().endswith("to delete")


def fits(shown: str, columns: int) -> bool:
    """Returns True if no line is too long, except a line with a command, which is not split."""
    return all(len(line) <= columns for line in shown.splitlines() if "`" not in line)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_it_fits_the_terminal_and_is_coloured_only_there(site: Nights, columns: int) -> None:
    words: list[str | Path] = ["--config", site.config, "retention", "explain", "web1", "--now", NOW]
    plain = on_a_terminal(words, columns, env={"NO_COLOR": "1"})
    assert fits(plain, columns)
    assert "2026-11  " in plain
    assert plain.isascii()
    assert "\x1b[38;5;" in on_a_terminal(words, columns)
    assert "\x1b" not in plain + output_of(site, "web1")
    everybody = on_a_terminal(words[:-3] + words[-2:], columns, env={"NO_COLOR": "1"})
    assert fits(everybody, columns)


def test_in_a_locale_without_utf_8_it_is_the_same(site: Nights) -> None:
    words = ["retention", "explain", "web1", "--now", NOW]
    assert (
        site.backupd(*words, env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
        .stdout.replace(f" --config {site.config}", "")
        .splitlines()[:4]
        == output_of(site, "web1").splitlines()[:4]
    )


def test_without_a_host_there_is_a_line_for_each_and_the_sum(site: Nights) -> None:
    lines = output_of(site).splitlines()
    assert lines[0].split() == ["HOST", "KEPT", "TO", "DELETE", "OLDEST", "KEPT", "NOTE"]
    rows = {line.split()[0]: line for line in lines[1:-1]}
    assert list(rows) == ["left", "web1", "web2"]
    everything = explained(site)
    assert {row["host"] for row in everything} == set(rows)
    for host, line in rows.items():
        keeps = [row["name"] for row in everything if row["host"] == host and row["keep"]]
        goes = [row["name"] for row in everything if row["host"] == host and not row["keep"]]
        assert line.split()[1:4] == [str(len(keeps)), str(len(goes)), min(keeps)]
    assert rows["left"].endswith("no retention policy, since it is not configured")
    assert "skipped: 3" in rows["web1"]
    assert "--force web1" in rows["web1"]
    assert "skipped" not in rows["web2"]
    kept = sum(row["keep"] for row in everything)
    assert lines[-1] == f"3 hosts: {kept} kept, {len(everything) - kept} to delete"
    assert everything[20 : 20 + DAYS] == explained(site, "web1") or [
        {**row, "expires": None} for row in everything[20 : 20 + DAYS]
    ] == [{**row, "expires": None} for row in explained(site, "web1")]


def test_another_policy_is_compared_with_todays(site: Nights) -> None:
    rules = "daily=14,weekly=0,min_keep=1"
    wanted = by_hand(complete_ones(), 14, 0, 2, at_least=1) | {name_of(LAST)}
    assert {row["name"] for row in explained(site, "web1", "--policy", rules) if row["keep"]} == wanted
    today = sum(not row["keep"] for row in explained(site, "web1"))
    change = today - (DAYS - len(wanted))
    lines = output_of(site, "web1", "--policy", rules).splitlines()
    assert lines[0] == "web1, with the policy daily 14, monthly 2; min_keep 1, grace 1d"
    now = f"{change} fewer than with the present policy ({today})"
    assert lines[-1] == f"{len(wanted)} kept, {DAYS - len(wanted)} would be deleted, {now}"
    last = output_of(site, "--policy", "daily=1,weekly=0,monthly=0,min_keep=1").splitlines()[-1]
    goes = [host for host in ("left", "web1", "web2") for name in site.names(host)]
    gone = (DAYS - 2) + 4 + 19  # newest of each; of web1 the suspect one besides
    by_policy = today + sum(not row["keep"] for row in explained(site, "web2"))
    now = f"{gone - by_policy} more than with the present policy ({by_policy})"
    assert last == f"3 hosts: {len(goes) - gone} kept, {gone} would be deleted, {now}"
    same = f", as many as with the present policy ({by_policy - today})"
    assert output_of(site, "web2", "--policy", "daily=7").splitlines()[-1].endswith(same)
    done = site.backupd("retention", "explain", "--policy", "daily=1", "--json", "--now", NOW)
    assert done.stderr.startswith("note: ")
    assert len(json.loads(done.stdout)) == len(goes)


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ("dayly=7", 'did you mean "daily"?'),
        ("daily=x", "daily=x"),
        ("daily=-1", "daily=-1"),
        ("daily", "daily"),
        ("daily=1,daily=2", "given twice"),
        ("grace=soon", "grace=soon"),
        ("daily=\x1b[2J", r"\x1b[2J"),
    ],
)
def test_a_policy_that_is_none_is_an_error_of_one_line(site: Nights, rules: str, error: str) -> None:
    done = site.backupd("retention", "explain", "--policy", rules, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    message, hint = done.stderr.splitlines()
    assert message.startswith("error: --policy: ")
    assert error in message
    assert hint.startswith("hint: ")


def test_at_another_moment_only_what_was_there_by_then_counts(site: Nights) -> None:
    then = moment("2026-11-10 12:00")
    rows = explained(site, "web1", "--at", "2026-11-10T12:00:00Z")
    moments = [started for started in every(1, DAYS, LAST) if started <= then]
    assert [row["name"] for row in rows] == [name_of(started) for started in moments]
    complete = [started for started in complete_ones() if started <= then]
    assert {row["name"] for row in rows if row["keep"]} == by_hand(complete, 7, 4, 2)
    later = explained(site, "web1", "--at", "2027-11-10T12:00:00Z")  # a host that falls silent keeps what it has
    assert [row["keep"] for row in later] == [row["keep"] for row in explained(site, "web1")]
    assert output_of(site, "--at", "2027-11-10T12:00:00Z").splitlines()[-1] == (
        "as of 2027-11-10T12:00:00Z, with the present backups"
    )


def test_the_end_of_a_hold_is_seen_ahead(site: Nights) -> None:
    name = next(row["name"] for row in explained(site, "web1") if not row["keep"])
    until, at = "2026-12-24T00:00:00Z", "2026-11-20T00:00:00Z"
    write_down(site, "web1", backups={name: {"hold": {"at": at, "until": until, "why": "the audit"}}})
    held = explained(site, "web1")[1]
    assert (held["name"], held["keep"], held["reasons"]) == (name, True, [f"held until {until}: the audit"])
    assert explained(site, "web1", "--at", "2026-12-23T23:59:59Z")[1]["keep"]
    assert not explained(site, "web1", "--at", until)[1]["keep"]
    lines = output_of(site, "web1").splitlines()
    assert any(line.startswith("2026-10") and "H" in line for line in lines)
    (site.pool / "hosts" / "web1" / "notes.json").unlink()


def test_the_grace_of_a_marked_backup_goes_on_from_its_mark(site: Nights) -> None:
    name = next(row["name"] for row in explained(site, "web1") if not row["keep"])
    write_down(site, "web1", backups={name: {"expired": {"at": "2026-11-20T05:00:00Z", "why": "no rule keeps it"}}})
    for words in (["web1"], []):
        (answer,) = [row for row in explained(site, *words) if row["name"] == name and row["host"] == "web1"]
        assert (answer["keep"], answer["expires"]) == (False, "2026-11-21T05:00:00Z")
    assert f"{name}  expired " in output_of(site, "web1")
    (answer,) = [row for row in explained(site, "web1", "--at", "2026-11-20T04:00:00Z") if row["name"] == name]
    assert answer["expires"] == "2026-11-21T04:00:00Z"  # it was not marked by then
    (site.pool / "hosts" / "web1" / "notes.json").unlink()


def test_a_forgotten_host_goes_as_a_whole(site: Nights) -> None:
    write_down(site, "left", forgotten={"at": "2026-11-20T05:00:00Z"})
    assert {(row["keep"], *row["reasons"]) for row in explained(site, "left")} == {(False, "host forgotten")}
    assert "left" in output_of(site).splitlines()[1]
    assert output_of(site).splitlines()[1].endswith("forgotten since 2026-11-20T05:00:00Z")
    (site.pool / "hosts" / "left" / "notes.json").unlink()


def test_a_host_without_a_policy_keeps_everything_and_it_is_said(site: Nights) -> None:
    assert output_of(site, "left").splitlines()[0] == "left: no retention policy, so everything is kept"
    assert all(row["keep"] and "no retention policy" in row["reasons"] for row in explained(site, "left"))


def test_notes_that_cannot_be_read_leave_that_host_out_and_are_told(site: Nights) -> None:
    path = site.pool / "hosts" / "web1" / "notes.json"
    path.write_text("{")
    for words in ([], ["--json"]):
        done = site.backupd("retention", "explain", *words, "--now", NOW, check=False)
        assert done.returncode == 1
        assert f"error: web1 is skipped: {path} cannot be read" in done.stderr
        assert "web2" in done.stdout
        assert "web1" not in done.stdout
    done = site.backupd("retention", "explain", "web1", "--now", NOW, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {path} cannot be read")
    path.unlink()


def test_a_host_that_has_nothing_or_is_unknown(site: Nights) -> None:
    assert output_of(site, "none").splitlines()[-1] == "no backups yet"
    assert explained(site, "none") == []
    done = site.backupd("retention", "explain", "wbe1", check=False)
    assert (done.returncode, done.stderr.splitlines()) == (2, ["error: there is no host wbe1", "hint: did you mean web1?"])


def test_without_a_word_the_help_of_the_group_is_shown(site: Nights) -> None:
    done = site.backupd("retention", check=False)
    assert done.returncode == 2
    assert "explain" in done.stdout + done.stderr


def test_looking_changes_nothing(site: Nights) -> None:
    def state() -> list[str]:
        return work("find", site.pool, site.state / "catalogue.sqlite", "-printf", "%p %s %T@ %C@\n").stdout.splitlines()

    before = state()
    output_of(site, "web1", "--policy", "daily=1")
    output_of(site)
    assert state() == before  # the files of locks among it, which have their times


def test_a_wrong_stamp_is_kept_and_told(nights: Nights) -> None:
    nights.tables["retention"] = {"daily": 1, "min_keep": 1}
    nights.host("web", nights.source)
    ahead = (datetime.now(UTC) + timedelta(days=400)).replace(hour=3, minute=0, second=0, microsecond=0)
    names = make_history(nights, "web", [*every(1, 3, moment("2026-11-20 03:00")), ahead])
    text = nights.backupd("retention", "explain", "web").stdout
    assert text.splitlines()[-1].startswith(f"{names[-1]} has a time in the future")
    assert [row["keep"] for row in nights.json("retention", "explain", "web")] == [False, False, True, True]


def test_days_are_those_of_the_pools_zone(nights: Nights) -> None:
    nights.settings("pool", zone="Pacific/Auckland")
    nights.tables["retention"] = {"daily": 9, "min_keep": 1}
    nights.host("web", nights.source)
    make_history(nights, "web", [moment("2026-11-09 10:30"), moment("2026-11-09 11:30")])  # 23:30, and 00:30 of the 10th
    (row,) = [line for line in nights.backupd("retention", "explain", "web").stdout.splitlines() if line.startswith("2026-11  ")]
    assert row.startswith("2026-11  " + " " * 8 + "dd")
