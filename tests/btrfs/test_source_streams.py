"""btrkeep-source: streams of a host's subvolumes. Few snapshots are kept, of the right server; nothing else is sent."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backupd.source import btrkeep_source as program
from tests.beds import differences, manifest, work
from tests.beds.source_program import HIDDEN, SourceHost
from tests.beds.ssh import Sshd

KEEPER = "0123abcd"
KILLED = Path(__file__).resolve().parents[1] / "beds" / "source_killed.py"

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.btrfs]


@pytest.fixture
def host(sshd: Sshd) -> SourceHost:
    return SourceHost(sshd)


@pytest.fixture
def tree(btrfs_mount: Path) -> Path:
    """A subvolume of the host, which is not mounted separately."""
    work("btrfs", "-q", "subvolume", "create", btrfs_mount / "srv")
    (btrfs_mount / "srv/page").write_text("first")
    return btrfs_mount / "srv"


def begin(
    host: SourceHost, *paths: Path, have: tuple[str, ...] = (), server: str = "office", keeper: str = KEEPER, keep: str = ""
) -> list[dict[str, Any]]:
    words = [
        "btrkeep-source",
        "send-begin",
        "--for",
        *keeper.split(),
        *(("--keep", keep) if keep else ()),
        *(word for each in have for word in ("--have", each)),
        "--",
        *map(str, paths),
    ]
    answer = json.loads(host.request(shlex.join(words), server).stdout)
    assert answer["format"] == 1
    return list(answer["paths"])


def send(host: SourceHost, *words: str, server: str = "office") -> bytes:
    command = [*host.ssh(server), host.sshd.address, shlex.join(["btrkeep-source", "send", *words])]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept(tree: Path) -> list[str]:
    return sorted(path.name for path in (tree / HIDDEN).iterdir()) if (tree / HIDDEN).exists() else []


def receive(stream: bytes, into: Path, name: str) -> Path:
    """Returns the result of `btrfs receive`."""
    (into / name).mkdir()
    subprocess.run(["btrfs", "-q", "receive", into / name], input=stream, check=True)
    (received,) = (into / name).iterdir()
    return received


def test_a_stream_and_the_difference_to_it_are_those_of_btrfs_send(host: SourceHost, tree: Path, shared_btrfs: Path) -> None:
    (first,) = begin(host, tree)
    assert (first["path"], first["parent"], first["left_out"]) == (str(tree), None, [])
    (tree / "page").write_text("later")
    complete = receive(send(host, "--", first["id"], str(tree)), shared_btrfs, "one")
    assert (complete / "page").read_text() == "first"
    (second,) = begin(host, tree, have=(first["id"],))
    assert second["parent"] == first["id"]
    stream = send(host, "--parent", first["id"], "--", second["id"], str(tree))
    assert len(stream) < 2000
    two = receive(stream, shared_btrfs, "two")
    assert [line for line in differences(manifest(tree), manifest(two)) if HIDDEN not in line] == []


def test_one_request_has_the_answer_and_the_stream(host: SourceHost, tree: Path, shared_btrfs: Path) -> None:
    words = ["btrkeep-source", "send-begin", "--for", KEEPER, "--send", "--plain", "--", str(tree)]
    command = [*host.ssh(), host.sshd.address, shlex.join(words)]
    done = subprocess.run(command, capture_output=True, check=True)
    line, _, stream = done.stdout.partition(b"\n")
    (answer,) = json.loads(line)["paths"]
    assert (receive(stream, shared_btrfs, "one") / "page").read_text() == "first"
    (tree / "page").write_text("second")
    (second,) = begin(host, tree, have=(answer["id"],))
    assert second["parent"] == answer["id"]
    assert "a single path" in host.refusal(f"btrkeep-source send-begin --for 0123abcd --send -- {tree} {tree.parent}")


def test_at_most_two_snapshots_of_a_server_stay(host: SourceHost, tree: Path) -> None:
    ids = list[str]()
    for number in range(4):
        (tree / "page").write_text(f"night {number}")
        ids.append(begin(host, tree, have=tuple(ids[-1:]))[0]["id"])
        assert len(kept(tree)) == min(2, number + 1)
    # A night that failed: the server still has the one before it.
    (again,) = begin(host, tree, have=(ids[2],))
    assert again["parent"] == ids[2]
    assert len(kept(tree)) == 2
    (lost,) = begin(host, tree, have=(ids[0],))
    assert lost["parent"] is None
    assert len(kept(tree)) == 1


def earlier(tree: Path, *days: str) -> None:
    """Makes snapshots as earlier nights have left them."""
    for day in days:
        work("btrfs", "-q", "subvolume", "snapshot", "-r", tree, tree / HIDDEN / f"office={KEEPER}={day}-000001")


def test_a_local_history_stays_by_the_servers_rules_within_the_hosts_limit(host: SourceHost, tree: Path) -> None:
    days = ("20261001T120000Z", "20261002T120000Z", "20261002T180000Z", "20261003T120000Z", "20261004T120000Z")
    host.config.write_text("[snapshots]\nhistory = 9\n")
    (first,) = begin(host, tree)
    earlier(tree, *days)
    (second,) = begin(host, tree, have=(first["id"],), keep="daily=4")  # today, and the three newest of those days
    assert (second["parent"], second["history"], second["not_kept"]) == (first["id"], 3, 0)
    assert [name.split("=")[2][:16] for name in kept(tree)][:3] == [days[1], days[3], days[4]]
    host.config.write_text("[snapshots]\nhistory = 1\n")
    (third,) = begin(host, tree, have=(second["id"],), keep="daily=4,yearly=1")
    assert (third["parent"], third["history"], third["not_kept"]) == (second["id"], 1, 3)
    assert len(kept(tree)) == 3
    host.config.write_text("")
    (fourth,) = begin(host, tree, have=(third["id"],), keep="daily=4")
    assert (fourth["history"], len(kept(tree))) == (0, 2)


def test_a_local_history_older_than_30_days_stays_while_the_path_is_backed_up(host: SourceHost, tree: Path) -> None:
    host.config.write_text("[snapshots]\nhistory = 9\n")
    begin(host, tree)
    earlier(tree, "20200101T120000Z")
    begin(host, tree, keep="yearly=3", keeper=KEEPER)
    begin(host, tree, keeper="00000002")
    work(*host.words(), "clean")
    assert f"office={KEEPER}=20200101T120000Z-000001" in kept(tree)


def test_a_kill_in_any_step_leaves_at_most_two_snapshots_after_the_next_request(host: SourceHost, tree: Path) -> None:
    """Each third step: a start of the program takes long."""
    (first,) = begin(host, tree)
    line = {"SSH_ORIGINAL_COMMAND": f"btrkeep-source send-begin --for {KEEPER} --have {first['id']} -- {tree}"}
    for step in range(1, 1000, 3):
        if work(sys.executable, KILLED, str(step), *host.words(), env=line, check=False).returncode != -9:
            break
        (answer,) = begin(host, tree, have=(first["id"],))
        assert answer["parent"] == first["id"], f"killed at step {step}"
        assert len(kept(tree)) == 2, f"killed at step {step}"
    assert 20 < step < 1000


def test_the_snapshots_of_a_renamed_entry_count_as_its_own(host: SourceHost, tree: Path) -> None:
    host.config.write_text("[snapshots]\nhistory = 9\n")
    begin(host, tree)  # of another one: it stays
    (first,) = begin(host, tree, keeper="00000001")
    (second,) = begin(host, tree, have=(first["id"],), keeper="00000001 --for 00000002")
    assert second["parent"] == first["id"]
    begin(host, tree, have=(second["id"],), keeper="00000001 --for 00000002")
    assert [name.split("=")[1] for name in kept(tree)] == ["00000002", "00000002", KEEPER]


def test_after_a_rename_the_newest_history_stays(host: SourceHost, tree: Path) -> None:
    host.config.write_text("[snapshots]\nhistory = 1\n")
    (first,) = begin(host, tree)
    earlier(tree, "20261001T120000Z")
    newer = "office=00000002=20261002T120000Z-000001"
    work("btrfs", "-q", "subvolume", "snapshot", "-r", tree, tree / HIDDEN / newer)
    begin(host, tree, have=(first["id"],), keep="daily=9", keeper=f"{KEEPER} --for 00000002")
    assert newer in kept(tree)


def test_an_old_parent_stays_where_its_subvolume_is_mounted_twice(tree: Path, tmp_path: Path) -> None:
    program.keep_snapshot(str(tree), "office", program.stream_words(["--for", KEEPER]), 0)
    (name,) = kept(tree)
    (tree / HIDDEN / name).rename(tree / HIDDEN / f"office={KEEPER}=20200101T120000Z-000001")
    work("mount", "--bind", tree, tmp_path)
    try:
        mounts = [mount for mount in program.read_mounts() if mount.point in (str(tree.parent), str(tmp_path))]
        assert len(mounts) == 2
        program.remove_old_kept(mounts, "office", [KEEPER], [str(tmp_path)])
        assert len(kept(tree)) == 1
    finally:
        work("umount", tmp_path)


def test_a_file_longer_than_its_compressed_inline_data_keeps_its_length(host: SourceHost, tree: Path, shared_btrfs: Path) -> None:
    """Linux 6.18 sends 500 bytes, and not the length."""
    work("btrfs", "property", "set", tree, "compression", "zstd")
    (first,) = begin(host, tree)
    sizes = {"one": 2047, "other": 4096, "longer": 5000}
    for name, size in sizes.items():
        (tree / name).write_bytes(b"abc\n" * 125)
        os.sync()
        work("fallocate", "-l", str(size), tree / name)
    (second,) = begin(host, tree, have=(first["id"],))
    receive(send(host, "--", first["id"], str(tree)), shared_btrfs, "parent")
    for name, words in {"complete": (), "difference": ("--parent", first["id"])}.items():
        got = receive(send(host, *words, "--", second["id"], str(tree)), shared_btrfs, name)
        assert {name: (got / name).stat().st_size for name in sizes} == sizes


def test_two_servers_have_their_own_snapshots(host: SourceHost, tree: Path) -> None:
    (office,) = begin(host, tree)
    (home,) = begin(host, tree, server="home", have=(office["id"],))
    assert home["parent"] is None
    assert [name.partition("=")[0] for name in kept(tree)] == ["home", "office"]
    assert "is gone" in host.refusal(f"btrkeep-source send -- {office['id']} {tree}", server="home")
    assert "is gone" in host.refusal(f"btrkeep-source send --parent {office['id']} -- {home['id']} {tree}", server="home")


def test_keepers_have_their_own_snapshots_and_are_few(host: SourceHost, tree: Path) -> None:
    ids = {keeper: begin(host, tree, keeper=keeper)[0]["id"] for keeper in ("00000001", "00000002", "00000003")}
    for keeper, identity in ids.items():
        assert begin(host, tree, have=(identity,), keeper=keeper)[0]["parent"] == identity
    (moved,) = begin(host, tree, have=(ids["00000001"],), keeper="00000004")  # the pool is on another server now
    assert moved["parent"] == ids["00000001"]
    assert "already has snapshots for 4 other backups" in host.refusal(f"btrkeep-source send-begin --for 00000005 -- {tree}")
    assert len(kept(tree)) == 7


def test_sessions_and_streams_do_not_remove_each_others_snapshots(host: SourceHost, btrfs_mount: Path, tree: Path) -> None:
    (first,) = begin(host, tree)
    session = host.begin(tree)["session"]
    assert begin(host, tree, have=(first["id"],))[0]["parent"] == first["id"]
    host.end(session)
    assert host.begin(tree)["session"]
    assert len(kept(tree)) == 2


def test_nested_subvolumes_are_named(host: SourceHost, tree: Path) -> None:
    work("btrfs", "-q", "subvolume", "create", tree / "inner")
    for _ in range(2):
        (answer,) = begin(host, tree)
        assert (answer["left_out"], answer["left_out_count"]) == (["inner"], 1)


def test_what_is_no_writable_subvolume_is_refused(host: SourceHost, btrfs_mount: Path, tree: Path, tmp_path: Path) -> None:
    (tree / "folder").mkdir()
    (btrfs_mount / "way").symlink_to(tree)
    work("btrfs", "-q", "subvolume", "snapshot", "-r", tree, btrfs_mount / "still")
    for path in (tree / "folder", tmp_path, btrfs_mount / "still"):
        assert "is not a writable subvolume" in host.refusal(f"btrkeep-source send-begin --for 0123abcd -- {tree} {path}")
    assert "cannot be sent" in host.refusal(f"btrkeep-source send-begin --for 0123abcd -- {btrfs_mount / 'way'}")
    assert "cannot be sent" in host.refusal(f"btrkeep-source send-begin --for 0123abcd -- {btrfs_mount / 'none'}")
    assert kept(tree) == []


def test_only_allowed_paths_and_known_words_are_sent(host: SourceHost, btrfs_mount: Path, tree: Path) -> None:
    (answer,) = begin(host, tree)
    own = answer["id"]
    for words in (
        "send-begin",
        "send-begin --for 0123abcd --",
        f"send-begin -- {tree}",
        f"send-begin --for ../x -- {tree}",
        f"send-begin --for 0123abcd --have x -- {tree}",
        f"send-begin --other -- {tree}",
        f"send-begin --for 0123abcd --keep 5 -- {tree}",
        f"send-begin --for 0123abcd --keep daily=1,hourly=5 -- {tree}",
        f"send-begin --for 0123abcd --keep daily=$(id) -- {tree}",
        f"send-begin --for 0123abcd -- {tree}/../srv",
        "send",
        f"send -- {own}",
        f"send -- {tree} {own}",
        f"send -- {own} {tree} {tree}",
        f"send --parent {own} --parent {own} -- {own} {tree}",
        f"send -- {own} {btrfs_mount}",
        f"send -- {'0' * 8}-0000-0000-0000-{'0' * 12}:1:{'0' * 8}-0000-0000-0000-{'0' * 12} {tree}",
    ):
        host.refusal(f"btrkeep-source {words}")
    host.config.write_text(f"[paths]\nallow = {btrfs_mount}/other\n")
    assert "is not one of the allowed paths" in host.refusal(f"btrkeep-source send -- {own} {tree}")
    assert "is not one of the allowed paths" in host.refusal(f"btrkeep-source send-begin --for 0123abcd -- {tree}")
    host.config.write_text("[snapshots]\nmethods = lvm\n")
    assert "streams are not allowed" in host.refusal(f"btrkeep-source send-begin --for 0123abcd -- {tree}")


def test_the_snapshots_of_a_path_that_is_no_longer_backed_up_are_removed(host: SourceHost, btrfs_mount: Path, tree: Path) -> None:
    """After 30 days, by `clean`; also those of a subvolume that is not mounted by itself."""
    begin(host, btrfs_mount, tree)
    for top in (btrfs_mount, tree):
        for day in ("20200101", "20200201"):
            work("btrfs", "-q", "subvolume", "snapshot", "-r", top, top / HIDDEN / f"office=99999999={day}T000000Z-000001")
    work(*host.words(), "clean")
    assert [len(kept(top)) for top in (btrfs_mount, tree)] == [1, 1]
    assert not [name for top in (btrfs_mount, tree) for name in kept(top) if "=2020" in name]


def test_a_snapshot_that_users_put_into_the_folder_is_not_sent(host: SourceHost, btrfs_mount: Path, tree: Path) -> None:
    """A snapshot of another subvolume, or a writable one, with a name of ours."""
    (own,) = begin(host, tree)
    (btrfs_mount / "secret").write_text("of the outer subvolume")
    work("btrfs", "-q", "subvolume", "snapshot", "-r", btrfs_mount, tree / HIDDEN / "office=0123abcd=20260101T000000Z-000001")
    work("btrfs", "-q", "subvolume", "snapshot", tree, tree / HIDDEN / "office=0123abcd=20260101T000000Z-000002")
    (tree / HIDDEN / "office=0123abcd=20260101T000000Z-000003").symlink_to(btrfs_mount)
    shown = work("btrfs", "subvolume", "show", tree / HIDDEN / "office=0123abcd=20260101T000000Z-000001").stdout
    words = {line.partition(":")[0].strip(): line.split()[-1] for line in shown.splitlines()[1:]}
    for transid in range(int(words["Gen at creation"]) - 2, int(words["Gen at creation"]) + 2):
        assert "is gone" in host.refusal(f"btrkeep-source send -- {words['UUID']}:{transid}:{words['UUID']} {tree}")
    assert begin(host, tree, have=(own["id"],))[0]["parent"] == own["id"]


def test_a_stream_without_a_reader_leaves_no_process_and_no_lock(host: SourceHost, tree: Path) -> None:
    (tree / "big").write_bytes(b"0123456789abcdef" * (1 << 20))
    (first,) = begin(host, tree)
    words = ["btrkeep-source", "send", "--", first["id"], str(tree)]
    process = subprocess.Popen([*host.ssh(), host.sshd.address, shlex.join(words)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(100).startswith(b"btrfs-stream")
    process.kill()
    process.communicate()
    for _ in range(20):
        done = host.request(shlex.join(["btrkeep-source", "send-begin", "--for", KEEPER, "--", str(tree)]), check=False)
        if done.returncode == 0:
            break
        assert "is still being sent" in done.stderr
    assert done.returncode == 0, done.stderr
    assert len(kept(tree)) == 1


def test_a_subvolume_that_was_received_is_known_by_its_own_snapshots(host: SourceHost, btrfs_mount: Path, tree: Path) -> None:
    """All its snapshots have the same UUID in a stream."""
    work("btrfs", "-q", "subvolume", "snapshot", "-r", tree, btrfs_mount / "origin")
    (btrfs_mount / "restored").mkdir()
    line = (
        f"btrfs -q send {shlex.quote(str(btrfs_mount / 'origin'))} | btrfs -q receive {shlex.quote(str(btrfs_mount / 'restored'))}"
    )
    work("sh", "-c", line)
    restored = btrfs_mount / "restored/origin"
    work("btrfs", "property", "set", "-f", restored, "ro", "false")
    ids = list[str]()
    for number in range(3):
        (restored / "page").write_text(f"night {number}")
        work("btrfs", "filesystem", "sync", btrfs_mount)
        (answer,) = begin(host, restored, have=tuple(ids[-1:]))
        assert answer["parent"] == (ids[-1] if ids else None)
        ids.append(answer["id"])
    stream = send(host, "--parent", ids[1], "--", ids[2], str(restored))
    assert b"night 2" in stream
    # After the host was restored from an image, the same transaction may have made another snapshot of that UUID.
    forged = f"{ids[2].rpartition(':')[0]}:{ids[0].rpartition(':')[2]}"
    assert begin(host, restored, have=(forged,))[0]["parent"] is None
