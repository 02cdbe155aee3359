"""Commands that several rules propose, as the kernel and our own programs take them for this filesystem and this pool."""

import shlex

from backupd.doctor.facts import DoctorFacts, FilesystemFacts, SiteFacts
from btrkeep.config.reading import FOLDER, backupd_command

_SAFEST = ("raid1c4", "raid1c3", "raid6", "raid10", "raid1", "raid5", "dup", "raid0", "single")


def balance(facts: DoctorFacts, *words: str) -> str:
    """A balance of the pool."""
    return f"btrfs balance start {' '.join(words)} {shlex.quote(str(facts.site.pool))}"


def filters(fs: FilesystemFacts, kind: str, words: str = "") -> str:
    """Returns the filters of a balance for block groups of that kind (data, metadata, system, mixed): "-mconvert=raid1".

    Mixed ones hold data and metadata, and of a filesystem that has them the kernel takes the same for both or nothing (EINVAL).
    """
    letters = "dm" if "mixed" in fs.profiles and kind != "system" else kind[0]
    return " ".join(f"-{letter}{words}" for letter in letters)


def safest(profiles: tuple[str, ...]) -> str:
    """Returns the profile that survives most."""
    return min(profiles, key=lambda profile: _SAFEST.index(profile) if profile in _SAFEST else len(_SAFEST))


def is_read_by_units(site: SiteFacts) -> bool:
    """Returns True if the configuration is where systemd's units look for that of a pool of this name."""
    return site.file == FOLDER / f"{site.name}.toml"


def backupd(site: SiteFacts, words: str) -> str:
    """Our own command for this pool, which need not be `main`."""
    return f"{backupd_command(site.name, site.file)} {words}"
