"""Every command that `backupd doctor` prints is run on the filesystem for which it is printed; then the finding must have ended.

What cannot be run here is listed at the end with the reason; a rule that is neither tried nor listed fails the test there.
"""

import contextlib
import mmap
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.doctor.doctor_facts import DoctorFacts, KeyFile, Layer, SiteFacts
from backupd.doctor.gather import FOLDER, read_scrub
from backupd.doctor.rules import RULES, examine
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.scrub import SCRUB_EVERY
from btrkeep.pool.allocation import read_room
from tests.beds import TOP, backupd, btrfs, session, work
from tests.beds.nights import Nights
from tests.beds.watch import wait_for
from tests.btrfs.test_doctor import MIB, NOW, Make, again, facts_of

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

Look = Callable[[Path], DoctorFacts]
TRIED: set[str] = set()
"""Rules of which a test of this module runs commands; those name them before they run."""


def tried(*rules: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    TRIED.update(rules)
    return lambda test: test


def finding_of(facts: DoctorFacts, name: str) -> Finding:
    findings = [finding for finding in examine(facts).findings if finding.check == name]
    assert findings, f"{name} is not found"
    return findings[0]


def follow(point: Path, name: str, read_facts: Look = facts_of, new: str = "") -> None:
    """Runs the printed lines one after the other, as an administrator would paste them; `new` replaces /dev/NEW."""
    finding = finding_of(read_facts(point), name)
    run(point, finding, new)
    assert all(after.text != finding.text for after in examine(read_facts(point)).findings), finding.remedy.lines


def run(point: Path, finding: Finding, new: str = "") -> None:
    uuid, loops = facts_of(point).filesystem.uuid, disks(point)
    (point.parent / "fstab").write_text(f"{loops[0]} {point} btrfs {','.join(f'device={loop}' for loop in loops)} 0 0\n")
    env = {"LIBMOUNT_FSTAB": str(point.parent / "fstab")}
    for line in finding.remedy.lines:
        if line.startswith("backupd "):
            ours(line)
        elif line.startswith("btrfs-balancer "):
            work(sys.executable, "-m", "balancer", *shlex.split(line)[1:], cwd=TOP, timeout=120)
        elif line == f"umount {point}":
            btrfs.unmount(point)  # wait until it is not mounted anywhere
        else:
            output = line.replace(f"/dev/disk/by-uuid/{uuid}", loops[0])  # no udev makes such links here
            work("bash", "-e", "-c", output.replace("/dev/NEW", new), env=env)


def ours(line: str) -> None:
    """Runs our own command, unless the pool has no configuration here."""
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "--config":
        backupd(*words)


def disks(point: Path) -> list[str]:
    """Returns the loop devices of a bed in the order of its images."""
    text = {(Path("/sys/block") / Path(loop).name / "loop/backing_file").read_text(): loop for loop in btrfs.devices_of(point)}
    return [text[image] for image in sorted(text)]


def profiles(point: Path) -> set[str]:
    """Returns "Data, RAID1" and so on, from btrfs."""
    return set(
        re.findall(
            r"^(\S+, \S+):", work("btrfs", "filesystem", "df", point).stdout.replace("GlobalReserve, single:", ""), re.MULTILINE
        )
    )


def balance(point: Path, *words: str) -> None:
    work("btrfs", "balance", "start", "-f", *words, point)


def write(point: Path, name: str = "a", size: int = 8 * MIB) -> None:
    (point / name).write_bytes(bytes(range(256)) * (size // 256))
    work("btrfs", "filesystem", "sync", point)


def fill_sparsely(point: Path) -> None:
    """Allocates all space and uses half of it. The kernel removes empty block groups at any time: so it is repeated."""
    for number in range(10):
        for size in (31 * MIB, MIB):
            with contextlib.suppress(OSError):
                for count in range(1000):
                    with (point / f"{size}-{number}-{count}").open("wb") as made:
                        os.posix_fallocate(made.fileno(), 0, size)
        for _ in range(2):
            work("btrfs", "filesystem", "sync", point)
        if read_room(point).unallocated < MIB:
            break
    for small in sorted(point.glob(f"{MIB}-*"))[::2]:
        small.unlink()
    for large in sorted(point.glob(f"{31 * MIB}-*"))[::2]:
        os.truncate(large, MIB)
    work("btrfs", "filesystem", "sync", point)


# --- any filesystem: mount options and enabled features


@pytest.fixture(scope="module")
def plain() -> Iterator[Path]:
    point = btrfs.make(size="600M")
    yield point
    assert session.remove(point.parent) == []


@tried("atime", "nosuid", "compression", "ssd")
def test_those_of_a_mount_without_options(plain: Path) -> None:
    for name in ("atime", "nosuid", "compression", "ssd"):
        follow(again(plain), name)


@tried("commit", "autodefrag", "checksums-off", "compression", "ssd")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("commit", "commit=5"),
        ("commit", "commit=900"),
        ("autodefrag", "autodefrag"),
        ("checksums-off", "nodatasum"),
        ("checksums-off", "nodatacow"),
        ("compression", "compress=zlib"),
        ("compression", "compress-force=zstd:9"),
        ("ssd", "ssd_spread"),
    ],
)
def test_those_of_mount_options(plain: Path, name: str, options: str) -> None:
    follow(again(plain, options=options), name)


@tried("space-cache", "degraded", "read-only")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("space-cache", "clear_cache,space_cache=v1"),
        ("space-cache", "clear_cache,nospace_cache"),
        ("degraded", "degraded"),
        ("read-only", "ro"),
    ],
)
def test_those_for_which_it_is_unmounted(plain: Path, name: str, options: str) -> None:
    follow(again(plain, options=options), name)


@tried("qgroups", "reclaim")
def test_quotas_simple_quotas_and_the_kernels_reclaim(plain: Path) -> None:
    work("btrfs", "quota", "enable", plain)
    follow(again(plain), "qgroups")
    try:
        btrfs.simple_quotas(plain)
    except OSError as error:
        pytest.skip(f"this kernel knows no simple quotas: {error.strerror}")
    assert finding_of(facts_of(plain), "qgroups").level == "note"
    follow(plain, "qgroups")
    knob = Path("/sys/fs/btrfs") / facts_of(plain).filesystem.uuid / "allocation/data/dynamic_reclaim"
    if knob.exists():
        knob.write_text("1")
        follow(plain, "reclaim")


@tried("balance")
def test_a_paused_balance(make_btrfs: Make) -> None:
    point = make_btrfs(size="8G")  # more than is written; a full balance needs new block groups in addition to the old ones
    for number in range(10):
        write(point, f"part{number}", size=200 * MIB)
        work("btrfs", "balance", "start", "--full-balance", "--background", point)
        work("btrfs", "balance", "pause", point, check=False)
        if facts_of(point).filesystem.exclusive_operation == "balance paused":
            break
    follow(point, "balance")


def scrubbed(point: Path) -> DoctorFacts:
    """Adds this machine's state of scrubs; the pool is old."""
    facts = facts_of(point)
    scrub = read_scrub(facts.filesystem.uuid, frozenset({1}), running=False)
    return replace(facts, scrub=scrub, site=replace(facts.site, created=NOW - 2 * SCRUB_EVERY), now=NOW)


@tried("scrub")
def test_a_scrub_that_never_was_one_that_was_broken_off_and_one_that_found_damage(make_btrfs: Make) -> None:
    point = make_btrfs(size="600M")
    uuid = facts_of(point).filesystem.uuid
    try:
        follow(point, "scrub", scrubbed)
        write(point, size=64 * MIB)
        speed = Path("/sys/fs/btrfs") / uuid / "devinfo/1/scrub_speed_max"
        for file in FOLDER.glob(f"*{uuid}*"):
            file.unlink()
        speed.write_text(str(8 * MIB))
        work("sh", "-c", f"btrfs scrub start {point} > /dev/null 2>&1")
        wait_for(lambda: work("btrfs", "scrub", "cancel", point, check=False).returncode == 0)
        wait_for(lambda: scrubbed(point).scrub.unfinished)
        speed.write_text("0")
        assert "interrupted" in finding_of(scrubbed(point), "scrub").text
        follow(point, "scrub", scrubbed)
        loop = disks(point)[0]
        btrfs.unmount(point)
        with (point.parent / "disk0").open("r+b") as disk, mmap.mmap(disk.fileno(), 0) as image:
            at = image.find(bytes(range(256)) * 16)  # the file's data, which has one copy
            image[at : at + 4096] = bytes(4096)
        work("mount", loop, point)
        work("btrfs", "scrub", "start", "-B", point, check=False)
        assert finding_of(scrubbed(point), "scrub").level == "error"
        (point / "a").unlink()
        work("btrfs", "filesystem", "sync", point)
        follow(point, "scrub", scrubbed)
    finally:
        for file in FOLDER.glob(f"*{uuid}*"):
            file.unlink()


# --- how it was made


@pytest.mark.parametrize("shape", ["plain", "mixed", "block group tree"])
@tried("unallocated", "metadata-profile", "profiles", "dup-metadata", "skinny-metadata")
def test_those_of_one_device(shape: str, make_btrfs: Make, with_block_group_tree: Callable[[], Path]) -> None:
    mixed = shape == "mixed"
    if shape == "block group tree":
        point = with_block_group_tree()
        follow(again(point, options="ro"), "read-only")
    else:
        point = make_btrfs(size="500M", mkfs=(*(["--mixed"] if mixed else []), "-O", "^skinny-metadata"))
        follow(point, "skinny-metadata")
    write(point)
    balance(point, *(["-dconvert=single"] if mixed else []), "-mconvert=single")
    follow(point, "metadata-profile")
    assert "System, DUP" in profiles(point)
    for part in "bcd":  # in several block groups, of which one is converted
        write(point, part, 30 * MIB)
    output = last_block_group(point)
    balance(point, *([f"-dconvert=single,{output}", f"-mconvert=single,{output}"] if mixed else [f"-dconvert=dup,{output}"]))
    follow(point, "profiles")
    if not mixed:
        follow(point, "dup-metadata", on_a_raid)
    for name in "abcd":
        (point / name).unlink()
    for _ in range(2):  # the kernel removes their block groups at the second one; later it would do so among the new files
        work("btrfs", "filesystem", "sync", point)
    fill_sparsely(point)
    follow(point, "unallocated")


@tried("subvolumes")
def test_those_of_our_own_are_for_this_pool_whatever_its_configuration_is_called(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    facts = facts_of(shared_btrfs)
    limits = replace(facts.site.limits, pool=nights.pool)
    site = SiteFacts(limits, name="main", file=nights.config, created=NOW, most_backups=("web1", 301))
    room = replace(facts.filesystem.room, unallocated=0)
    full = replace(facts, site=site, filesystem=replace(facts.filesystem, room=room))
    lines = [line for name in ("subvolumes", "unallocated") for line in finding_of(full, name).remedy.lines if "backupd" in line]
    assert len(lines) == 4
    for line in lines:
        assert f"--config {nights.config} " in line
        ours(line)
    named = replace(full, site=replace(site, name="archive", file=Path("/etc/btrkeep/archive.toml")))
    assert finding_of(named, "subvolumes").remedy.lines[0] == "backupd --pool archive retention explain"


def last_block_group(point: Path) -> str:
    """Returns a filter for the last block group with data; `limit` selects no mixed ones."""
    dumped = work("btrfs", "inspect-internal", "dump-tree", "-t", "chunk", disks(point)[0]).stdout
    matches = re.findall(r"CHUNK_ITEM (\d+)\).*\n\s+length (\d+) .*type \S*DATA\b(?<!METADATA)", dumped)
    mixed = re.findall(r"CHUNK_ITEM (\d+)\).*\n\s+length (\d+) .*type DATA\|METADATA", dumped)
    vaddr, length = max((int(vaddr), int(length)) for vaddr, length in mixed or matches)
    return f"vrange={vaddr}..{vaddr + length}"


def on_a_raid(point: Path) -> DoctorFacts:
    """Returns facts as if its device was an md: this kernel has none."""
    facts = facts_of(point)
    md = Layer("md0", "md", "raid6", True)
    devices = tuple(replace(device, layers=(*device.layers, md)) for device in facts.filesystem.devices)
    return replace(facts, filesystem=replace(facts.filesystem, devices=devices))


@pytest.fixture
def with_block_group_tree() -> Iterator[Callable[[], Path]]:
    points: list[Path] = []

    def make() -> Path:
        points.append(btrfs.make_with_block_group_tree())
        return points[-1]

    yield make
    assert [problem for point in points for problem in session.remove(point.parent)] == []


@pytest.mark.parametrize(
    ("shape", "count", "mkfs"),
    [
        ("raid1", 2, ("-d", "raid1", "-m", "raid1")),
        ("mixed raid1", 2, ("--mixed", "-d", "raid1", "-m", "raid1")),
        ("raid5", 3, ("-d", "raid5", "-m", "raid1")),
    ],
)
@tried("missing-device", "device-errors")
def test_those_of_a_device_that_died(shape: str, count: int, mkfs: tuple[str, ...], make_btrfs: Make) -> None:
    point = make_btrfs(size="400M", devices=count, mkfs=mkfs)
    write(point)
    before = profiles(point)
    loops = disks(point)
    btrfs.unmount(point)
    work("losetup", "--detach", loops[-1])
    for loop in loops:
        work("btrfs", "device", "scan", "--forget", loop, check=False)
    others = ",".join(f"device={loop}" for loop in loops[:-1])
    work("mount", "-o", f"degraded,{others}", loops[0], point)
    write(point, "b")
    image = point.parent / "new"
    with image.open("wb") as empty:
        empty.truncate(500 * MIB)
    follow(point, "missing-device", new=btrfs.attach(image))
    assert profiles(point) == before
    if shape == "raid5":  # scrubbing it takes ten seconds
        return
    work("btrfs", "device", "stats", "--reset", point)
    loops = disks(point)
    btrfs.unmount(point)
    with (point.parent / "disk0").open("r+b") as disk:
        for at in range(MIB + 65536, 350 * MIB, MIB):  # beside the copies of the superblock
            disk.seek(at)
            disk.write(b"\xee" * 65536)
    work("mount", "-o", f"device={loops[1]}", loops[0], point)
    try:
        work("btrfs", "scrub", "start", "-B", point, check=False)
        follow(point, "device-errors")
    finally:
        for file in FOLDER.glob(f"*{facts_of(point).filesystem.uuid}*"):
            file.unlink()


@pytest.mark.parametrize(("profile", "count", "better"), [("raid0", 2, "RAID1"), ("raid5", 3, "RAID1"), ("raid6", 3, "RAID1C3")])
@pytest.mark.parametrize("mixed", [False, True])
@tried("metadata-profile", "raid56", "profiles")
def test_those_of_metadata_on_several_devices(profile: str, count: int, better: str, mixed: bool, make_btrfs: Make) -> None:
    point = make_btrfs(size="300M", devices=count, mkfs=("-d", profile, "-m", profile, *(["--mixed"] if mixed else [])))
    write(point)
    follow(point, "metadata-profile" if profile == "raid0" else "raid56")
    assert {f"{'Data+Metadata' if mixed else 'Metadata'}, {better}", f"System, {better}"} <= profiles(point)
    work("fallocate", "-l", "1M", point / "b")
    balance(point, "-sconvert=single,limit=1")
    write(point, "c")
    if any(finding.check == "profiles" for finding in examine(facts_of(point)).findings):
        follow(point, "profiles")


# --- the site


@tried("ssh-key", "known-hosts")
def test_keys(plain: Path) -> None:
    def facts_with_keys(point: Path) -> DoctorFacts:
        keys = {name: key_file(point / name) for name in ("key", "known_hosts")}
        return replace(facts_of(point), site=replace(facts_of(point).site, key=keys["key"], known_hosts=keys["known_hosts"]))

    def key_file(path: Path) -> KeyFile:
        return KeyFile(path, path.stat().st_mode & 0o777 if path.exists() else None)

    follow(plain, "ssh-key", facts_with_keys)
    (plain / "key").chmod(0o644)
    follow(plain, "ssh-key", facts_with_keys)
    (plain / "known_hosts").write_text("web1 ssh-ed25519 AAAA\n")
    (plain / "known_hosts").chmod(0o666)
    follow(plain, "known-hosts", facts_with_keys)


NOT_TRIED = {
    "loop": "there is no command",
    "healing": "there is no command",
    "cache": "this kernel has neither bcache nor device-mapper",
    "block-group-tree": "btrfstune of Debian 12 cannot make one, as the risk says",
    "checksum": "the command only looks; a new filesystem mends it",
    "rsync": "would install a package",
    "clock": "would install a package",
    "repeated": "is text: the step that does not come to its end has its own command; tests/backupd/test_repeated.py",
    "schedule": "needs systemd: tests/systemd enable these timers",
    "confinement": "would install a package",
    "privileges": "is text about the container or the service",
    "quotas": "asks first, or would install a package: tests/btrfs/test_quotas.py",
    "replica": "`backupd status` only looks; the rest is text",
    "retention": "is text for the configuration",
    "catalogue": "is `backupd rebuild`: tests/backupd/test_cli_lost.py",
    "room": "as many backups have to expire, or a device to be added, as it takes",
    "used": "as many backups have to expire, or a device to be added, as it takes",
}


def test_every_rule_is_tried_here_or_listed_with_the_reason() -> None:
    assert TRIED | set(NOT_TRIED) == {rule.name for rule in RULES}
    assert not TRIED & set(NOT_TRIED)
