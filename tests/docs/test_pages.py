"""The pages are built without a warning, and their statements about the code are true.

A reader decides by these tables whether a backup is good, and how rsync is called: a false row is a false decision.
"""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.rsync.command import passes, rsync_command, ssh_command
from btrkeep.catalogue.model_backup import RUN_OUTCOMES
from btrkeep.config import HostConfig, load
from btrkeep.config.keys import DEFAULTS
from btrkeep.config.settings import SshSettings
from btrkeep.decisions.host_state import COPY, STATES
from btrkeep.decisions.rsync_meaning import _RSYNC_SAYS, _SHELL_SAYS, _SSH_SAYS, MEANING, ExitKind
from btrkeep.units import format_share
from tests.beds import TOP
from tests.beds.exit_statuses import EXIT_MEANING
from tests.docs.pages import DOCS, OURS, Page

Read = Callable[[str], Page]
README = (TOP / "README.rst").read_text(encoding="utf-8")


def test_the_pages_load_nothing_from_elsewhere_and_all_are_there(html: Path) -> None:
    names = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.rst") if "_build" not in path.parts}
    pages = {path.relative_to(html): path.read_text(encoding="utf-8") for path in html.rglob("*.html")}
    assert names <= set(pages)
    loaded = r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"((?:https?:)?//[^\"]*)"
    assert {str(name): re.findall(loaded, text) for name, text in pages.items() if re.search(loaded, text)} == {}
    styles = [path for path in html.rglob("*.css") if re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text())]
    assert styles == []


def test_no_row_of_a_table_of_csv_has_more_cells_than_its_head() -> None:
    """A row that was wrapped into the next line would show one row of twice as many cells."""
    wrong = []
    for path in DOCS.glob("*.rst"):
        for block in re.findall(r"^\.\. csv-table::.*\n((?: {3}.*\n|\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            lines = [line.strip() for line in block.splitlines() if line.strip()]
            head = next(line.removeprefix(":header:") for line in lines if line.startswith(":header:"))
            cells = [len(row) for row in csv.reader([head, *lines], skipinitialspace=True) if not row[0].startswith(":")]
            wrong += [(path.name, count) for count in cells if count > cells[0]]
    assert wrong == []


def test_the_table_of_exit_statuses_is_the_codes(page: Read) -> None:
    rows = page("states-and-exit-codes").section("Exit status").table()
    assert rows == [[str(int(status)), words] for status, words in EXIT_MEANING.items()]


FOLLOWS = {
    ExitKind.FINISHED: "checked",
    ExitKind.STOPPED: "partial",
    ExitKind.RETRY: "retried",
    ExitKind.HOST: "given up",
    ExitKind.BROKEN: "broken",
}


def test_the_tables_of_rsyncs_exit_statuses_and_of_sshs_words_are_the_codes(page: Read) -> None:
    section = page("states-and-exit-codes").section("What rsync's exit status means")
    assert section.table() == [[str(status), meaning.words, FOLLOWS[meaning.kind]] for status, meaning in MEANING.items()]
    assert section.table(1) == [[meaning.words, FOLLOWS[meaning.kind]] for _, meaning in (*_SSH_SAYS, *_SHELL_SAYS, *_RSYNC_SAYS)]
    content = {
        text.strip() for text in re.findall(r"^(\w+(?: \w+)?)$", (DOCS / "states-and-exit-codes.rst").read_text(), re.MULTILINE)
    }
    assert set(FOLLOWS.values()) <= content


def test_the_states_are_all_told(page: Read) -> None:
    states = page("states-and-exit-codes")
    assert sorted(row[0] for row in states.section("States of a host").table()) == sorted((*STATES, COPY))
    outcomes = {row[0] for row in states.section("Outcomes of a run").table()}
    assert outcomes == {*RUN_OUTCOMES, "locked", "running", "killed"}
    backups = [row[0] for row in states.section("States of a backup").table()]
    assert backups == ["running", "partial", "complete", "suspect", "failed", "altered", "expired", "deleting"]


def all_commands() -> list[tuple[str, ...]]:
    """Returns the rsync commands of hosts that together have everything set."""
    ssh = SshSettings()
    remote = HostConfig(
        "a", address="root@a", port=22, rsync_path="sudo rsync", ssh_options=("A=b",), paths=("/srv",), one_file_system=True
    )
    kinds = [(inplace, based) for inplace in ("always", "large", "never") for based in (True, False)]
    return [
        rsync_command(remote, ssh, "/srv", "/data", flags, ()) for inplace, based in kinds for flags in passes(inplace, based=based)
    ]


def test_every_option_of_rsync_that_is_used_is_explained_and_no_other(page: Read) -> None:
    section = page("how-a-backup-becomes-complete").section("rsync's options")
    explained = {
        word for number in (0, 1) for row in section.table(number) for word in re.findall(r"--[a-z][^, ]*(?:,\w+)?", row[0])
    }
    used = {re.sub(r"^(--(?:timeout|filter|min-size|max-size))=.*", r"\1", word) for line in all_commands() for word in line}
    assert explained == {word for word in used if word.startswith("--")}
    always = {row_word for row in section.table(0) for row_word in re.findall(r"--[a-z-]+", row[0])}
    for line in all_commands():
        assert always <= {word.partition("=")[0] for word in line}


def test_every_option_of_ssh_that_is_used_is_explained_and_no_other(page: Read) -> None:
    explained = {word for row in page("restricted-keys").section("Options of ssh").table() for word in row[0].split(", ")}
    words = ssh_command(HostConfig("a", address="root@a", port=22), SshSettings())[1:]
    used = {re.sub(r"^(IdentityFile|UserKnownHostsFile)=.*", r"\1", word) for word in words} - {"-o", "22"}
    assert explained == used


def test_the_defaults_that_are_told_are_the_codes(page: Read) -> None:
    text = " ".join("".join(page("states-and-exit-codes").root.itertext()).split())
    shares = [format_share(DEFAULTS[key]) for key in ("shrink_limit", "unreadable_limit")]
    hours, minutes = int(DEFAULTS["deadline"] / 3600), int(DEFAULTS["stall"] / 60)
    wanted = [
        *shares,
        DEFAULTS["max_memory"],
        DEFAULTS["attempts"],
        f"{minutes} minutes",
        f"{hours} hours",
        f'"{DEFAULTS["min_free"]}"',
    ]
    assert [words for words in wanted if f"({words} unless set)" not in text] == []
    assert text.count(" unless set)") == len(wanted)


def test_every_configuration_on_the_pages_loads(page: Read, tmp_path: Path) -> None:
    count = 0
    for name in OURS:
        for block in page(name).blocks("toml"):
            count += 1
            pool = "" if "[pool]" in block else '[pool]\npath = "/srv/backup"\n'
            folder = tmp_path / str(count)
            folder.mkdir()
            (folder / "main.toml").write_text(pool + block)
            config = load(folder=folder)
            assert config.hosts or "[host." not in block
            assert not config.faults
    assert count >= 4


def test_the_whole_configuration_is_the_sum_of_what_was_added(page: Read) -> None:
    *added, whole = page("getting-started").tables_of_keys()
    hosts = {name: keys for part in added for name, keys in part["host"].items()}
    assert whole["host"] == hosts
    assert whole["pool"]["path"] == "/srv/backup"


def test_cron_starts_what_the_installation_has_linked(page: Read) -> None:
    start = page("getting-started")
    (lines,) = start.section("Every night").blocks("none")
    line, expiry = lines.splitlines()
    assert re.fullmatch(r"\d+ \d+ \* \* \* root (/usr/local/sbin/backupd) expire >/dev/null \|\| \1 retention explain", expiry)
    assert re.fullmatch(r"\d+ [\d,]+ \* \* \* root (/usr/local/sbin/backupd) run >/dev/null \|\| \1 status", line)
    assert start.section("Install").block("sh") == "./install.sh"
    assert "\nBIN=/usr/local/sbin\n" in (TOP / "install.sh").read_text(encoding="utf-8")


def test_readme_is_short_and_installs_as_the_pages_do(page: Read) -> None:
    """A new reader decides after two screens; more text would be a repetition."""
    assert len(README.splitlines()) <= 120
    for line in page("getting-started").section("Install").block("sh").splitlines():
        assert f" {line}\n" in README, line


def test_every_document_that_the_readme_names_is_there() -> None:
    named = set(re.findall(r"``((?:docs|man)/[\w./-]*|[A-Z]+\.rst|\./\w+\.sh)", README))
    assert {"docs/configuration.rst", "docs/", "CHANGES.rst"} <= named
    assert [name for name in named if not (TOP / name).exists()] == []


@pytest.mark.slow
def test_readme_changes_and_contributing_have_no_faults_of_markup() -> None:
    for name in ("README.rst", "CHANGES.rst", "CONTRIBUTING.rst"):
        text = (TOP / name).read_text(encoding="utf-8")
        command = [sys.executable, "-m", "docutils", "--report=info", "--halt=info", "-", os.devnull]
        run = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        assert (run.returncode, run.stderr) == (0, ""), name
