"""One table tests each command that takes a host, a backup, a path, a day or a file: odd names, and the same word has the same
meaning everywhere.

The table has each parameter of the command tree that is not a flag: a new one needs a row. The meaning of a word follows from
the backups that the tests made.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import click
import pytest

from backupd.cli import group
from backupd.files.entry_words import shown
from tests.beds.history import every, moment
from tests.beds.lineage import make_lineage
from tests.beds.nights import Nights
from tests.beds.within import Within

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
LAST = moment("2026-11-20 23:30")  # in Berlin half past midnight of the 21st
Done = subprocess.CompletedProcess[str]


class Kind(Enum):
    """What a parameter's words name, such as a host or a path."""

    HOST = "a host"
    WHICH = "HOST or HOST@BACKUP"
    BACKUP = "a backup of the host before it"
    CONFIGURED = "a repository, a replica or a group"
    PATH = "a path in a backup"
    FILE = "a file or a folder here"
    DAY = "a day, or a time"
    REST = "free text, a number, a choice, a rule, a key of the configuration, or the name of something new"


HOST, WHICH, BACKUP, CONFIGURED, PATH, FILE, DAY, REST = Kind
TO = "--to /var/tmp/new --dry-run"
ROWS: dict[str, dict[str, tuple[Kind, str] | Kind]] = {
    "setup": dict.fromkeys(("path", "retention", "zone", "window", "host", "address", "port", "paths"), REST),  # it asks
    "init": {"path": (FILE, "init {}")},
    "host add": {"source": (FILE, "host add --from {}"), "group": (CONFIGURED, "host add h9 --address h9 --path /etc --group {}")}
    | dict.fromkeys(("name", "address", "port", "paths"), REST),
    "host list": {},
    "host remove": {"names": (HOST, "host remove {}")},
    "host set": {"words": (HOST, "host set {} every=2d --dry-run"), "unset": REST},
    "host test": {"names": (HOST, "host test {}")},
    "check": {},
    "doctor": {"name": REST, "named": REST},
    "run": {"hosts": (HOST, "run {} --dry-run")},
    "status": {"hosts": (HOST, "status {}"), "states": REST, "group": (CONFIGURED, "status --group {}")},
    "list": {"host": (HOST, "list {}")},
    "browse": {"host": (WHICH, "browse {} /d"), "path": (PATH, "browse web1 {}"), "at": (DAY, "browse web1 /d --at {}")},
    "versions": {"host": (HOST, "versions {} /d"), "path": (PATH, "versions web1 {}")},
    "compare": {
        "host": (WHICH, "compare {} /d latest"),
        "path": (PATH, "compare web1 {} latest"),
        "before": (BACKUP, "compare web1 /d {}"),
        "after": (BACKUP, "compare web1 /d latest {}"),
    },
    "restore": {
        "host": (WHICH, f"restore {{}} /d {TO}"),
        "paths": (PATH, f"restore web1 {{}} {TO}"),
        "at": (DAY, f"restore web1 /d --at {{}} {TO}"),
        "to": (FILE, "restore web1 /d --to {}"),
        "tar": (FILE, "restore web1 /d --tar {}/tar"),
    }
    | dict.fromkeys(("to_host", "overwrite", "content", "port", "only_below", "asked_by"), REST),
    "drill": {"which": (WHICH, "drill {} --dry-run"), "sample": REST, "seconds": REST},
    "usage": {"host": (HOST, "usage {} --method written"), "method": REST, "seconds": REST},
    "dedupe": {"which": (WHICH, "dedupe {} --dry-run")} | dict.fromkeys(("min_size", "seconds", "pace"), REST),
    "quota disable": {},
    "quota enable": {},
    "quota show": {},
    "accept": {"host": (WHICH, "accept {}"), "name": (BACKUP, "accept web1 {}"), "why": REST},
    "hold": {
        "host": (WHICH, "hold {}"),
        "name": (BACKUP, "hold web1 {}"),
        "until": (DAY, "hold web1 latest --until {}"),
        "why": REST,
    },
    "release": {"host": (WHICH, "release {}"), "name": (BACKUP, "release web1 {}")},
    "retention explain": {
        "host": (HOST, "retention explain {}"),
        "at": (DAY, "retention explain web1 --at {}"),
        "policy": REST,
    },
    "expire": {"hosts": (HOST, "expire {} --dry-run"), "limit": REST, "force": REST},
    "delete": {"backups": (WHICH, "delete {} --dry-run"), "why": REST},
    "discard": {"host": (HOST, "discard {} --dry-run")},
    "unexpire": {"host": (WHICH, "unexpire {}"), "name": (BACKUP, "unexpire web1 {}"), "why": REST},
    "import": {"place": (FILE, "import tree {} --host web2 --dry-run")}
    | dict.fromkeys(("kind", "hosts", "path", "verify", "jobs"), REST),
    "replicate": {"name": (CONFIGURED, "replicate {}")}
    | dict.fromkeys(("hosts", "seed_to", "part_size", "initial_copy"), REST),  # hosts: of the other pool
    "promote": {"hosts": (HOST, "promote {} --dry-run"), "name": REST},
    "demote": {"name": (CONFIGURED, "demote {} web1 --dry-run"), "hosts": (HOST, "demote office {} --dry-run")},
    "offsite check": {"name": (CONFIGURED, "offsite check {}"), "sample": REST, "files": REST},
    "offsite init": {"name": (CONFIGURED, "offsite init {}")},
    "offsite list": {"name": (CONFIGURED, "offsite list {}"), "hosts": REST},  # of the repository
    "offsite run": {"name": (CONFIGURED, "offsite run {}"), "hosts": REST, "force": REST},
    "progress": {"mountpoint": (FILE, "progress {}"), "interval": REST},
    "sample": {},
    "trend": {"days": REST, "svg": (FILE, "trend --svg {}/svg")},
    "day": {"date": (DAY, "day {}"), "svg": (FILE, "day --svg {}/svg")},
    "forecast": {"days": REST},
    "rehearse": dict.fromkeys(("variants", "question", "days", "age", "seeds", "size", "on", "erase", "html"), REST),
    "forget": {"host": (HOST, "forget {} --yes")},
    "rename": {"host": (HOST, "rename {} new"), "new": REST},
    "scrub": {},
    "verify": {"which": (WHICH, "verify {}")} | dict.fromkeys(("sample", "seconds", "pace"), REST),
    "damaged": {"which": (WHICH, "damaged {}")},
    "repair": {"which": (WHICH, "repair {} --dry-run"), "folders": (FILE, "repair web1 --from {} --dry-run")},
    "log": {"host": (HOST, "log {}"), "limit": REST},
    "notify": {"unit": REST},
    "metrics": {"textfile": (FILE, "metrics --textfile {}/prom")},
    "serve": dict.fromkeys(("path", "allowed", "idle", "restore_to", "login", "restore_below"), REST),
    "rebuild": {},
    "completion": {"shell": REST},
}
ODD = (b"latin1-\xe4.txt", b"new\nline", b"it's", b'"two"', b"$(id) `id`", b"-leading", b" blank ", "\U0001f427".encode())
ODD_IN_BACKUPS = (*ODD, b"back\\slash", b"tab\t", b"*", b"\x1b[31m")
NO_HOST = ("", "w\udce4b", "a\nb\x0b", "web1 ", "../web1", "$(id)", "-x")
NO_BACKUP = ("2026-13-45", "2026-11-20T25:00", "../web1", "latest ", "\udce4\n", "2026-11-18T00:31:00+01:00")
NO_DAY = (
    "yesterday",
    "",
    "2026-02-31",
    "2026-11-20T25:00",
    "\uff12026-11-20",
    "2026-11-20\n",
    "\udce4",
    "-1",
    "latest",
)
NAMES = [f"2026-11-{day}T233000Z" for day in (16, 17, 18, 19, 20)]
MEANT = {  # on the pool's clocks, in Berlin, these began half an hour after midnight of the next day
    NAMES[1]: NAMES[1],
    "2026-11-18": NAMES[1],
    "2026-11-18T00:30:00+01:00": NAMES[1],
    "2026-11-17T23:30:00Z": NAMES[1],
}
OF_THEIR_KIND = ("accept", "release", "unexpire")  # `latest` is the newest one that they can change
SILENT = ("damaged", "dedupe", "repair")  # name no backup where there is nothing to do


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yields all commands that people type, by their words."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below
        yield from commands(below, (*path, name))


def rows(*kinds: Kind) -> list[str]:
    """Returns the commands of these kinds, with {} in place of the word."""
    return [row[1] for parameters in ROWS.values() for row in parameters.values() if isinstance(row, tuple) and row[0] in kinds]


def life(number: int, data: Path) -> None:
    (data / "d").mkdir(exist_ok=True)
    for name in ODD_IN_BACKUPS:
        Path(os.fsdecode(os.fsencode(data / "d") + b"/" + name)).write_text("x" * (number + 1))


@pytest.fixture(scope="module")
def site(module_btrfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    nights, top = Within(module_btrfs, "--rehearsal"), tmp_path_factory.mktemp("copies")
    (top / "password").write_text("4711\n")
    (top / "password").chmod(0o600)
    nights.tables["pool"]["zone"] = "Europe/Berlin"
    nights.tables["offsite.far"] = {"repository": str(top / "repository"), "password_file": str(top / "password")}
    nights.tables["replica.office"] = {"from": str(top / "other")}
    nights.tables["group.dmz"] = {"every": "1d"}
    nights.host("web1", nights.source, address=None)
    assert make_lineage(nights, "web1", every(1, 5, LAST), life, states={3: "suspect"}) == NAMES
    nights.backupd("rebuild")
    return nights


def typed(site: Nights, command: str, word: str | Path) -> Done:
    return site.backupd(*(part.replace("{}", str(word)) for part in command.split(" ")), check=False)


def refused(done: Done, status: int = 2) -> str:
    """Returns the output of a refused command: one line with the reason, at most one line with a remedy, and no control
    sequences.
    """
    assert (done.returncode, done.stdout) == (status, ""), done
    lines = done.stderr.split("\n")[:-1]
    assert [line.partition(": ")[0] for line in lines] in (["error"], ["error", "hint"]), done
    assert all(line.isprintable() for line in lines), done
    return done.stderr


def named(done: Done, number: int = 0) -> str:
    """The first backup, or a later one, that is named in what a command prints."""
    return re.findall(r"2026-11-\d\dT\d{6}Z", done.stdout + done.stderr)[number]


def test_each_parameter_of_each_command_has_a_row() -> None:
    tree = {
        words: {param.name for param in command.params if param.name != "now" and not getattr(param, "is_flag", False)}
        for words, command in commands(group)
    }
    assert {words: set(row) for words, row in ROWS.items()} == tree
    assert len(rows(HOST, WHICH)) > 25


@pytest.mark.parametrize("command", rows(HOST, WHICH, CONFIGURED))
def test_an_odd_name_is_refused_in_one_line(site: Nights, command: str) -> None:
    for word in NO_HOST:
        refused(typed(site, command, word))
    if command in rows(HOST) and not command.startswith(("promote", "demote")):  # these are about copies of hosts
        assert "web1" in refused(typed(site, command, "web1@latest")).split("hint: ")[-1]
    if command in rows(WHICH):
        for word in NO_BACKUP:
            refused(typed(site, command, f"web1@{word}"))
    assert not (site.pool / "hosts" / "web1" / "notes.json").exists()


def test_what_is_no_utf_8_gets_into_no_configuration(site: Nights) -> None:
    before = site.config.read_bytes()
    for words in ("host add h9 --address h9 --path /srv/\udce4", "host add h\udce4 --path /srv", "host set web1 paths+=/\udce4"):
        assert "\\xe4" in refused(site.backupd(*words.split(), check=False))
    assert site.config.read_bytes() == before
    assert not site.config.with_suffix(".d").exists()


@pytest.mark.parametrize("command", rows(BACKUP))
def test_an_odd_name_of_a_backup_is_refused_in_one_line(site: Nights, command: str) -> None:
    for word in NO_BACKUP:
        refused(typed(site, command, word))


def test_days_times_and_names_of_backups_mean_the_same_in_each_command(site: Nights) -> None:
    for command in rows(WHICH, BACKUP):
        program = command.split()[0]
        for word, name in (MEANT | ({} if program in OF_THEIR_KIND else {"latest": NAMES[4]})).items():
            done = typed(site, command, f"web1@{word}" if command in rows(WHICH) else word)
            if program in SILENT:
                assert (done.returncode, done.stderr) == (0, ""), (command, word)
            else:
                assert named(done, 1 if command.startswith("compare web1 /d latest") else 0) == name, (command, word, done)
    site.backupd("release", "web1", NAMES[4])  # it was held as `latest`
    held = [row["name"] for row in site.json("list", "web1") if row["held"]]
    assert held == [], "released by the same words"
    assert named(typed(site, "accept {}", "web1@latest")) == NAMES[3]


def test_each_path_can_be_typed_as_it_is_and_as_it_is_shown(site: Nights, tmp_path: Path) -> None:
    for command in rows(PATH):
        for name in ODD_IN_BACKUPS:
            path = b"/d/" + name
            done = [typed(site, command, text) for text in (os.fsdecode(path), shown(path))]
            assert [(process.returncode, process.stderr) for process in done] == [(0, "")] * 2, (command, name, done)
            assert done[0].stdout == done[1].stdout
            assert shown(name) in done[0].stdout
    for name in ODD:
        site.backupd("restore", "web1", "/d/" + shown(name), "--to", str(tmp_path))
    assert {os.fsencode(file.name) for file in tmp_path.iterdir()} == {*ODD}


@pytest.mark.parametrize("command", rows(DAY))
def test_what_is_no_day_is_refused_in_one_line(site: Nights, command: str) -> None:
    for word in NO_DAY:
        refused(typed(site, command, word))
    for word in ("0001-01-01", "9999-12-31"):  # no zone has all of these days
        done = typed(site, command, word)
        assert done.returncode == 0 or refused(done), done
    typed(site, "release {}", "web1@latest")


def test_at_means_the_same_in_each_command(site: Nights) -> None:
    meant = {"2026-11-18": 1, "2026-11-18T00:30": 1, "2026-11-18 00:29": 0, "2026-11-17T23:30:00Z": 1, NAMES[1]: 1, "2027-01-01": 4}
    for command in (command for command in rows(DAY) if "--at" in command):
        for word, number in meant.items():
            assert max(re.findall(r"2026-11-\d\dT\d{6}Z", typed(site, command, word).stdout)) == NAMES[number], (command, word)


def test_now_is_read_and_refused_alike_by_each_command_that_takes_it(site: Nights) -> None:
    takes_now = {words for words, command in commands(group) if any(param.name == "now" for param in command.params)}
    for words in takes_now:
        for text in NO_DAY[:2]:
            assert "invalid value for '--now'" in refused(site.backupd(*words.split(), "--now", text, check=False)), words
    for command in (
        "status",
        "list",
        "check",
        "run --dry-run",
        "expire --dry-run",
        "forecast",
        "retention explain",
    ):
        for text in ("2026-11-21T00:00:00+01:00", "0001-01-02T00:00:00Z", "9999-12-30T23:59:59Z"):
            done = site.backupd(*command.split(), "--now", text, check=False)
            assert done.returncode in (0, 1) or refused(done), (command, text, done)


@pytest.mark.parametrize("command", rows(FILE))
def test_files_and_folders_may_have_any_name(site: Nights, command: str, tmp_path: Path) -> None:
    for name in ODD:
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        done = site.backupd(*(part.replace("{}", str(folder)) for part in command.split(" ")), check=False)
        assert all(line.isprintable() for line in done.stderr.split("\n")), done
        assert done.stderr.count("error: ") == (1 if done.stderr else 0), done
        if command.startswith(("restore", "metrics")):
            assert (done.returncode, len(list(folder.iterdir()))) == (0, 1), done
