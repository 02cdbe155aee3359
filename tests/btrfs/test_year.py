"""A year of nights on a rehearsal pool, with twenty hosts and various incidents: the golden list names the backups that are left.

The year is in tests/beds/year.py; golden/year.py reckons naively what must be left, golden/year.txt has it. Here it is lived
through: real btrfs, real rsync, our commands as processes of their own. The ordinary tests live through some of the nights. Only
the long form meets a season without a gap, in which each daily backup expires on a day of its own.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

from tests.beds import backupd, work
from tests.beds.badssh import FAKESSH
from tests.beds.nights import Nights
from tests.beds.preloaded import Preloaded, preloaded
from tests.beds.watch import disagreements, rows, subvolumes, writable_finals
from tests.beds.year import (
    AFTERWARDS,
    AWAY,
    CHECKPOINTS,
    DEEDS,
    GROUPS,
    HALF,
    HOSTS,
    MORNING,
    MORNINGS,
    NIGHT,
    NOON,
    RETENTION,
    SMALL,
    ZONE,
    Deed,
    Host,
    at,
    every_night,
    label,
    some_nights,
)
from tests.btrfs.golden import year as reference

BIG = 4000  # bytes, most of what a host has
Backups = dict[str, str]  # "HOST LABEL": what it is, "complete, expired"


class Pool(Nights):
    """The rehearsal pool of the year; hosts are added to the configuration as they join."""

    def __init__(self, top: Path, forked: Preloaded) -> None:
        self.forked = forked
        super().__init__(top, "--rehearsal")
        self.sources = self.state.parent / "sources"
        self.away = self.state.parent / "away"
        self.away.mkdir()
        self.ssh(self._ssh_that_may_fail())
        self.settings("pool", zone=ZONE)
        self.tables |= {"retention": RETENTION}
        for group, policy in GROUPS.items():
            self.tables |= {f"group.{group}": {"concurrency": 4}, f"group.{group}.retention": policy}
        self.write()

    def _ssh_that_may_fail(self) -> str:
        """Makes a stand-in for ssh that cannot reach a host if `away` has a file with its name."""
        script = self.away.parent / "ssh-or-not"
        refuse = '{ echo "ssh: connect to host $word port 22: No route to host" >&2; exit 255; }'
        script.write_text(
            f'#!/bin/sh\nfor word; do [ ! -f "{self.away}/$word" ] || {refuse}; done\nexec {shlex.quote(str(FAKESSH))} "$@"\n'
        )
        script.chmod(0o755)
        return str(script)

    def at(self, moment: datetime | str, *words: str, status: int = 0) -> str:
        """Runs a btrkeep command at that time; returns its standard output."""
        now = moment if isinstance(moment, str) else moment.isoformat()
        return self.forked("--config", self.config, *words, "--now", now, status=status).stdout

    # --- the hosts

    def join(self, host: Host) -> None:
        for source in self._paths(host):
            source.mkdir(parents=True)
            (source / "big").write_bytes(b"*" * BIG)
        self.tables |= {f"host.{host.name}.retention": dict(host.retention)} if host.retention else {}
        self.configure(host, host.name)

    def configure(self, host: Host, name: str) -> None:
        keys = {"group": host.group, "every": f"{host.every}d", "optional": host.optional or None}
        self.host(name, *self._paths(host), address=name if host.remote else None, **keys)

    def _paths(self, host: Host) -> list[Path]:
        """Returns two paths for a host that may lose one of them."""
        parts = ("a", "b") if any(spell.what == HALF for spell in host.spells) else ("a",)
        return [self.sources / host.name / part for part in parts]

    def leave(self, name: str) -> None:
        del self.tables["host"][name]
        self.tables.pop(f"host.{name}.retention", None)
        self.write()

    def become(self, host: Host, moment: datetime) -> None:
        """Changes the host's source to its content at that time. One file names the night, and so changes every night."""
        subject = host.on(moment.date())
        present, gone = self.sources / host.name / "b", self.sources / host.name / "b, gone"
        (self.sources / host.name / "a" / "night").write_text(label(moment))
        _present(self.sources / host.name / "a" / "big", here=subject != SMALL, make=lambda path: path.write_bytes(b"*" * BIG))
        _present(self.away / host.name, here=subject == AWAY, make=Path.touch)
        if subject == HALF and present.exists():
            present.rename(gone)
        if subject != HALF and gone.exists():
            gone.rename(present)

    # --- the content of the pool, read without our code

    def labels(self, host: str) -> dict[str, Path]:
        """Returns the host's final backups by label, as folders are named. Each was made within minutes of its planned time."""
        by_name: dict[str, Path] = {}
        for name in self.names(host):
            moment = datetime.strptime(name, "%Y-%m-%dT%H%M%S%z")
            begun = moment.replace(minute=moment.minute - moment.minute % 30, second=0)
            assert moment - begun < timedelta(minutes=15), name
            assert label(begun) not in by_name, name
            by_name[label(begun)] = self.backup(host, name)
        return by_name

    def in_pool(self) -> Backups:
        """Returns every backup of the pool, according to its folders and files."""
        hosts = sorted(path.name for path in (self.pool / "hosts").iterdir())
        return {f"{host} {name}": _state_of(path) for host in hosts for name, path in self.labels(host).items()}


def _present(path: Path, *, here: bool, make: Callable[[Path], object]) -> None:
    if here and not path.exists():
        make(path)
    elif not here:
        path.unlink(missing_ok=True)


def _state_of(backup: Path) -> str:
    """Returns the state of a backup, from backup.json and notes.json."""
    notes = backup.parent / "notes.json"
    answer = json.loads(notes.read_text())["backups"].get(backup.name, {}) if notes.exists() else {}
    state = "complete" if "accepted" in answer else json.loads((backup / "backup.json").read_text())["state"]
    return f"{state}, expired" if "expired" in answer else state


# --- the golden list


def sections(nights: Sequence[date]) -> dict[str, list[str]]:
    """Returns the lines below each heading of the golden list, for these nights."""
    by_name: dict[str, list[str]] = {}
    for line in reference.text(reference.live(nights)).splitlines():
        if line.startswith("== "):
            lines = by_name[re.sub(r": \d+ backups$", "", line.removeprefix("== "))] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    return by_name


def backups_in(lines: list[str]) -> Backups:
    return {name: rest.partition(": ")[0] for name, _, rest in (line.partition("  ") for line in lines)}


def reasons_in(lines: list[str]) -> dict[str, str]:
    return {name: rest.partition(": ")[2] for name, _, rest in (line.partition("  ") for line in lines)}


def days_in(lines: list[str]) -> set[date]:
    """Returns the days of lines such as 2020-05-11 .. 2020-05-15, each a day or a span."""
    spans = [[date.fromisoformat(day) for day in line.split(" .. ")] for line in lines]
    return {span[0] + timedelta(days=day) for span in spans for day in range((span[-1] - span[0]).days + 1)}


def test_the_golden_list_is_what_the_naive_reference_reckons() -> None:
    assert reference.text(reference.live(every_night())) == reference.GOLDEN.read_text("utf-8")


def test_some_nights_have_every_rule_state_and_refusal_of_the_whole_year() -> None:
    def kinds(nights: Sequence[date]) -> set[str]:
        actual_sections = sections(nights)
        rules = {
            re.sub(r"\d[\d:TZ-]*( of \d+)?$", "", why)
            for name in actual_sections
            for reasons in reasons_in(actual_sections[name]).values()
            for why in reasons.split(", ")
        }
        return (
            rules
            | {text for name in actual_sections for text in backups_in(actual_sections[name]).values()}
            | {name for name in actual_sections if actual_sections[name]}
        )

    assert kinds(some_nights()) == kinds(every_night())
    assert 5 * len(some_nights()) < len(every_night())


# --- the year


def test_a_forked_command_says_and_does_what_a_started_one_does(nights: Nights) -> None:
    (nights.source / "file").write_text("one")
    nights.host("web", nights.source)
    with preloaded() as forked:
        for words in (["run", "web"], ["status", "nobody"], ["run", "--no-such-option"], ["list", "--all"], ["--version"]):
            ours = ["--config", str(nights.config), *words]
            process, other = forked(*ours, status=None), backupd(*ours, check=False, as_printed=True)
            assert (process.returncode, *_timeless(process)) == (other.returncode, *_timeless(other))
    assert len(nights.names("web")) == 2
    assert disagreements(nights) == []


def _timeless(done: "subprocess.CompletedProcess[str]") -> tuple[str, str]:
    """Returns both texts without names and numbers, which differ from one second to the next."""
    return re.sub(r"[\d.]+( [KM]iB| ago)?|Z|\bnow\b| {2,}", "", done.stdout), done.stderr


def do(pool: Pool, deed: Deed, noon: datetime) -> None:
    """Does the administrator's work at noon: commands, and changes of the configuration."""
    name = pool.labels(deed.host)[deed.backup].name if deed.backup else ""
    host = next(host for host in HOSTS if host.name == deed.host)
    match deed.what:
        case "run":
            pool.become(host, noon)
            pool.at(noon, "run", deed.host)
        case "hold":
            until = ["--until", deed.until] if deed.until else []
            pool.at(noon, "hold", deed.host, name, *until, "--why", deed.why)
        case "release" | "unexpire" | "accept":
            pool.at(noon, deed.what, deed.host, name)
        case "rename":
            pool.at(noon, "rename", deed.host, deed.new, "--yes")
            pool.leave(deed.host)
            pool.configure(host, deed.new)
        case "leave":
            pool.leave(deed.host)
        case "forget":
            pool.leave(deed.host)
            pool.at(noon, "forget", deed.host, "--yes")
        case "set":
            pool.tables[f"host.{deed.host}.retention"] |= deed.retention
            pool.write()


def live(pool: Pool, nights: Sequence[date], golden: Mapping[str, list[str]]) -> Iterator[tuple[str, datetime]]:
    """Lives through the year; yields after the morning of each checkpoint, with its time."""
    bad_runs, bad_expiries = (days_in(lines) for title, lines in golden.items() if "ends with 1" in title)
    for night in nights:
        for host in HOSTS:
            if host.joins == str(night):
                pool.join(host)
        for deed in DEEDS:
            if deed.day == str(night):
                do(pool, deed, at(night, NOON))
        moment = at(night, NIGHT)
        for host in HOSTS:
            if host.joins <= str(night):
                pool.become(host, moment)
        pool.at(moment, "run", status=int(night in bad_runs))
        morning = at(night + timedelta(days=1), MORNING)
        words = MORNINGS.get(str(night), ())
        if words is not None:
            pool.at(morning, "expire", *words, status=int(night in bad_expiries))
        if str(night) in CHECKPOINTS:
            yield f"there after {night}", morning


def explained(pool: Pool, now: datetime | str) -> dict[str, str]:
    """Returns the result of `retention explain` for every backup, in the reference's words: without times, with labels
    for names.
    """
    by_name = {}
    for row in json.loads(pool.at(now, "retention", "explain", "--json")):
        reasons = [re.sub(r"^(held( until)?)\b.*|(T\d{4})\d\dZ$", r"\1\3", reason) for reason in row["reasons"]]
        by_name[f"{row['host']} {row['name'][:15]}"] = ", ".join(sorted(reasons)) if row["keep"] else "goes"
    return by_name


def queued(pool: Pool) -> list[str]:
    """Returns the deleted subvolumes that the kernel has not dropped after it reported that it had dropped all."""
    work("btrfs", "filesystem", "sync", pool.pool)
    work("btrfs", "subvolume", "sync", pool.pool)
    return work("btrfs", "subvolume", "list", "-d", pool.pool).stdout.splitlines()


def compare(by_name: Mapping[str, str], wanted: Mapping[str, str], when: str) -> None:
    """Fails with the differences, line by line."""
    names = sorted(name for name in {*by_name, *wanted} if by_name.get(name) != wanted.get(name))
    lines = [f"{name}: {by_name.get(name, 'not there')}, not {wanted.get(name, 'there')}" for name in names]
    assert lines == [], "\n".join([f"{when}:", *lines])


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "nights",
    [
        pytest.param(some_nights(), id="some", marks=pytest.mark.takes(75)),
        pytest.param(every_night(), id="every one", marks=[pytest.mark.takes(350), pytest.mark.long]),
    ],
)
def test_a_year_of_nights_leaves_exactly_what_the_golden_list_names(make_btrfs: Callable[..., Path], nights: list[date]) -> None:
    golden = sections(nights)
    with preloaded() as forked:
        pool = Pool(make_btrfs(size="6G"), forked)
        for when, morning in live(pool, nights, golden):
            compare(pool.in_pool(), backups_in(golden[when]), when)
            compare(explained(pool, morning), reasons_in(golden[when]), f"reasons, {when}")
        pool.at(AFTERWARDS, "expire")
        wanted = golden["there after the end"]
        compare(pool.in_pool(), backups_in(wanted), "the end")
        compare(explained(pool, AFTERWARDS), reasons_in(wanted), "reasons, the end")
        assert subvolumes(pool).keys() == {str(path.relative_to(pool.pool)) for path in (pool.pool / "hosts").glob("*/2*Z")}
        assert queued(pool) == []
        assert writable_finals(pool) == []
        see_contents(pool)
        see_nothing_to_do(pool)


def see_contents(pool: Pool) -> None:
    """Checks that each backup has the content of its own night."""
    for host in sorted(path.name for path in (pool.pool / "hosts").iterdir()):
        for name, path in pool.labels(host).items():
            (night,) = (path / "data").glob("**/a/night")
            assert night.read_text() == name, path


def see_nothing_to_do(pool: Pool) -> None:
    """Checks that the catalogue equals the pool, even after a rebuild, and that nothing is left to expire."""
    assert disagreements(pool) == []
    query = "select host || ' ' || substr(name, 1, 15), state from backup order by 1"
    assert dict(rows(pool, query)) == pool.in_pool()
    actual_rows = rows(pool, "select host, name, state, subvolume_id, base, held_until, held_why from backup order by 1, 2")
    pool.at(AFTERWARDS, "rebuild")
    assert rows(pool, "select host, name, state, subvolume_id, base, held_until, held_why from backup order by 1, 2") == actual_rows
    before = subvolumes(pool)
    plan = json.loads(pool.at(AFTERWARDS, "expire", "--dry-run", "--json"))
    assert [plan[key] for key in ("mark", "revive", "delete", "wait")] == [[]] * 4
    assert (plan["unruled"], plan["unconfigured"], plan["left_out"]) == (["pia"], ["quin"], {})
    assert "0 deleted" in pool.at(AFTERWARDS, "expire")
    assert subvolumes(pool) == before
