"""Mistakes that exclude one host or copy, mistakes that stop everything, and the configuration that reports use then."""

import os
import stat
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from btrkeep.config import Config, keep_valid, load_for_reports, load_usable
from btrkeep.config.problems import line_of
from btrkeep.config.reading import LAST_VALID
from btrkeep.errors import ConfigError

NOW = datetime(2026, 11, 28, 22, tzinfo=UTC)
GOOD = '[host.good]\naddress = "good"\npaths = ["/etc"]\n'
HOST = 'address = "a"\npaths = ["/srv"]\n'


class Files:
    """A main file and drop-ins in `folder`, with the state folder beside them."""

    def __init__(self, folder: Path) -> None:
        self.main, self.drop_ins, self.state = folder / "main.toml", folder / "main.d", folder / "state"
        self.drop_ins.mkdir()
        self.state.mkdir()
        self.write(GOOD)

    def write(self, text: str) -> None:
        self.main.write_text(f'[pool]\npath = "/srv/backup"\nstate = "{self.state}"\n{text}')

    def usable(self) -> Config:
        return load_usable(file=self.main)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize(
    ("text", "host", "fault"),
    [
        (f'[host.bad]\n{HOST}group = "debian"\n', "bad", 'main.d/x.toml:4: host.bad.group = "debian": there is no such group'),
        (f"[host.bad]\n{HOST}every = 3\n", "bad", "main.d/x.toml:4: host.bad.every = 3: expected a duration"),
        (f"[host.bad]\n{HOST}[host.bad.retention]\ndaily = -1\n", "bad", "main.d/x.toml:5: host.bad.retention.daily = -1: "),
        (f"[host.bad]\n{HOST}[host.bad.retentoin]\ndaily = 1\n", "bad", "main.d/x.toml:4: host.bad.retentoin = {daily = 1}: "),
        ("[host]\nbad = 3\n", "bad", "main.d/x.toml:2: host.bad = 3: expected a section, [host.bad]"),
        (f"[hsot.bad]\n{HOST}", "bad", "main.d/x.toml:1: hsot.bad: unknown section; did you mean [host.bad]?"),
        (f'[group.g]\nevery = 3\n[host.bad]\ngroup = "g"\n{HOST}', "bad", "main.d/x.toml:2: group.g.every = 3: expected"),
        ("[host.bad]\npaths = [\n", "bad", "main.d/x.toml:2: Invalid value"),
        ('[host.bad]\npaths = [\n"/srv",\n"/etc"]\nevery =\n', "bad", "main.d/x.toml:5: Invalid value"),
        ("[host.bad\n", "bad", "main.d/x.toml:1: Expected ']' at the end"),
        ("[host.bad]\n", "bad", "main.d/x.toml:1: host.bad.paths: missing"),
    ],
)  # fmt: skip
def test_one_hosts_mistake_leaves_that_host_out_and_is_named_with_its_line(files: Files, text: str, host: str, fault: str) -> None:
    (files.drop_ins / "x.toml").write_text(text)
    config = files.usable()
    assert (set(config.hosts), set(config.excluded)) == ({"good"}, {host})
    assert config.faults[0].startswith(f"{files.main.parent}/{fault}")
    assert config.excluded[host].fault == config.faults[0]
    assert set(config.every_host) == {"good", host}


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling", "text"])
def test_a_drop_in_that_cannot_be_read_leaves_out_its_hosts_and_is_not_waited_for(files: Files, kind: str) -> None:
    drop_in = files.drop_ins / "x.toml"
    drop_in.write_text(f"[host.bad]\n{HOST}")
    keep_valid(files.usable(), NOW)
    drop_in.unlink()
    if kind == "folder":
        drop_in.mkdir()
    elif kind == "pipe":
        os.mkfifo(drop_in)
    elif kind == "dangling":
        drop_in.symlink_to("nowhere")
    else:
        drop_in.write_text("this is not TOML")
    config = files.usable()
    assert (set(config.hosts), set(config.excluded), config.unread) == ({"good"}, {"bad"}, ())
    assert config.excluded["bad"].address == "a"  # from its last valid version
    assert config.faults[0].startswith(f"{drop_in}:")


def test_without_an_earlier_state_what_an_unreadable_drop_in_held_is_unknown(files: Files) -> None:
    (files.drop_ins / "x.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="cannot be read"):  # it may have the catalogue's folder
        files.usable()


@pytest.mark.parametrize("kind", ["dangling", "utf-16", "garbage"])
def test_what_a_new_drop_in_holds_is_unknown_if_nothing_of_it_can_be_read(files: Files, kind: str) -> None:
    keep_valid(files.usable(), NOW)  # without that drop-in
    drop_in = files.drop_ins / "x.toml"
    if kind == "dangling":
        drop_in.symlink_to("nowhere")
    else:
        drop_in.write_bytes("[retention]\ndaily = 99\n".encode("utf-16") if kind == "utf-16" else b"%%%\n")
    config = files.usable()
    assert (set(config.hosts), len(config.unread)) == ({"good"}, 1)
    with pytest.raises(ConfigError):
        config.require_rights()


@pytest.mark.parametrize("section", ["balance", "verify", "offsite.x", "replica.x"])
def test_the_sections_of_an_unreadable_drop_in_count_as_faulty(files: Files, section: str) -> None:
    (files.drop_ins / "x.toml").write_text(f"[{section}]\nx = \n")
    config = files.usable()
    assert (set(config.hosts), config.unread) == ({"good"}, ())
    with pytest.raises(ConfigError):
        config.require_section(section.split(".")[0])


@pytest.mark.parametrize(
    "text",
    [
        "[retention]\ndaily = -1\n", "[expriy]\nmax_orphans = 3\n", '[pool]\nmin_free = "lots"\n', "[backup]\nevery = 3\n",
        "[retention\ndaily = 1\n", "retention.daily = 1\nx =\n", "retention]\ndaily = 1\n", "[host]\naddress = 3\n", "[server.a]\n",
        '[host.a]\npaths = ["/a"]\n["retention"]\ndaily = \n',
    ],
)  # fmt: skip
def test_what_could_change_what_is_deleted_or_written_where_stops_everything(files: Files, text: str) -> None:
    (files.drop_ins / "x.toml").write_text(text)
    if text.startswith("[host]\n"):  # the name of that host is unknown, and it has no backups of its own
        assert set(files.usable().hosts) == {"good"}
        return
    with pytest.raises(ConfigError) as caught:
        files.usable()
    assert all(line.startswith(f"{files.drop_ins}/x.toml") for line in caught.value.located)


def test_a_drop_in_that_had_the_retention_stops_everything_when_it_cannot_be_read(files: Files) -> None:
    drop_in = files.drop_ins / "x.toml"
    drop_in.write_text("[retention]\ndaily = 14\n")
    keep_valid(files.usable(), NOW)
    drop_in.write_text("no TOML")
    with pytest.raises(ConfigError):
        files.usable()
    drop_in.unlink()
    drop_in.symlink_to("nowhere")
    with pytest.raises(ConfigError):
        files.usable()


@pytest.mark.parametrize(
    "text", ['[notify]\nsilent = "x"\n', "[verify]\nmax_age = 3\n", "[drill]\nx = 1\n", "[balance]\ntime = 3\n"]
)
def test_sections_that_only_report_or_verify_stop_no_backup(files: Files, text: str) -> None:
    files.write(f"{GOOD}{text}")
    config = files.usable()
    assert (set(config.hosts), config.excluded) == ({"good"}, {})
    assert config.faults[0].startswith(f"{files.main}:8: ")
    section = text[1 : text.index("]")]
    with pytest.raises(ConfigError):
        config.require_section(section)
    config.require_section("web")


@pytest.mark.parametrize("text", ["[serve]\nno_downloads = 3\n", '[web]\nlisten = "x"\n', "[serve]\nno_downloads =\n", "[web\n"])
def test_a_mistake_in_who_may_do_what_stops_no_backup_and_allows_nothing(files: Files, text: str) -> None:
    files.usable().require_rights()
    (files.drop_ins / "x.toml").write_text(text)
    config = files.usable()
    assert (set(config.hosts), config.excluded, config.unread) == ({"good"}, {}, ())
    assert config.faults[0].startswith(f"{files.drop_ins}/x.toml:")
    with pytest.raises(ConfigError) as caught:
        config.require_rights()
    assert caught.value.located == config.faults


@pytest.mark.parametrize(
    "text",
    ["[replica.x]\n", '[push.x]\nto = "y"\n', "[offsite.x]\n", "[fetched_by.x]\nmax_age = 3\n", '[repilca.x]\nfrom = "/a"\n'],
)
def test_a_copys_mistake_leaves_that_copy_out(files: Files, text: str) -> None:
    files.write(f'{GOOD}[replica.other]\nfrom = "/mnt/other"\n{text}')
    config = files.usable()
    assert (set(config.hosts), set(config.copies), set(config.excluded_copies)) == ({"good"}, {"other"}, {"x"})
    assert config.faults[0] == config.excluded_copies["x"]


def test_what_is_kept_is_for_root_alone_and_holds_the_last_valid_state(files: Files) -> None:
    before = os.umask(0)
    try:
        keep_valid(files.usable(), NOW)
    finally:
        os.umask(before)
    assert stat.S_IMODE((files.state / LAST_VALID).stat().st_mode) == 0o600
    files.write(f"{GOOD}[retention]\ndaily = 'x'\n")
    reporting_config = load_for_reports(file=files.main)
    assert (set(reporting_config.config.hosts), reporting_config.kept) == ({"good"}, NOW)
    assert reporting_config.faults == (
        f'{files.main}:8: retention.daily = "x": expected a whole number from 0, such as 14, without quotes',
    )


def test_of_a_file_with_a_mistake_the_text_before_it_is_kept(files: Files) -> None:
    (files.drop_ins / "x.toml").write_text(f"[host.bad]\n{HOST}")
    keep_valid(files.usable(), NOW)
    (files.drop_ins / "x.toml").write_text("[host.bad]\n")
    files.write(f'{GOOD}[host.new]\naddress = "new"\npaths = ["/etc"]\n')
    keep_valid(files.usable(), NOW)
    files.write("[retention]\nx = 1\n")
    config = load_for_reports(file=files.main).config
    assert (set(config.hosts), config.hosts["bad"].address) == ({"good", "new", "bad"}, "a")


@pytest.mark.parametrize(
    ("broken", "urls"),
    [
        ('x = \n[notify]\nurls = ["json://today"]\n', ["json://today"]),
        ('[retention]\nx = 1\n[notify]\nurls = ["json://today", "no URL"]\n', ["json://today"]),
        ('[retention]\nx = 1\n[notify]\nurls = "json://today"\n', ["json://today"]),
        ("[retention]\nx = 1\n[notify]\nurls = 3\n", ["json://before"]),
        ("[retention]\nx = 1\n", ["json://before"]),
        ("[notify\nurls = 3\n", ["json://before"]),
    ],
)
def test_reports_go_where_todays_notify_says_as_far_as_it_can_be_read(files: Files, broken: str, urls: list[str]) -> None:
    files.write(f'{GOOD}[notify]\nurls = ["json://before"]\nused_limit = "80%"\n')
    keep_valid(files.usable(), NOW)
    files.write(f"{GOOD}{broken}")
    reporting_config = load_for_reports(file=files.main)
    assert [url.text for url in reporting_config.config.notify.urls] == urls
    assert (reporting_config.config.notify.used_limit, reporting_config.error is not None) == (0.8, True)


def test_without_an_earlier_state_there_is_still_notify(files: Files) -> None:
    files.write('[retention]\nx = 1\n[notify]\nurls = ["json://today"]\n')
    reporting_config = load_for_reports(file=files.main)
    assert (reporting_config.is_bare, [url.text for url in reporting_config.config.notify.urls]) == (True, ["json://today"])
    files.write("[retention]\nx = 1\n")
    with pytest.raises(ConfigError):
        load_for_reports(file=files.main)


def test_another_configurations_copy_is_not_taken_for_this_one(files: Files, tmp_path: Path) -> None:
    keep_valid(files.usable(), NOW)
    other = tmp_path / "other.toml"
    other.write_text(files.main.read_text() + "[retention]\nx = 1\n")
    with pytest.raises(ConfigError):
        load_for_reports(file=other)


def test_lines_are_found_in_every_spelling() -> None:
    text = textwrap.dedent("""\
        # host.a.paths = 1
        [host."a b"] # comment
        paths = [
          "/x",
        ]
        retention.daily = 3
        [ host . c ]
        'every' = 1
        """)
    wanted = {("host", "a b"): 2, ("host", "a b", "paths"): 3, ("host", "a b", "retention", "daily"): 6, ("host", "c", "every"): 8}
    assert {path: line_of(text, path) for path in wanted} == wanted
    assert (line_of(text, ("host", "c", "missing")), line_of(text, ("pool",))) == (7, None)
