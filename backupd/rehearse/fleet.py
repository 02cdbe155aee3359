"""The fleet of hosts of a rehearsal: learned from the catalogue, and reduced to fit a small pool. Pure.

No file of a backup is read. The numbers that rsync counted in each run give the numbers of files that were created, deleted and
transferred, and the shares of transferred data that were new (literal) or existed already (matched). Two facts are not in the
catalogue: the distribution of file sizes, which is taken as log-normal around the mean, and the places of changes in a file, which
are taken as pieces at random places.

To fit, files that are too large for the pool are reduced, together with the other files of their host. Then the number of hosts is
reduced, so that small and large ones stay in proportion; then the number of files on each; only then the size of all files. The
share of files that changes in a night stays the same, and so does the mix of sizes within a host.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean, median
from typing import Any, NamedTuple

from backupd.rehearse.rehearsal_types import Fleet, HostModel
from btrkeep.backup_states import COMPLETE
from btrkeep.catalogue import Backup

SIGMA = 2.0
"""The spread of the logarithm of sizes. Studies of file systems find 1.8 to 2.6 (Douceur and Bolosky 1999, Agrawal et al. 2007)."""
TYPICAL = HostModel("", 5000, 48e3, SIGMA, 10.0, 48e3, 5.0, 50.0, 0.5, 0.3)
"""The model of a host about which nothing is known, if no other host is known either."""
FEWEST = 2
"""At least this many nights after the first copy are needed."""
_NEWEST = 30
_MOST_TIMES = 20.0
_BIAS = (-0.4, 1.0)


class _Night(NamedTuple):
    """Totals over all source paths of a run."""

    files: int
    bytes: int
    created: int
    deleted: int
    transferred: int
    literal: int
    matched: int


def learn_fleet(hosts: Sequence[str], backups: Iterable[Backup]) -> Fleet:
    """Returns the models of these hosts. `backups`: theirs with detail, oldest first; those of other hosts are skipped."""
    nights_by_host: dict[str, list[_Night]] = {name: [] for name in hosts}
    for backup in backups:
        if backup.host in nights_by_host and (backup.outcome or backup.state) == COMPLETE and (night := _night(backup)):
            nights_by_host[backup.host].append(night)
            del nights_by_host[backup.host][: -_NEWEST - 1]
    models = {name: _host(name, nights) for name, nights in nights_by_host.items() if len(nights) > FEWEST}
    usual = _usual(list(models.values()))
    assumed = {name: _assumed(name, nights, usual) for name, nights in nights_by_host.items() if name not in models}
    return Fleet(tuple((models | assumed)[name] for name in hosts), tuple(assumed))


def _night(backup: Backup) -> _Night | None:
    if not backup.files or not backup.bytes:
        return None
    paths = backup.detail.get("paths")
    numbers = [path.get("numbers", {}) for path in paths if isinstance(path, Mapping)] if isinstance(paths, list) else []
    created, deleted, transferred, matched = (_sum(numbers, key) for key in ("created", "deleted", "transferred", "matched"))
    return _Night(backup.files, backup.bytes, created, deleted, transferred, backup.new_bytes or 0, matched)


def _sum(of_paths: Iterable[Mapping[str, Any]], key: str) -> int:
    return sum(int(numbers.get(key, 0)) for numbers in of_paths)


def _host(name: str, nights: Sequence[_Night]) -> HostModel:
    """Returns the model of a host. The changes of the first night do not count: it may be the first copy."""
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
    """Returns the power of size by which files have to be drawn for their mean to be this many times that of all files."""
    return min(max(log(times) / SIGMA**2, _BIAS[0]), _BIAS[1])


def _nightly(literal: Sequence[int]) -> tuple[float, ...]:
    """Returns each night's share of an average one. Their mean is 1, unless one night was out of all proportion."""
    mean = fmean(literal)
    return tuple(min(value / mean, _MOST_TIMES) for value in literal) if mean else (1.0,)


def _usual(models: Sequence[HostModel]) -> HostModel:
    """Returns a host of medians, with changes in proportion to its files."""
    if not models:
        return TYPICAL
    files = max(round(median(host.files for host in models)), 1)
    return replace(
        TYPICAL,
        files=files,
        mean_size=median(host.mean_size for host in models),
        created=median(host.created / host.files for host in models) * files,
        created_size=median(host.created_size for host in models),
        deleted=median(host.deleted / host.files for host in models) * files,
        changed=median(host.changed / host.files for host in models) * files,
        bias=median(host.bias for host in models),
        rewritten=median(host.rewritten for host in models),
    )


def _assumed(name: str, nights: Sequence[_Night], usual: HostModel) -> HostModel:
    """Returns a host like the others, as large as its newest backup, if there is one."""
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


FEW_HOSTS = 6
"""At least this many hosts stay, if there are as many, before each of them loses files."""
MOST_HOSTS = 40
MOST_FILES = 20_000
"""The maximum number of files of all hosts: writing one takes some 0.1 ms, and deleting a snapshot reads each that changed."""
FEW_FILES = 30
LARGEST = 0.02
"""No file is larger than this share of the pool."""
_TIMES = 8
"""The largest file may be at least this many times the mean of its host: with a log-normal mix few are larger."""
SMALLEST_POOL = 256 << 20
_WHOLE = 1 << 20  # a device consists of whole sectors
DATA = 0.85
"""This share of the used space is data: the rest is metadata."""


@dataclass(frozen=True, slots=True)
class ScaledFleet:
    """A fleet that was reduced to fit."""

    fleet: Fleet
    """The smaller fleet."""
    fraction: float
    """Its share of the real data, 0 to 1."""
    size: int
    """Size of the pool in bytes."""


def expected_bytes(host: HostModel, nights: int, kept: int, *, whole_files: bool = False) -> float:
    """Returns the bytes of a host after this many nights, with `kept` older backups. `whole_files`: changed files are rewritten
    completely.
    """
    new = host.created * host.created_size + host.changed * host.changed_size if whole_files else host.new_bytes
    return max(host.bytes + host.growth * nights, host.mean_size) + new * min(nights, kept)


def scale_fleet(fleet: Fleet, size: int, fill: float, nights: int, kept: int, *, whole_files: bool = False) -> ScaledFleet:
    """Returns the fleet for a pool of at most `size` bytes, of which the share `fill` is used at the end.

    A small fleet gets a smaller pool.
    """
    room = size * fill * DATA

    def need(hosts: Sequence[HostModel]) -> float:
        return sum(expected_bytes(host, nights, kept, whole_files=whole_files) for host in hosts)

    whole = need(fleet.hosts)
    files = sum(host.files for host in fleet.hosts)
    hosts = [_with_smaller_files(host, largest_file(size) / _TIMES / host.mean_size) for host in fleet.hosts]
    factor = min(room / need(hosts), MOST_FILES / files, 1.0) if whole and files else 1.0
    if factor < 1 or len(hosts) > MOST_HOSTS:
        hosts = _fewer(hosts, min(max(round(len(hosts) * factor), min(len(hosts), FEW_HOSTS)), MOST_HOSTS))
        left = min(room / need(hosts), MOST_FILES / sum(host.files for host in hosts), 1.0)
        hosts = [_with_fewer_files(host, left) for host in hosts]
        smaller = min(room / need(hosts), 1.0)
        hosts = [_with_smaller_files(host, smaller) for host in hosts]
    needed = min(max(round(need(hosts) / (fill * DATA)), SMALLEST_POOL), size) // _WHOLE * _WHOLE
    names = {host.name for host in hosts}
    left_of = need(hosts) / whole if whole else 1.0
    return ScaledFleet(Fleet(tuple(hosts), tuple(name for name in fleet.assumed if name in names)), left_of, needed)


def _fewer(hosts: Sequence[HostModel], count: int) -> list[HostModel]:
    """Returns `count` of them, evenly spaced in the order of their sizes; in their original order."""
    by_size = sorted(hosts, key=lambda host: (host.bytes, host.name))
    step = len(by_size) / count
    names = {by_size[int((number + 0.5) * step)].name for number in range(count)}
    return [host for host in hosts if host.name in names]


def _with_fewer_files(host: HostModel, factor: float) -> HostModel:
    """Multiplies the files and changes by the factor, but leaves enough to draw from."""
    files = max(round(host.files * factor), min(host.files, FEW_FILES))
    real = files / host.files
    return replace(host, files=files, created=host.created * real, deleted=host.deleted * real, changed=host.changed * real)


def _with_smaller_files(host: HostModel, factor: float) -> HostModel:
    factor = min(factor, 1.0)
    return replace(host, mean_size=host.mean_size * factor, created_size=host.created_size * factor)


def largest_file(size: int) -> int:
    """Returns the size of the largest file in a pool of `size`."""
    return int(size * LARGEST)
