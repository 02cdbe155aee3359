"""`backupd restore --to-host` with the second key of a host that has btrkeep-source, over a real ssh server."""

import json
import shlex
import stat
from pathlib import Path

import pytest

from tests.beds import differences, manifest
from tests.beds.nights import Nights
from tests.beds.source_program import SourceHost
from tests.beds.ssh import Sshd
from tests.beds.within import restore

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def web1(shared_btrfs: Path, sshd: Sshd) -> Nights:
    nights = Nights(shared_btrfs)
    for name in ("www/in/deep", "mail"):
        (nights.source / "srv" / name).mkdir(parents=True)
        (nights.source / "srv" / name / "file").write_text(name)
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", nights.source / "srv", address=sshd.address, port=sshd.port)
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    return nights


def use_restore_key(web1: Nights, sshd: Sshd, folder: Path) -> None:
    host = SourceHost(sshd, f"[restore]\nallow = {folder}\n")
    host.ssh(mode="restore")
    web1.settings("ssh", restore_key=str(host.keys["officerestore"]))


def test_files_come_back_below_the_allowed_folder_and_nowhere_else(web1: Nights, sshd: Sshd) -> None:
    srv = web1.source / "srv"
    use_restore_key(web1, sshd, srv / "www")
    before = manifest(srv / "www")
    (srv / "www/in/deep/file").unlink()
    (srv / "mail/file").unlink()
    assert restore(web1, "web1", srv / "www/in", "--to-host", "--dry-run")["possible"]
    assert restore(web1, "web1", srv / "www/in", "--to-host")["good"]
    assert {name: entry.sha256 for name, entry in manifest(srv / "www").items()} == {
        name: entry.sha256 for name, entry in before.items()
    }
    assert differences(before, manifest(srv / "www")) in (
        [],
        [line for line in differences(before, manifest(srv / "www")) if "mtime" in line],
    )
    done = web1.backupd("restore", "web1", srv / "mail", "--to-host", check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not (srv / "mail/file").exists()


def test_a_whole_allowed_folder_that_is_gone_comes_back(web1: Nights, sshd: Sshd) -> None:
    srv = web1.source / "srv"
    use_restore_key(web1, sshd, srv)
    before = manifest(srv)
    for name in ("www/in/deep/file", "mail/file"):
        (srv / name).unlink()
        (srv / name).parent.rmdir()
    assert restore(web1, "web1", srv, "--to-host")["good"]
    assert manifest(srv).keys() == before.keys()


class Printed:
    """The server's own keys, made by `setup`, and the lines that it prints, which the test adds on the host."""

    def __init__(self, web1: Nights, sshd: Sshd, config: str, **keys: str) -> None:
        self.web1, self.sshd, self.host = web1, sshd, SourceHost(sshd, config)
        web1.settings("ssh", key=str(self.host.folder / "id"))
        web1.host("web1", web1.source / "srv", address=sshd.address, port=sshd.port, **keys)
        answer = json.loads(web1.backupd("setup", "--host", "web1", "--no-run", "--json", check=False).stdout)
        self.backing_up, self.restoring = answer["authorized_keys"], answer["authorized_keys_restore"]

    def let_in(self, line: str) -> None:
        """Adds a line on the host, where the program has another path and configuration than on the page."""
        ours = shlex.join(self.host.words()[:-2])
        with (self.sshd.folder / "authorized_keys").open("a") as file:
            file.write(line.replace("/usr/local/bin/btrkeep-source", ours) + "\n")


@pytest.mark.parametrize("snapshots", ["off", "required"])
def test_with_the_two_lines_that_setup_prints_a_host_is_backed_up_and_files_come_back(
    web1: Nights, sshd: Sshd, snapshots: str
) -> None:
    """Without the second line, the error names the command that prints it."""
    srv = web1.source / "srv"
    printed = Printed(web1, sshd, f"[restore]\nallow = {srv}/www\n", snapshots=snapshots)
    for name in ("id", "id_restore"):
        assert stat.S_IMODE((printed.host.folder / name).stat().st_mode) == 0o600
    printed.let_in(printed.backing_up)
    assert web1.run("web1")["web1"]["outcome"] == "complete"
    (srv / "www/in/deep/file").unlink()
    refused = restore(web1, "web1", srv / "www", "--to-host", status=1)["stderr"]
    assert "can only read on the host, and the host does not have the restore key" in " ".join(refused.split())
    command = "setup --host web1 --no-run"
    assert command in " ".join(refused.split())
    line = [line for line in web1.backupd(*command.split()).stdout.splitlines() if "btrkeep-source restore" in line]
    assert line == [printed.restoring]
    printed.let_in(line[0])
    assert restore(web1, "web1", srv / "www", "--to-host")["good"]
    assert (srv / "www/in/deep/file").read_text() == "www/in/deep"
    assert web1.run("web1")["web1"]["outcome"] == "complete"


def test_a_host_that_allows_no_folder_refuses_with_where_to_allow_it(web1: Nights, sshd: Sshd) -> None:
    printed = Printed(web1, sshd, "")
    printed.let_in(printed.backing_up)
    printed.let_in(printed.restoring)
    refused = " ".join(restore(web1, "web1", web1.source / "srv/mail", "--to-host", status=1)["stderr"].split())
    assert "restores are not allowed; write allow in [restore]" in refused
    assert "hint: [restore] in /etc/btrkeep-source.conf on that machine limits restores" in refused


def test_a_host_that_has_the_restore_key_but_not_the_program_is_told(web1: Nights, sshd: Sshd) -> None:
    printed = Printed(web1, sshd, "")
    printed.let_in(printed.backing_up)
    printed.let_in(printed.restoring.replace("/usr/local/bin", "/no/such"))
    refused = " ".join(restore(web1, "web1", web1.source / "srv/mail", "--to-host", status=1)["stderr"].split())
    assert "btrkeep-source is not installed on that machine" in refused


def test_a_host_without_the_restore_key_is_restored_by_the_other_one_if_that_may_write(web1: Nights, sshd: Sshd) -> None:
    printed = Printed(web1, sshd, "")
    printed.let_in(printed.backing_up.replace("rrsync -ro /", "rrsync /"))
    assert web1.run("web1")["web1"]["outcome"] == "complete"
    (web1.source / "srv/mail/file").unlink()
    assert restore(web1, "web1", web1.source / "srv", "--to-host")["good"]
    assert (web1.source / "srv/mail/file").exists()
