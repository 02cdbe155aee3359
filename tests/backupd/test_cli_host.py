"""`backupd host`: sections are added to the configuration and removed from it, and nothing else in it changes."""

import fcntl
import json
import os
import re
import shlex
import stat
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backupd.hosts import config_files
from backupd.hosts.edit import new_host, with_keys, without_host
from btrkeep.errors import LockHeld
from btrkeep.process.proc import flock_holders
from tests.beds import TOP, backupd, work
from tests.beds.cli import BACKUPD
from tests.beds.gate import examples
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd
from tests.beds.terminal import at_a_terminal

MAIN = """\
# our pool
[pool]
path = "/srv/backup"    # a disk

[retention]  # two weeks
daily = 14
# weekly = 3

[group.debian]
paths = ["/etc"]

# the old shop
[host.old]
address = "root@old"
paths = [
  "/etc",   # a folder
  "/srv",
]
after = ["/bin/echo", '''
[host.new]
''']
[host.old.retention]
daily = 3

# the new shop
[host.new]
group = "debian"
address = "root@new"
"""


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "main.toml"
    path.write_text(MAIN)
    return path


def host(main: Path, *words: str, status: int = 0) -> Any:
    done = backupd("--config", main, "host", *words, check=False)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.slow
def test_a_host_gets_a_file_of_its_own_which_is_listed(main: Path) -> None:
    host(main, "add", "here", "--path", "/etc", "--path", "/srv/my files")
    file = main.with_name("main.d") / "here.toml"
    assert tomllib.loads(file.read_text()) == {"host": {"here": {"paths": ["/etc", "/srv/my files"]}}}
    listed = {entry["host"]: entry for entry in json.loads(host(main, "list", "--json").stdout)}
    assert listed["here"] == {
        "host": "here", "address": None, "port": None, "group": None, "enabled": True, "paths": ["/etc", "/srv/my files"],
        "file": str(file),
    }  # fmt: skip
    assert (listed["new"]["group"], listed["new"]["paths"], listed["new"]["file"]) == ("debian", ["/etc"], str(main))
    assert main.read_text() == MAIN


@pytest.mark.slow
def test_a_host_that_calls_is_not_asked_for_its_key_and_gets_the_lines_for_both_sides(main: Path, tmp_path: Path) -> None:
    key, known_hosts = tmp_path / "key", tmp_path / "known_hosts"
    ssh = f'[ssh]\nkey = "{key}"\nknown_hosts = "{known_hosts}"\n'
    main.write_text(f'{MAIN}{ssh}[group.laptops]\ncalls = true\noptional = true\nsnapshots = "auto"\npaths = ["/home"]\n')
    added = host(main, "add", "laptop7", "--address", "root@laptop7.invalid", "--group", "laptops", status=1).stdout
    public = Path(f"{key}.pub").read_text().strip()
    assert re.search(rf'restrict,command="/usr/local/bin/btrkeep-source --server \S+" {re.escape(public)}', added)
    assert f'\nrestrict,command="/usr/local/sbin/backupd --config {main} answer laptop7" KEY\n' in added
    assert "\nlaptop7.invalid KEY\n" in added
    known_hosts.write_text(f"laptop7.invalid {public}\n")
    assert "the host calls this server, so this server does not test it" in " ".join(host(main, "test", "laptop7").stdout.split())
    assert "the host has no address" in host(main, "add", "laptop8", "--group", "laptops", status=2).stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["add", "new", "--path", "/etc"], "is in"),
        (["add", "-x", "--path", "/etc"], "no option"),
        (["add", "a/b", "--path", "/etc"], "cannot be a host's name"),
        (["add", "web1"], "paths: missing"),
        (["add", "web1", "--path", "etc"], "expected an absolute path"),
        (["add", "web1", "--path", "/etc", "--group", "debain"], 'did you mean "debian"?'),
        (["add", "web1", "--path", "/etc", "--address", "-oProxyCommand=x"], "must not begin with -"),
        (["remove", "shop"], "no host shop is configured"),
        (["test", "shop"], "no host shop is configured"),
    ],
)
def test_what_would_be_wrong_is_refused_and_nothing_is_written(main: Path, words: list[str], why: str) -> None:
    assert why in host(main, *words, status=2).stderr
    assert {path.name for path in main.parent.iterdir()} <= {"main.toml", ".main.lock"}
    assert main.read_text() == MAIN


def test_on_a_narrow_terminal_no_word_of_the_list_is_broken(main: Path) -> None:
    long = "a-rather-long-name-of-a-host-in-some-data-centre"
    with main.open("a") as file:
        file.write(f'[host.{long}]\naddress = "root@{long}"\npaths = ["/etc", "/srv/www/some-customer-of-ours"]\n')
    line = [*BACKUPD, "--config", str(main), "host", "list"]
    with at_a_terminal(line, {"PYTHONPATH": str(TOP)}, width=80) as shown:
        assert shown.ends() == 0
    assert max(map(len, shown.text.splitlines())) <= 80
    assert {long, f"root@{long}", "/etc", "/srv/www/some-customer-of-ours", "main.toml"} <= set(shown.text.split())


def test_a_mistake_elsewhere_stops_a_change_too(main: Path) -> None:
    main.write_text(MAIN + "[backup]\nevry = '1d'\n")
    assert "evry" in host(main, "add", "web1", "--path", "/etc", status=2).stderr
    assert not main.with_name("main.d").exists()


def test_a_mistake_of_one_host_stops_no_change_of_another(main: Path) -> None:
    broken = MAIN.replace('group = "debian"', 'group = "debain"')
    main.write_text(broken)
    fault = f'{main}:{broken[: broken.index("debain")].count(chr(10)) + 1}: host.new.group = "debain"'
    listed = host(main, "list", "--json", status=1)
    assert [entry["host"] for entry in json.loads(listed.stdout)] == ["old"]
    assert fault in listed.stderr
    added = host(main, "add", "here", "--path", "/etc")
    assert "here is added" in added.stdout
    host(main, "set", "old", "port=2222")
    assert "there is no such group" in host(main, "add", "web1", "--path", "/etc", "--group", "x", status=2).stderr
    assert 'host.new.group = "debain"' in host(main, "set", "new", "port=2222", status=2).stderr
    assert 'host.new.group = "debain"' in host(main, "test", "new", status=2).stderr
    assert "here" in host(main, "test", "here").stdout
    host(main, "set", "new", "group=debian")
    assert {entry["host"] for entry in json.loads(host(main, "list", "--json").stdout)} == {"old", "new", "here"}


def test_removed_from_the_main_file_only_its_section_goes_and_comments_and_mode_stay(main: Path) -> None:
    main.chmod(0o640)
    host(main, "remove", "old")
    start, end = MAIN.index("[host.old]"), MAIN.index("# the new shop")
    assert main.read_text() == MAIN[:start] + MAIN[end:]
    assert stat.S_IMODE(main.stat().st_mode) == 0o640
    host(main, "remove", "new")
    assert "host" not in tomllib.loads(main.read_text())


def test_removed_from_a_file_of_its_own_the_file_goes_but_not_one_with_other_hosts_in_it(main: Path) -> None:
    folder = main.with_name("main.d")
    folder.mkdir()
    (folder / "both.toml").write_text("[host.a]\npaths = ['/etc']\n[host.b]\npaths = ['/etc']\n")
    assert json.loads(host(main, "remove", "a", "--json").stdout)["file_removed"] is False
    assert (folder / "both.toml").read_text() == "[host.b]\npaths = ['/etc']\n"
    output = host(main, "remove", "b").stdout
    assert "`backupd forget b`" in output
    assert "all its backups" in output, "no retention looks at the backups of a host that is not configured"
    assert "thins" not in output
    assert "never expire" in host(main, "remove", "--help").stdout.replace("\n", " ")
    assert list(folder.iterdir()) == []


def test_a_file_is_replaced_in_one_step_and_a_link_goes_on_leading_to_it(main: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "managed" / "main.toml"
    elsewhere.parent.mkdir()
    main.rename(elsewhere)
    main.symlink_to(elsewhere)
    inode = elsewhere.stat().st_ino
    with elsewhere.open() as reader:
        host(main, "remove", "old")
        assert reader.read() == MAIN, "who reads meanwhile has the old file, whole"
    assert main.is_symlink()
    assert elsewhere.stat().st_ino != inode
    assert "old" not in tomllib.loads(elsewhere.read_text())["host"]
    assert [path.name for path in elsewhere.parent.iterdir()] == ["main.toml"]


@pytest.mark.slow
def test_tests_says_whether_this_machine_has_the_paths(main: Path) -> None:
    main.write_text(MAIN.replace("[pool]", f'[pool]\nstate = "{main.parent}/state"', 1))  # it makes a catalogue
    host(main, "add", "here", "--path", "/etc")
    (answer,) = json.loads(host(main, "test", "here", "--json").stdout)
    assert (answer["level"], answer["subject"]) == ("ok", "here")
    host(main, "add", "there", "--path", "/no/such/folder")
    assert "/no/such/folder does not exist on this machine" in host(main, "test", "there", status=1).stdout


@pytest.mark.btrfs
@pytest.mark.root
def test_a_host_over_ssh_is_added_tested_backed_up_and_removed_with_its_backups_left(shared_btrfs: Path, sshd: Sshd) -> None:
    nights = Nights(shared_btrfs)
    (nights.source / "file").write_text("welcome")
    key = sshd.authorize('restrict,command="rrsync -ro /"')
    nights.settings("ssh", command="ssh", key=str(key), known_hosts=str(nights.top / "known_hosts"))
    words = ("--address", sshd.address, "--port", str(sshd.port), "--path", str(nights.source))
    added = nights.backupd("host", "add", "web1", *words, "--json", check=False)
    assert (added.returncode, json.loads(added.stdout)["reached"]) == (1, False), "nobody has accepted the host's key"
    assert work("ssh-keygen", "-lf", sshd.folder / "host_key.pub").stdout.split()[1] in added.stderr
    [accepting] = re.findall("backupd (.* setup .*--accept-host-key.*)", added.stderr)
    process = nights.backupd("host", "test", "web1", "--json", check=False)
    assert (process.returncode, "host key is unknown" in process.stdout or "known_hosts" in process.stdout) == (1, True)
    backupd(*shlex.split(accepting))  # the printed command, typed unchanged
    nights.backupd("host", "test", "web1")
    nights.backupd("host", "remove", "web1")
    (nights.top / "known_hosts").unlink()

    added = nights.backupd("host", "add", "web1", *words, "--accept-host-key", "--json")
    answer = json.loads(added.stdout)
    assert (answer["reached"], answer["file"]) == (True, str(nights.top / "main.d" / "web1.toml"))
    assert answer["authorized_keys"].startswith('restrict,command="rrsync -ro /" ssh-ed25519 ')
    nights.backupd("host", "test", "web1")
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    nights.backupd("host", "remove", "web1")
    assert (nights.data("web1", nights.source) / "file").read_text() == "welcome"
    assert nights.json("host", "list") == []


@pytest.mark.btrfs
@pytest.mark.root
def test_the_dashboard_knows_every_host_also_after_one_of_them_was_tried(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    nights.host("one", nights.source)
    nights.backupd("host", "add", "two", "--path", str(nights.source))
    for words in (("check",), ("host", "test", "one"), ("host", "test", "two")):
        nights.backupd(*words, check=False)
        query = "select json_extract(value, '$.hosts') from about where name = 'published'"
        assert set(json.loads(work("sqlite3", nights.state / "catalogue.sqlite", query).stdout)) == {"one", "two"}, words


names = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
values = st.dictionaries(st.sampled_from(["address", "group"]), st.text(st.characters(codec="utf-8", exclude_characters="\x00")))


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(hosts=st.dictionaries(names, values, min_size=1, max_size=4), data=st.data())
def test_whatever_is_in_a_text_without_one_host_the_rest_is_the_same(hosts: dict[str, dict[str, str]], data: st.DataObject) -> None:
    text = "# top\n" + "\n# between\n".join(new_host(name, {"paths": ["[host.x]", "/a"], **keys}) for name, keys in hosts.items())
    gone = data.draw(st.sampled_from(sorted(hosts)))
    before, after = tomllib.loads(text), tomllib.loads(without_host(text, gone))
    del before["host"][gone]
    assert after.get("host", {}) == before["host"]
    assert without_host(text, gone).count("# between") >= text.count("# between") - 1


@pytest.mark.parametrize(
    "text", ["[host]\na.paths = ['/x']\nb = {paths = ['/y']}  # b\n", "host.a.paths = ['/x']\nhost.b.paths = ['/y']\n"]
)
def test_a_host_that_is_written_in_an_unusual_way_is_removed_too(text: str) -> None:
    assert tomllib.loads(without_host(text, "b")) == {"host": {"a": {"paths": ["/x"]}}}


def test_keys_are_set_where_they_are_with_the_comment_behind_them_and_taken_away() -> None:
    changed = with_keys(MAIN, "retention", {"daily": 7, "weekly": 2, "monthly": None})
    assert tomllib.loads(changed)["retention"] == {"daily": 7, "weekly": 2}
    assert [line for line in MAIN.splitlines() if line not in changed.splitlines()] == ["daily = 14"]
    assert 'path = "/srv"    # a disk' in with_keys(MAIN, "pool", {"path": "/srv"})


def test_a_user_who_may_only_read_the_folder_cannot_block_changes_of_the_configuration(main: Path) -> None:
    """A flock needs no right to write: a local user could hold one on /etc/btrkeep, which every user may read."""
    fd = os.open(main.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        host(main, "set", "new", "every=2d")
    finally:
        os.close(fd)
    assert 'every = "2d"' in main.read_text()
    lock = main.with_name(".main.lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_a_process_that_keeps_the_lock_is_named(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_files, "LOCK_PATIENCE", 0.1)
    before = main.read_text()
    lock = main.with_name(".main.lock")
    with subprocess.Popen(["flock", "--no-fork", lock, "sleep", "60"]) as holder:
        try:
            while not flock_holders(lock.stat()) if lock.exists() else True:
                time.sleep(0.01)
            with pytest.raises(LockHeld, match=rf"another process \(.*\b{holder.pid}\b"):
                config_files.set_hosts(config_files.Files.of("main", str(main)), ["new"], {"every": "2d"}, write=True)
        finally:
            holder.kill()
    assert main.read_text() == before
