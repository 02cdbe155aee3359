"""A configuration's mistakes are all reported at once, with file, key, value and the most similar existing name."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from btrkeep.config import load
from btrkeep.errors import ConfigError, Exit

POOL = '[pool]\npath = "/srv/backup"\n'
HERE = f'{POOL}[host.a]\npaths = ["/a"]\n'


def problems(folder: Path, text: str | bytes, **drop_ins: str) -> list[str]:
    """Returns the problems of main.toml and its drop-ins, without the folder."""
    (folder / "main.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "main.d").mkdir(exist_ok=True)
    for name, content in drop_ins.items():
        (folder / "main.d" / f"{name}.toml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(folder=folder)
    assert caught.value.exit_code is Exit.USAGE
    assert not any("\n" in line for line in caught.value.problems)
    return [line.replace(f"{folder}/", "") for line in caught.value.problems]


def of_host(folder: Path, line: str) -> list[str]:
    """Returns the problems of a valid host with one more line, without the prefix `main.toml: host.a.`."""
    paths = "" if line.startswith("paths") else 'paths = ["/etc"]\n'
    address = "" if line.startswith("address") else 'address = "a"\n'
    actual_problems = problems(folder, f"{POOL}[host.a]\n{paths}{address}{line}\n")
    assert all(each.startswith("main.toml: host.a.") for each in actual_problems), actual_problems
    return [each.removeprefix("main.toml: host.a.") for each in actual_problems]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('pathss = ["/x"]', 'pathss = ["/x"]: unknown key; did you mean "paths"?'),
        ("quux = 1", "quux = 1: unknown key; remove it or correct it"),
        ("Enabled = true", 'Enabled = true: unknown key; did you mean "enabled"?'),
        ("concurrency = 3", "concurrency = 3: belongs in [backup] or [group.NAME] or [replica.NAME], not in [host.NAME]"),
        ('min_free = "5%"', 'min_free = "5%": belongs in [pool], not in [host.NAME]'),
        ('every = "1x"', 'every = "1x": expected a duration such as "30m", "6h", "1d" or "2w"'),
        ("every = 86400", 'every = 86400: expected a duration such as "30m", "6h", "1d" or "2w"'),
        ("every = 2020-01-01", 'every = 2020-01-01: expected a duration such as "30m", "6h", "1d" or "2w"'),
        ('stall = "0s"', 'stall = "0s": expected a duration above zero and up to ten years, such as "30m" or "1d"'),
        (
            'deadline = "9999999w"',
            'deadline = "9999999w": expected a duration above zero and up to ten years, such as "30m" or "1d"',
        ),
        ("attempts = 0", "attempts = 0: expected a whole number from 1, such as 4, without quotes"),
        ('attempts = "3"', 'attempts = "3": expected a whole number from 1, such as 4, without quotes'),
        ("attempts = true", "attempts = true: expected a whole number from 1, such as 4, without quotes"),
        ("attempts = 1.5", "attempts = 1.5: expected a whole number from 1, such as 4, without quotes"),
        ("port = 65536", "port = 65536: expected a port from 1 to 65535, such as 22, without quotes"),
        ("port = 0", "port = 0: expected a port from 1 to 65535, such as 22, without quotes"),
        ('bandwidth = "0"', 'bandwidth = "0": expected at least "1KiB"; for no limit leave the key out'),
        ('bandwidth = "512"', 'bandwidth = "512": expected at least "1KiB"; for no limit leave the key out'),
        ("bandwidth = 16", 'bandwidth = 16: expected bytes per second, such as "16MB"'),
        ('window = "22-6"', 'window = "22-6": expected a window such as "22:00-06:00", or "none"'),
        ('window = "24:00-06:00"', 'window = "24:00-06:00": expected a window such as "22:00-06:00", or "none"'),
        ("window = 22:00:00", 'window = 22:00:00: expected a window such as "22:00-06:00", or "none"'),
        ('shrink_limit = "101%"', 'shrink_limit = "101%": expected a percentage from "0%" to "100%", such as "50%"'),
        ("max_files = 0", 'max_files = 0: expected a whole number from 1, such as 1000000, without quotes, or "none"'),
        ('max_files = "many"', 'max_files = "many": expected a whole number from 1, such as 1000000, without quotes, or "none"'),
        ("unreadable_limit = 0.01", 'unreadable_limit = 0.01: expected a percentage from "0%" to "100%", such as "50%"'),
        ('inplace = "larg"', 'inplace = "larg": expected one of "always", "large", "never"; did you mean "large"?'),
        ("inplace = true", 'inplace = true: expected one of "always", "large", "never"'),
        ('inplace = ["large"]', 'inplace = ["large"]: expected one of "always", "large", "never"'),
        ('enabled = "yes"', 'enabled = "yes": expected true or false, without quotes'),
        ("optional = 1", "optional = 1: expected true or false, without quotes"),
        ('rsync_path = " "', 'rsync_path = " ": expected a command on one line, such as "sudo rsync"'),
        ('group = "a/b"', 'group = "a/b": contains characters other than letters, digits, . _ and -'),
        (
            'before = "/bin/true"',
            'before: expected a list of words, none of them empty, such as ["/usr/local/bin/dump",',
        ),
        ('ssh_options = ["-o", "ProxyJump=x"]', 'ssh_options: "-o": expected NAME=VALUE such as "ProxyJump=gate.example.org"'),
        ('ssh_options = "ProxyJump=x"', "ssh_options: expected a list of ssh's options such as [\"ProxyJump="),
        ('ssh_options = ["ProxyCommand sshpass -p hunter2"]', 'ssh_options: "ProxyCommand...": expected NAME=VALUE such as'),
        ("exclude = {}", 'exclude = {}: expected a list of patterns such as ["/var/cache/*", "*.tmp"]'),
        ('exclude_only = ["", 3]', 'exclude_only: "": expected a pattern such as "/var/cache/*" or "*.tmp"'),
        ('exclude = ["/a/../b"]', 'exclude: "/a/../b": never matches'),
        ('paths = "/etc"', 'paths = "/etc": expected a list of one absolute path or more, such as ["/etc", "/srv"]'),
        ("paths = []", 'paths = []: expected a list of one absolute path or more, such as ["/etc", "/srv"]'),
        ('paths = ["etc"]', 'paths: "etc": expected an absolute path such as "/srv/www"'),
        ("paths = [1]", 'paths: 1: expected an absolute path such as "/srv/www"'),
        ('paths = ["/srv/../etc"]', 'paths: "/srv/../etc": ".." is not followed; write the path it leads to'),
        ('paths = ["/srv\\n"]', 'paths: "/srv\\n": a path must not contain control characters'),
        ('paths = ["/srv/*"]', 'paths: "/srv/*": a source path must not contain wildcards'),
        ('paths = ["/etc", "/etc/"]', 'paths: "/etc/": is given twice'),
        ('paths = ["/srv/www", "/srv/"]', 'paths: "/srv/www": lies in "/srv/"; name only one of them'),
        ('paths = ["/srv", "/srv//./www/x"]', 'paths: "/srv//./www/x": lies in "/srv"; name only one of them'),
        ('paths = ["/etc", "/"]', 'paths: "/etc": lies in "/"; name only one of them'),
        ("retention = 14", "retention = 14: expected a section, [host.a.retention]"),
        ("retention = [{daily = 1}]", "retention = [{daily = 1}]: expected a section, [host.a.retention]"),
        ("retention = {daily = -1}", "retention.daily = -1: expected a whole number from 0, such as 14, without quotes"),
        ("retention.weekli = 1", 'retention.weekli = 1: unknown key; did you mean "weekly"?'),
        (
            "retention.attempts = 1",
            "retention.attempts = 1: belongs in [backup] or [group.NAME] or [host.NAME], not in [host.NAME.ret",
        ),
        ("retention.daily.x = 1", "retention.daily = {x = 1}: expected a whole number from 0"),
        ("retension.daily = 1", 'retension = {daily = 1}: unknown key; did you mean "retention"?'),
        (
            "daily = 1",
            (
                "daily = 1: belongs in [retention] or [group.NAME.retention] or [host.NAME.retention] or [replica.NAME.retention] "
                "or [offsite.NAME.retention], not in [host.NAME]"
            ),
        ),
        ("expiry.max_orphans = 1", "expiry = {max_orphans = 1}: is a separate section, [expiry]"),
        ("paths.x = 1", 'paths = {x = 1}: expected a list of one absolute path or more, such as ["/etc", "/srv"]'),
    ],
)
def test_a_value_that_cannot_be_is_named_with_what_was_expected(tmp_path: Path, line: str, problem: str) -> None:
    lines = of_host(tmp_path, line)
    assert lines[0].startswith(problem), lines[0]


def test_neighbours_in_name_only_are_not_nested(tmp_path: Path) -> None:
    (tmp_path / "main.toml").write_text(f'{POOL}[host.a]\naddress = "a"\npaths = ["/srv", "/srv2", "/srv-old", "/s/rv"]')
    assert len(load(folder=tmp_path).hosts["a"].paths) == 4


@pytest.mark.parametrize(
    "address",
    ["", " ", "a b", "-oProxyCommand=x", "root@-oProxyCommand=x", "-l@a", "@a", "root@", "a:/srv", "host:22", "::1", "root@fe80::1",
     "[::1", "[::1]:22", "a/b", "a\\\\b", "a\\nb", "a\\tb", "a\\u202eb", "u:pw@a", 'a\\"b'],
)  # fmt: skip
def test_addresses_that_ssh_or_rsync_would_take_for_something_else_are_refused(tmp_path: Path, address: str) -> None:
    lines = of_host(tmp_path, f'address = "{address}"')
    assert len(lines) == 1
    assert lines[0].startswith("address = ")


@pytest.mark.parametrize("name", ["", ".", "..", ".working", "-x", "a/b", "a b", "a\\tb", "a\\n", "\\u0000", "a\\u202eb", "a" * 201,
                                  "ж" * 101, "u\\u0308", "\\u212b", "a\\\\b", "@", "a:b"])  # fmt: skip
@pytest.mark.parametrize("section", ["host", "group"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, section: str, name: str) -> None:
    actual_problems = problems(tmp_path, f'{POOL}[{section}."{name}"]\npaths = ["/etc"]')
    assert len(actual_problems) == 1
    assert actual_problems[0].startswith(f"main.toml: {section}.")


@pytest.mark.parametrize("pool", ["", "../x", ".x", "-x", "a b"])
def test_a_pools_name_is_a_folders_name_too(tmp_path: Path, pool: str) -> None:
    with pytest.raises(ConfigError, match="pool"):
        load(pool, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[pool]\nzone = "UTC"', "pool.path: missing"),
        ('[pool]\npath = "srv"', 'pool.path = "srv": expected an absolute path'),
        ('[pool]\npath = "/"', 'pool.path = "/": expected a path other than'),
        (f'{POOL}state = "../x"', 'pool.state = "../x": expected an absolute path'),
        (f'{POOL}zone = "Europe/Berlni"', 'pool.zone = "Europe/Berlni": unknown time zone; did you mean "Europe/Berlin"?'),
        (f'{POOL}zone = "Europe"', 'pool.zone = "Europe": unknown time zone'),
        (f'{POOL}zone = "../../etc/passwd"', 'pool.zone = "../../etc/passwd": unknown time zone'),
        (f'{POOL}zone = ""', 'pool.zone = "": unknown time zone'),
        (f"{POOL}zone = 1", 'pool.zone = 1: expected the name of a time zone such as "Europe/Berlin"'),
        (f'{POOL}min_free = "101%"', 'pool.min_free = "101%": expected a percentage up to "100%"'),
        (f"{POOL}min_free = 5", "pool.min_free = 5: expected a percentage"),
        (f'{POOL}min_free = "{"9" * 400}"', "pool.min_free = "),
        (f"{POOL}[backup]\nconcurrency = 0", "backup.concurrency = 0: expected a whole number from 1"),
        (f"{POOL}[backup]\nconcurrency = 0x-1", "line 4, column 16: "),
        (f"{POOL}[backup]\nconcurrency = -0x1", "line 4, column 17: "),
        (f"{POOL}[backup]\nconcurrency = true", "backup.concurrency = true: expected a whole number"),
        (f"{POOL}[backup]\nattempts = {'9' * 5000}", "is not TOML: Exceeds the limit"),
        (f"{POOL}[host.web1]\n[host.web1]\n", "line 4, column 11: Cannot declare [host.web1] twice"),
        (f"{POOL}[backup]\nquux = 0x{'f' * 5000}", "backup.quux = 0xffff"),
        (f'{POOL}[backup]\npaths = ["/x"]', 'backup.paths = ["/x"]: belongs in [group.NAME] or [host.NAME], not in [backup]'),
        (f'{POOL}[backup]\nwindow = "22:00-22:00"', 'backup.window = "22:00-22:00": start and end are the same'),
        (f'{POOL}[backup]\nwindow = "00:00-24:00"', 'backup.window = "00:00-24:00": start and end are the same'),
        (f'{POOL}[ssh]\nkey = "id"', 'ssh.key = "id": expected an absolute path'),
        (f'{POOL}[ssh]\nknown_hosts = "/a b"', 'ssh.known_hosts = "/a b": ssh does not accept a path with blanks'),
        (f"{POOL}[ssh]\ncommand = []", "ssh.command = []: expected a command on one line"),
        (f"{POOL}[ssh]\ncommand = \"ssh 'x\"", "ssh.command = \"ssh 'x\": expected a command on one line"),
        (f'path = "/x"\n{POOL}', 'path = "/x": belongs in [pool]'),
        (f"backups = 3\n{POOL}", 'backups = 3: unknown key; did you mean "backup"?'),
        (f"backup = 3\n{POOL}", "backup = 3: expected a section, [backup]"),
        (f"{POOL}[retension]\ndaily = 1", 'retension: unknown section; did you mean [retention]?'),
        (f"{POOL}[retention]\ndayly = 1", 'retention.dayly = 1: unknown key; did you mean "daily"?'),
        (f"{POOL}[retention]\nx = 1", "retention.x = 1: unknown key; remove it or correct it"),
        (f"{POOL}retention.daily = 1", "pool.retention = {daily = 1}: is a separate section, [retention] or [gr"),
        (f"{POOL}[backup.retention]\ndaily = 1", "backup.retention = {daily = 1}: is a separate section, [retention] or "),
        (f"retention = 14\n{POOL}", "retention = 14: expected a section, [retention]"),
        (f"{POOL}[[retention]]\ndaily = 1", "retention = [{daily = 1}]: expected a section, [retention]"),
        (f"{POOL}[retention]\ndaily = -1", "retention.daily = -1: expected a whole number from 0, such as 14, without quotes"),
        (f'{POOL}[retention]\ndaily = "14"', 'retention.daily = "14": expected a whole number from 0'),
        (f"{POOL}[retention]\nweekly = true", "retention.weekly = true: expected a whole number from 0"),
        (f"{POOL}[retention]\nmonthly = 1.5", "retention.monthly = 1.5: expected a whole number from 0"),
        (f"{POOL}[retention]\nyearly = 100001", "retention.yearly = 100001: expected at most 100000"),
        (f"{POOL}[retention]\nyearly = 0x{'f' * 500}", "retention.yearly = 0xffff"),
        (f"{POOL}[retention]\nmin_keep = 0", "retention.min_keep = 0: expected a whole number from 1"),
        (f'{POOL}[retention]\ngrace = "0d"', 'retention.grace = "0d": expected a duration above zero'),
        (f'{POOL}[retention]\nevery = "1d"', 'retention.every = "1d": belongs in [backup] or [group.NAME] or [host.NAME]'),
        (f"{POOL}[retention]\nmax_orphans = 1", "retention.max_orphans = 1: belongs in [expiry], not in [retention]"),
        (f"{POOL}[expiry]\ndaily = 1", "expiry.daily = 1: belongs in [retention] or [group.NAME.retention] or [hos"),
        (f"{POOL}[expiry]\nmax_orphans = 0", "expiry.max_orphans = 0: expected a whole number from 1"),
        (f'{POOL}[expiry]\nmount_option = "sdd"', 'expiry.mount_option = "sdd": expected one of "ssd", "nossd", "ssd_spread", "n'),
        (f"{POOL}[expiry]\nmount_option = false", 'expiry.mount_option = false: expected one of "ssd", "nossd", "ssd_spr'),
        (f'{POOL}[expiry]\nmount_option = ["ssd"]', 'expiry.mount_option = ["ssd"]: expected one of "ssd", "nossd", '),
        (f'{POOL}[expiry]\nyield_to_backups = "yes"', 'expiry.yield_to_backups = "yes": expected true or false'),
        (f"{POOL}[expiry.retention]\ndaily = 1", "expiry.retention = {daily = 1}: is a separate section"),
        (f"daily = 1\n{POOL}", "daily = 1: belongs in [retention] or [group.NAME.retention] or [host.NAME.retention]"),
        (f"{POOL}[hosts.a]\nx = 1", 'hosts.a: unknown section; did you mean [host.a]?'),
        (f"{POOL}[[host]]", "host.NAME = [{}]: expected a section, [host.NAME]"),
        (f"{POOL}[[host.a]]", "host.a = [{}]: expected a section, [host.a]"),
        (f'{POOL}[host]\npaths = ["/a"]', 'host.paths = ["/a"]: belongs in a section with a name, [host.NAME]'),
        (f'{POOL}[host.a]\naddress = "a"', "host.a.paths: missing"),
        (
            f'{POOL}[host.a.b.example.org]\npaths = ["/etc"]',
            'host.a.b = {example = {org = ...}}: write a name with dots in quotes: [host."a.b.example.org"]',
        ),
        (f'{POOL}[group.a.b]\nevery = "1d"', 'group.a.b = {every = "1d"}: write a name with dots in quotes: [group."a.b"]'),
        (f'{HERE}group = "debain"\n[group.debian]', 'host.a.group = "debain": there is no such group; did you mean "debian"?'),
        (f'{HERE}before = ["x", "--to={{address}}"]', "host.a.before: contains {address}, but the host has no address"),
        (f"{POOL}[backup]\n{'.'.join('a' * 1500)} = 1", "backup.a = {a = "),
        (f"{POOL}x = {'[' * 2000}{']' * 2000}", "is nested too deeply"),
        (f"{POOL}\n[backup]\nevery = 1 d", "line 5, column 11: "),
        (f"{POOL}[host.a]\n[host.a]", "line 4, column 8: Cannot declare"),
        (f"{POOL}[backup]\nexclude = [", "line 4, column 12: "),
    ],
)  # fmt: skip
def test_sections_files_and_single_values_that_are_wrong_are_named(tmp_path: Path, text: str, problem: str) -> None:
    actual_problems = problems(tmp_path, text)
    assert any(line.startswith(f"main.toml: {problem}") for line in actual_problems), actual_problems
    assert all(len(line) < 250 for line in actual_problems)


def test_all_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    main = f'{POOL}[backup]\nevery = "1x"\nstall = 3\n[host.a]\npaths = ["x", "/a", "y"]\nport = 0\n'
    actual_problems = problems(tmp_path, main, b='[host.b]\ngroup = "g"\npaths = ["/b"]\n', c="[backup]\nattempts = 0\n")
    assert [line.split(" = ")[0].split(': "')[0] for line in actual_problems] == [
        "main.toml: backup.every",
        "main.toml: backup.stall",
        "main.toml: host.a.paths",
        "main.toml: host.a.paths",
        "main.toml: host.a.port",
        "main.d/c.toml: backup.attempts",
        "main.d/b.toml: host.b.group",
    ]


def test_what_may_stand_in_a_file_that_cannot_be_read_is_not_called_missing(tmp_path: Path) -> None:
    host = '[host.b]\ngroup = "g"\naddress = "b"\n'
    assert problems(tmp_path, host, a="[pool]\npath = /srv", b="[backup]\nattempts = 0\n") == [
        "main.d/a.toml: line 2, column 8: Invalid value",
        "main.d/b.toml: backup.attempts = 0: expected a whole number from 1, such as 4, without quotes",
    ]


@pytest.mark.parametrize("section", ["host", "group"])
def test_one_name_in_two_files_names_both(tmp_path: Path, section: str) -> None:
    actual_problems = problems(tmp_path, f'{POOL}[{section}.x]\npaths = ["/a"]', x=f'[{section}.x]\npaths = ["/b"]')
    assert actual_problems == [f"main.d/x.toml: {section}.x: is in main.toml already; write each {section} in one file"]


def test_what_is_missing_is_not_said_where_it_was_given_wrongly(tmp_path: Path) -> None:
    assert len(problems(tmp_path, f'{POOL}[group.g]\npaths = "x"\n[host.a]\ngroup = "g"\n[host.b]\ngroup = "gg"\n')) == 2


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "main.d" / "folder.toml").mkdir(parents=True)
    (tmp_path / "main.d" / "gone.toml").symlink_to("nowhere")
    assert problems(tmp_path, POOL) == [
        f"main.d/folder.toml: cannot be read: {os.strerror(21)}",
        f"main.d/gone.toml: cannot be read: {os.strerror(2)}",
    ]


def test_a_drop_in_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "main.toml").write_text(POOL)
    (tmp_path / "main.d").write_text("")
    with pytest.raises(ConfigError, match=r"main\.d: cannot be read: Not a directory"):
        load(folder=tmp_path)


def test_bytes_that_are_no_utf8_are_found_by_line_and_column(tmp_path: Path) -> None:
    assert problems(tmp_path, b'[pool]\npath = "/srv/\xff"\n') == ["main.toml: line 2, column 14: is not UTF-8"]


def test_what_others_wrote_cannot_move_the_cursor(tmp_path: Path) -> None:
    actual_problems = problems(tmp_path, f'{POOL}"\\u001b[2J" = "\\u001b]0;x\\u0007"\n[host.a]\npaths = ["\\u001b/"]\n')
    actual_problems += problems(tmp_path, POOL, **{"\x1b[2J": "["})
    assert len(actual_problems) == 3
    assert all(line.isprintable() for line in actual_problems)


@pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed")
@pytest.mark.parametrize(("pattern", "name"), [("+ x", "+ x"), ("- x", "- x"), ("!", "!"), ("./x", "x"), ("//x", "x"),
                                               ("a//x", "a/x"), ("/a/../x", "x"), ("", "x")])  # fmt: skip
def test_the_patterns_that_are_refused_do_not_leave_out_that_name_in_rsync(tmp_path: Path, pattern: str, name: str) -> None:
    assert of_host(tmp_path, f'exclude = ["{pattern}"]')[0].startswith("exclude: ")
    source = tmp_path / "source"
    (source / name).parent.mkdir(parents=True)
    (source / name).touch()
    command = ["rsync", "-a", f"--exclude={pattern}", f"{source}/", f"{tmp_path}/copy/"]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "copy" / name).exists()
