"""The findings of the rules of `backupd doctor`, and states without findings; reading facts from sysfs, cron, timers and scrub."""

import pwd
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.doctor.cli.doctor import exit_status, show_finding
from backupd.doctor.doctor_facts import (
    SEVERITIES,
    DeviceFacts,
    DoctorFacts,
    DoctorRule,
    FilesystemFacts,
    KeyFile,
    Layer,
    Machine,
    Scrub,
    SiteFacts,
)
from backupd.doctor.rules import BY_NAME, RULES, examine, fix, refusal, rule_named
from backupd.doctor.rules.storage import is_accelerated
from btrkeep.config.values import SizeOrShare
from btrkeep.decisions.findings import NEEDS, Finding, FixCommand, Remedy, WriteSysfs
from btrkeep.decisions.pool_health import CatalogueFacts, HealthLimits
from btrkeep.decisions.schedule import ScheduleVerdict
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.space_by_profile import Room
from btrkeep.procfs import Capabilities
from btrkeep.trusted_path import UntrustedStep
from tests.beds import work

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
GIB, TIB, KNOB = 1 << 30, 1 << 40, Path("/sys/fs/btrfs/U/allocation/data/dynamic_reclaim")
DISK = DeviceFacts((Layer("sda", "sata", rotational=True),))

FILESYSTEM = FilesystemFacts(
    uuid="99bee88d-b5e5-478b-86f3-6f67e12ca5a1",
    target=Path("/srv/the pool"),
    mount_options=frozenset({"rw", "noatime", "nosuid", "nodev"}),
    options=("rw", "compress=zstd:1", "space_cache=v2"),
    features=frozenset({"skinny_metadata", "free_space_tree", "no_holes"}),
    kernel_features=frozenset({"block_group_tree", "free_space_tree"}),
    free_space_tree=True,
    checksum="crc32c",
    checksum_driver="crc32c-intel",
    profiles={"data": ("raid1",), "metadata": ("raid1",), "system": ("raid1",)},
    devices=(DISK, DeviceFacts((Layer("sdb", "sata", rotational=True),))),
    missing=(),
    errors={},
    quota="",
    reclaim={},
    exclusive_operation="none",
    room=Room(40 * TIB, TIB, 30 * TIB, 10 * GIB),
    allocated=2 * TIB,
    subvolumes=90_000,
)
WITH_SIMPLE_QUOTA = FILESYSTEM.features | {"simple_quota"}
LIMITS = HealthLimits(Path("/srv/the pool/backup"), Path("/var/lib/btrkeep/main"), SizeOrShare("5%", 0.05), 0.9)
SITE = SiteFacts(
    limits=LIMITS,
    name="main",
    file=Path("/etc/btrkeep/main.toml"),
    created=NOW - timedelta(days=400),
    hosts=3,
    key=KeyFile(Path("/etc/btrkeep/id_ed25519"), 0o600),
    known_hosts=KeyFile(Path("/etc/btrkeep/known_hosts"), 0o644),
    schedule=ScheduleVerdict(starters=("btrkeep-backup@main.timer",)),
    own_balance=True,
    most_backups=("web1", 40),
)
MISSED = ScheduleVerdict(missed=("web1", "web2"), terms="every 1d")
WELL = DoctorFacts(NOW, FILESYSTEM, Scrub(finished=NOW - timedelta(days=20)), Machine((3, 5, 0), True, frozenset({"sse4_2"})), SITE)


def fs(**changes: Any) -> DoctorFacts:
    return replace(WELL, filesystem=replace(FILESYSTEM, **changes))


def site(**changes: Any) -> DoctorFacts:
    return replace(WELL, site=replace(SITE, **changes))


def on(*words: str, device_count: int = 2, **changes: Any) -> DoctorFacts:
    """Returns the facts with further options of the filesystem."""
    return fs(options=(*FILESYSTEM.options, *words), **changes)


def one_device(*layers: Layer, metadata: str = "dup", data: str = "single", **changes: Any) -> DoctorFacts:
    profiles = {"data": (data,), "metadata": (metadata,), "system": (metadata,)}
    return fs(devices=(DeviceFacts(layers or DISK.layers),), profiles=profiles, **changes)


def scrubbed(**changes: Any) -> DoctorFacts:
    return replace(WELL, scrub=replace(WELL.scrub, **changes))


def machine(**changes: Any) -> DoctorFacts:
    return replace(WELL, machine=replace(WELL.machine, **changes))


def findings_of(facts: DoctorFacts) -> list[Finding]:
    return list(examine(facts).findings)


def limited(used_limit: float, room: Room) -> DoctorFacts:
    return replace(fs(room=room), site=replace(SITE, limits=replace(LIMITS, used_limit=used_limit)))


MD, PART = Layer("md0", "md", "raid6", True, True), Layer("sda1", "partition", rotational=False)
ISCSI = Layer("sda", "iscsi", rotational=False)
MPATH = (Layer("dm-0", "multipath", "pool", rotational=False), ISCSI, Layer("sdb", "iscsi", rotational=False))
OLD, COPY = NOW - timedelta(days=36), Finding("replica", "ok", "fetched 2 hours ago", "check that server", subject="replica office")

# (rule, severity, facts that it finds something in)
FOUND: list[tuple[str, str, DoctorFacts]] = [
    ("missing-device", "error", fs(missing=(2,), devices=(DISK,))),
    ("device-errors", "error", fs(errors={1: {"corruption": 3}})),
    ("cache", "warning", one_device(Layer("bcache0", "bcache", "writeback"), Layer("sda", "sata"))),
    ("cache", "note", one_device(Layer("dm-1", "dm-cache"), Layer("sda", "sata"))),
    ("healing", "note", one_device(MD, metadata="single")),
    ("loop", "note", one_device(Layer("loop0", "loop", "/var/pool.img"))),
    ("room", "error", limited(1.0, Room(40 * TIB, TIB, 5 * GIB, GIB))),
    ("used", "warning", fs(room=Room(40 * TIB, 4 * TIB - 5 * GIB, 5 * GIB, GIB))),
    ("privileges", "error", machine(capabilities=Capabilities(frozenset()))),
    ("privileges", "warning", machine(capabilities=Capabilities(frozenset(need.capability for need in NEEDS if need.required)))),
    ("unallocated", "warning", fs(room=Room(40 * TIB, 10 * TIB, 3 * GIB, 10 * GIB))),
    ("unallocated", "error", fs(room=Room(40 * TIB, 10 * TIB, 3 * GIB, 1 << 20))),
    ("unallocated", "warning", fs(room=Room(100 * GIB, 50 * GIB, 2 * GIB - 1, 10 * GIB))),
    ("catalogue", "error", site(catalogue=CatalogueFacts(foreign="0815"))),
    ("catalogue", "error", site(catalogue=CatalogueFacts(lost=True))),
    ("scrub", "warning", scrubbed(finished=OLD)),
    ("scrub", "warning", scrubbed(finished=None)),
    ("scrub", "warning", scrubbed(finished=None, unfinished=True)),
    ("scrub", "error", scrubbed(uncorrectable=1)),
    ("qgroups", "warning", fs(quota="qgroup")),
    ("qgroups", "note", fs(quota="squota")),
    ("quotas", "warning", site(quotas=1)),
    ("quotas", "warning", replace(fs(quota="squota"), site=replace(SITE, quota_since=NOW))),
    ("quotas", "warning", replace(fs(features=WITH_SIMPLE_QUOTA), site=replace(SITE, programs=("6.2", False)))),
    ("reclaim", "warning", fs(reclaim={KNOB: "1"})),
    ("reclaim", "note", replace(fs(reclaim={KNOB: "1"}), site=replace(SITE, own_balance=False))),
    ("balance", "warning", fs(exclusive_operation="balance paused")),
    ("subvolumes", "note", fs(subvolumes=100_001)),
    ("subvolumes", "note", site(most_backups=("web1", 301))),
    ("read-only", "error", fs(options=("ro", "compress=zstd:1", "space_cache=v2"))),
    ("atime", "note", fs(mount_options=frozenset({"rw", "relatime", "nosuid", "nodev"}))),
    ("atime", "note", fs(mount_options=frozenset({"rw", "nosuid", "nodev"}))),
    ("nosuid", "note", fs(mount_options=frozenset({"rw", "noatime", "nosuid"}))),
    ("nosuid", "note", fs(mount_options=frozenset({"rw", "noatime"}), target=Path("/"))),
    ("space-cache", "warning", fs(free_space_tree=False)),
    ("space-cache", "warning", fs(free_space_tree=False, options=("rw", "compress=zstd:1", "nospace_cache"))),
    ("compression", "note", fs(options=("rw", "space_cache=v2"))),
    ("compression", "note", fs(options=("rw", "compress-force=zstd:1", "space_cache=v2"))),
    ("compression", "note", fs(options=("rw", "compress=zlib:3", "space_cache=v2"))),
    ("compression", "note", fs(options=("rw", "compress=zstd:4", "space_cache=v2"))),
    ("commit", "warning", on("commit=9")),
    ("commit", "warning", on("commit=301")),
    ("ssd", "warning", on("ssd_spread")),
    ("autodefrag", "warning", on("autodefrag")),
    ("checksums-off", "warning", on("nodatacow", "nodatasum")),
    ("checksums-off", "warning", on("nodatasum")),
    ("degraded", "warning", on("degraded")),
    ("skinny-metadata", "warning", fs(features=frozenset({"free_space_tree"}))),
    ("block-group-tree", "warning", fs(allocated=4 * TIB)),
    ("metadata-profile", "warning", fs(profiles={"data": ("single",), "metadata": ("dup",)})),
    ("metadata-profile", "warning", one_device(metadata="single", data="single")),
    ("profiles", "warning", fs(profiles={"data": ("raid1",), "metadata": ("raid1", "raid1c3")})),
    ("raid56", "warning", fs(profiles={"data": ("raid1",), "metadata": ("raid5",)})),
    ("checksum", "note", fs(checksum_driver="crc32c-generic")),
    ("checksum", "note", fs(checksum="blake2b", checksum_driver="blake2b-256-generic")),
    ("rsync", "warning", machine(rsync=(3, 4, 2))),
    ("rsync", "error", machine(rsync=(3, 1, 2))),
    ("rsync", "error", machine(rsync=())),
    ("confinement", "warning", site(unconfined="web1/2026-11-20T220003Z")),
    ("confinement", "note", site(unconfined="web1/2026-11-20T220003Z", confine="never")),
    ("ssh-key", "error", site(key=KeyFile(Path("/k"), None))),
    ("ssh-key", "error", site(key=KeyFile(Path("/k"), 0o640))),
    ("known-hosts", "error", site(known_hosts=KeyFile(Path("/k"), None))),
    ("known-hosts", "error", site(known_hosts=KeyFile(Path("/k"), 0o644, empty=True))),
    ("known-hosts", "error", site(known_hosts=KeyFile(Path("/k"), 0o664))),
    *(("replica", level, site(copies=(replace(COPY, level=level),))) for level in ("note", "warning", "error")),
    ("repeated", "warning", site(steps=(replace(COPY, check="repeated", level="warning", subject="drill"),))),
    ("retention", "note", site(unruled=("web1", "web2"))),
    ("schedule", "warning", site(schedule=MISSED)),
    ("schedule", "note", site(schedule=ScheduleVerdict(by_hand=True, by_units=False))),
    ("clock", "note", machine(clock=False)),
    ("clock", "warning", site(clock_doubt="the clock went backwards")),
]  # fmt: skip

# Similar cases without a problem.
WELL_TOO: Mapping[str, DoctorFacts] = {
    "a scrub of 35 days ago": scrubbed(finished=NOW - timedelta(days=35)),
    "an old scrub, and one that runs": scrubbed(finished=OLD, running=True),
    "never a scrub, and the pool is new": replace(
        scrubbed(finished=None), site=replace(SITE, created=NOW - timedelta(days=34))
    ),
    "errors that scrub has corrected": scrubbed(corrected=7),
    "a small filesystem with the share free": fs(room=Room(100 * GIB, 50 * GIB, 2 * GIB, GIB)),
    "a commit interval at the limits": on("commit=10"),
    "the other limit": on("commit=300"),
    "zstd of level 3": fs(options=("rw", "compress=zstd:3", "space_cache=v2")),
    "lzo": fs(options=("rw", "compress=lzo", "space_cache=v2")),
    "ssd on a disk that tells the truth": on("ssd", devices=(DeviceFacts((Layer("nvme0n1", "nvme", rotational=False),)),) * 2),
    "ssd asked for on iSCSI that says it rotates": on("ssd", devices=(DeviceFacts((replace(ISCSI, rotational=True),)),) * 2),
    "ssd_spread for the time of an expiry": replace(
        on("ssd_spread"), site=replace(SITE, expiring=True, mount_option="ssd_spread")
    ),
    "degraded with a device missing is told as that": WELL,
    "4 TiB with a block group tree": fs(allocated=4 * TIB, features=FILESYSTEM.features | {"block_group_tree"}),
    "4 TiB on a kernel that knows none": fs(allocated=4 * TIB, kernel_features=frozenset()),
    "DUP on one disk": one_device(),
    "bcache that writes through": one_device(Layer("bcache0", "bcache", "writethrough"), Layer("sda", "sata")),
    "sha256 with instructions for it": replace(
        fs(checksum="sha256", checksum_driver="sha256-lib"), machine=replace(WELL.machine, cpu=frozenset({"sha_ni"}))
    ),
    "xxhash needs no help": fs(checksum="xxhash64", checksum_driver="xxhash64-generic"),
    "Debian's rsync, of the first safe version": machine(rsync=(3, 4, 3)),
    "no host by ssh": site(key=None, known_hosts=None),
    "a replica that is well": site(copies=(COPY,)),
    "300 backups": site(most_backups=("web1", 300)),
    "no backup at all": site(most_backups=None),
    "a running balance": fs(exclusive_operation="balance"),
    "a mixed filesystem on one disk": fs(devices=(DISK,), profiles={"mixed": ("dup",), "system": ("dup",)}),
}  # fmt: skip

UNSEEN = {"skinny-metadata", "block-group-tree"}
BARE = {"missing-device", "degraded", "cache", "healing", "loop", "metadata-profile", "dup-metadata"}
# What could not be found out, and the checks that must not call it well.
BLIND: tuple[tuple[DoctorFacts, set[str]], ...] = (
    (fs(mount_options=None), {"read-only", "atime", "nosuid"}),
    (fs(missing=None), {"missing-device"}),
    (on("degraded", missing=None), {"missing-device", "degraded"}),
    (fs(devices=()), BARE - {"missing-device", "degraded"}),
    (fs(features=frozenset(), allocated=4 * TIB), UNSEEN),
    (fs(checksum="", checksum_driver=""), {"checksum"}),
    (fs(subvolumes=None), {"subvolumes"}),
    (fs(exclusive_operation=None), {"balance"}),
    (on("ssd", devices=(DeviceFacts((Layer("sda", "disk"),)),) * 2), {"ssd"}),
    (replace(scrubbed(finished=None), site=replace(SITE, created=None)), {"scrub"}),
    (scrubbed(finished=None, is_known=False, running=True), {"scrub"}),
    (machine(clock=None), {"clock"}),
    (site(schedule=ScheduleVerdict(unknown="systemctl: timed out")), {"schedule"}),
    (machine(rsync=None), {"rsync"}),
    (site(catalogue=CatalogueFacts(foreign=None)), {"catalogue", "replica", "repeated"}),
    (site(key=KeyFile(Path("/k"), None, hidden="why")), {"ssh-key"}),
    (site(known_hosts=KeyFile(Path("/k"), None, hidden="why")), {"known-hosts"}),
)


@pytest.mark.parametrize(("facts", "names"), BLIND, ids=[min(names) for _, names in BLIND])
def test_what_could_not_be_looked_at_is_neither_found_nor_well(facts: DoctorFacts, names: set[str]) -> None:
    report = examine(facts)
    assert {unchecked.name for unchecked in report.unchecked} == names
    assert all(unchecked.why for unchecked in report.unchecked)
    assert (report.findings, names & set(report.passed), len(report.passed) + len(names)) == ((), set(), len(RULES))
    assert (exit_status(report, ()), exit_status(examine(WELL), ())) == (1, 0)


def test_no_check_is_blind_where_all_is_known_and_a_blind_one_that_finds_something_has_looked() -> None:
    assert (examine(WELL).unchecked, len(examine(WELL).passed)) == ((), len(RULES))
    report = examine(replace(fs(subvolumes=None), site=replace(SITE, most_backups=("web1", 301))))
    assert ([finding.check for finding in report.findings], report.unchecked) == (["subvolumes"], ())


def test_nothing_is_called_mended_that_cannot_be_looked_at_afterwards() -> None:
    (finding,) = findings_of(fs(mount_options=frozenset({"rw", "relatime", "nosuid", "nodev"})))
    with pytest.raises(OperatorError, match="not checked"):
        fix(replace(finding, remedy=Remedy(steps=(FixCommand(("true",)),))), lambda: fs(mount_options=None))


def test_a_timer_is_offered_only_for_a_configuration_that_units_read() -> None:
    (finding,) = findings_of(site(schedule=MISSED))
    by_cron = replace(MISSED, by_units=False, command="backupd --config '/srv/my pool/main.toml'")
    (elsewhere,) = findings_of(site(file=Path("/srv/my pool/main.toml"), schedule=by_cron))
    assert "systemctl enable --now btrkeep-backup@main.timer" in str(finding.remedy.lines)
    assert "systemctl" not in str(elsewhere.remedy.lines)
    assert "root /usr/local/sbin/backupd --config '/srv/my pool/main.toml' run --scheduled" in elsewhere.hint, (
        "cron has no sbin in PATH"
    )


def test_a_healthy_pool_gives_nothing_to_say() -> None:
    assert findings_of(WELL) == []


@pytest.mark.parametrize(("name", "severity", "facts"), FOUND, ids=[f"{row[0]}-{number}" for number, row in enumerate(FOUND)])
def test_a_rule_finds_what_it_is_for_and_no_other_rule_does(name: str, severity: str, facts: DoctorFacts) -> None:
    findings = findings_of(facts)
    expected = {"cache": {"cache"}, "loop": {"loop"}}.get(name, {name})
    assert {finding.check for finding in findings} == expected
    assert severity in {finding.level for finding in findings}


@pytest.mark.parametrize("facts", WELL_TOO.values(), ids=WELL_TOO.keys())
def test_what_only_comes_near_is_no_finding(facts: DoctorFacts) -> None:
    assert findings_of(facts) == []


def test_every_rule_with_every_severity_is_seen_to_find_something() -> None:
    seen = {(name, severity) for name, severity, _ in FOUND} | {
        ("ssd", "note"),
        ("dup-metadata", "note"),
        ("dup-metadata", "warning"),
    }  # fmt: skip  these two come together with others, in tests of their own
    assert seen == {(rule.name, severity) for rule in RULES for severity in rule.severities}


def all_findings() -> list[Finding]:
    facts = [row[2] for row in FOUND] + [one_device(MD), one_device(*MPATH), on("ssd", devices=(DeviceFacts(MPATH),) * 2)]
    return [finding for fact in facts for finding in findings_of(fact)]


def test_what_rules_say_of_themselves_is_true() -> None:
    findings = all_findings()
    assert len(BY_NAME) == len(RULES)
    for finding in findings:
        assert finding.level in BY_NAME[finding.check].severities
    assert {finding.check for finding in findings if finding.remedy.fixable} == {rule.name for rule in RULES if rule.fixable}


def test_every_finding_has_a_reason_a_risk_and_commands_that_a_shell_understands() -> None:
    without = {"loop", "healing"}  # the location of the pool has no remedy
    for finding in all_findings():
        assert finding.remedy.why
        assert finding.remedy.risk
        assert bool(finding.remedy.lines) == (finding.check not in without), finding
        script = "\n".join(finding.remedy.lines)
        assert work("bash", "-n", input=script).stderr == "", finding
        assert not re.search(r"/srv/the pool\b(?!')", script.replace("'/srv/the pool/backup'", "")), "a path with a blank is quoted"
        if finding.remedy.unmounted:
            assert any(line.startswith("umount") for line in finding.remedy.lines)
            assert not finding.remedy.fixable


def test_the_worst_comes_first() -> None:
    facts = replace(
        fs(errors={1: {"read": 1}}, quota="qgroup", options=("rw", "space_cache=v2")), site=replace(SITE, schedule=MISSED)
    )
    severities = [finding.level for finding in findings_of(facts)]
    assert severities == sorted(severities, key=SEVERITIES.index, reverse=True)
    assert set(severities) == set(SEVERITIES)


# --- rules with more to them


@pytest.mark.parametrize(
    ("layers", "severity", "below"),
    [((MD,), "warning", "md raid6"), (MPATH, "note", "iscsi"), ((Layer("dm-2", "lvm raid", "", True),), "warning", "lvm raid")],
)
def test_dup_metadata_is_told_where_the_storage_is_redundant(layers: tuple[Layer, ...], severity: str, below: str) -> None:
    (result,) = [finding for finding in findings_of(one_device(*layers)) if finding.check == "dup-metadata"]
    assert result.level == severity
    assert below.split()[0] in result.text or "multipath" in result.text


@pytest.mark.parametrize("layer", [Layer("md0", "md", "raid0", False), Layer("vda", "virtio"), Layer("loop0", "loop", "/f")])
def test_dup_metadata_is_right_where_nothing_below_is_known_to_be_redundant(layer: Layer) -> None:
    assert "dup-metadata" not in {finding.check for finding in findings_of(one_device(layer))}


def test_one_copy_of_metadata_is_right_on_a_raid_of_md() -> None:
    assert {finding.check for finding in findings_of(one_device(MD, metadata="single"))} == {"healing"}


def test_ssd_by_a_virtual_disks_flag_is_told_with_the_udev_rule_that_mends_it() -> None:
    (finding,) = findings_of(on("ssd", devices=(DeviceFacts(MPATH), DISK)))
    assert (finding.check, finding.level, finding.remedy.fixable) == ("ssd", "note", False)
    assert "dm-0 (multipath)" in finding.text
    rule = f'ENV{{ID_FS_UUID}}=="{FILESYSTEM.uuid}", ATTR{{queue/rotational}}="1"'
    assert any(rule in line for line in finding.remedy.commands)


def test_the_flag_of_a_partition_is_that_of_its_disk() -> None:
    (finding,) = findings_of(on("ssd", devices=(DeviceFacts((PART, ISCSI)),) * 2))
    assert any('ATTR{../queue/rotational}="1"' in line for line in finding.remedy.commands)


def test_a_missing_device_is_replaced_and_what_a_degraded_mount_wrote_is_converted_back() -> None:
    findings = findings_of(fs(missing=(2,), devices=(DISK,), profiles={"data": ("raid1", "single"), "metadata": ("raid1",)}))
    missing = next(finding for finding in findings if finding.check == "missing-device")
    assert missing.remedy.commands[0].startswith("btrfs replace start -B 2 ")
    assert "-dconvert=raid1,soft -mconvert=raid1,soft" in missing.remedy.commands[1]


@pytest.mark.parametrize(
    ("checksum", "driver", "cpu", "fast"),
    [
        ("crc32c", "crc32c-intel", "", True),
        ("crc32c", "crc32c-generic", "sse4_2", False),
        ("crc32c", "crc32c-lib", "sse4_2", True),
        ("crc32c", "crc32c-lib", "crc32", True),
        ("crc32c", "crc32c-lib", "sse2", False),
        ("sha256", "sha256-ni", "", True),
        ("sha256", "sha256-lib", "sse4_2", False),
        ("sha256", "sha256-lib", "sha2", True),
        ("blake2b", "blake2b-256-neon", "", True),
        ("blake2b", "blake2b-256-lib", "avx2", False),
    ],
)
def test_whether_the_processor_helps_with_checksums(checksum: str, driver: str, cpu: str, fast: bool) -> None:
    assert is_accelerated(checksum, driver, frozenset({cpu})) == fast


# --- fixing


def test_what_needs_the_filesystem_unmounted_is_refused() -> None:
    (finding,) = findings_of(fs(free_space_tree=False))
    error = refusal(finding)
    assert error
    assert "unmounted" in error.message


def test_what_takes_long_or_is_to_be_decided_is_refused() -> None:
    (finding,) = findings_of(fs(profiles={"data": ("raid1",), "metadata": ("raid5",)}))
    assert refusal(finding) is not None


def test_a_fix_that_mends_nothing_is_an_error() -> None:
    broken = fs(quota="qgroup")
    (finding,) = findings_of(broken)
    harmless = replace(finding, remedy=Remedy(steps=(FixCommand(("true",)),)))
    with pytest.raises(OperatorError, match="the problem remains"):
        fix(harmless, lambda: broken)
    fix(harmless, lambda: WELL)


def test_a_fix_that_mends_half_is_an_error(tmp_path: Path) -> None:
    """The rule then finds less, in other words and with other numbers, and the problem remains."""
    path, other = tmp_path / "dynamic_reclaim", tmp_path / "bg_reclaim_threshold"
    for knob in (path, other):
        knob.write_text("1")
    (finding,) = findings_of(fs(reclaim={path: "1", other: "75"}))
    with pytest.raises(OperatorError, match="the problem remains"):
        fix(finding, lambda: fs(reclaim={other: "50"}))


def test_a_knob_that_is_gone_is_an_error_of_one_line(tmp_path: Path) -> None:
    (finding,) = findings_of(fs(reclaim={tmp_path / "gone" / "knob": "1"}))
    with pytest.raises(OperatorError, match="knob"):
        fix(finding, lambda: WELL)


def test_a_write_is_shown_as_what_a_shell_would_do(tmp_path: Path) -> None:
    file = tmp_path / "a knob"
    work("sh", "-c", WriteSysfs(file, "0").line)
    assert file.read_text() == "0\n"


def test_a_name_that_no_check_has_is_refused_with_the_nearest() -> None:
    assert rule_named("atime") == "atime"
    with pytest.raises(UsageError) as caught:
        rule_named("qgroup")
    assert "qgroups" in caught.value.hint


def test_a_rule_is_a_pure_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may use neither a clock nor a file."""

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("a rule looked at the world")

    checks: list[Callable[[DoctorFacts], Any]] = [rule.check for rule in RULES]
    with monkeypatch.context() as patched:  # pytest reads files when a test fails
        for target, name in ((Path, "open"), (Path, "read_text"), (Path, "stat"), (time, "time")):
            patched.setattr(target, name, never)
        rows = [list(check(WELL)) for check in checks]
    assert rows == [[]] * len(RULES)
    assert isinstance(RULES[0], DoctorRule)


def test_what_the_system_itself_lies_on_is_not_remounted_without_its_setuid_programs() -> None:
    (finding,) = findings_of(fs(mount_options=frozenset({"rw", "noatime"}), target=Path("/")))
    assert (finding.check, finding.remedy.fixable) == ("nosuid", False)
    assert [line for line in finding.remedy.lines if not line.startswith("#")] == []


def test_what_cannot_be_typed_for_a_state_folder_in_a_home_is_a_comment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_name="ada", pw_dir=str(tmp_path)))
    (finding,) = findings_of(site(untrusted_state=UntrustedStep(tmp_path, "belongs to the user ada")))
    (line,) = finding.remedy.lines
    assert "`state` in [pool]" in line
    assert line.startswith("# ")


def test_a_command_in_a_text_is_on_one_line_also_if_a_path_in_it_has_hyphens(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"`cp --reflink=always /srv/{'-'.join(['long'] * 15)}/main.toml /root/a-copy`"
    show_finding(
        Finding("atime", "note", "a text", "", remedy=Remedy(why=f"first of all {command} keeps it", risk=f"none: {command}"))
    )
    assert capsys.readouterr().out.count(command) == 2
