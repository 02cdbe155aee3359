"""The lines for a host's authorized_keys, and which keys a restore uses."""

import re
from pathlib import Path

import pytest

from backupd.files.restore_key import with_restore_key
from backupd.files.restore_types import Target
from backupd.hosts.ssh_keys import authorized_line, restore_line, server_name
from backupd.rsync.command import ssh_command
from backupd.source import btrkeep_source as program
from btrkeep.config import HostConfig, SshSettings, load

PROGRAM = "/usr/local/bin/btrkeep-source"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA btrkeep@office\n")
    return tmp_path / "id"


@pytest.mark.parametrize(
    ("address", "snapshots", "backup", "restoring"),
    [
        ("root@web1", "off", "rrsync -ro /", f"{PROGRAM} restore"),
        ("web1", "off", "rrsync -ro /", f"{PROGRAM} restore"),
        ("root@web1", "auto", f"{PROGRAM} --server office", f"{PROGRAM} restore"),
        ("keeper@web1", "off", "sudo -n rrsync -ro /", f"sudo -n {PROGRAM} restore"),
        ("keeper@web1", "required", f"sudo -n {PROGRAM} --server office", f"sudo -n {PROGRAM} restore"),
    ],
)
def test_the_lines_fit_the_user_and_the_snapshots(
    key: Path, address: str, snapshots: str, backup: str, restoring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "office.example.org")
    host = HostConfig("web1", address=address, snapshots=snapshots)
    end = "ssh-ed25519 AAAA btrkeep@office"
    assert authorized_line(key, host) == f'restrict,command="{backup}" {end}'
    assert restore_line(key, host) == f'restrict,command="{restoring}" {end}'


@pytest.mark.parametrize("name", ["office", "Büro", "-x", "", "a" * 64, "a_b.example.org"])
def test_the_name_of_any_machine_is_one_that_the_program_accepts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: name)
    assert program.SERVER.fullmatch(server_name())


def _tried(ssh: SshSettings, host: HostConfig) -> list[str]:
    return re.findall(r"IdentityFile=(\S+)", " ".join(ssh_command(host, ssh)))


def test_a_restore_tries_the_restore_key_first_if_there_is_one(key: Path, tmp_path: Path) -> None:
    config_file = tmp_path / "main.toml"
    text = f'[pool]\npath = "/srv/backup"\n[ssh]\nkey = "{key}"\n[host.web1]\naddress = "root@web1"\npaths = ["/etc"]\n'
    for line, restore_key in (("", f"{key}_restore"), (f'restore_key = "{tmp_path}/other"\n', f"{tmp_path}/other")):
        config_file.write_text(text.replace("[host", f"{line}[host"))
        config = load("main", config_file)
        target = Target(config.hosts["web1"], b"/", original=True)
        assert with_restore_key(target, config) == (target, config)
        Path(restore_key).touch()
        restore_target, restore_config = with_restore_key(target, config)
        assert _tried(restore_config.ssh, restore_target.host) == [restore_key, str(key)]
        assert _tried(config.ssh, target.host) == [str(key)]
