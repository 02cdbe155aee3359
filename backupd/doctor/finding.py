"""A rule of the doctor, its result, and the commands that several rules propose, with the names of this filesystem and pool."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from backupd.doctor.facts import DoctorFacts, FilesystemFacts, SiteFacts
from btrkeep.config.reading import backupd_command
from btrkeep.decisions.findings import ERROR, NOTE, WARNING, Finding, Remedy, Step

SEVERITIES = (NOTE, WARNING, ERROR)


def diagnosis(
    check: str,
    level: str,
    text: str,
    why: str,
    risk: str,
    commands: tuple[str, ...] = (),
    steps: tuple[Step, ...] = (),
    *,
    unmounted: bool = False,
    hint: str = "",
) -> Finding:
    """Returns a rule's finding with its remedy; `hint` is the remedy in one line, for findings that `check` has too."""
    return Finding(check, level, text, hint, remedy=Remedy(why, risk, commands, steps, unmounted))


Blind = Callable[[DoctorFacts], str]
"""Returns why a check cannot look at these facts, "" if it can."""


def unless(is_known: Callable[[DoctorFacts], bool], why: str) -> Blind:
    """A check is blind, for that reason, unless the facts say otherwise."""
    return lambda facts: "" if is_known(facts) else why


NEVER_BLIND = unless(lambda _: True, "")
BLIND_TO_DEVICES = unless(lambda facts: bool(facts.filesystem.devices), "/sys does not show what the filesystem lies on")


@dataclass(frozen=True, slots=True)
class DoctorRule:
    """A check, from facts to findings."""

    name: str
    """Its name."""
    severities: tuple[str, ...]
    """Those that its findings can have."""
    looks: str
    """What it looks for, in one phrase, for the documentation."""
    check: Callable[[DoctorFacts], Iterator[Finding]] = field(repr=False)
    """Returns the findings, none if all is well."""
    fixable: bool = False
    """True if some of its findings can have steps."""
    blind: Blind = field(default=NEVER_BLIND, repr=False)
    """Returns why it could not check, "" if it could: a check without findings that could not check is not well."""


@dataclass(frozen=True, slots=True)
class Unlooked:
    """A check that could not be made."""

    name: str
    """Its name."""
    why: str
    """Why not."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of all rules."""

    findings: tuple[Finding, ...]
    """The worst first."""
    well: tuple[str, ...]
    """Names of the checks that found nothing."""
    unlooked: tuple[Unlooked, ...]
    """The checks that could not be made."""


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


def backupd(site: SiteFacts, words: str) -> str:
    """Our own command for this pool, which need not be `main`."""
    return f"{backupd_command(site.name, site.file)} {words}"
