"""The line for authorized_keys, taken from the page: it admits btrkeep, and permits nothing else.

If the line is wrong, a thief of the server's key can write to every host, or no host can be backed up.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd
from tests.docs.pages import Page

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

Read = Callable[[str], Page]


@pytest.fixture
def options(page: Read) -> str:
    """Returns the text before the key in the page's line."""
    line = page("restricted-keys").section("The line in authorized_keys").block("none")
    before, key, _ = line.partition(" ssh-ed25519 ")
    assert key
    assert "\n" not in line
    return before


def here(options: str) -> str:
    """Returns the same options for a server with our address."""
    assert options.count("192.0.2.10") == 1
    return options.replace("192.0.2.10", "127.0.0.1")


@pytest.fixture
def web1(shared_btrfs: Path, sshd: Sshd) -> Nights:
    nights = Nights(shared_btrfs)
    (nights.source / "www").mkdir()
    (nights.source / "www" / "index.html").write_text("welcome")
    (nights.source / "www" / "link").symlink_to("index.html")
    (nights.source / "secret").write_text("of no source path")
    nights.settings("ssh", command="ssh", known_hosts=str(sshd.known_hosts))
    nights.host("web1", nights.source / "www", address=sshd.address, port=sshd.port)
    return nights


def test_with_the_line_a_host_is_checked_and_backed_up(web1: Nights, sshd: Sshd, options: str) -> None:
    web1.settings("ssh", key=str(sshd.authorize(here(options))))
    output = web1.backupd("check", "--connect", "--json", check=False).stdout
    assert '"reached, 1 path can be listed"' in output
    assert web1.run("web1")["web1"]["outcome"] == "complete"
    (web1.source / "www" / "index.html").write_text("welcome again")
    assert web1.run("web1")["web1"]["outcome"] == "complete"
    assert web1.differences("web1", web1.source / "www") == []


def test_with_the_line_the_key_does_nothing_but_read(web1: Nights, sshd: Sshd, options: str) -> None:
    key, open_key = sshd.authorize(here(options)), sshd.key
    ssh = " ".join(sshd.ssh(key))
    shell = work(*sshd.ssh(key), sshd.address, "id", check=False)
    assert (shell.returncode != 0, "uid=" in shell.stdout) == (True, False)
    target = web1.top / "pushed"
    assert work("rsync", "-e", ssh, web1.source / "secret", f"{sshd.address}:{target}", check=False).returncode != 0
    assert not target.exists()
    removing = (
        "rsync",
        "-r",
        "--delete",
        "--remove-source-files",
        "-e",
        ssh,
        f"{sshd.address}:{web1.source}/www",
        web1.top / "taken",
    )
    work(*removing, check=False)
    assert (web1.source / "www" / "index.html").exists()
    forward = ("-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:9")
    assert work(*sshd.ssh(open_key), *forward, sshd.address, "true").returncode == 0
    assert work(*sshd.ssh(key), *forward, sshd.address, "true", check=False).returncode == 255
    work("rsync", "-e", ssh, f"{sshd.address}:{web1.source}/secret", web1.top / "read")
    assert (web1.top / "read").read_text() == "of no source path", "the page warns of this"


def test_the_key_does_not_work_from_another_address(web1: Nights, sshd: Sshd, options: str) -> None:
    web1.settings("ssh", key=str(sshd.authorize(options)))
    result = web1.run("web1", status=1)["web1"]
    assert "the host does not accept the key" in result["error"]


def test_rrsync_refuses_sudo_rsync_and_the_log_says_so_without_another_attempt(web1: Nights, sshd: Sshd, options: str) -> None:
    web1.settings("ssh", key=str(sshd.authorize(here(options))))
    web1.settings("backup", attempts=2)
    web1.host("web1", web1.source / "www", address=sshd.address, port=sshd.port, rsync_path="sudo rsync")
    result = web1.run("web1", status=1)["web1"]
    assert "rrsync on the host refuses this request" in result["error"]
    assert result["attempts"] == 1
    assert any("does not run rsync" in line for line in web1.json("log", "web1")[0]["last_lines"])


def test_below_another_folder_rrsync_takes_every_path_as_one_below_it(web1: Nights, sshd: Sshd, options: str) -> None:
    folder = web1.source / "www"
    web1.settings("ssh", key=str(sshd.authorize(here(options).replace("rrsync -ro /", f"rrsync -ro {folder}"))))
    web1.run("web1", status=1)
    nested = folder / str(folder).strip("/")
    nested.mkdir(parents=True)
    (nested / "found").touch()
    web1.run("web1")
    assert (web1.data("web1", folder) / "found").exists()


def test_the_sudo_rule_allows_just_what_the_line_runs(page: Read) -> None:
    """A person tried sudo and rrsync with both on a Debian 12 with sudo 1.9.13, because tests cannot make users here."""
    section = page("restricted-keys").section("With sudo instead of root")
    line, rules = section.blocks("none")[:2]
    command = re.search(r'command="sudo -n (rrsync .*?)"', line)
    assert command
    assert rules.splitlines()[1] == f"btrkeep ALL = (root) NOPASSWD: /usr/bin/{command[1]}"
    assert 'Defaults!/usr/bin/rrsync env_keep += "SSH_ORIGINAL_COMMAND"' in rules
