"""Rules about the devices and the layers below them, and about how the filesystem was made: trees, profiles, checksums."""

import shlex
from collections.abc import Iterator

from backupd.doctor.facts import (
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
        f"{_copies_left(facts)}; what has one good copy left is lost with the next fault",
        "low for replace, which only writes to the new device; as long as it runs, one more dead disk can end the filesystem",
        (*(f"btrfs replace start -B {devid} /dev/NEW {pool}" for devid in missing), _convert_back(facts)),
    )


def _copies_left(facts: DoctorFacts) -> str:
    redundancy = facts.filesystem.redundancy
    return redundancy_words(redundancy) if redundancy else "how many good copies are left could not be read"


def _convert_back(facts: DoctorFacts) -> str:
    """Converts to the best of the present profiles: a degraded mount adds a worse one."""
    profiles = facts.filesystem.profiles
    kinds = [kind for kind in ("data", "metadata", "mixed") if kind in profiles]
    how = (filters(facts.filesystem, kind, f"convert={safest(profiles[kind])},soft") for kind in kinds)
    return f"{balance(facts, *how)}   # what was written meanwhile"


def _errors(facts: DoctorFacts) -> Iterator[Finding]:
    findings = facts.verdict.of(health.ERRORS)
    if not findings:
        return
    pool = shlex.quote(str(facts.site.pool))
    yield diagnosis(
        "device-errors",
        findings[0].level,
        "; ".join(finding.text for finding in findings),
        "btrfs met them when it wrote or read. Corruption and generation errors are data that came back other than it was written: "
        "a disk, a cable, a controller or memory is at fault",
        "none; the counters stay until they are reset, even after everything has been repaired",
        (f"btrfs device stats {pool}", f"btrfs scrub start -B {pool}",
         f"btrfs device stats --reset {pool}   # once the cause is found, so that new ones are seen"),
    )  # fmt: skip


def _loop(facts: DoctorFacts) -> Iterator[Finding]:
    files = [layer.detail for device in facts.filesystem.devices for layer in device.layers if layer.kind == "loop"]
    if files:
        yield diagnosis(
            "loop",
            "note",
            f"the pool lies in {'an image file' if len(files) == 1 else 'image files'}: {', '.join(map(printable, files))}",
            "good for a trial only. Every write also goes through the filesystem with the image; when that is full, the pool fails",
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
                "in writeback mode the newest data is in the cache alone: when the cache device dies, the filesystem does too, "
                "whatever redundancy is below. A night of backups is read once and hardly fits a cache",
                "writing is as slow as the disks below are; the cache is emptied first",
                _write_through(layer),
            )


def _write_through(layer: Layer) -> tuple[str, ...]:
    if layer.kind == "bcache":
        return (f"echo writethrough > /sys/block/{layer.name}/bcache/cache_mode",)
    return ("lvs -a -o +cache_mode   # which mode it has", "lvchange --cachemode writethrough VG/LV   # when it is writeback")


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
        f"when a disk returns wrong data without an error, btrfs notices by the checksum but cannot ask {below[0].kind} for the "
        "other copy: the file is lost although a good copy is there",
        "another layout of the disks: raid1 of btrfs itself. Nothing to be done about it in passing",
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
    DoctorRule("loop", ("note",), "the pool lies in an image file", _loop, blind=BLIND_TO_DEVICES),
)  # fmt: skip


MANY_BLOCK_GROUPS = 4 << 40
"""Bytes allocated from which a mount is long without a block group tree: 4,000 block groups, each a seek or more."""
_LOST_WITH_A_DEVICE = ("single", "dup", "raid0")
_PARITY = ("raid5", "raid6")
_ACCELERATED_BY = {  # flags of x86 and of arm64 with which the kernel's library code has a fast way
    "crc32c": {"sse4_2", "crc32"},
    "sha256": {"sha_ni", "avx2", "avx", "ssse3", "sha2"},
}
_SLOW = {"crc32c", "sha256", "blake2b"}  # xxhash64 is as fast without help


def _skinny_metadata(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if "skinny_metadata" in fs.features or not fs.features:
        return
    yield diagnosis(
        "skinny-metadata",
        "warning",
        "the filesystem is without skinny metadata",
        "each tree block takes 18 bytes more in the extent tree, of 58 without; all that changes it is slower: snapshots, expiry, "
        "balance",
        "low; new tree blocks are stored so, old ones as they are rewritten. Linux before 3.10 cannot mount it then",
        (
            *_unmounted(fs, "btrfstune -x"),
            f"{balance(facts, filters(fs, 'metadata'))}   # at leisure: rewrites what is there",
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
        "at each mount every block group is searched in the extent tree, one seek or more each: minutes on disks that rotate",
        "medium: it rewrites where all block groups are noted, and must not be interrupted. It wants a free space tree, and a "
        "btrfstune that knows the option (that of Debian 13 does, that of Debian 12 does not). Linux before 6.1 can only read the "
        "filesystem then",
        _unmounted(fs, "btrfstune --convert-to-block-group-tree"),
        unmounted=True,
    )


def _of(fs: FilesystemFacts, kind: str) -> tuple[str, ...]:
    return fs.profiles.get(kind) or fs.profiles.get("mixed", ())


def _metadata_profile(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    profiles, count = _of(fs, "metadata"), len(fs.devices) + len(fs.missing or ())
    weak = [profile for profile in profiles if profile in _LOST_WITH_A_DEVICE]
    if count > 1 and weak:
        problem = f"metadata is {weak[0]} on {count} devices"
        why = "when one of the devices dies, the whole filesystem and with it every backup is lost"
    elif count == 1 and "single" in profiles and not any(_redundant(device) for device in fs.devices):
        problem = "there is one copy of the metadata, and nothing below is known to have another"
        why = "one damaged tree block can take many backups with it; with a second copy btrfs repairs it by itself"
    else:
        return
    better = "raid1" if count > 1 else "dup"
    yield diagnosis(
        "metadata-profile",
        "warning",
        problem,
        why,
        f"low; {_rewritten(fs)}, which takes hours when there is much of it, and needs unallocated space",
        (balance(facts, filters(fs, "metadata", f"convert={better}")),),
    )


def _redundant(device: DeviceFacts) -> bool:
    return any(layer.redundant for layer in device.layers)


def _rewritten(fs: FilesystemFacts) -> str:
    """Returns what a conversion of metadata rewrites."""
    return "data and metadata share block groups, so all is rewritten" if "mixed" in fs.profiles else "metadata is rewritten"


def _dup_metadata(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if "dup" not in _of(fs, "metadata") or "mixed" in fs.profiles or len(fs.devices) != 1 or fs.missing:
        return
    is_redundant = _redundant(fs.devices[0])
    storage = next((layer.kind for layer in fs.devices[0].layers if layer.kind in ("iscsi", "fibre channel", "multipath")), "")
    if not is_redundant and not storage:
        return
    below = next((f"{layer.kind} {layer.detail}".strip() for layer in fs.devices[0].layers if layer.redundant), storage)
    yield diagnosis(
        "dup-metadata",
        "warning" if is_redundant else "note",
        f"metadata is stored twice (DUP), and {below} below {'has' if is_redundant else 'mostly has'} redundancy of its own",
        "everything that changes metadata writes twice as much: snapshots, expiry and balance, of which metadata is most of the "
        "work",
        "without a second copy btrfs finds, but cannot repair, damage by the storage below. Keep DUP if that is not trusted, "
        "or not redundant",
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
                f"{kind} is stored in more than one way: {', '.join(profiles)}",
                "a conversion was interrupted, or the pool was written to while a device was missing: part of it has not the "
                "redundancy that the rest has",
                "low; what is left over is rewritten",
                (f"{balance(facts, '-f', filters(fs, kind, f'convert={best},soft'))}   # or {others}, if all is to become that",),
            )


def _raid56(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    parity_profiles = [profile for profile in _of(fs, "metadata") if profile in _PARITY]
    if not parity_profiles:
        return
    better = "raid1" if parity_profiles[0] == "raid5" else "raid1c3"
    yield diagnosis(
        "raid56",
        "warning",
        f"metadata is {parity_profiles[0]}",
        "a power cut can leave parity that does not fit (the write hole); with a dead disk later the whole filesystem may be lost",
        f"low; {_rewritten(fs)}, and takes more room",
        (balance(facts, filters(fs, "metadata", f"convert={better}")),),
    )


def _checksum(facts: DoctorFacts) -> Iterator[Finding]:
    fs = facts.filesystem
    if fs.checksum not in _SLOW or is_accelerated(fs.checksum, fs.checksum_driver, facts.machine.cpu):
        return
    yield diagnosis(
        "checksum",
        "note",
        f"checksums are {fs.checksum}, calculated by {fs.checksum_driver} without help of the processor",
        "all data is checksummed once when it is written and each time that it is read; scrub and backups of large files wait for "
        "it",
        "a new filesystem: the algorithm is chosen by mkfs.btrfs. A processor with the instructions for it, or the kernel module "
        "that uses them, needs none",
        (f"grep -A1 'name *: {fs.checksum}' /proc/crypto   # does this kernel have a faster driver?",),
    )


def is_accelerated(checksum: str, driver: str, cpu: frozenset[str]) -> bool:
    """True if a driver uses instructions made for it. What has another name than generic or lib does; lib looks for itself."""
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
    DoctorRule("metadata-profile", ("warning",), "metadata that a single fault loses", _metadata_profile, blind=BLIND_TO_DEVICES),
    DoctorRule("dup-metadata", ("note", "warning"), "DUP metadata on storage that is redundant itself", _dup_metadata,
         blind=BLIND_TO_DEVICES),
    DoctorRule("profiles", ("warning",), "data or metadata in more than one profile", _mixed_profiles),
    DoctorRule("raid56", ("warning",), "metadata in raid5 or raid6", _raid56),
    DoctorRule("checksum", ("note",), "a checksum that the kernel calculates without help of the processor", _checksum,
         blind=_BLIND_TO_DRIVER),
)  # fmt: skip
