"""btrkeep-source: which mounts a path has below it, and whether a snapshot of them is the whole path.

A mount that is overlooked is an empty folder in the backup, or files of another moment that are taken for the snapshot's.
"""

import os
import time

import pytest

from backupd.source import btrkeep_source as program

TABLE = """\
20 1 0:30 /@ / rw,noatime shared:1 - btrfs /dev/sda2 rw,subvol=/@
21 20 0:30 /@home /home rw - btrfs /dev/sda2 rw
22 20 0:5 / /proc rw - proc proc rw
23 20 0:6 / /run rw - tmpfs tmpfs rw
24 20 8:1 / /boot rw - ext4 /dev/sda1 rw
25 20 7:0 / /snap/core ro - squashfs /dev/loop0 ro
26 20 0:40 / /net rw - nfs4 server:/x rw
27 20 8:17 / /data rw - xfs /dev/sdb1 rw
28 20 8:33 / /with\\040space rw - ext4 /dev/sdc1 rw
"""


def mounts(*more: str) -> list[program.MountEntry]:
    return program.visible(program.parse_mounts(TABLE + "".join(line + "\n" for line in more)))


def points(*more: str) -> set[str]:
    return {f"{mount.number} {mount.point}" for mount in mounts(*more)}


def test_names_with_spaces_and_read_only_filesystems_are_read() -> None:
    by_point = {mount.point: mount for mount in mounts()}
    assert by_point["/with space"].source == "/dev/sdc1"
    assert (by_point["/snap/core"].stable, by_point["/boot"].stable) == (True, False)
    assert by_point["/home"].root == "/@home"


def test_a_mount_below_another_one_that_came_later_is_not_visible() -> None:
    assert points("30 27 8:50 / /data/old rw - ext4 /dev/sdd rw", "31 27 8:51 / /data rw - ext4 /dev/sde rw") == {
        *(f"{number} {point}" for number, point in ((20, "/"), (21, "/home"), (22, "/proc"), (23, "/run"), (24, "/boot"))),
        *(f"{number} {point}" for number, point in ((25, "/snap/core"), (26, "/net"), (28, "/with space"))),
        "31 /data",
    }


def test_a_mount_in_one_that_is_over_another_is_visible() -> None:
    later = points("31 27 8:51 / /data rw - ext4 /dev/sde rw", "32 31 8:52 / /data/new rw - ext4 /dev/sdf rw")
    assert {"31 /data", "32 /data/new"} <= later
    assert "27 /data" not in later


def test_a_mount_whose_parent_is_covered_is_not_visible() -> None:
    lines = (
        "30 27 8:50 / /data/in rw - ext4 /d rw",
        "31 30 8:51 / /data/in/deep rw - ext4 /e rw",
        "32 27 8:53 / /data rw - xfs /f rw",
    )
    assert not {"30 /data/in", "31 /data/in/deep"} & points(*lines)


def test_a_path_is_on_the_innermost_mount() -> None:
    holders = {path: program.holder(mounts(), path).point for path in ("/", "/home", "/homes", "/home/a", "/with space/x")}
    assert holders == {"/": "/", "/home": "/home", "/homes": "/", "/home/a": "/home", "/with space/x": "/with space"}


def plan(reasons: dict[str, str | None], ignored: tuple[str, ...] = ()) -> program.SnapshotPlan:
    """Returns a plan in which these mounts have a snapshot (None) or a reason why not."""
    made = program.SnapshotPlan("s")
    for point, reason in reasons.items():
        made.add(point, None if reason else made.piece(point, method="btrfs"), "", reason or "")
        made.places[-1]["counts"] = point not in ignored
    return made


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("live", "/data: xfs on a plain partition")),
        ("/home", ("snapshot", None)),
        ("/etc", ("snapshot", None)),
        ("/data/db", ("live", "/data: xfs on a plain partition")),
        ("/run/x", ("live", "/run: tmpfs has no snapshots")),
        ("/proc/sys", ("live", "it is on a pseudo filesystem")),
        ("/nowhere-at-all", ("live", "it does not exist")),
    ],
)
def test_a_path_is_a_snapshot_only_if_all_filesystems_below_it_are(
    path: str, expected: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda path: path != "/nowhere-at-all")
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    reasons = {"/": None, "/home": None, "/data": "xfs on a plain partition", "/run": "tmpfs has no snapshots", "/boot": "ext4"}
    answer = program.consistency(plan(reasons, ignored=("/run", "/boot")), mounts(), path)
    assert (answer["consistency"], answer["reason"]) == expected
    assert answer["methods"] == ([] if path in ("/data/db", "/run/x", "/proc/sys") else ["btrfs"])


def test_without_root_all_is_live_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made = program.SnapshotPlan("s")
    made.reason = "btrkeep-source runs without root"
    answer = program.consistency(made, mounts(), "/")
    assert (answer["consistency"], answer["methods"], answer["reason"]) == ("live", [], "btrkeep-source runs without root")


def test_ages_come_from_the_name() -> None:
    assert program.start_of("office-19700102T000001Z-1a2b3c") == 86401
    assert program.owner_of("office-2-19700102T000001Z-1a2b3c") == "office-2"


@pytest.mark.parametrize("is_nested", [False, True])
def test_thousands_of_mounts_are_read_in_a_moment(is_nested: bool) -> None:
    """A user can make many mounts with FUSE, also nested ones; they are read for each request."""
    count = 1200 if is_nested else 5000
    lines = ["20 1 0:1 / / rw - ext4 /dev/sda rw"]
    for number in range(count):
        parent, point = (number + 99 if number else 20, "/d" * (number + 1)) if is_nested else (20, f"/m/{number}")
        lines.append(f"{number + 100} {parent} 0:{number + 50} / {point} rw - fuse.x x rw")
    start = time.process_time()
    assert len(program.visible(program.parse_mounts("\n".join(lines)))) == count + 1
    assert time.process_time() - start < 10
