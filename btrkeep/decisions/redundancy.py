"""Decides how many good copies the devices still have of everything that is stored. Pure.

A copy is what one more lost device takes away: raid5 counts as two copies, raid6 as three. Both copies of `dup` are on one device.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from btrkeep.decisions.facts import FactReader, FactWriter, parse_fact
from btrkeep.pool.model import ChunkUse
from btrkeep.units import format_size

_FACT = "redundancy"
PROMISED: Mapping[str, int] = {
    "single": 1, "raid0": 1, "dup": 2, "raid1": 2, "raid10": 2, "raid5": 2, "raid1c3": 3, "raid6": 3, "raid1c4": 4,
}  # fmt: skip
"""How many copies a profile keeps while all devices are present."""
_STRIPED = ("single", "raid0", "dup")
"""Profiles that lose data with the first missing device."""


@dataclass(frozen=True, slots=True)
class Redundancy:
    """`copies`: by type ("data") and number of good copies the used bytes. `lost`: bytes with every copy on a missing device.
    `reduced`: bytes that have one good copy left although the type has a profile that keeps more. `missing`: devices by number.
    """

    copies: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lost: int = 0
    reduced: int = 0
    missing: tuple[int, ...] = ()

    @property
    def single(self) -> int:
        """Returns the bytes that have one good copy, by their profile or because a device is missing."""
        return sum(of.get(1, 0) for of in self.copies.values())


def copies_left(profile: str, devids: tuple[int, ...], missing: Collection[int]) -> int:
    """Returns how many copies chunks of this profile on these devices have left. An unknown profile counts as one copy."""
    away = sum(devid in missing for devid in devids)
    promised = PROMISED.get(profile, 1)
    if profile in _STRIPED or profile not in PROMISED:
        return 0 if away else promised
    if profile == "raid10":  # each two stripes that follow each other mirror each other
        pairs = zip(devids[::2], devids[1::2], strict=False)
        return min((promised - sum(devid in missing for devid in pair) for pair in pairs), default=0)
    return max(0, promised - away)


def redundancy(uses: Iterable[ChunkUse], missing: Collection[int]) -> Redundancy:
    """Returns the good copies of everything. With nothing missing, `devids` of the chunks may be empty."""
    chunks = list(uses)
    best = Counter[str]()
    for chunk in chunks:
        best[chunk.type] = max(best[chunk.type], PROMISED.get(chunk.profile, 1))
    copies: dict[str, Counter[int]] = {}
    lost = reduced = 0
    for chunk in chunks:
        left = copies_left(chunk.profile, chunk.devids, missing)
        copies.setdefault(chunk.type, Counter())[left] += chunk.used
        lost += chunk.used if left == 0 else 0
        reduced += chunk.used if left == 1 and best[chunk.type] > 1 else 0
    return Redundancy({kind: dict(of) for kind, of in copies.items()}, lost, reduced, tuple(sorted(missing)))


def note_redundancy(facts: FactWriter, known: Redundancy | None) -> None:
    """Keeps it for programs that may not read the chunks; only while a device is missing, for otherwise everybody can."""
    text = json.dumps(redundancy_as_json(known), sort_keys=True) if known and known.missing else None
    if text != facts.get_fact(_FACT):
        facts.set_fact(_FACT, text)


def noted_redundancy(facts: FactReader) -> Redundancy | None:
    """Returns the newest one that was kept; None without one."""
    return parse_fact(facts.get_fact(_FACT), _parsed, None)


def _parsed(given: Mapping[str, Any]) -> Redundancy:
    copies: dict[str, dict[int, int]] = {}
    for row in given["copies"]:
        copies.setdefault(str(row["type"]), {})[int(row["copies"])] = int(row["bytes"])
    return Redundancy(copies, int(given["lost"]), int(given["one_good_copy_left"]), tuple(map(int, given["missing"])))


def redundancy_words(known: Redundancy) -> str:
    """Formats it in one line: what is lost, what has one good copy left, and how many copies the rest has."""
    return "; ".join(_parts(known)) or "nothing is stored"


def _parts(known: Redundancy) -> Iterator[str]:
    if known.lost:
        yield f"{format_size(known.lost)} cannot be read: every copy is on a missing device"
    if known.reduced:
        yield f"{format_size(known.reduced)} have one good copy left ({_by_type(known, 1)})"
    for count in sorted({count for of in known.copies.values() for count in of} - {0}):
        if count > 1 or not known.reduced:
            by_type = _by_type(known, count)
            if by_type:
                yield f"{'one copy' if count == 1 else f'{count} copies'} of {by_type}"


def _by_type(known: Redundancy, count: int) -> str:
    sizes = ((kind, of.get(count, 0)) for kind, of in sorted(known.copies.items()))
    return ", ".join(f"{format_size(size)} {kind}" for kind, size in sizes if size)


def redundancy_as_json(known: Redundancy) -> dict[str, Any]:
    """Returns it for --json."""
    sizes = ((kind, count, size) for kind, of in sorted(known.copies.items()) for count, size in sorted(of.items()))
    copies = [{"type": kind, "copies": count, "bytes": size} for kind, count, size in sizes]
    return {"copies": copies, "lost": known.lost, "one_good_copy_left": known.reduced, "missing": list(known.missing)}
