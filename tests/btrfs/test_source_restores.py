"""`backupd restore --to-host` with the second key of a host that has btrkeep-source, over a real ssh server."""

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
    web1.settings("ssh", key=str(host.keys["officerestore"]))


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
