"""The documentation of the configuration is complete, current, and its examples load."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from btrkeep.config import ExpirySettings, HostConfig, Retention, example, load
from btrkeep.config.config_key import SECTIONS
from btrkeep.config.keys import LEGAL, TABLE, declared_keys
from btrkeep.config.problems import INSTALLED, quoted
from btrkeep.errors import ConfigError, UsageError
from scripts.make_lists import LISTS, refreshed, toml
from tests.beds import work
from tests.beds.leftout import needs_program

ROOT = Path(__file__).parents[2]
HEADS = {
    "group": ["[group.NAME]"],
    "host": ["[host.NAME]"],
    "replica": ["[replica.NAME]"],
    "push": ["[push.NAME]"],
    "fetched_by": ["[fetched_by.NAME]"],
    "offsite": ["[offsite.NAME]"],
    "retention": [
        *("[retention]", "[group.NAME.retention]", "[host.NAME.retention]", "[replica.NAME.retention]", "[offsite.NAME.retention]")
    ],
    **{
        section: [f"[{section}]"]
        for section in ("pool", "backup", "expiry", "balance", "verify", "drill", "notify", "web", "serve", "ssh")
    },
}
MANUAL = ROOT / "man" / "btrkeep.toml.5"
DOCUMENT = (ROOT / "docs" / "configuration.rst").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", LISTS)
def test_a_list_that_is_made_from_a_table_is_current(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert refreshed(page, text) == text, "run: python -m scripts.make_lists"
    begin, _, end = LISTS[page]
    assert refreshed(page, f"{text.partition(begin)[0]}{begin}old\n{end}{text.partition(end)[2]}") == text


@needs_program("groff")
def test_the_manual_page_has_the_same_keys_and_says_the_same_of_them() -> None:
    shown = work("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=20000n", "-ww", MANUAL)
    assert shown.stderr == ""
    lines = [" ".join(line.split()).replace("\u2010", "-") for line in shown.stdout.splitlines()]
    for key in TABLE:
        place = lines.index(f"{key.name} = {key.example}")
        meaning = re.sub(r":doc:`([\w-]+)`", rf"{INSTALLED}/\1.html", key.meaning)
        meaning = re.sub(r"`Exclude patterns`_", "EXCLUDE PATTERNS below", re.sub(r":manpage:|``|(?<=\))`", "", meaning))
        assert lines[place + 1] == meaning.replace("`ssh_config", "ssh_config").replace("`restic", "restic"), key.name
        default = "none" if key.default is None else toml(key.default)
        assert f"; default: {default}; in [" in lines[place + 2], key.name


def test_every_entry_names_type_default_places_and_an_example() -> None:
    fields = {*HostConfig.__slots__, *Retention.__slots__, *ExpirySettings.__slots__} - {
        "name",
        "self_excluded",
        "fault",
        "retention",
    }
    assert fields <= {key.name for key in TABLE}
    for key in TABLE:
        entry = re.search(rf"^``{key.name}``\n(    .*\n|\n)+", DOCUMENT, re.MULTILINE)
        assert entry, key.name
        assert all(f":{field}:" in entry[0] for field in ("Type", "Default", "In", "Example")), key.name
        heads = {head for section in key.sections for head in HEADS[section]}
        assert set(re.findall(r"``(\[[\w.]+\])``", entry[0].partition(":In:")[2])) == heads


@pytest.mark.slow
def test_the_document_has_no_faults_of_markup() -> None:
    text = DOCUMENT.replace(":manpage:", "").replace(":doc:", "").replace(".. code-block:: toml", "::")  # Sphinx's own
    command = [sys.executable, "-m", "docutils", "--report=warning", "--halt=warning", "-", os.devnull]
    run = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_names_of_keys_are_unique() -> None:
    assert len({key.name for key in TABLE}) == len(TABLE)


@pytest.mark.parametrize("absent", [("rsync_path", "exclude"), ("snapshots", "engine")], ids="-".join)  # a host cannot have all
@pytest.mark.parametrize(("section", "head"), [(section, head) for section in SECTIONS for head in HEADS[section]])
def test_every_documented_example_loads_wherever_it_is_legal(
    tmp_path: Path, section: str, head: str, absent: tuple[str, ...]
) -> None:
    lines = "\n".join(f"{key.name} = {key.example}" for key in LEGAL[section].values() if key.name not in ("group", *absent))
    pool = "" if section == "pool" else '[pool]\npath = "/srv/backup"\n'
    host = "" if section == "host" else '[host.NAME]\naddress = "a"\npaths = ["/etc"]\n'
    replica = '[replica.NAME]\nfrom = "/srv/other"\n' if head.startswith("[replica.NAME.") else ""
    offsite = '[offsite.NAME]\nenvironment_file = "/etc/x.env"\n' if head.startswith("[offsite.NAME.") else ""
    (tmp_path / "main.toml").write_text(f"{pool}{host}{replica}{offsite}{head}\n{lines}\n")
    assert list(load(folder=tmp_path).hosts) == ["NAME"]


def test_the_documents_example_loads(tmp_path: Path) -> None:
    block = re.search(r"code-block:: toml\n\n((?:    .*\n|\n)+)", DOCUMENT)
    assert block
    (tmp_path / "main.toml").write_text(re.sub("^    ", "", block[1], flags=re.MULTILINE))
    config = load(folder=tmp_path)
    assert list(config.hosts) == ["web1", "till7", "here"]
    assert config.hosts["till7"].window is None
    assert config.hosts["till7"].retention == Retention(daily=60, weekly=13, monthly=12)
    assert config.hosts["here"].retention == Retention(daily=14, weekly=13, monthly=12)
    assert config.notices == ()


def test_the_documents_problems_are_what_is_said(tmp_path: Path) -> None:
    documented = re.findall(r"^    /etc/btrkeep/\S+: (.*)$", DOCUMENT, re.MULTILINE)
    (tmp_path / "main.toml").write_text(
        '[pool]\npath = "/p"\n[host.web1]\npathss = ["/etc"]\npaths = ["/etc"]\naddress = "x"\n[backup]\nevery = "1x"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load(folder=tmp_path)
    assert len(documented) == 2
    assert [line.partition(": ")[2] for line in caught.value.problems] == documented


@pytest.mark.parametrize("path", ["/srv/backup", '/mnt/with "quotes" and \\', "/mnt/ü"])
def test_the_first_configuration_loads_and_has_no_host(tmp_path: Path, path: str) -> None:
    text = example(Path(path), "offsite")
    (tmp_path / "offsite.toml").write_text(text, encoding="utf-8")
    config = load("offsite", folder=tmp_path)
    assert (config.pool.path, config.hosts, config.notices) == (Path(path), {}, ())
    assert config.retention == Retention(daily=14, weekly=13, monthly=12)
    assert tomllib.loads(text)["pool"]["path"] == path
    assert quoted(path) in text


def test_the_first_configurations_suggestions_load_when_uncommented(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=\[|\w+ = )", "", example(), flags=re.MULTILINE)
    (tmp_path / "main.toml").write_text(text)
    config = load(folder=tmp_path)
    assert (list(config.hosts), config.backup.bandwidth) == (["here", "web1"], 16_000_000)
    assert text.count("\nmin_keep = 3 ") == text.count('\ngrace = "1d" ') == 1  # the defaults, so that readers find them
    assert {host.retention for host in config.hosts.values()} == {Retention(daily=14, weekly=13, monthly=12)}
    assert config.notices == ()


@pytest.mark.parametrize("path", ["relative", "/a\nb", "/a\udcff"])
def test_a_path_that_no_configuration_can_name_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        example(Path(path))


def test_a_key_of_several_sections_is_declared_once_for_all() -> None:
    """Of two declarations with the same name the table would silently use only the last, with that one's sections."""
    table = {key.name: key for key in TABLE}
    assert [key.name for key in declared_keys() if key != table[key.name]] == []
