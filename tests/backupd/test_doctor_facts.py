"""How `backupd doctor` reads facts: layers below a device, scrubs, commands started by timers and cron."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backupd.doctor.doctor_facts import Layer, Scrub
from backupd.doctor.gather import device, read_scrub, stacks
from backupd.doctor.site_facts import scheduled_by
from tests.beds import TOP, work


def tree(root: Path, devices: Mapping[str, Mapping[str, str]]) -> Path:
    """A /sys with these block devices: by name, files and their texts; "at" is the folder, "slaves" names those below."""
    (root / "class" / "block").mkdir(parents=True)
    for name, files in devices.items():
        folder = root / files.get("at", f"devices/virtual/block/{name}")
        folder.mkdir(parents=True, exist_ok=True)
        (root / "class" / "block" / name).symlink_to(folder)
        (folder / "slaves").mkdir(exist_ok=True)
        for below in files.get("slaves", "").split():
            (folder / "slaves" / below).symlink_to(root / "class" / "block" / below)
        for file, text in files.items():
            if file not in ("at", "slaves"):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(f"{text}\n")
    return root


ISCSI_AT = "devices/platform/host3/session1/target3:0:0/3:0:0:0/block/sdb"
STACKS: Mapping[str, tuple[Mapping[str, Mapping[str, str]], str]] = {
    "an LVM volume on multipath on iSCSI": (
        {
            "dm-1": {"dm/uuid": "LVM-abc", "dm/name": "vg-pool", "slaves": "dm-0", "queue/rotational": "0"},
            "dm-0": {"dm/uuid": "mpath-3600", "dm/name": "pool", "slaves": "sdb sdc", "queue/rotational": "0"},
            "sdb": {"at": ISCSI_AT, "queue/rotational": "0"},
            "sdc": {"at": ISCSI_AT.replace("3:0:0", "4:0:0").replace("sdb", "sdc"), "queue/rotational": "0"},
        },
        "dm-1: lvm on multipath on iscsi",
    ),
    "a partition of multipath": (
        {"dm-1": {"dm/uuid": "part1-mpath-3600", "slaves": "sdb"}, "sdb": {"at": "devices/pci0/rport-1:0-3/sdb"}},
        "dm-1: multipath on fibre channel",
    ),
    "encryption on a partition of an ATA disk": (
        {
            "dm-1": {"dm/uuid": "CRYPT-LUKS2-ab", "slaves": "sda1"},
            "sda": {"at": "devices/pci0/ata1/host0/block/sda", "queue/rotational": "1"},
            "sda1": {"at": "devices/pci0/ata1/host0/block/sda/sda1", "partition": "1"},
        },
        "dm-1: crypt on partition on sata",
    ),
    "md on partitions": (
        {
            "md0": {"md/level": "raid6", "slaves": "sda1 sdb1"},
            "sda": {"at": "devices/pci0/ata1/block/sda"},
            "sda1": {"at": "devices/pci0/ata1/block/sda/sda1", "partition": "1"},
            "sdb": {"at": "devices/pci0/ata2/block/sdb"},
            "sdb1": {"at": "devices/pci0/ata2/block/sdb/sdb1", "partition": "1"},
        },
        "md0: md raid6 on partition on sata",
    ),
    "lvmcache": (
        {
            "dm-3": {"dm/uuid": "LVM-x", "dm/name": "vg-pool", "slaves": "dm-0 dm-1 dm-2"},
            "dm-0": {"dm/uuid": "LVM-x-cdata", "dm/name": "vg-fast_cpool_cdata"},
            "dm-1": {"dm/uuid": "LVM-x-cmeta", "dm/name": "vg-fast_cpool_cmeta"},
            "dm-2": {"dm/uuid": "LVM-x-real", "dm/name": "vg-pool_corig"},
        },
        "dm-3: dm-cache on lvm",
    ),
    "raid of LVM": (
        {
            "dm-4": {"dm/uuid": "LVM-x", "dm/name": "vg-pool", "slaves": "dm-0 dm-1 dm-2 dm-3"},
            **{f"dm-{number}": {"dm/uuid": "LVM-x", "dm/name": f"vg-pool_{device_name}"}
               for number, device_name in enumerate(("rmeta_0", "rimage_0", "rmeta_1", "rimage_1"))},
        },
        "dm-4: lvm raid on lvm",
    ),
    "bcache": (
        {
            "bcache0": {"bcache/cache_mode": "writethrough [writeback] writearound none", "slaves": "sda nvme0n1"},
            "sda": {"at": "devices/pci0/usb2/block/sda"},
            "nvme0n1": {"device/transport": "pcie"},
        },
        "bcache0: bcache on nvme on usb",
    ),
    "nvme over a network": ({"nvme1n1": {"device/transport": "tcp"}}, "nvme1n1: nvme fabrics"),
    "virtio": ({"vda": {"at": "devices/pci0000:00/0000:00:02.0/virtio1/block/vda"}}, "vda: virtio"),
    "drbd": ({"drbd0": {"slaves": "sda"}, "sda": {"at": "devices/x/sda"}}, "drbd0: drbd on disk"),
}  # fmt: skip


@pytest.mark.parametrize(("devices", "words"), STACKS.values(), ids=STACKS.keys())
def test_what_a_device_lies_on_is_read_from_sysfs(tmp_path: Path, devices: Mapping[str, Any], words: str) -> None:
    device_facts = device(next(iter(devices)), tree(tmp_path, devices))
    assert list(stacks((device_facts,))) == [words]
    assert {layer.name for layer in device_facts.layers} == set(devices)


def test_level_mode_and_redundancy_are_read_too(tmp_path: Path) -> None:
    def top(subject: str) -> Layer:
        devices, _ = STACKS[subject]
        return device(next(iter(devices)), tree(tmp_path / subject, devices)).layers[0]

    assert (top("md on partitions").redundant, top("raid of LVM").redundant, top("lvmcache").redundant) == (True, True, None)
    assert top("bcache").detail == "writeback"
    assert top("an LVM volume on multipath on iSCSI").rotational is False


def test_a_device_that_vanishes_meanwhile_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "class" / "block").mkdir(parents=True)
    assert device("sdz", tmp_path).layers == (Layer("sdz", "disk"),)


def test_the_disk_that_this_machine_runs_on_is_known_as_lsblk_knows_it() -> None:
    done = work("lsblk", "-dnro", "NAME,TYPE,ROTA").stdout.split("\n")
    rows = [line.split() for line in done if line]
    for name, kind, rotational in rows[:8]:
        layer = device(name).layers[0]
        assert layer.rotational == (rotational == "1")
        assert (layer.kind == "loop") == (kind == "loop")


# --- facts: scrub, timers, cron


UUID = "99bee88d-b5e5-478b-86f3-6f67e12ca5a1"


def status(**devices: str) -> str:
    lines = [f"{UUID}:{devid[1:]}|data_extents_scrubbed:0|{rest}" for devid, rest in devices.items()]
    return "\n".join(["scrub status:1", *lines, "other:1|t_start:1"]) + "\n"


DONE = "uncorrectable_errors:{0}|corrected_errors:{1}|t_start:{2}|t_resumed:0|duration:9|canceled:0|finished:1"
STOPPED = "uncorrectable_errors:0|corrected_errors:0|t_start:1700000000|t_resumed:0|duration:9|canceled:1|finished:1"


def scrub_of(folder: Path, text: str, *devids: int) -> Scrub:
    (folder / f"scrub.status.{UUID}").write_text(text)
    return read_scrub(UUID, frozenset(devids), running=False, folder=folder)


def test_a_scrub_is_as_old_as_that_of_the_device_whose_turn_was_longest_ago(tmp_path: Path) -> None:
    scrub = scrub_of(tmp_path, status(d1=DONE.format(0, 2, 1700000500), d2=DONE.format(1, 0, 1700000000)), 1, 2)
    assert scrub == Scrub(datetime.fromtimestamp(1700000000, UTC), corrected=2, uncorrectable=1)


def test_a_device_without_a_scrub_makes_it_none(tmp_path: Path) -> None:
    assert scrub_of(tmp_path, status(d1=DONE.format(0, 0, 1700000000)), 1, 2).finished is None


def test_a_device_that_is_not_there_any_more_does_not_count(tmp_path: Path) -> None:
    assert scrub_of(tmp_path, status(d1=DONE.format(0, 0, 1700000000), d2=DONE.format(9, 0, 1)), 1).uncorrectable == 0


def test_a_scrub_that_was_broken_off_is_none(tmp_path: Path) -> None:
    scrub = scrub_of(tmp_path, status(d1=STOPPED), 1)
    assert (scrub.finished, scrub.unfinished) == (None, True)


@pytest.mark.parametrize("text", ["", "scrub status:2\n", "\0\xff", f"{UUID}:x|t_start:y\n"])
def test_a_file_that_says_nothing_is_no_scrub(tmp_path: Path, text: str) -> None:
    assert scrub_of(tmp_path, text, 1).finished is None


def test_enabled_timers_and_lines_of_cron_are_found(tmp_path: Path) -> None:
    units, wants = tmp_path / "etc/systemd/system", tmp_path / "etc/systemd/system/timers.target.wants"
    wants.mkdir(parents=True)
    (units / "btrkeep-backup@.service").write_text("[Service]\nExecStart=/usr/local/sbin/backupd --pool %i run\n")
    (units / "own.service").write_text("[Service]\n# backupd run\nExecStart=/bin/true\n")
    (wants / "btrkeep-backup@main.timer").symlink_to(units / "btrkeep-backup@.timer")
    (wants / "own.timer").symlink_to(units / "own.timer")
    cron = tmp_path / "etc/cron.d"
    cron.mkdir()
    (cron / "btrkeep").write_text("0 22 * * * root /usr/local/bin/backupd run >/dev/null\n")
    (cron / "old").write_text("#0 22 * * * root /usr/local/bin/backupd run\n0 1 * * * root /usr/local/bin/backupd expire\n")
    assert list(scheduled_by("backupd", "run", tmp_path)) == ["btrkeep-backup@main.timer", str(cron / "btrkeep")]
    assert list(scheduled_by("btrfs-balancer", "run", tmp_path)) == []


def test_without_any_of_these_folders_nothing_starts_anything(tmp_path: Path) -> None:
    assert list(scheduled_by("backupd", "run", tmp_path)) == []


def test_our_own_units_are_found_once_they_are_enabled(tmp_path: Path) -> None:
    wants = tmp_path / "etc/systemd/system/timers.target.wants"
    wants.mkdir(parents=True)
    for name in ("backup", "balance"):
        work("cp", TOP / "systemd" / f"btrkeep-{name}@.service", wants.parent)
        (wants / f"btrkeep-{name}@main.timer").symlink_to(wants.parent / f"btrkeep-{name}@.timer")
    assert list(scheduled_by("backupd", "run", tmp_path)) == ["btrkeep-backup@main.timer"]
    assert list(scheduled_by("btrfs-balancer", "run", tmp_path)) == ["btrkeep-balance@main.timer"]
