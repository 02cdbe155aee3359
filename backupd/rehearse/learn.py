"""Learns from the catalogue how hosts are and change. Pure: rows in, models out; no file of a backup is read.

What rsync counted of each run gives numbers of files that were created, deleted and transferred, and how much of the transferred
was new (literal) or there already (matched). Two things are not in the catalogue: how sizes of files are distributed, which is
taken as log-normal around the mean, and where in a file data change, which is taken as pieces at random places.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import fmean, median
from typing import Any, NamedTuple

from backupd.rehearse.model import Fleet, HostModel
from btrkeep.backup_states import COMPLETE
from btrkeep.catalogue import Backup

SIGMA = 2.0
"""Of the logarithm of sizes. Studies of file systems find 1.8 to 2.6 (Douceur and Bolosky 1999, Agrawal et al. 2007)."""
TYPICAL = HostModel("", 5000, 48e3, SIGMA, 10.0, 48e3, 5.0, 50.0, 0.5, 0.3)
"""A host of which nothing is known, where no other one is known either."""
FEWEST = 2
"""So many nights after the first copy teach something."""
_NEWEST = 30
_MOST_TIMES = 20.0
_BIAS = (-0.4, 1.0)


class _Night(NamedTuple):
    """Sums over all source paths of a run."""

    files: int
    bytes: int
    created: int
    deleted: int
    transferred: int
    literal: int
    matched: int


def learned(hosts: Sequence[str], backups: Iterable[Backup]) -> Fleet:
    """The models of these hosts. `backups`: theirs with detail, oldest first; those of others are passed over."""
    found: dict[str, list[_Night]] = {name: [] for name in hosts}
    for one in backups:
        if one.host in found and (one.outcome or one.state) == COMPLETE and (night := _night(one)):
            found[one.host].append(night)
            del found[one.host][: -_NEWEST - 1]
    known = {name: _host(name, nights) for name, nights in found.items() if len(nights) > FEWEST}
    usual = _usual(list(known.values()))
    assumed = {name: _assumed(name, nights, usual) for name, nights in found.items() if name not in known}
    return Fleet(tuple((known | assumed)[name] for name in hosts), tuple(assumed))


def _night(one: Backup) -> _Night | None:
    if not one.files or not one.bytes:
        return None
    paths = one.detail.get("paths")
    numbers = [path.get("numbers", {}) for path in paths if isinstance(path, Mapping)] if isinstance(paths, list) else []
    created, deleted, transferred, matched = (_sum(numbers, key) for key in ("created", "deleted", "transferred", "matched"))
    return _Night(one.files, one.bytes, created, deleted, transferred, one.new_bytes or 0, matched)


def _sum(numbers: Iterable[Mapping[str, Any]], key: str) -> int:
    return sum(int(one.get(key, 0)) for one in numbers)


def _host(name: str, nights: Sequence[_Night]) -> HostModel:
    """Without the first of them, which may be the first copy."""
    last, changing = nights[-1], nights[1:]
    mean = last.bytes / last.files
    created = fmean(min(night.created, night.transferred) for night in changing)
    deleted = fmean(night.deleted for night in changing)
    changed = max(fmean(night.transferred for night in changing) - created, 0.0)
    literal = fmean(night.literal for night in changing)
    matched = fmean(night.matched for night in changing)
    created_size = min(mean, literal / created) if created else mean
    in_changed = max(literal - created * created_size, 0.0)
    whole = in_changed + matched
    bias = _bias(whole / changed / mean) if changed and whole else 0.0
    return HostModel(
        name=name,
        files=last.files,
        mean_size=mean,
        sigma=SIGMA,
        created=created,
        created_size=created_size,
        deleted=min(deleted, last.files / 2),
        changed=min(changed, float(last.files)),
        bias=bias,
        rewritten=min(max(in_changed / whole, 0.0), 1.0) if whole else 1.0,
        nightly=_nightly([night.literal for night in changing]),
        nights=len(changing),
    )


def _bias(times: float) -> float:
    """The power of size by which files have to be drawn for their mean to be so many times that of all."""
    return min(max(log(times) / SIGMA**2, _BIAS[0]), _BIAS[1])


def _nightly(literal: Sequence[int]) -> tuple[float, ...]:
    """Returns each night's share of an average one. Their mean is 1, unless one night was out of all proportion."""
    mean = fmean(literal)
    return tuple(min(one / mean, _MOST_TIMES) for one in literal) if mean else (1.0,)


def _usual(known: Sequence[HostModel]) -> HostModel:
    """A host of medians, its changes in proportion to its files."""
    if not known:
        return TYPICAL
    files = max(round(median(host.files for host in known)), 1)
    return replace(
        TYPICAL,
        files=files,
        mean_size=median(host.mean_size for host in known),
        created=median(host.created / host.files for host in known) * files,
        created_size=median(host.created_size for host in known),
        deleted=median(host.deleted / host.files for host in known) * files,
        changed=median(host.changed / host.files for host in known) * files,
        bias=median(host.bias for host in known),
        rewritten=median(host.rewritten for host in known),
    )


def _assumed(name: str, nights: Sequence[_Night], usual: HostModel) -> HostModel:
    """Assumes a host to be as the others are, and as large as its newest backup, if there is one."""
    model = replace(usual, name=name, nights=0)
    if not nights:
        return model
    last = nights[-1]
    rate = last.files / model.files
    return replace(
        model,
        files=last.files,
        mean_size=last.bytes / last.files,
        created=model.created * rate,
        deleted=model.deleted * rate,
        changed=model.changed * rate,
    )
