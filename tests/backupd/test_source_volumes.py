"""btrkeep-source: its commands for LVM and ZFS, with stand-ins for those programs."""

import json
from collections.abc import Callable, Sequence

import pytest

from backupd.source import btrkeep_source as program

SESSION = "office-20261130T092400Z-1a2b3c"
ROOT = program.MountEntry(1, 0, "8:1", "/", "/", False, "ext4", "/dev/sda1", False)
DATA = program.MountEntry(2, 1, "0:50", "/", "/data", False, "zfs", "tank/data", False)
THIN = program.MountEntry(3, 1, "253:3", "/", "/thin", False, "xfs", "/dev/mapper/vg-thin", False)
BOUND = program.MountEntry(4, 1, "253:3", "/in/side", "/bound", False, "xfs", "/dev/mapper/vg-thin", False)
CLASSIC = program.MountEntry(5, 1, "253:4", "/", "/classic", False, "ext4", "/dev/mapper/vg-classic", False)
MOUNTS = [ROOT, DATA, THIN, BOUND, CLASSIC]
VOLUMES = {
    "253:3": {"vg_name": "vg-a", "lv_name": "thin", "pool_lv": "pool"},
    "253:4": {"vg_name": "vg-a", "lv_name": "classic", "pool_lv": ""},
}
Run = Callable[[Sequence[str]], str]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run, instead of a machine with LVM and ZFS."""
    called: list[list[str]] = []
    existing: set[str] = set()

    def run(argv: Sequence[str]) -> str:
        called.append(list(argv))
        if argv[:2] == ["zfs", "snapshot"]:
            existing.add(argv[2])
        if argv[0] == "lvcreate":
            existing.add(argv[argv.index("--name") + 1])
        if argv[0] == "lvs":
            return json.dumps(
                {"report": [{"lv": [{"lv_name": name, "vg_name": "vg-a", "lv_attr": "swi-I-s---"} for name in existing]}]}
            )
        return "".join(f"{name}\n" for name in existing) if argv[:2] == ["zfs", "list"] else ""

    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(program, "logical_volume", lambda mount: VOLUMES.get(mount.device))
    return called


def planned(size: str = "10%") -> program.SnapshotPlan:
    config = program.SourceConfig()
    config.lvm_size = size
    return program.make_plan(MOUNTS, ["/"], config, SESSION)


def test_each_filesystem_has_one_snapshot_with_its_own_name(commands: list[list[str]]) -> None:
    plan = planned()
    program.take(plan)
    create = ["lvcreate", "--quiet", "--yes", "--snapshot", "--name"]
    assert commands == [
        ["zfs", "snapshot", f"tank/data@btrkeep-source-{SESSION}.0"],
        [*create, f"btrkeep-source-{SESSION}.1", "--setactivationskip", "n", "vg-a/thin"],
        [*create, f"btrkeep-source-{SESSION}.2", "--extents", "10%ORIGIN", "vg-a/classic"],
    ]
    places = {place["point"]: (place["key"], place["folder"]) for place in plan.places}
    assert places == {
        "/": (None, ""),
        "/data": ("tank/data", ""),
        "/thin": ("253:3", ""),
        "/bound": ("253:3", "in/side"),
        "/classic": ("253:4", ""),
    }
    answer = program.consistency(plan, MOUNTS, "/")
    assert (answer["methods"], answer["reason"]) == (["lvm", "lvm-thin", "zfs"], "/: ext4 on a plain partition")


def test_the_device_of_a_snapshot_is_named_as_the_device_mapper_does() -> None:
    piece = {"group": "vg-a", "name": "btrkeep-source-x"}
    assert program.lvm_device(piece) == "/dev/mapper/vg--a-btrkeep--source--x"


def test_a_size_in_bytes_is_given_as_it_is(commands: list[list[str]]) -> None:
    program.take(planned("5G"))
    assert commands[-1][-3:] == ["--size", "5G", "vg-a/classic"]


def test_snapshots_are_removed_only_if_they_exist_and_an_overflow_is_noticed(commands: list[list[str]]) -> None:
    plan = planned()
    for piece in plan.pieces.values():
        program.REMOVE[piece["method"]](piece)
    assert [words for words in commands if words[0] == "lvremove" or words[1] == "destroy"] == []
    program.take(plan)
    assert [program.is_full(piece) for piece in plan.pieces.values() if piece["method"] == "lvm-thin"] == [False]
    for piece in plan.pieces.values():
        program.REMOVE[piece["method"]](piece)
    assert [words for words in commands if words[0] == "lvremove" or words[1] == "destroy"] == [
        ["zfs", "destroy", f"tank/data@btrkeep-source-{SESSION}.0"],
        ["lvremove", "--quiet", "--yes", f"vg-a/btrkeep-source-{SESSION}.1"],
        ["lvremove", "--quiet", "--yes", f"vg-a/btrkeep-source-{SESSION}.2"],
    ]


def test_a_snapshot_that_cannot_be_taken_makes_its_filesystem_live(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned()
    real: Run = program.run

    def fails(argv: Sequence[str]) -> str:
        if argv[0] == "lvcreate":
            raise OSError(5, "insufficient free space")
        return real(argv)

    monkeypatch.setattr(program, "run", fails)
    program.take(plan)
    assert list(plan.pieces) == ["tank/data"]
    reasons = {place["point"]: place["reason"] for place in plan.places if place["key"] is None}
    assert reasons == dict.fromkeys(("/thin", "/bound", "/classic"), "insufficient free space") | {"/": "ext4 on a plain partition"}
