"""Rules about the devices and the layers below them, and about the format of the filesystem: trees, profiles, checksums."""

import shlex
from collections.abc import Iterator

from backupd.doctor.doctor_facts import (
    BLIND_TO_DEVICES,
    DeviceFacts,
    DoctorFacts,
    DoctorRule,
    FilesystemFacts,
    Layer,
    balance,
    diagnosis,
    filters,
    safest,
    unless,
)
from btrkeep.decisions import findings as health
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.pool_health import redundancy_words
from btrkeep.units import counted, format_size, printable

_ONE_COPY = ("single", "raid0")


def _missing(facts: DoctorFacts) -> Iterator[Finding]:
    findings = facts.verdict.of(health.MISSING)
    if not findings:
        return
    pool = shlex.quote(str(facts.site.pool))
    missing = [finding.device for finding in findings]
    yield diagnosis(
        "missing-device",
        findings[0].level,
        f"{counted(len(missing), 'device')} of the filesystem {'is' if len(missing) == 1 else 'are'} missing: devid "
        f"{', '.join(map(str, missing))}",
        f"{_copies_left(facts)}; data with one good copy left is lost with the next fault",
        "low for replace, which only writes to the new device; while it runs, one more failed disk can destroy the filesystem",
        (*(f"btrfs replace start -B {devid} /dev/NEW {pool}" for devid in missing), _convert_back(facts)),
    )


def _copies_left(facts: DoctorFacts) -> str:
    redundancy = facts.filesystem.redundancy
    return redundancy_words(redundancy) if redundancy else "the number of remaining good copies could not be read"


def _convert_back(facts: DoctorFacts) -> str:
    """Converts to the best of the present profiles: a degraded mount adds a worse one."""
    profiles = facts.filesystem.profiles
    kinds = [kind for kind in ("data", "metadata", "mixed") if kind in profiles]
    how = (filters(facts.filesystem, kind, f"convert={safest(profiles[kind])},soft") for kind in kinds)
    return f"{balance(facts, *how)}   # data written without the device"


def _errors(facts: DoctorFacts) -> Iterator[Finding]:
    findings = facts.verdict.of(health.ERRORS)
    if not findings:
        return
    pool = shlex.quote(str(facts.site.pool))
    yield diagnosis(
        "device-errors",
        findings[0].level,
        "; ".join(finding.text for finding in findings),
        "btrfs counts errors of writes and reads. Corruption and generation errors mean that data differs from the written data: "
        "a disk, a cable, a controller or memory is faulty",
        "none; the counters stay until they are reset, even after everything has been repaired",
        (f"btrfs device stats {pool}", f"btrfs scrub start -B {pool}",
         f"btrfs device stats --reset {pool}   # once the cause is fixed, so that new errors are noticed"),
    )  # fmt: skip


def _loop(facts: DoctorFacts) -> Iterator[Finding]:
    files = [layer.detail for device in facts.filesystem.devices for layer in device.layers if layer.kind == "loop"]
    if files:
        yield diagnosis(
            "loop",
            "note",
            f"the pool is in {'an image file' if len(files) == 1 else 'image files'}: {', '.join(map(printable, files))}",
            "suitable only for trials. Every write also goes through the filesystem with the image; when that is full, the pool "
            "fails",
            "none",
        )


def _cache(facts: DoctorFacts) -> Iterator[Finding]:
    layers = [layer for device in facts.filesystem.devices for layer in device.layers]
    for layer in layers:
        if layer.kind == "bcache" and layer.detail in ("writethrough", "writearound", "none"):
            continue
        if layer.kind in ("bcache", "dm-cache"):
            is_writeback = layer.detail == "writeback"
            yield diagnosis(
                "cache",
                "warning" if is_writeback else "note",
                f"{layer.name} is a {layer.kind}{' in writeback mode' if is_writeback else ''}",
                "in writeback mode the newest data is only in the cache: if the cache device fails, the filesystem is lost, "
                "whatever redundancy is below. The data of a night is read once and hardly fits into a cache",
                "writes are as slow as the disks below; the cache is emptied first",
                _write_through(layer),
            )


def _write_through(layer: Layer) -> tuple[str, ...]:
    if layer.kind == "bcache":
        return (f"echo writethrough > /sys/block/{layer.name}/bcache/cache_mode",)
    return ("lvs -a -o +cache_mode   # shows the mode", "lvchange --cachemode writethrough VG/LV   # if it is writeback")


def _no_healing(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    below = [layer for device in fs.devices for layer in device.layers if layer.redundant]
    profiles = fs.profiles.get("data", ()) or fs.profiles.get("mixed", ())
    if not below or not any(profile in _ONE_COPY for profile in profiles):
        return
    kind = f"{below[0].kind} {below[0].detail}".strip()
    yield diagnosis(
        "healing",
        "note",
        f"data has one copy for btrfs, on {kind}",
        "if a disk returns wrong data without an error, the checksum shows it, but btrfs cannot read the other copy of "
        f"{below[0].kind}. The file is lost although a good copy exists",
        "this needs another layout of the disks: raid1 of btrfs itself, which means a new filesystem",
    )


_BLIND_TO_MISSING = unless(
    lambda facts: facts.filesystem.missing is not None, "the kernel does not report which devices are missing"
)

RULES = (
    DoctorRule("missing-device", ("error",), "a device is missing", _missing, blind=_BLIND_TO_MISSING),
    DoctorRule("device-errors", ("error",), "counted errors of devices", _errors),
    DoctorRule("cache", ("note", "warning"), "a bcache or dm-cache (lvmcache) below, in writeback mode", _cache,
               blind=BLIND_TO_DEVICES),
    DoctorRule("healing", ("note",), "one copy of the data on md or raid of LVM, from which btrfs cannot repair it", _no_healing,
         blind=BLIND_TO_DEVICES),
    DoctorRule("loop", ("note",), "the pool is in an image file", _loop, blind=BLIND_TO_DEVICES),
)  # fmt: skip


MANY_BLOCK_GROUPS = 4 << 40
"""Allocated bytes above which a mount without a block group tree takes long: 4,000 block groups, each with a seek or more."""
_LOST_WITH_A_DEVICE = ("single", "dup", "raid0")
_PARITY = ("raid5", "raid6")
_ACCELERATED_BY = {  # CPU flags of x86 and arm64 for which the kernel has fast code
    "crc32c": {"sse4_2", "crc32"},
    "sha256": {"sha_ni", "avx2", "avx", "ssse3", "sha2"},
}
_SLOW = {"crc32c", "sha256", "blake2b"}  # xxhash64 is fast without them


def _skinny_metadata(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if "skinny_metadata" in fs.features or not fs.features:
        return
    yield diagnosis(
        "skinny-metadata",
        "warning",
        "the filesystem does not have skinny metadata",
        "each tree block takes 76 bytes in the extent tree instead of 58; everything that changes it is slower: snapshots, "
        "expiry, balance",
        "low; new tree blocks use it, old ones when they are rewritten. Afterwards Linux before 3.10 cannot mount the filesystem",
        (
            *_unmounted(fs, "btrfstune -x"),
            f"{balance(facts, filters(fs, 'metadata'))}   # at any time: rewrites existing metadata",
        ),
        unmounted=True,
    )


def _unmounted(fs: FilesystemFacts, command: str) -> tuple[str, ...]:
    target = shlex.quote(str(fs.target))
    return (f"umount {target}", f"{command} /dev/disk/by-uuid/{fs.uuid}", f"mount {target}")


def _block_group_tree(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    is_known = bool(fs.features) and "block_group_tree" in fs.kernel_features
    if fs.allocated < MANY_BLOCK_GROUPS or "block_group_tree" in fs.features or not is_known:
        return
    yield diagnosis(
        "block-group-tree",
        "warning",
        f"{format_size(fs.allocated)} are allocated, and there is no block group tree",
        "each mount searches every block group in the extent tree, with at least one seek each: minutes on rotating disks",
        "medium: it rewrites the records of all block groups, and must not be interrupted. It needs a free space tree, and a "
        "btrfstune that has the option (Debian 13 has it, Debian 12 does not). Afterwards Linux before 6.1 can only read the "
        "filesystem",
        _unmounted(fs, "btrfstune --convert-to-block-group-tree"),
        unmounted=True,
    )


def _profiles_of(fs: FilesystemFacts, kind: str) -> tuple[str, ...]:
    return fs.profiles.get(kind) or fs.profiles.get("mixed", ())


def _metadata_profile(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    profiles, count = _profiles_of(fs, "metadata"), len(fs.devices) + len(fs.missing or ())
    weak = [profile for profile in profiles if profile in _LOST_WITH_A_DEVICE]
    if count > 1 and weak:
        problem = f"metadata is {weak[0]} on {count} devices"
        why = "if one of the devices fails, the whole filesystem and every backup is lost"
    elif count == 1 and "single" in profiles and not any(_redundant(device) for device in fs.devices):
        problem = "there is one copy of the metadata, and no storage below is known to be redundant"
        why = "one damaged tree block can make many backups unreadable; with a second copy btrfs repairs it"
    else:
        return
    better = "raid1" if count > 1 else "dup"
    yield diagnosis(
        "metadata-profile",
        "warning",
        problem,
        why,
        f"low; {_rewritten(fs)}, which can take hours, and needs unallocated space",
        (balance(facts, filters(fs, "metadata", f"convert={better}")),),
    )


def _redundant(device: DeviceFacts) -> bool:
    return any(layer.redundant for layer in device.layers)


def _rewritten(fs: FilesystemFacts) -> str:
    """Returns the data that a conversion of metadata rewrites."""
    return "data and metadata share block groups, so everything is rewritten" if "mixed" in fs.profiles else "metadata is rewritten"


def _dup_metadata(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if "dup" not in _profiles_of(fs, "metadata") or "mixed" in fs.profiles or len(fs.devices) != 1 or fs.missing:
        return
    is_redundant = _redundant(fs.devices[0])
    storage = next((layer.kind for layer in fs.devices[0].layers if layer.kind in ("iscsi", "fibre channel", "multipath")), "")
    if not is_redundant and not storage:
        return
    below = next((f"{layer.kind} {layer.detail}".strip() for layer in fs.devices[0].layers if layer.redundant), storage)
    yield diagnosis(
        "dup-metadata",
        "warning" if is_redundant else "note",
        f"metadata is stored twice (DUP), and {below} below {'has' if is_redundant else 'usually has'} redundancy of its own",
        "snapshots, expiry and balance mostly change metadata, and write it twice",
        "without a second copy, btrfs finds damage caused by the storage below but cannot repair it. Keep DUP if you do not trust "
        "that storage, or if it is not redundant",
        (balance(facts, "-f", filters(fs, "metadata", "convert=single")),),
    )


def _mixed_profiles(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    for kind, profiles in fs.profiles.items():
        if len(profiles) > 1:
            best = safest(profiles)
            others = " or ".join(profile for profile in profiles if profile != best)
            yield diagnosis(
                "profiles",
                "warning",
                f"{kind} has more than one profile: {', '.join(profiles)}",
                "a conversion was interrupted, or the pool was written to while a device was missing: a part has less redundancy "
                "than the rest",
                "low; that part is rewritten",
                (f"{balance(facts, '-f', filters(fs, kind, f'convert={best},soft'))}   # or {others}, for all block groups",),
            )


def _raid56(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    parity_profiles = [profile for profile in _profiles_of(fs, "metadata") if profile in _PARITY]
    if not parity_profiles:
        return
    better = "raid1" if parity_profiles[0] == "raid5" else "raid1c3"
    yield diagnosis(
        "raid56",
        "warning",
        f"metadata is {parity_profiles[0]}",
        "a power cut can leave wrong parity (the write hole); if a disk fails later, the whole filesystem may be lost",
        f"low; {_rewritten(fs)}, and uses more space",
        (balance(facts, filters(fs, "metadata", f"convert={better}")),),
    )


def _checksum(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if fs.checksum not in _SLOW or is_accelerated(fs.checksum, fs.checksum_driver, facts.machine.cpu):
        return
    yield diagnosis(
        "checksum",
        "note",
        f"checksums are {fs.checksum}, calculated by {fs.checksum_driver} without processor instructions for it",
        "data is checksummed when written and each time it is read; scrub and backups of large files wait for it",
        "another checksum algorithm needs a new filesystem (mkfs.btrfs). Loading the faster kernel module does not",
        (f"grep -A1 'name *: {fs.checksum}' /proc/crypto   # does this kernel have a faster driver?",),
    )


def is_accelerated(checksum: str, driver: str, cpu: frozenset[str]) -> bool:
    """Returns True if a driver uses special instructions, which all except generic and lib do; lib is the default."""
    if driver.endswith("-generic"):
        return False
    if driver.endswith("-lib"):  # since Linux 6.14 for crc32c, 6.16 for sha256, 6.19 for blake2b
        return bool(_ACCELERATED_BY.get(checksum, set()) & cpu)
    return driver != ""


_UNSEEN_FEATURES = "/sys does not show the features of the filesystem"
_BLIND_TO_FEATURES = unless(lambda facts: bool(facts.filesystem.features), _UNSEEN_FEATURES)
_BLIND_TO_TREE = unless(
    lambda facts: bool(facts.filesystem.features) or facts.filesystem.allocated < MANY_BLOCK_GROUPS, _UNSEEN_FEATURES
)
_BLIND_TO_DRIVER = unless(
    lambda facts: bool(facts.filesystem.checksum_driver), "the kernel does not name the driver of the checksums"
)

SHAPE_RULES = (
    DoctorRule("skinny-metadata", ("warning",), "no skinny metadata", _skinny_metadata, blind=_BLIND_TO_FEATURES),
    DoctorRule("block-group-tree", ("warning",), f"no block group tree with {format_size(MANY_BLOCK_GROUPS)} or more allocated",
         _block_group_tree, blind=_BLIND_TO_TREE),
    DoctorRule("metadata-profile", ("warning",), "metadata that a single fault can "
        "destroy", _metadata_profile, blind=BLIND_TO_DEVICES),
    DoctorRule("dup-metadata", ("note", "warning"), "DUP metadata on redundant storage", _dup_metadata,
         blind=BLIND_TO_DEVICES),
    DoctorRule("profiles", ("warning",), "data or metadata in more than one profile", _mixed_profiles),
    DoctorRule("raid56", ("warning",), "metadata in raid5 or raid6", _raid56),
    DoctorRule("checksum", ("note",), "a checksum that the kernel calculates without processor instructions for it", _checksum,
         blind=_BLIND_TO_DRIVER),
)  # fmt: skip
