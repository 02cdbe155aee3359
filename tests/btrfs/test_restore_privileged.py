"""A restore to a folder of this machine omits everything that gives privileges here, unless requested."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from backupd.files.restore_types import RestoreProgress, RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from tests.beds import differences, manifest, ssh, work
from tests.beds.everything import write
from tests.beds.nights import Nights
from tests.beds.within import Within, restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


def hostile(nights: Nights, **more: object) -> Path:
    """A host with everything that gives privileges, and with harmless entries that look similar."""
    srv = nights.source / "srv"
    for name, mode in (("setuid", 0o4755), ("setgid", 0o2755), ("both", 0o6711), ("plain", 0o755), ("capable", 0o755)):
        write(srv / name, name, mode)
    (srv / "setuid-too").hardlink_to(srv / "setuid")
    work("setcap", "cap_setuid+ep", srv / "capable")
    (srv / "shared").mkdir()
    (srv / "shared").chmod(0o3775)
    os.mknod(srv / "block", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    os.mknod(srv / "character", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    os.mkfifo(srv / "fifo")
    srv.chmod(0o777)
    nights.host("web1", srv, **more)
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    return srv


def powers(folder: Path) -> set[str]:
    """Returns names below the folder that give privileges, by find and getcap."""
    done = work("find", folder, "(", "-type", "f", "-perm", "/6000", ")", "-o", "-type", "b,c").stdout.splitlines()
    capable = [line.partition(" ")[0] for line in work("getcap", "-r", folder).stdout.splitlines()]
    return {Path(line).name for line in [*done, *capable] if line}


DANGEROUS = {"setuid", "setuid-too", "setgid", "both", "capable", "block", "character"}


@pytest.mark.parametrize("where", ["the pool's btrfs", "another filesystem"])
def test_setuid_files_capabilities_and_devices_do_not_come_back_and_are_counted(nights: Nights, tmp_path: Path, where: str) -> None:
    srv, out = hostile(nights), (nights.top if "pool" in where else tmp_path) / "out"
    assert powers(srv) == DANGEROUS
    seen = restore(nights, "web1", srv, "--to", out, "--dry-run")
    done = restore(nights, "web1", srv, "--to", out)
    assert powers(out) == set()
    for row in (seen, done):
        assert {name: count["count"] for name, count in row["left_out"].items()} == {"devices": 2, "setuid": 4, "capabilities": 1}
    assert {sample["place"] for sample in done["left_out"]["devices"]["samples"]} == {f"{out}/srv/block", f"{out}/srv/character"}
    assert done["good"]
    changed = {line.partition(": ")[0] for line in differences(manifest(srv), manifest(out / "srv"))}
    assert changed == {repr(name.encode()) for name in DANGEROUS}  # and nothing else
    assert stat.S_IMODE((out / "srv" / "shared").stat().st_mode) == 0o3775
    again = restore(nights, "web1", srv, "--to", out)
    assert (again["new"]["count"], again["overwritten"]["count"], again["good"]) == (0, 0, True)


def test_people_are_told_what_is_left_out_and_what_gives_it(nights: Nights, tmp_path: Path) -> None:
    srv = hostile(nights)
    for words in (("--dry-run",), ()):
        output = nights.backupd("restore", "web1", srv, "--to", tmp_path / "out", *words).stdout
        assert "skipped: 2 device nodes" in output
        assert "setuid or setgid bits removed from 4 files" in output
        assert "capabilities removed from 1 file" in output
        assert "--privileged" in output
    harmless = nights.backupd("restore", "web1", srv / "plain", "--to", tmp_path / "out").stdout
    assert "--privileged" not in harmless


def test_asked_for_all_of_it_comes_back(nights: Nights, tmp_path: Path) -> None:
    srv = hostile(nights)
    done = restore(nights, "web1", srv, "--to", tmp_path / "out", "--privileged")
    assert powers(tmp_path / "out") == DANGEROUS
    assert differences(manifest(srv), manifest(tmp_path / "out" / "srv")) == []
    assert {count["count"] for count in done["left_out"].values()} == {0}


def test_all_takes_the_bits_from_what_an_earlier_restore_has_given_them(nights: Nights, tmp_path: Path) -> None:
    srv, out = hostile(nights), tmp_path / "out"
    restore(nights, "web1", srv, "--to", out, "--privileged")
    output = restore(nights, "web1", srv, "--to", out, status=1)["stderr"]
    assert "setuid: differs: mode" in output
    restore(nights, "web1", srv, "--to", out, "--overwrite=all")
    assert powers(out) == {"block", "character"}  # existing entries that were not requested stay unchanged


def test_to_its_own_place_a_host_gets_all_that_was_its_own(nights: Nights, sshd: ssh.Sshd) -> None:
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    for address in ({"address": sshd.address, "port": sshd.port}, {"address": None}):
        srv = hostile(nights, **address)
        before = manifest(srv)
        shutil.rmtree(srv)
        restore(nights, "web1", srv, "--to-host")
        assert differences(before, manifest(srv)) == []
        assert powers(srv) == DANGEROUS
        shutil.rmtree(srv)


def test_a_tar_holds_all_of_it_for_who_extracts_it_with_modes(nights: Nights, tmp_path: Path) -> None:
    srv, tar = hostile(nights), tmp_path / "out.tar"
    restore(nights, "web1", srv, "--tar", tar)
    work("tar", "-C", tmp_path, "--xattrs", "--xattrs-include=*", "-xpf", tar)
    assert powers(tmp_path / str(srv)[1:]) == DANGEROUS
    assert "is only for --to" in restore(nights, "web1", srv, "--tar", tmp_path / "other", "--privileged", status=2)["stderr"]


def modes(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid


@pytest.mark.parametrize("overwrite", [(), ("--overwrite=all",)])
def test_the_folder_that_is_made_stays_roots_alone_whatever_the_root_of_the_host_was_like(
    nights: Nights, tmp_path: Path, overwrite: tuple[str, ...]
) -> None:
    """The root of the backup is open for all users: so are the files restored from it."""
    srv = hostile(nights)
    data = nights.backup("web1") / "data"
    assert modes(data)[0] & 0o005
    out = tmp_path / "out"
    for _ in range(2):
        restore(nights, "web1", "/", "--to", out, *overwrite)
        assert modes(out) == (0o700, 0, 0)
    assert modes(out / str(srv)[1:])[0] == 0o777  # its content is unchanged
    restore(nights, "web1", "/", "--to", tmp_path / "whole", "--privileged")
    assert modes(tmp_path / "whole") == modes(data)


def seen_by_others(folder: Path) -> list[str]:
    """Returns the content of a folder that an unprivileged user can find."""
    words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "find", folder, "-mindepth", "1")
    return work(*words, check=False).stdout.splitlines()


def test_no_other_user_can_open_anything_while_it_is_restored(nights: Nights, public_folder: Path) -> None:
    """An unprivileged user tries every name again and again, in a folder that all users can enter."""
    hostile(nights)
    out, tried = public_folder / "out", 0

    def check_output(_: RestoreProgress) -> None:
        nonlocal tried
        if out.exists():
            tried += 1
            assert seen_by_others(public_folder) == [str(out)]

    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (b"/",), str(out))
        LocalRestore(tree, request, reflinks=False, tell=check_output).run(LocalRestore(tree, request, reflinks=False).preview())
    assert tried > 10


def test_an_acl_is_there_before_the_mode_that_needs_it(nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode's bits for the group are the ACL's mask: without the ACL the owning group would have them for a moment."""
    srv = nights.source / "srv"
    write(srv / "file", "secret", 0o600)
    work("setfacl", "-m", "user:4711:rw-", srv / "file")
    assert stat.S_IMODE((srv / "file").stat().st_mode) == 0o660
    nights.host("web1", srv)
    nights.run("web1")
    real, seen = Path.chmod, []

    def chmod(self: Path, mode: int, **more: bool) -> None:
        real(self, mode, **more)
        seen.append((mode, "system.posix_acl_access" in os.listxattr(self)))

    monkeypatch.setattr(Path, "chmod", chmod)
    restore(nights, "web1", srv / "file", "--to", tmp_path / "out")
    assert (0o660, True) in seen
    assert (0o660, False) not in seen
