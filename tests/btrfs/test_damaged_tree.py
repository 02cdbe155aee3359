"""Damaged metadata of a host's backups: the host becomes complete again, the others never notice, and nothing else is lost."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from btrkeep.fs.reflink import shared_pieces
from tests.beds import btrfs, work
from tests.beds.faults import damage, damage_metadata, leaves, put_right
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
FILES = 800


def of(nights: Nights, name: str) -> list[int]:
    """Returns the leaves of a backup, without the first one, which contains its own folder and record."""
    return leaves(nights.pool / "hosts/web" / name, nights.top)


def spoil(nights: Nights, which: str) -> str:
    """Damages metadata of the newest of two backups: all that is its `own`, `one` leaf of that, or one that both `share`.

    Returns the base that the next backup can have, "" for none.
    """
    first, last = nights.names("web")
    old, new = of(nights, first), of(nights, last)
    own = [number for number in new if number not in old]
    shared = [number for number in new if number in old]
    damage_metadata(nights.top, *{"own": own, "one": own[len(own) // 2 :][:1], "share": shared[len(shared) // 2 :][:1]}[which])
    return "" if which == "share" else first


def two_nights(make_btrfs: Callable[..., Path], tree: Path, which: str) -> Nights:
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    for number in range(FILES):
        (tree / f"file-{number:06}").write_bytes(b"%d" % number)
    nights.host("web", tree)
    nights.run("web")
    for number in range(1 if which == "share" else FILES):
        (tree / f"file-{number:06}").write_bytes(b"new %d" % number)
    nights.run("web")
    return nights


def mounted(nights: Nights) -> str:
    (line,) = (line for line in Path("/proc/mounts").read_text().splitlines() if f" {nights.top} " in line)
    return line


def record(nights: Nights, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((nights.pool / "hosts/web" / name / "backup.json").read_text())
    return answer


@pytest.mark.parametrize(("which", "is_true"), [("own", False), ("one", False), ("share", False), ("share", True)])
def test_a_host_whose_base_has_damaged_metadata_becomes_complete_in_the_next_night(
    make_btrfs: Callable[..., Path], tree: Path, which: str, is_true: bool
) -> None:
    nights = two_nights(make_btrfs, tree, which)
    nights.host("other", tree)
    last = nights.names("web")[1]
    base = spoil(nights, which)
    (tree / "file-000005").write_bytes(os.urandom(50))
    if is_true:
        assert nights.backupd("verify", check=False).returncode == 1
    done = nights.run("web", "other")
    assert (done["other"]["outcome"], done["web"]["outcome"]) == ("complete", "complete")
    assert nights.differences("web", tree) == []
    made = record(nights, nights.names("web")[2])
    assert (made["base"] or "", made["unread_bases"]) == (base, [last] if base else nights.names("web")[:2])
    assert any(last in warning for warning in record(nights, nights.names("web")[2])["warnings"])
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert "unread_bases" not in record(nights, nights.names("web")[3])
    assert " rw," in mounted(nights)


def test_a_first_copy_in_the_place_of_damaged_backups_goes_on_after_it_was_cut_off(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = two_nights(make_btrfs, tree, "share")
    spoil(nights, "share")
    assert nights.backupd("verify", check=False).returncode == 1  # so the base is known before rsync starts
    (tree / "large").write_bytes(os.urandom(20 << 20))
    nights.host("web", tree, deadline="8s", bandwidth="2M")
    done = nights.run("web", status=1)["web"]
    assert done["outcome"] == "partial"
    arrived = work("btrfs", "subvolume", "show", nights.pool / "hosts/web/.working").stdout
    nights.host("web", tree)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    final = work("btrfs", "subvolume", "show", nights.pool / "hosts/web" / nights.names("web")[2]).stdout
    assert [line for line in arrived.splitlines() if "\tUUID" in line] == [line for line in final.splitlines() if "\tUUID" in line]


def test_the_oldest_backup_whose_metadata_is_damaged_is_kept_too(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = two_nights(make_btrfs, tree, "own")
    first, last = nights.names("web")
    newer = of(nights, last)
    own = [number for number in of(nights, first) if number not in newer]
    damage_metadata(nights.top, own[len(own) // 2])
    nights.backupd("delete", f"web@{first}", "--why", "a test")
    done = nights.backupd("expire", "web", "--skip-grace", check=False)
    assert (done.returncode, first in done.stdout) == (1, True)
    work("btrfs", "filesystem", "sync", nights.top)
    work("btrfs", "subvolume", "sync", nights.top)
    assert nights.names("web") == [first, last]
    assert " rw," in mounted(nights)


def test_damage_that_two_share_which_go_together_keeps_one_of_them(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = two_nights(make_btrfs, tree, "share")
    for number in range(FILES):
        (tree / f"file-{number:06}").write_bytes(b"newer %d" % number)
    nights.run("web")
    first, second, last = nights.names("web")
    staying = of(nights, last)
    shared = [number for number in of(nights, first) if number in of(nights, second) and number not in staying]
    damage_metadata(nights.top, shared[len(shared) // 2])
    for name in (first, second):
        nights.backupd("delete", f"web@{name}", "--why", "a test")
    for _ in range(2):
        done = nights.backupd("expire", "web", "--skip-grace", check=False)
        assert (done.returncode, first in done.stdout) == (1, True), done.stdout
        work("btrfs", "filesystem", "sync", nights.top)
        work("btrfs", "subvolume", "sync", nights.top)
        assert nights.names("web") == [first, last], done.stdout
        assert " rw," in mounted(nights)


@pytest.mark.parametrize("which", ["own", "one"])
def test_a_backup_whose_metadata_is_damaged_is_kept_since_its_deletion_would_make_the_pool_read_only(
    make_btrfs: Callable[..., Path], tree: Path, which: str
) -> None:
    nights = two_nights(make_btrfs, tree, which)
    nights.host("other", tree)
    nights.run("other")
    nights.run("other")
    spoil(nights, which)
    nights.run("web")
    first, damaged, last = nights.names("web")
    nights.backupd("delete", f"web@{first}", "--why", "a test", check=False)
    asked = nights.backupd("delete", f"web@{damaged}", "--why", "a test", check=False)
    assert ("is abandoned" in asked.stdout) == (which == "own")
    assert (asked.returncode, asked.stderr) == (0, "")
    nights.backupd("delete", f"other@{nights.names('other')[0]}", "--why", "a test")
    done = nights.backupd("expire", "web", "other", "--skip-grace", check=False)
    assert damaged in done.stdout
    assert done.returncode == (0 if which == "own" else 1)  # abandoned backups are reported, but do not fail a run
    work("btrfs", "filesystem", "sync", nights.top)
    work("btrfs", "subvolume", "sync", nights.top)
    assert nights.names("web") == [damaged, last]
    assert len(nights.names("other")) == 1
    assert " rw," in mounted(nights)
    assert nights.run("web")["web"]["outcome"] == "complete"


def expire(nights: Nights, *names: str) -> None:
    """Deletes these backups of web, and waits until the kernel has dropped as much as it can."""
    for name in names:
        nights.backupd("delete", f"web@{name}", "--why", "a test", check=False)
    nights.backupd("expire", "web", "--skip-grace", check=False)
    work("btrfs", "filesystem", "sync", nights.top, check=False)
    work("timeout", "30", "btrfs", "subvolume", "sync", nights.top, check=False)  # a read-only pool never ends it


def is_kept_with_its_own_damaged(nights: Nights, name: str) -> bool:
    """Damages metadata that no other backup of web shares with that one, and deletes it; whether that is kept."""
    others = {leaf for other in nights.names("web") if other != name for leaf in of(nights, other)}
    own = [leaf for leaf in of(nights, name) if leaf not in others]
    assert len(own) > 4
    damage_metadata(nights.top, own[len(own) // 2])
    expire(nights, name)
    return name in nights.names("web") and " rw," in mounted(nights)


def test_a_backup_that_did_not_grow_from_the_one_before_it_is_kept_when_its_metadata_is_damaged(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = two_nights(make_btrfs, tree, "share")
    first = nights.names("web")[0]
    before = nights.top / "before"
    work("cp", "-a", tree, before)
    for number in range(FILES):
        (tree / f"file-{number:06}").write_bytes(b"other %d" % number)
    nights.run("web")
    other = nights.names("web")[2]
    nights.backupd("delete", f"web@{other}", "--why", "a test")
    work("rsync", "-a", "--delete", f"{before}/", f"{tree}/")
    nights.run("web")
    second, branch = nights.names("web")[1], nights.names("web")[3]
    nights.backupd("unexpire", f"web@{other}")
    assert record(nights, branch)["ancestors"].keys() == {first, second}
    nights.run("web")
    expire(nights, first, second)
    expire(nights, nights.names("web")[-1])
    assert nights.names("web") == [other, branch]
    assert is_kept_with_its_own_damaged(nights, branch)


def test_a_backup_whose_base_has_changed_since_is_kept_when_its_metadata_is_damaged(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = Nights(make_btrfs(size="1G", mkfs=("-m", "single")))
    nights.host("web", tree)
    nights.host("other", tree)
    for number in range(200):
        (tree / f"file-{number:06}").write_bytes(os.urandom(9000))
    nights.run("other")
    for _ in range(3):
        (tree / "file-000000").write_bytes(os.urandom(9000))
        nights.run("web")
    first, base, last = nights.names("web")
    expire(nights, first)
    before = of(nights, base)
    for number in range(1, 200):  # as `backupd dedupe` does
        name = f"data/{tree}/file-{number:06}"
        with (
            (nights.pool / "hosts/other" / nights.names("other")[0] / name).open("rb") as source,
            (nights.pool / "hosts/web" / base / name).open("rb") as file,
        ):
            assert sum(shared_pieces(source.fileno(), file.fileno(), 9000)) == 9000
    assert len(set(before) - set(of(nights, base))) > 4
    assert is_kept_with_its_own_damaged(nights, last)


def test_the_kernel_reads_what_was_written_for_a_backup_that_others_share(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = two_nights(make_btrfs, tree, "share")
    first, last = nights.names("web")
    spoil(nights, "share")
    expire(nights, first)
    assert nights.names("web") == [first, last]
    assert " rw," in mounted(nights)
    nights.run("web")
    expire(nights, last)
    assert (nights.names("web")[:-1], " rw," in mounted(nights)) == ([first], True)


def test_a_deletion_reads_tree_blocks_and_attributes_of_any_size(make_btrfs: Callable[..., Path]) -> None:
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single", "-n", "64K")))
    nights.host("web", nights.source)
    for content in (b"1", b"2"):
        (nights.source / "file").write_bytes(content)
        os.setxattr(nights.source / "file", "user.large", content * 40_000)
        nights.run("web")
    first, last = nights.names("web")
    expire(nights, first)
    assert nights.names("web") == [last]


def test_a_first_copy_is_given_up_when_the_disk_gives_the_base_back_again(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = two_nights(make_btrfs, tree, "share")
    last = nights.names("web")[1]
    image = Path(work("losetup", "--noheadings", "--output", "BACK-FILE", *btrfs.devices_of(nights.top)).stdout.strip())
    work("btrfs", "filesystem", "sync", nights.top)
    before = image.read_bytes()
    spoil(nights, "share")
    spoilt = image.read_bytes()
    at = spoilt.index(b"spoilt")
    assert spoilt.count(b"spoilt") == 1
    (tree / "large").write_bytes(os.urandom(20 << 20))
    nights.host("web", tree, deadline="8s", bandwidth="2M")
    assert nights.backupd("verify", check=False).returncode == 1
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    put_right(nights.top, at, before[at : at + len(b"spoilt")])
    nights.host("web", tree)
    assert nights.run("web")["web"]["outcome"] == "complete"
    made = record(nights, nights.names("web")[2])
    assert (made["base"], "unread_bases" in made) == (last, False)
    assert nights.differences("web", tree) == []


def test_a_base_whose_record_the_disk_does_not_give_back_is_named(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = two_nights(make_btrfs, tree, "share")
    nights.host("web", tree, exclude=[f"/never/there/{number:020}" for number in range(100)])
    nights.run("web")
    _, before, last = nights.names("web")
    content = (nights.pool / "hosts/web" / last / "backup.json").read_bytes()
    assert len(content) > 2048  # otherwise it is inline in the tree
    damage(nights.top, content)
    assert nights.run("web")["web"]["outcome"] == "complete"
    made = record(nights, nights.names("web")[3])
    assert (made["base"], made["unread_bases"]) == (before, [last])
    assert any(last in warning for warning in made["warnings"])


def test_an_unfinished_backup_with_damaged_metadata_of_its_own_is_not_deleted(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = two_nights(make_btrfs, tree, "share")
    last = nights.names("web")[1]
    for number in range(FILES):
        (tree / f"file-{number:06}").write_bytes(b"newest %d" % number)
    (tree / "large").write_bytes(os.urandom(20 << 20))
    nights.host("web", tree, deadline="8s", bandwidth="2M")
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    old = of(nights, last)
    own = [number for number in of(nights, ".working") if number not in old]
    damage_metadata(nights.top, own[len(own) // 2])
    asked = nights.backupd("discard", "web", check=False)
    nights.host("web", tree, exclude=["/none"])  # so the unfinished backup does not fit
    done = nights.run("web", status=1)["web"]
    work("btrfs", "filesystem", "sync", nights.top, check=False)
    work("timeout", "30", "btrfs", "subvolume", "sync", nights.top, check=False)
    assert " rw," in mounted(nights)
    assert asked.returncode != 0
    assert "metadata" in done["error"]
    assert (nights.pool / "hosts/web/.working").is_dir()
    work("mv", nights.pool / "hosts/web/.working", nights.pool / "spoilt")
    assert nights.run("web")["web"]["outcome"] == "complete"


@pytest.mark.parametrize("how", ["two passes", "connection breaks"])
def test_a_leaf_of_extents_that_splitting_links_again_cannot_read_is_its_hosts_alone(
    make_btrfs: Callable[..., Path], tree: Path, how: str
) -> None:
    """Both splits read the base in the middle of a run: with `inplace = "large"` between two passes, or before another attempt."""
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    nights.settings("backup", concurrency=1)
    (tree / "small").write_bytes(b"1")
    with (tree / "image").open("wb") as file:
        for number in range(2000):
            file.seek(number * 8192)
            file.write(os.urandom(4096))
    nights.host("web", tree, attempts=2, inplace="large" if how == "two passes" else None)
    nights.host("zeus", nights.source)
    nights.run()
    (tree / "small").write_bytes(b"2")
    nights.run()
    extents = set(leaves(nights.backup("web"), nights.top, r"\d+ EXTENT_DATA"))
    only = sorted(extents - set(leaves(nights.backup("web"), nights.top, r"\d+ INODE_ITEM")))
    damage_metadata(nights.top, only[len(only) // 2])
    (tree / "new").write_bytes(os.urandom(5000))
    if how == "connection breaks":
        nights.in_the_middle(2000, end=f"dies-once:{nights.top / 'flag'}")
    done = nights.run()
    assert {host: result["outcome"] for host, result in done.items()} == {"web": "complete", "zeus": "complete"}
    assert nights.record("web")["unread_bases"] == nights.names("web")[:2]
    assert nights.differences("web", tree) == []
