"""Runs of a host with `engine = "send"`: its btrkeep-source behind a real sshd, its subvolume on a separate btrfs."""

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import differences, exclusive_bytes, manifest, work
from tests.beds import send_stream as made
from tests.beds.faults import failing_disk
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd
from tests.beds.stream_host import Web1
from tests.beds.watch import killed

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def web1(nights: Nights, sshd: Sshd, btrfs_mount: Path) -> Web1:
    return Web1(nights, sshd, btrfs_mount)


def test_the_second_night_brings_only_the_difference(web1: Web1) -> None:
    web1.run()
    assert web1.differences() == []
    first = web1.path()
    assert first["numbers"]["received"] > 4 << 20
    (web1.srv / "www/page").write_text("second")
    (web1.srv / "big").rename(web1.srv / "www/large")
    web1.run()
    assert web1.differences() == []
    second = web1.path()
    assert second["numbers"]["received"] < 10_000
    assert second["consistency"]["kind"] == "snapshot"
    assert second["stream"] != first["stream"]
    assert web1.nights.backupd("log", "web1").stdout.count("send 0: complete") == 2
    assert web1.nights.grew_from("web1") == web1.nights.names("web1")[0]
    assert len(web1.kept()) == 2
    for name in ("files", "regular", "bytes"):
        assert second["numbers"][name] >= first["numbers"][name] - 10
    links = (web1.nights.data("web1", web1.srv) / "www/page").stat().st_nlink
    assert links == 2


def test_a_backup_whose_changes_were_accepted_is_no_parent(web1: Web1) -> None:
    """The host sends the changes since its snapshot; manual changes of the backup would remain for ever."""
    web1.run()
    (name,) = web1.nights.names("web1")
    backup = web1.nights.data("web1", web1.srv, name)
    top = web1.nights.top / "pool" / "hosts" / "web1" / name
    top = top if top.exists() else next(folder for folder in backup.parents if folder.name == name)
    work("btrfs", "property", "set", top, "ro", "false")
    (backup / "second-name").unlink()
    (backup / "big").write_bytes(b"changed by hand")
    work("btrfs", "property", "set", top, "ro", "true")
    web1.nights.backupd("verify", "web1", check=False)
    web1.nights.backupd("accept", "web1", name)
    web1.run()
    assert web1.differences() == []
    assert web1.path()["numbers"]["received"] > 4 << 20


def test_the_top_of_a_new_path_inherits_no_acl_of_the_folders_above(web1: Web1) -> None:
    """rsync brings the ACLs of the folders above; the stream of a subvolume without an ACL has no command that removes one."""
    new = web1.top / "new"
    work("btrfs", "-q", "subvolume", "create", new)
    (new / "file").write_text("x")
    work("setfacl", "-d", "-m", "u:1234:rwx", web1.top)
    web1.configure(engine="rsync")
    web1.run()
    web1.configure(web1.srv, new)
    web1.run()
    backup = web1.nights.data("web1", new)
    assert "1234" in work("getfacl", "-p", "-n", backup.parent).stdout
    assert "1234" not in work("getfacl", "-p", "-n", backup).stdout
    assert web1.differences() == []


def test_new_files_have_the_compression_of_the_folder_in_the_pool(web1: Web1) -> None:
    work("btrfs", "property", "set", web1.nights.pool / "hosts", "compression", "zstd")
    web1.run()
    shown = work("btrfs", "property", "get", web1.nights.data("web1", web1.srv) / "www/page", "compression").stdout
    assert shown == "compression=zstd\n"


def test_two_paths_of_one_subvolume_are_refused_with_both_names(web1: Web1, tmp_path: Path) -> None:
    again = web1.top / "again"
    again.mkdir()
    work("mount", "--bind", web1.srv, again)
    try:
        web1.configure(web1.srv, again)
        error = web1.run("failed")["error"]
    finally:
        work("umount", again)
    assert f"{again} is the same subvolume as {web1.srv}" in error


def test_compressed_data_that_the_disk_did_not_store_are_no_complete_backup(sshd: Sshd, make_btrfs: Callable[..., Path]) -> None:
    """The kernel counts such a failed write, but no call reports it."""
    top = make_btrfs(size="300M", options="compress-force=zstd")
    with failing_disk() as disk:
        web1 = Web1(Nights(disk.point), sshd, top)
        (web1.srv / "text").write_bytes(b"".join(b"%d compressible words " % number for number in range(50_000)))
        (web1.srv / "big").unlink()  # its data is not compressed
        disk.fail()
        assert "Input/output error" in web1.run("failed")["error"]
        assert disk.failed_writes() > 0
        disk.flag.unlink()
        web1.run()
        disk.read_again()
        assert web1.differences() == []


def test_a_host_changes_from_rsync_to_send_and_back_and_shares_its_data(web1: Web1) -> None:
    web1.configure(engine="rsync")
    web1.run()
    web1.configure()
    web1.run()
    assert web1.differences() == []
    assert web1.nights.record("web1")["shared_bytes"] >= 4 << 20
    assert exclusive_bytes(web1.nights.backup("web1")) < 1 << 20
    (web1.srv / "www/page").write_text("third")
    web1.run()
    assert web1.path()["numbers"]["received"] < 10_000
    web1.configure(engine="rsync")
    (web1.srv / "www/page").write_text("fourth")
    web1.run()
    assert web1.differences() == []
    assert "stream" not in web1.path()
    web1.configure()
    web1.run()
    assert web1.path()["numbers"]["received"] > 4 << 20  # the base did not come by stream
    assert web1.differences() == []


def test_a_snapshot_that_the_host_lost_means_a_complete_stream(web1: Web1) -> None:
    web1.run()
    for path in web1.kept():
        work("btrfs", "-q", "subvolume", "delete", path)
    (web1.srv / "www/page").write_text("second")
    web1.run()
    assert web1.differences() == []
    assert web1.path()["numbers"]["received"] > 4 << 20
    assert exclusive_bytes(web1.nights.backup("web1")) < 1 << 20


def test_a_subvolume_that_was_rolled_back_is_sent_completely(web1: Web1) -> None:
    work("btrfs", "-q", "subvolume", "snapshot", web1.srv, web1.top / "before")
    (web1.srv / "www/page").write_text("second")
    web1.run()
    web1.srv.rename(web1.top / "rolled-back")
    (web1.top / "before").rename(web1.srv)
    web1.run()
    assert web1.differences() == []
    assert (web1.nights.data("web1", web1.srv) / "www/page").read_text() == "first"


def test_a_night_that_failed_leaves_nothing_and_the_next_one_goes_on(web1: Web1) -> None:
    web1.run()
    (web1.srv / "other").write_bytes(b"1" * (3 << 20))
    web1.configure(max_new_bytes="1MiB")
    result = web1.run("partial")
    assert "max_new_bytes" in result["error"]
    assert not (web1.nights.pool / "hosts/web1/.working").exists()
    web1.configure()
    web1.run()
    assert web1.differences() == []
    assert web1.path()["numbers"]["received"] < 4 << 20
    assert len(web1.kept()) == 2


def test_max_files_holds_for_a_stream(web1: Web1) -> None:
    web1.run()
    for number in range(30):
        (web1.srv / f"new{number}").touch()
    web1.configure(max_files=20)
    assert "max_files" in web1.run("partial")["error"]


def test_a_run_that_is_killed_anywhere_is_followed_by_a_good_one(web1: Web1) -> None:
    web1.run()
    (web1.srv / "www/page").write_text("second")
    for point in ("host's snapshots for streams made", "rsync ended", "working subvolume named"):
        killed(web1.nights, "after", point, "run", "web1")
    web1.run()
    assert web1.differences() == []
    assert len(web1.kept()) == 2


def test_what_the_configuration_cannot_have_with_streams_is_refused(web1: Web1) -> None:
    for keys, words in (
        ({"exclude": ["*.iso"]}, "a stream contains the whole subvolume"),
        ({"exclude": [f"{web1.srv}/www"]}, "a stream contains the whole subvolume"),
        ({"rsync_path": "sudo rsync"}, "remove rsync_path"),
        ({"address": None, "port": None}, "has no address"),
    ):
        sshd = web1.program.sshd
        given = {"address": sshd.address, "port": sshd.port, "engine": "send", **keys}
        web1.nights.host("web1", web1.srv, **given)
        done = web1.nights.backupd("check", check=False)
        assert words in done.stdout + done.stderr
    web1.configure(exclude=["/elsewhere/*"])
    web1.run()


def test_the_folders_above_a_path_have_the_hosts_attributes(web1: Web1) -> None:
    outer = web1.top / "outer"
    outer.mkdir()
    work("btrfs", "-q", "subvolume", "create", outer / "inner")
    (outer / "inner/file").touch()
    os.chown(outer, 7, 8)
    outer.chmod(0o2750)
    os.utime(outer, ns=(0, 10**18))
    web1.configure(web1.srv, outer / "inner")
    web1.run()
    for _ in range(2):
        status = web1.nights.data("web1", outer).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777, status.st_mtime_ns) == (7, 8, 0o2750, 10**18)
        web1.run()
    dry = web1.nights.json("run", "--dry-run", "web1")
    assert "send --parent PARENT" in dry[0]["commands"][0][-1]


def test_nested_subvolumes_are_named_in_the_backup(web1: Web1) -> None:
    work("btrfs", "-q", "subvolume", "create", web1.srv / "inner")
    assert any("inner" in line for line in web1.run()["warnings"])


def test_a_path_that_is_no_subvolume_fails_with_advice(web1: Web1) -> None:
    web1.configure(web1.srv / "www")
    result = web1.run("failed")
    assert "is not a writable subvolume of btrfs; back it up with rsync" in result["error"]
    assert not (web1.nights.pool / "hosts/web1/.working").exists()


OWN = "00000000-0000-0000-0000-000000000001"
HOST = """#!/bin/sh
for line; do :; done
case $line in
    *" send-begin "*) cat {answer} {stream} {then} ;;
esac
"""


class HostileHost:
    """A host that replaces btrkeep-source, and sends any answers and data."""

    def __init__(self, nights: Nights) -> None:
        self.nights, self.top = nights, nights.top / "hostile"
        self.top.mkdir()
        self.answer, self.stream = self.top / "answer", self.top / "stream"
        entry: dict[str, Any] = {"path": "/srv", "id": f"{OWN}:5:{OWN}", "parent": None, "taken": "2026-11-30T12:00:00Z"}
        entry |= {"left_out": [], "left_out_count": 0, "above": []}
        self.answer.write_text(json.dumps({"format": 1, "stream": 1, "dumps": [], "paths": [entry]}) + "\n")
        nights.host("bad", "/srv", engine="send")
        self.sends()

    def sends(self, *commands: bytes, then: str = "") -> None:
        """Makes it send this from now on; `then`: the shell command at the end of the stream's bytes."""
        whole = struct.pack("<13sI", b"btrfs-stream", 1) + made.subvolume(b"x", OWN) + b"".join(commands)
        self.stream.write_bytes(whole + (b"" if then else made.command(21)))
        script = self.top / "ssh"
        script.write_text(HOST.format(answer=self.answer, stream=self.stream, then=then))
        script.chmod(0o755)
        self.nights.settings("ssh", command=str(script))

    def pool(self) -> dict[str, tuple[int, int, int]]:
        """Returns everything in the pool, except the files that a run itself writes."""
        paths = [path for path in self.nights.pool.rglob("*") if ".btrkeep" not in path.parts]
        stats = {str(path): path.lstat() for path in paths if path.name not in ("bad", "hosts", "notes.json")}
        return {name: (status.st_mode, status.st_size, status.st_mtime_ns) for name, status in stats.items()}


def test_hostile_streams_fail_and_write_nothing_outside(nights: Nights) -> None:
    nights.host("good", nights.source)
    (nights.source / "file").write_text("of another host")
    nights.run("good")
    hostile = HostileHost(nights)
    hostile.sends(made.file(b"file", b"words"))
    assert nights.run("bad")["bad"]["outcome"] == "complete"
    assert (nights.data("bad", "/srv") / "file").read_text() == "words"
    before = hostile.pool()
    good = str(nights.backup("good")).encode()
    for commands in (
        (made.file(b"../../notes.json", b"x"),),
        (made.file(b"/etc/btrkeep-test", b"x"),),
        (made.symlink(b"way", good), made.file(b"way/x", b"x")),
        (made.symlink(b"way", b"../../../../good"), made.command(9, (15, b"way/latest"), (16, b"taken"))),
        (made.node(b"disk", 0o060600, os.makedev(7, 0)), made.write(b"disk", b"x")),
        (made.file(b"file", b"x" * 4096), made.clone(b"file", OWN, b"../../../../good/latest/backup.json")),
        (made.command(22, (15, b"file")),),
    ):
        hostile.sends(*commands)
        result = nights.run("bad", status=1)["bad"]
        assert result["outcome"] == "failed"
        assert "the host's stream could not be applied" in result["error"]
        assert re.search(r"; send [34]$", nights.backupd("log", "bad").stdout.split("\n    ")[0], re.MULTILINE)
        assert hostile.pool() == before
    assert not Path("/etc/btrkeep-test").exists()


def test_a_host_that_stops_in_the_middle_of_a_stream_is_ended_and_leaves_nothing(nights: Nights) -> None:
    hostile = HostileHost(nights)
    before = hostile.pool()
    hostile.sends(made.file(b"file", b"words"), then="; exit 255")
    assert nights.run("bad", status=1)["bad"]["outcome"] in ("partial", "failed")
    assert hostile.pool() == before
    hostile.sends(made.file(b"file", b"words"), then="; exec sleep 600")
    nights.settings("backup", stall="2s")
    result = nights.run("bad", status=1)["bad"]
    assert "no progress" in result["error"]
    assert hostile.pool() == before


def test_a_difference_that_does_not_fit_is_followed_by_a_complete_stream(nights: Nights) -> None:
    """In the same run. Nothing of the first stream is left."""
    hostile = HostileHost(nights)
    hostile.sends(made.file(b"file", b"words"))
    nights.run("bad")
    entry = json.loads(hostile.answer.read_text())
    identity = nights.record("bad")["paths"][0]["stream"]
    first = made.command(2, (15, b"x"), (1, bytes(15) + b"\1"), (2, made.number(6)), (20, bytes(15) + b"\1"), (21, made.number(5)))
    difference = struct.pack("<13sI", b"btrfs-stream", 1) + first + made.file(b"other", b"1") + made.command(11, (15, b"none"))
    whole = hostile.stream.read_bytes().replace(
        made.subvolume(b"x", OWN), made.command(1, (15, b"x"), (1, bytes(15) + b"\1"), (2, made.number(6)))
    )
    hostile.stream.write_bytes(whole)
    (hostile.top / "difference").write_bytes(difference + made.command(21))
    entry["paths"][0] |= {"id": f"{OWN}:6:{OWN}", "parent": identity}
    (hostile.top / "with-parent").write_text(json.dumps(entry) + "\n")
    entry["paths"][0]["parent"] = None
    hostile.answer.write_text(json.dumps(entry) + "\n")
    script = (hostile.top / "ssh").read_text()
    cases = f'*" --have "*) cat {hostile.top}/with-parent {hostile.top}/difference ;;\n'
    (hostile.top / "ssh").write_text(script.replace("case $line in\n", f"case $line in\n{cases}"))
    result = nights.run("bad")["bad"]
    assert result["outcome"] == "complete"
    assert [path.name for path in nights.data("bad", "/srv").iterdir()] == ["file"]
    assert nights.record("bad")["paths"][0]["stream"] == f"{OWN}:6:{OWN}"


def test_a_pool_that_cannot_store_compressed_data_gets_it_uncompressed(make_btrfs: Callable[..., Path], sshd: Sshd) -> None:
    nights = Nights(make_btrfs(size="400M", options="nodatasum"))
    web1 = Web1(nights, sshd, make_btrfs(size="400M", options="compress-force=zstd"))
    (web1.srv / "text").write_bytes(b"compressible words " * 100_000)
    for _ in range(2):
        done = nights.backupd("run", "--json", "web1")
        assert "requesting another one" not in done.stderr  # one stream a night
        assert json.loads(done.stdout)[0]["outcome"] == "complete"
        assert web1.differences() == []
        (web1.srv / "more").write_bytes(b"other compressible words " * 100_000)
    assert web1.path()["numbers"]["received"] < 4 << 20


def test_two_entries_with_one_path_keep_their_own_snapshots(web1: Web1) -> None:
    """And so do two servers with the same --server in their keys: the pool is in the name, too."""
    sshd = web1.program.sshd
    web1.nights.host("web2", web1.srv, address=sshd.address, port=sshd.port, engine="send")
    for number in range(3):
        (web1.srv / "www/page").write_text(f"night {number}")
        for host in ("web1", "web2"):
            web1.nights.run(host)
            assert number == 0 or web1.nights.record(host)["paths"][0]["numbers"]["received"] < 10_000
    assert len(web1.kept()) == 4


def test_check_names_a_path_that_cannot_be_sent(web1: Web1) -> None:
    done = web1.nights.backupd("check", "--connect", check=False)
    assert "is not a writable subvolume" not in done.stdout
    work("btrfs", "-q", "subvolume", "create", web1.top / "home")
    web1.configure(web1.top / "home", web1.srv / "www")
    done = web1.nights.backupd("check", "--connect", check=False)
    assert f"{web1.srv}/www is not a writable subvolume of btrfs" in " ".join(done.stdout.split())
    assert f"{web1.top}/home is not" not in done.stdout
    assert done.returncode != 0


def test_a_stream_that_fills_the_pool_is_stopped_by_min_free(nights: Nights) -> None:
    hostile = HostileHost(nights)
    nights.settings("pool", min_free="99%")
    hostile.sends(made.file(b"file", b"words"))
    done = nights.backupd("run", "bad", check=False)
    assert done.returncode != 0
    assert "too little free space" in done.stdout + done.stderr


def test_such_backups_are_browsed_verified_restored_replicated_and_expired_like_others(
    web1: Web1, make_btrfs: Callable[..., Path]
) -> None:
    nights, page = web1.nights, str(web1.srv / "www/page")
    for number in range(3):
        (web1.srv / "www/page").write_text(f"night {number}")
        web1.run()
    first, _, last = nights.names("web1")
    entries = nights.json("browse", "web1", str(web1.srv))["entries"]
    assert sorted(entry["name"] for entry in entries) == ["big", "second-name", "www"]
    versions = nights.json("versions", "--content", "web1", page)["versions"]
    assert len(versions) == 3
    compared = nights.json("compare", "web1", str(web1.srv), first)
    assert "www/page" in json.dumps(compared)
    assert nights.backupd("verify", "web1").returncode == 0
    nights.backupd("restore", f"web1@{first}", str(web1.srv), "--to", nights.top / "restored")
    (restored,) = nights.top.glob("restored/**/www/page")
    assert restored.read_text() == "night 0"

    second = Nights(make_btrfs(size="500M"))
    second.tables["replica.office"] = {"from": str(nights.pool)}
    second.write()
    second.backupd("replicate")
    assert second.names("web1") == [first, nights.names("web1")[1], last]
    assert differences(manifest(nights.backup("web1")), manifest(second.backup("web1", last))) == []
    assert second.record("web1")["paths"] == nights.record("web1")["paths"]

    nights.backupd("delete", f"web1@{first}")
    nights.backupd("expire", "web1", "--skip-grace")
    assert nights.names("web1") == [nights.names("web1")[0], last]
    (web1.srv / "www/page").write_text("night 3")
    web1.run()
    assert web1.differences() == []
    assert web1.path()["numbers"]["received"] < 10_000
