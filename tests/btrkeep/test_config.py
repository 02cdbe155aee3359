"""The meaning of a configuration: sections, defaults, inheritance, several files. test_config_problems.py tests its mistakes."""

import os
from collections.abc import Callable
from datetime import time
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from btrkeep.config import Config, ExpirySettings, Retention, Window, load
from btrkeep.config.values import parse_min_free, parse_window
from btrkeep.errors import ConfigError
from tests.beds.leftout import needs_root

POOL = '[pool]\npath = "/srv/backup"\n'
HOST = '[host.web1]\naddress = "root@web1.example.org"\npaths = ["/etc", "/srv"]\n'
BUILT_IN = ("/proc/*", "/sys/*", "/dev/*", "/run/*", "/tmp/*", "/var/tmp/*", "lost+found")

ISSUE = """
[pool]
path = "/srv/backup"
state = "/var/lib/btrkeep/main"
zone = "UTC"
min_free = "5%"
[backup]
concurrency = 4
bandwidth = "16MB"
window = "22:00-06:00"
every = "1d"
attempts = 3
stall = "30m"
deadline = "6h"
inplace = "always"
shrink_limit = "50%"
unreadable_limit = "1%"
exclude = ["/proc/*", "/sys/*", "/dev/*", "/run/*", "/tmp/*", "/var/tmp/*", "lost+found"]
one_file_system = false
[retention]
daily = 14
weekly = 13
monthly = 12
yearly = 0
min_keep = 3
grace = "1d"
[expiry]
max_orphans = 100
pace = "off"
mount_option = "none"
yield_to_backups = false
[ssh]
key = "/etc/btrkeep/id_ed25519"
known_hosts = "/etc/btrkeep/known_hosts"
command = "ssh"
[group.debian]
exclude = ["/var/cache/apt/archives/*"]
before = ["/usr/local/bin/dump-databases", "{address}"]
after = []
[host.web1]
group = "debian"
address = "root@web1.example.org"
port = 22
rsync_path = "sudo rsync"
paths = ["/etc", "/srv"]
[host.here]
paths = ["/home"]
"""

Write = Callable[..., Config]


@pytest.fixture
def loaded(tmp_path: Path) -> Write:
    """Writes main.toml and drop-ins (name=text) and loads them."""

    def write(text: str, **drop_ins: str) -> Config:
        (tmp_path / "main.toml").write_text(text, encoding="utf-8")
        (tmp_path / "main.d").mkdir(exist_ok=True)
        for name, content in drop_ins.items():
            (tmp_path / "main.d" / f"{name}.toml").write_text(content, encoding="utf-8")
        return load(folder=tmp_path)

    return write


def test_the_whole_example_says_what_it_means(loaded: Write, tmp_path: Path) -> None:
    config = loaded(ISSUE)
    assert (config.file, config.name, config.notices) == (tmp_path / "main.toml", "main", ())
    assert (config.pool.path, config.pool.state) == (Path("/srv/backup"), Path("/var/lib/btrkeep/main"))
    assert (config.pool.zone, str(config.pool.min_free), config.pool.min_free.bytes_of(2000)) == (ZoneInfo("UTC"), "5%", 100)
    assert (config.backup.concurrency, config.backup.bandwidth) == (4, 16_000_000)
    assert (config.ssh.key, config.ssh.known_hosts, config.ssh.command) == (
        Path("/etc/btrkeep/id_ed25519"), Path("/etc/btrkeep/known_hosts"), "ssh")  # fmt: skip
    assert config.retention == Retention(daily=14, weekly=13, monthly=12, yearly=0, min_keep=3, grace=86400)
    assert config.expiry == ExpirySettings(max_orphans=100, pace=None, mount_option="none", yield_to_backups=False)
    web1 = config.hosts["web1"]
    assert (web1.name, web1.group, web1.address, web1.port) == ("web1", "debian", "root@web1.example.org", 22)
    assert (web1.rsync_path, web1.paths, web1.bandwidth) == ("sudo rsync", ("/etc", "/srv"), None)
    assert (web1.enabled, web1.optional, web1.one_file_system, web1.inplace) == (True, False, False, "always")
    assert (web1.every, web1.attempts, web1.stall, web1.deadline) == (86400, 3, 1800, 21600)
    assert (web1.shrink_limit, web1.unreadable_limit) == (0.5, 0.01)
    assert web1.window == Window(time(22), time(6))
    assert str(web1.window) == "22:00-06:00"
    assert web1.exclude == (*BUILT_IN, "/var/cache/apt/archives/*")
    assert (web1.before, web1.after) == (("/usr/local/bin/dump-databases", "{address}"), ())
    assert (config.hosts["here"].address, config.hosts["here"].exclude, config.hosts["here"].before) == (None, BUILT_IN, ())


def test_a_pool_and_one_host_are_enough(loaded: Write) -> None:
    spelt_out = loaded(ISSUE).hosts["here"]
    rules = "[retention]\ndaily = 14\nweekly = 13\nmonthly = 12\n"
    config = loaded(f'{POOL}{rules}[host.here]\npaths = ["/home"]\n[backup]\nwindow = "22:00-06:00"\n')
    assert config.hosts["here"] == spelt_out  # the defaults equal the specified values
    assert (config.backup.concurrency, config.backup.bandwidth, config.expiry) == (4, None, loaded(ISSUE).expiry)
    assert config.pool.state == Path("/var/lib/btrkeep/main")


def test_the_state_folder_follows_the_pools_name(tmp_path: Path) -> None:
    (tmp_path / "offsite.toml").write_text(POOL)
    config = load("offsite", folder=tmp_path)
    assert (config.name, config.pool.state) == ("offsite", Path("/var/lib/btrkeep/offsite"))


def test_a_file_given_by_path_names_its_pool_and_its_drop_ins(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(POOL)
    (tmp_path / "x.d").mkdir()
    (tmp_path / "x.d" / "web1.toml").write_text(HOST)
    config = load("main", tmp_path / "x.toml", Path("/nowhere"))
    assert (config.name, list(config.hosts)) == ("x", ["web1"])


def test_a_host_overrides_its_group_and_the_group_overrides_backup(loaded: Write) -> None:
    config = loaded(f"""{POOL}
        [backup]
        every = "2d"
        stall = "1h"
        attempts = 7
        [group.g]
        stall = "2h"
        attempts = 8
        paths = ["/srv"]
        enabled = false
        optional = true
        port = 2222
        rsync_path = "sudo rsync"
        ssh_options = ["AddressFamily=inet"]
        after = ["/bin/true"]
        [host.a]
        group = "g"
        address = "a"
        attempts = 9
        enabled = true
        [host.b]
        group = "g"
        address = "b"
        paths = ["/home"]
        ssh_options = []
        """)
    a, b = config.hosts["a"], config.hosts["b"]
    assert (a.every, a.stall, a.attempts, a.paths, a.enabled, a.optional) == (172800, 7200, 9, ("/srv",), True, True)
    assert (a.port, a.rsync_path, a.ssh_options, a.after) == (2222, "sudo rsync", ("AddressFamily=inet",), ("/bin/true",))
    assert (b.attempts, b.paths, b.enabled, b.ssh_options) == (8, ("/home",), False, ())


def test_caps_belong_to_where_they_are_written_and_are_not_inherited(loaded: Write) -> None:
    config = loaded(f"""{POOL}
        [backup]
        concurrency = 9
        bandwidth = "90MB"
        [group.g]
        concurrency = 2
        bandwidth = "20MB"
        every = "2d"
        [group.h]
        [host.a]
        group = "g"
        paths = ["/a"]
        [host.b]
        group = "h"
        paths = ["/b"]
        bandwidth = "1MB"
        """)
    assert (config.backup.concurrency, config.backup.bandwidth) == (9, 90_000_000)
    assert (config.groups["g"].concurrency, config.groups["g"].bandwidth) == (2, 20_000_000)
    assert dict(config.groups["g"].shared) == {"every": 172800}
    assert (config.groups["h"].concurrency, config.groups["h"].bandwidth) == (None, None)
    assert (config.hosts["a"].bandwidth, config.hosts["b"].bandwidth) == (None, 1_000_000)


@pytest.mark.parametrize(
    ("backup", "group", "host", "expected"),
    [
        ("", "", "", BUILT_IN),
        ('exclude = ["b"]', "", "", ("b",)),
        ("exclude = []", "", "", ()),
        ('exclude_only = ["B"]', "", "", ("B",)),
        ('exclude_only = ["B"]\nexclude = ["b"]', "", "", ("B", "b")),
        ('exclude = ["b"]', 'exclude = ["g"]', 'exclude = ["h"]', ("b", "g", "h")),
        ("", 'exclude = ["g"]', "", (*BUILT_IN, "g")),
        ("", 'exclude_only = ["G"]', 'exclude = ["h"]', ("G", "h")),
        ("", 'exclude_only = ["G"]\nexclude = ["g"]', "", ("G", "g")),
        ('exclude = ["b"]', 'exclude = ["g"]', 'exclude_only = ["H"]', ("H",)),
        ('exclude = ["b"]', 'exclude = ["g"]', 'exclude_only = []\nexclude = ["h", "h"]', ("h",)),
        ('exclude = ["b"]', 'exclude = ["b", "g"]', "", ("b", "g")),
    ],
)
def test_excludes_add_up_and_exclude_only_starts_again(
    loaded: Write, backup: str, group: str, host: str, expected: tuple[str, ...]
) -> None:
    config = loaded(f'{POOL}\n[backup]\n{backup}\n[group.g]\n{group}\n[host.a]\ngroup = "g"\naddress = "a"\npaths = ["/a"]\n{host}')
    assert config.hosts["a"].exclude == expected


def test_a_later_file_overrides_single_values_and_adds_hosts(loaded: Write) -> None:
    config = loaded(
        f'{POOL}min_free = "1%"\n[backup]\nevery = "2d"\nattempts = 7\nexclude = ["x"]\n',
        b=f'[backup]\nattempts = 9\n{HOST}',
        a='[backup]\nattempts = 8\nexclude = ["y"]\n[pool]\npath = "/other"\n[ssh]\ncommand = "dbclient"',
    )  # fmt: skip
    web1 = config.hosts["web1"]
    assert (config.pool.path, str(config.pool.min_free), config.ssh.command) == (Path("/other"), "1%", "dbclient")
    assert (web1.attempts, web1.every, web1.exclude) == (9, 172800, ("y",))


def test_hidden_files_and_other_suffixes_are_not_read(loaded: Write, tmp_path: Path) -> None:
    loaded(POOL)
    for name in (".hidden.toml", "web.toml~", "web.toml.dpkg-old", "README"):
        (tmp_path / "main.d" / name).write_text("not [ toml")
    (tmp_path / "main.d" / ".#web1.toml").symlink_to("editor@machine.123")
    assert loaded(POOL).hosts == {}


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(loaded: Write) -> None:
    assert list(loaded("\ufeff" + (POOL + HOST).replace("\n", "\r\n")).hosts) == ["web1"]


def test_paths_are_normalised(loaded: Write) -> None:
    config = loaded(
        f'{POOL}[host.a]\naddress = "a"\npaths = ["//etc//", "/srv/./www/.", "/a..b"]\n[host.b]\naddress = "b"\npaths = ["/"]'
    )
    assert config.hosts["a"].paths == ("/etc", "/srv/www", "/a..b")
    assert config.hosts["b"].paths == ("/",)


@pytest.mark.parametrize("name", ["web1", "web1.example.org", "_x", "9", "bücher", "日本", "a" * 200, "ж" * 100])
def test_a_name_that_is_accepted_is_a_folders_name(loaded: Write, tmp_path: Path, name: str) -> None:
    config = loaded(f'{POOL}[host."{name}"]\naddress = "a"\npaths = ["/etc"]')
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / name).mkdir()
    assert [entry.name for entry in (tmp_path / "hosts").iterdir()] == list(config.hosts)


@pytest.mark.parametrize(
    "address",
    [
        "web1",
        "root@web1.example.org",
        "192.0.2.7",
        "[::1]",
        "root@[fe80::1%eth0]",
        "user@domain@web1",
        "bücher.example",
        "a_b",
        "_x@9",
    ],
)
def test_addresses_that_ssh_understands_are_accepted(loaded: Write, address: str) -> None:
    assert loaded(f'{POOL}[host.a]\naddress = "{address}"\npaths = ["/etc"]').hosts["a"].address == address


def test_window_none_lifts_an_inherited_window(loaded: Write) -> None:
    config = loaded(f'{POOL}[backup]\nwindow = "22:00-06:00"\n{HOST}window = "none"')
    assert config.hosts["web1"].window is None


@pytest.mark.parametrize(
    ("text", "start", "end", "shown"),
    [
        ("22:00-06:00", time(22), time(6), "22:00-06:00"),
        (" 9:05 - 17:30 ", time(9, 5), time(17, 30), "09:05-17:30"),
        ("18:00-24:00", time(18), time(0), "18:00-00:00"),
    ],
)
def test_windows_are_read_and_shown(text: str, start: time, end: time, shown: str) -> None:
    window = parse_window(text)
    assert window == Window(start, end)
    assert str(window) == shown


@pytest.mark.parametrize(
    ("text", "total", "expected"),
    [("5%", 10**12, 5 * 10**10), ("0%", 100, 0), ("100%", 100, 100), ("20GiB", 1, 20 * 2**30), ("1GB", 1, 10**9)],
)
def test_min_free_is_a_share_of_the_filesystem_or_a_size(text: str, total: int, expected: int) -> None:
    floor = parse_min_free(text)
    assert floor.bytes_of(total) == expected
    assert str(floor) == text


def test_a_key_that_has_no_effect_on_this_machine_is_said(loaded: Write, tmp_path: Path) -> None:
    config = loaded(f'{POOL}[host.here]\npaths = ["/etc"]\nport = 22\nretention.daily = 1')
    assert config.notices == (f"{tmp_path}/main.toml: host.here.port: has no effect: without an address, the host is this machine",)


def test_a_source_path_whose_content_is_excluded_is_said(loaded: Write) -> None:
    hosts = '[host.a]\naddress = "a"\npaths = ["/tmp"]\n[host.b]\naddress = "b"\npaths = ["/tmp/work"]'
    config = loaded(f"{POOL}[retention]\ndaily = 1\n{hosts}")
    assert len(config.notices) == 1
    assert 'host.a.paths: "/tmp" is backed up as an empty folder: "/tmp/*" excludes its content' in config.notices[0]


@needs_root  # only root's configuration is guarded
@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o666), lambda path: os.chown(path, 61234, -1)], ids=["mode", "owner"])
@pytest.mark.parametrize("which", ["pool.toml", "pool.d", "pool.d/web.toml"])
def test_root_takes_no_configuration_that_others_may_write(tmp_path: Path, spoil: Callable[[Path], None], which: str) -> None:
    (tmp_path / "pool.d").mkdir()
    main, drop_in = tmp_path / "pool.toml", tmp_path / "pool.d" / "web.toml"
    main.write_text('[pool]\npath = "/srv/backup"\n')
    drop_in.write_text('[host.web]\naddress = "web"\npaths = ["/etc"]\n')
    assert set(load("pool", folder=tmp_path).hosts) == {"web"}
    spoil(tmp_path / which)
    with pytest.raises(ConfigError, match="could run any command as root") as refused:
        load("pool", folder=tmp_path)
    assert str(tmp_path / which) in str(refused.value)


def test_a_bandwidth_may_be_written_as_it_is_shown(loaded: Write) -> None:
    shown = HOST.replace("[host.web1]", '[backup]\nbandwidth = "16MB/s"\n[host.web1]')
    assert loaded(POOL + shown).backup.bandwidth == 16_000_000


def test_a_missing_file_says_how_to_make_one_and_which_others_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(folder=tmp_path)
    assert caught.value.problems == [f"{tmp_path}/main.toml: no such file"]
    assert "backupd init" in caught.value.hint
    (tmp_path / "offsite.toml").write_text(POOL)
    with pytest.raises(ConfigError) as caught:
        load("ofsite", folder=tmp_path)
    assert 'did you mean "offsite"?' in caught.value.hint
