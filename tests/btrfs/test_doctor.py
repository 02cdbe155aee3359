"""The findings of `backupd doctor` on real filesystems, compared with btrfs-progs, /proc and losetup."""

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backupd.doctor.doctor_facts import DoctorFacts, FilesystemFacts, Machine, Scrub, SiteFacts
from backupd.doctor.gather import FOLDER, read_filesystem, read_scrub
from backupd.doctor.rules import examine
from btrkeep.config.values import SizeOrShare
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.pool_health import HealthLimits
from tests.beds import btrfs, differences, manifest, work
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

Make = Callable[..., Path]
NOW = datetime(2026, 11, 20, tzinfo=UTC)
# Findings that are correct for every filesystem of these tests: images in memory, mounted without options.
ALWAYS = {"atime", "compression", "ssd", "loop", "nosuid"}
MIB = 1 << 20


def facts_of(point: Path) -> DoctorFacts:
    """Returns the facts of the filesystem, in a site without other problems."""
    limits = HealthLimits(point, Path("/var/lib/btrkeep/main"), SizeOrShare("0%", 0.0), 1.0)
    site = SiteFacts(limits, name="main", file=Path("/etc/btrkeep/main.toml"), created=NOW)
    return DoctorFacts(
        NOW, read_filesystem(point), Scrub(finished=NOW), Machine((9,), True, cpu=frozenset({"sse4_2", "crc32"})), site
    )


def findings_by_check(point: Path) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(facts_of(point)).findings}


def further(point: Path) -> set[str]:
    """Returns the names of the findings, without those that every filesystem here has."""
    return set(findings_by_check(point)) - ALWAYS


def superblock(point: Path) -> str:
    return work("btrfs", "inspect-internal", "dump-super", btrfs.devices_of(point)[0]).stdout


def again(point: Path, *, options: str = "", before: Callable[[str], Any] = lambda _: None) -> Path:
    """Unmounts and mounts it again; `before` is called with each device in between."""
    loops = btrfs.devices_of(point)
    btrfs.unmount(point)
    for loop in loops:
        before(loop)
    work("mount", *(["-o", options] if options else []), loops[0], point)
    return point


@pytest.fixture(scope="module")
def plain() -> Iterator[Path]:
    """One device, mounted with the defaults of `mkfs.btrfs` and `mount`."""
    from tests.beds import session

    point = btrfs.make(size="1100M")
    yield point
    assert session.remove(point.parent) == []


def test_a_fresh_filesystem_of_debian_gives_only_what_is_right_to_say(plain: Path) -> None:
    names = findings_by_check(plain)
    assert set(names) == ALWAYS
    assert {finding.level for finding in names.values()} == {"note"}, "of access times `check` says a note too"
    options = next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {plain} " in line).split()[3].split(",")
    assert {"relatime", "ssd"} <= set(options)
    assert not [option for option in options if option.startswith("compress")]


def test_what_is_read_is_what_btrfs_progs_say(plain: Path) -> None:
    read = read_filesystem(plain)
    usage = work("btrfs", "filesystem", "usage", "-b", plain).stdout
    assert read.allocated == sum(
        int(size) for size in re.findall(r"^(?:Data|Metadata|System),\w+: Size:(\d+)", usage, re.MULTILINE)
    )
    assert dict(re.findall(r"^(Data|Metadata|System),(\w+):", usage, re.MULTILINE)) == {
        kind.capitalize(): profile.upper() if profile != "single" else profile for kind, (profile,) in read.profiles.items()
    }
    assert read.uuid in work("btrfs", "filesystem", "show", plain).stdout
    (loop,) = btrfs.devices_of(plain)
    backing = work("losetup", "--noheadings", "--output", "BACK-FILE", loop).stdout.strip()
    assert [layer.detail for device in read.devices for layer in device.layers] == [backing]


def test_subvolumes_are_counted_as_btrfs_lists_them(plain: Path) -> None:
    top = plain / "some"
    work("btrfs", "-q", "subvolume", "create", top)
    for number in range(5):
        work("btrfs", "-q", "subvolume", "snapshot", top, plain / f"snapshot{number}")
    work("btrfs", "subvolume", "delete", plain / "snapshot0")
    listed = work("btrfs", "subvolume", "list", plain).stdout.splitlines()
    assert read_filesystem(plain).subvolumes == len(listed) == 5
    btrfs.delete_subvolume(top, plain)
    work("btrfs", "subvolume", "delete", *plain.glob("snapshot*"))


@pytest.mark.parametrize(
    ("options", "name", "back"),
    [
        ("commit=7", "commit", "commit=30"),
        ("commit=1000", "commit", "commit=30"),
        ("autodefrag", "autodefrag", "noautodefrag"),
        ("nodatasum", "checksums-off", "datasum"),
    ],
)
def test_an_option_of_the_mount_is_found_while_it_holds(plain: Path, options: str, name: str, back: str) -> None:
    btrfs.remount(plain, options)
    assert options in Path("/proc/mounts").read_text()
    assert further(plain) == {name}
    btrfs.remount(plain, back)
    assert further(plain) == set()


def test_compression_is_judged_by_what_holds(plain: Path) -> None:
    for option, expected in (
        ("compress=zstd:1", None),
        ("compress=lzo", None),
        ("compress=zstd:9", "slow"),
        ("compress=zlib", "slow"),
        ("compress-force=zstd:1", "compress-force"),
        ("compress=no", "not compressed"),
    ):
        btrfs.remount(plain, option)
        finding = findings_by_check(plain).get("compression")
        assert (finding is None) if expected is None else (finding is not None and expected in finding.text), option


def test_access_times_are_found_as_proc_mounts_has_them(plain: Path) -> None:
    for option, expected in (("strictatime", "strictatime"), ("noatime", None)):
        btrfs.remount(plain, option)
        finding = findings_by_check(plain).get("atime")
        assert (finding is None) if expected is None else (finding is not None and expected in finding.text)
    assert "relatime" in findings_by_check(again(plain))["atime"].text


def test_ssd_is_told_when_the_flag_of_the_device_brought_it_and_not_otherwise(plain: Path) -> None:
    def flag(value: str) -> Callable[[str], Any]:
        return lambda loop: Path(f"/sys/block/{Path(loop).name}/queue/rotational").write_text(value)

    def names() -> tuple[bool, bool]:
        line = next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {plain} " in line)
        return "ssd" in line.split()[3].split(","), "ssd" in findings_by_check(plain)

    assert names() == (True, True)
    again(plain, before=flag("1"))
    assert names() == (False, False)
    again(plain, before=flag("0"))
    assert names() == (True, True)
    again(plain, options="nossd")
    assert names() == (False, False)
    again(plain, options="ssd_spread")
    assert findings_by_check(plain)["ssd"].level == "warning"
    again(plain)


def test_a_space_cache_of_version_1_and_none_are_found_until_the_commands_were_run(plain: Path) -> None:
    for option, words in (("space_cache=v1", "version 1"), ("nospace_cache", "no space cache")):
        again(plain, options=f"clear_cache,{option}")
        finding = findings_by_check(plain)["space-cache"]
        assert words in finding.text
        assert "FREE_SPACE_TREE " not in superblock(plain)
        assert further(plain) == {"space-cache"}
    (loop,) = btrfs.devices_of(plain)
    commands = [command.replace(f"/dev/disk/by-uuid/{read_filesystem(plain).uuid}", loop) for command in finding.remedy.commands]
    work("sh", "-e", "-c", "\n".join(commands))
    assert "FREE_SPACE_TREE " in superblock(plain)
    assert further(plain) == set()


def test_qgroups_are_found_when_they_are_on(plain: Path) -> None:
    work("btrfs", "quota", "enable", plain)
    work("btrfs", "qgroup", "show", plain)
    assert further(plain) == {"qgroups"}
    work("sh", "-e", "-c", "\n".join(findings_by_check(plain)["qgroups"].remedy.lines))
    assert work("btrfs", "qgroup", "show", plain, check=False).returncode != 0
    assert further(plain) == set()


def test_the_kernels_own_reclaim_is_found_and_switched_off_by_the_line_that_is_shown(plain: Path) -> None:
    knob = Path("/sys/fs/btrfs") / read_filesystem(plain).uuid / "allocation/data/dynamic_reclaim"
    if not knob.exists():
        pytest.skip("this kernel has no reclaim of its own (Linux 6.11)")
    knob.write_text("1")
    finding = findings_by_check(plain)["reclaim"]
    assert "dynamic_reclaim" in finding.text
    work("sh", "-e", "-c", "\n".join(finding.remedy.lines))
    assert knob.read_text().strip() == "0"
    assert further(plain) == set()


def test_a_read_only_filesystem_is_found(plain: Path) -> None:
    btrfs.remount(plain, "ro")
    assert further(plain) == {"read-only"}
    btrfs.remount(plain, "rw")
    assert further(plain) == set()


def test_little_unallocated_space_is_found(plain: Path) -> None:
    fd = os.open(plain / "big", os.O_CREAT | os.O_WRONLY)
    for size in (256, 64, 16, 4, 1):
        while True:
            try:
                os.posix_fallocate(fd, os.fstat(fd).st_size, size * MIB)
            except OSError:
                break
    os.close(fd)
    work("btrfs", "filesystem", "sync", plain)
    unallocated = int(re.findall(r"Device unallocated:\s+(\d+)", work("btrfs", "filesystem", "usage", "-b", plain).stdout)[0])
    assert unallocated < 20 * MIB
    assert {"unallocated"} <= further(plain) <= {"unallocated", "room", "used"}, "nothing is left, or nearly nothing"
    (plain / "big").unlink()


def test_a_scrub_is_known_as_btrfs_scrub_status_tells_it(plain: Path) -> None:
    uuid = read_filesystem(plain).uuid
    assert read_scrub(uuid, frozenset({1}), running=False) == Scrub()
    try:
        work("btrfs", "scrub", "start", "-B", plain)
        output = work("btrfs", "scrub", "status", plain).stdout
        started = re.search(r"Scrub started:\s+(.*)", output)
        assert started
        scrub = read_scrub(uuid, frozenset({1}), running=False)
        assert scrub.finished == datetime.strptime(started[1], "%a %b %d %H:%M:%S %Y").astimezone(UTC)
        assert "no errors found" in output
        assert (scrub.corrected, scrub.uncorrectable, scrub.unfinished) == (0, 0, False)
    finally:
        for file in FOLDER.glob(f"*{uuid}*"):
            file.unlink()


# --- filesystems made otherwise


def test_a_filesystem_without_skinny_metadata_is_found(make_btrfs: Make) -> None:
    point = make_btrfs(size="256M", mkfs=("-O", "^skinny-metadata"))
    assert "SKINNY_METADATA" not in superblock(point)
    assert further(point) == {"skinny-metadata"}
    loops = btrfs.devices_of(point)
    btrfs.unmount(point)
    work("btrfstune", "-x", *loops)
    work("mount", *loops, point)
    assert further(point) == set()


def test_checksums_without_help_of_the_processor_are_found(make_btrfs: Make) -> None:
    point = make_btrfs(size="256M", mkfs=("--csum", "blake2"))
    assert re.search(r"csum_type\s+\d+ \(blake2", superblock(point))
    read = read_filesystem(point)
    assert read.checksum == "blake2b"
    names = re.findall(r"^driver\s*: (blake2b-256\S*)", Path("/proc/crypto").read_text(), re.MULTILINE)
    assert not names or read.checksum_driver in names
    if read.checksum_driver.endswith(("-generic", "-lib")):
        assert further(point) == {"checksum"}


def test_a_mixed_filesystem_is_well(make_btrfs: Make) -> None:
    point = make_btrfs(size="256M", mkfs=("--mixed", "-d", "dup", "-m", "dup"))
    assert further(point) == set()


def test_metadata_that_one_fault_loses_is_found(make_btrfs: Make) -> None:
    point = make_btrfs(size="300M", devices=2, mkfs=("-d", "single", "-m", "single"))
    finding = findings_by_check(point)["metadata-profile"]
    assert further(point) == {"metadata-profile"}
    work("sh", "-e", "-c", "\n".join(finding.remedy.lines))
    assert "Metadata, RAID1" in work("btrfs", "filesystem", "df", point).stdout
    assert further(point) == set()


def test_a_conversion_that_was_broken_off_is_found(make_btrfs: Make) -> None:
    point = make_btrfs(size="600M", devices=2, mkfs=("-d", "single", "-m", "raid1"))
    (point / "a").write_bytes(os.urandom(8 * MIB))
    work("btrfs", "filesystem", "sync", point)
    work("btrfs", "balance", "start", "-dconvert=raid1", point)
    assert further(point) == set()
    (point / "b").write_bytes(os.urandom(8 * MIB))
    work("btrfs", "filesystem", "sync", point)
    work("fallocate", "-l", "150M", point / "c")
    work("btrfs", "filesystem", "sync", point)
    work("btrfs", "balance", "start", "-f", "-dconvert=single,limit=1", point)
    shown = work("btrfs", "filesystem", "df", point).stdout
    two = {"Data, RAID1", "Data, single"} <= set(re.findall(r"^(\w+, \w+):", shown, re.MULTILINE))
    assert two, shown
    assert further(point) == {"profiles"}


def test_damage_on_one_mirror_a_missing_device_and_what_a_degraded_mount_wrote_are_found(make_btrfs: Make) -> None:
    point = make_btrfs(size="600M", devices=2, mkfs=("-d", "raid1", "-m", "raid1"))
    assert further(point) == set()
    (point / "a").write_bytes(os.urandom(20 * MIB))
    loops = btrfs.devices_of(point)
    btrfs.unmount(point)
    with (point.parent / "disk1").open("r+b") as disk:
        for at in range(MIB + 65536, 500 * MIB, MIB):  # beside the copies of the superblock
            disk.seek(at)
            disk.write(b"\xee" * 65536)
    work("mount", "-o", f"device={loops[1]}", loops[0], point)
    work("btrfs", "scrub", "start", "-B", point, check=False)
    stats = work("btrfs", "device", "stats", point).stdout
    read = read_filesystem(point)
    counted = {int(number) for number in re.findall(r"corruption_errs\s+(\d+)", stats)}
    assert counted - {0}
    assert {counts["corruption"] for counts in read.errors.values()} == counted - {0}
    assert further(point) == {"device-errors"}
    scrub = read_scrub(read.uuid, frozenset({1, 2}), running=False)
    assert scrub.corrected > 0
    for file in FOLDER.glob(f"*{read.uuid}*"):
        file.unlink()
    work("btrfs", "device", "stats", "--reset", point)
    assert further(point) == set()

    btrfs.unmount(point)
    work("btrfs", "device", "scan", "--forget", loops[1])
    work("losetup", "--detach", loops[1])
    work("mount", "-o", "degraded", loops[0], point)
    shown = re.findall(r"devid +(\d+) .* MISSING", work("btrfs", "filesystem", "show", point).stdout)
    names = findings_by_check(point)
    assert names["missing-device"].level == "error"
    assert [f"devid {number}" in names["missing-device"].text for number in shown] == [True]
    assert set(names) - ALWAYS <= {"missing-device", "device-errors"}, "degraded itself is not a finding then"


def test_degraded_without_need_is_found(make_btrfs: Make) -> None:
    point = make_btrfs(size="256M", options="degraded")
    assert further(point) == {"degraded"}


# --- the command


def options_of(point: Path) -> set[str]:
    return set(work("findmnt", "-no", "OPTIONS", point).stdout.strip().split(","))


@pytest.fixture
def pool(make_btrfs: Make) -> Nights:
    """A separate pool, which may be remounted."""
    point = make_btrfs(size="700M", options="nosuid,nodev")
    nights = Nights(point)
    nights.host("web1", "/etc/default")
    nights.tables["retention"] = {"daily": 14}
    nights.write()
    return nights


def doctor(pool: Nights, *words: str, status: int = 1) -> Any:
    done = pool.backupd("doctor", "--json", *words, check=False)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def names_of(answer: Any) -> set[str]:
    return {finding["name"] for finding in answer["findings"]}


def test_the_command_says_what_is_wrong_and_mends_what_it_is_told_to(pool: Nights) -> None:
    about_here = {"clock", "schedule", "rsync", "ssh-key", "known-hosts"}  # facts of this machine
    lines = doctor(pool)
    assert names_of(lines) - about_here == ALWAYS - {"nosuid"}
    before = options_of(pool.top)
    doctor(pool, "--fix", "atime", "--dry-run", status=0)
    assert options_of(pool.top) == before
    assert doctor(pool, "--fix", "atime", status=0)["fixed"] is True
    assert options_of(pool.top) == before - {"relatime"} | {"noatime"}, "nosuid and nodev stay"
    assert names_of(doctor(pool)) - about_here == ALWAYS - {"atime", "nosuid"}, "the pool of demo.sh is mounted so: loop, noatime"
    again_said = doctor(pool, "--fix", "atime", status=0)
    assert (again_said["fixed"], again_said["findings"]) == (False, [])


def works(path: Path) -> tuple[bool, bool]:
    """Returns True if a user without rights becomes root by a setuid program in the folder, and can open its device node."""
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    uid = work(*as_nobody, path / "id", "-u").stdout.strip()
    return uid == "0", work(*as_nobody, "head", "-c1", path / "zero", check=False).returncode == 0


def test_nosuid_and_nodev_are_proposed_with_a_command_that_takes_the_power_from_what_is_there(make_btrfs: Make) -> None:
    nights = Nights(make_btrfs(size="700M"))
    nights.host("web1", nights.source)
    nights.source.chmod(0o755)
    nights.top.parent.chmod(0o755)
    shutil.copy("/usr/bin/id", nights.source / "id")
    (nights.source / "id").chmod(0o4755)
    os.mknod(nights.source / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    (nights.source / "zero").chmod(0o666)
    before = manifest(nights.source)
    assert works(nights.source) == (True, True)
    finding = findings_by_check(nights.top)["nosuid"]
    options = options_of(nights.top)
    assert finding.remedy.fixable
    for line in finding.remedy.lines:
        work("sh", "-c", line)
    assert works(nights.source) == (False, False)
    assert options_of(nights.top) == options | {"nosuid", "nodev"}
    assert "nosuid" not in findings_by_check(nights.top)
    nights.night("web1")  # both are still backed up
    assert differences(before, manifest(nights.backup("web1") / "data" / str(nights.source)[1:])) == []
    shutil.rmtree(nights.source)
    nights.backupd("restore", "web1", nights.source, "--to", nights.top, "--privileged")
    assert differences(before, manifest(nights.source)) == []


def test_qgroups_are_switched_off_when_that_is_asked_for_and_only_then(pool: Nights) -> None:
    work("btrfs", "quota", "enable", pool.top)
    for words in ((), ("--fix", "qgroups", "--dry-run")):
        doctor(pool, *words, status=0 if words else 1)
        work("btrfs", "qgroup", "show", pool.top)
    doctor(pool, "--fix", "qgroups", status=0)
    assert work("btrfs", "qgroup", "show", pool.top, check=False).returncode != 0


def test_a_key_that_others_can_read_is_mended(pool: Nights) -> None:
    key = pool.top / "key"
    key.write_text("secret\n")
    key.chmod(0o644)
    pool.tables["ssh"]["key"] = str(key)
    pool.write()
    doctor(pool, "--fix", "ssh-key", status=0)
    assert key.stat().st_mode & 0o777 == 0o600


def test_what_needs_the_filesystem_unmounted_is_refused_and_the_commands_are_printed(pool: Nights) -> None:
    again(pool.top, options="clear_cache,space_cache=v1")
    before = options_of(pool.top)
    done = pool.backupd("doctor", "--fix", "space-cache", check=False)
    assert done.returncode == 1
    assert f"umount {pool.top}" in done.stdout
    assert "clear_cache,space_cache=v2" in done.stdout
    assert "unmounted" in done.stderr
    assert options_of(pool.top) == before


def test_a_name_that_is_none_is_wrong_usage(pool: Nights) -> None:
    done = pool.backupd("doctor", "--fix", "atimes", check=False)
    assert (done.returncode, "did you mean atime?" in done.stderr) == (2, True)
    assert pool.backupd("doctor", "--dry-run", check=False).returncode == 2


def test_the_text_has_reason_commands_and_risk_and_ends_with_a_count(pool: Nights) -> None:
    done = pool.backupd("doctor", "-v", check=False)
    assert done.returncode == 1
    text = done.stdout
    assert f"mount -o remount,noatime {pool.top}" in text
    assert text.count("  why:  ") == text.count("  risk: ") == len(doctor(pool)["findings"])
    assert re.search(r"^\d+ checks: ", text, re.MULTILINE)
    assert re.search(r"^qgroups +qgroups, or simple quotas", text, re.MULTILINE), "-v lists what is well"


def test_facts_are_plain_data(plain: Path) -> None:
    read = read_filesystem(plain)
    assert replace(read) == read
    assert isinstance(read, FilesystemFacts)
