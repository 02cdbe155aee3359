"""Rules about the devices and the layers below them."""

import shlex
from collections.abc import Iterator

from backupd.doctor.facts import DoctorFacts, Layer
from backupd.doctor.finding import BLIND_TO_DEVICES, DoctorRule, diagnosis, unless
from backupd.doctor.rules.commands import balance, filters, safest
from btrkeep.decisions import findings as health
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.redundancy import redundancy_words
from btrkeep.units import counted, printable

_ONE_COPY = ("single", "raid0")


def _missing(facts: DoctorFacts) -> Iterator[Finding]:
    found = facts.verdict.of(health.MISSING)
    if not found:
        return
    pool = shlex.quote(str(facts.site.pool))
    missing = [one.device for one in found]
    yield diagnosis(
        "missing-device",
        found[0].level,
        f"{counted(len(missing), 'device')} of the filesystem {'is' if len(missing) == 1 else 'are'} missing: devid "
        f"{', '.join(map(str, missing))}",
        f"{_copies_left(facts)}; what has one good copy left is lost with the next fault",
        "low for replace, which only writes to the new device; as long as it runs, one more dead disk can end the filesystem",
        (*(f"btrfs replace start -B {devid} /dev/NEW {pool}" for devid in missing), _convert_back(facts)),
    )


def _copies_left(facts: DoctorFacts) -> str:
    known = facts.filesystem.redundancy
    return redundancy_words(known) if known else "how many good copies are left could not be read"


def _convert_back(facts: DoctorFacts) -> str:
    """Converts to the best of the present profiles: a degraded mount adds a worse one."""
    found = facts.filesystem.profiles
    kinds = [kind for kind in ("data", "metadata", "mixed") if kind in found]
    how = (filters(facts.filesystem, kind, f"convert={safest(found[kind])},soft") for kind in kinds)
    return f"{balance(facts, *how)}   # what was written meanwhile"


def _errors(facts: DoctorFacts) -> Iterator[Finding]:
    found = facts.verdict.of(health.ERRORS)
    if not found:
        return
    pool = shlex.quote(str(facts.site.pool))
    yield diagnosis(
        "device-errors",
        found[0].level,
        "; ".join(one.text for one in found),
        "btrfs met them when it wrote or read. Corruption and generation errors are data that came back other than it was written: "
        "a disk, a cable, a controller or memory is at fault",
        "none; the counters stay until they are reset, also when all has been mended",
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
            "good for trying. Every write goes through a second filesystem, and when that one is full this one breaks off",
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


_BLIND_TO_MISSING = unless(lambda facts: facts.filesystem.missing is not None, "the kernel does not tell which devices are missing")

RULES = (
    DoctorRule("missing-device", ("error",), "a device is missing", _missing, blind=_BLIND_TO_MISSING),
    DoctorRule("device-errors", ("error",), "counted errors of devices", _errors),
    DoctorRule("cache", ("note", "warning"), "a bcache or dm-cache (lvmcache) below, in writeback mode", _cache,
               blind=BLIND_TO_DEVICES),
    DoctorRule("healing", ("note",), "one copy of the data on md or raid of LVM, from which btrfs cannot mend it", _no_healing,
         blind=BLIND_TO_DEVICES),
    DoctorRule("loop", ("note",), "the pool lies in an image file", _loop, blind=BLIND_TO_DEVICES),
)  # fmt: skip
