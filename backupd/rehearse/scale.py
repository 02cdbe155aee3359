"""Makes a fleet of hosts fit a small pool. Pure.

Files that are too large for it become smaller, with their host's others. Then come fewer hosts, chosen so that small and large ones
stay in proportion; then fewer files on each; only then smaller files of all. The share of files that changes in a night stays the
same, and so does the mix of sizes within a host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backupd.rehearse.model import Fleet, HostModel

FEW_HOSTS = 6
"""So many stay, where there are as many, before each of them loses files."""
MOST_HOSTS = 40
MOST_FILES = 20_000
"""In all: writing one takes some 0.1 ms, and deleting a snapshot looks at each that changed."""
FEW_FILES = 30
LARGEST = 0.02
"""No file is larger than so much of the pool."""
_TIMES = 8
"""So many times the mean of its host the largest one may be at least: with a log-normal mix few are larger."""
SMALLEST_POOL = 256 << 20
_WHOLE = 1 << 20  # a device has whole sectors
DATA = 0.85
"""Of what is used: the rest is metadata."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """`fraction`: how much of the real data is left, in bytes; `size`: of the pool."""

    fleet: Fleet
    fraction: float
    size: int


def expected_bytes(host: HostModel, nights: int, kept: int, *, whole_files: bool = False) -> float:
    """Returns the bytes of a host after so many nights, with `kept` older backups. `whole_files`: changed ones are written anew."""
    new = host.created * host.created_size + host.changed * host.changed_size if whole_files else host.new_bytes
    return max(host.bytes + host.growth * nights, host.mean_size) + new * min(nights, kept)


def scaled(fleet: Fleet, size: int, fill: float, nights: int, kept: int, *, whole_files: bool = False) -> Scaled:
    """The fleet for a pool of at most `size` bytes, used to the share `fill` at the end. A small fleet gets a smaller pool."""
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
    return Scaled(Fleet(tuple(hosts), tuple(name for name in fleet.assumed if name in names)), left_of, needed)


def _fewer(hosts: Sequence[HostModel], count: int) -> list[HostModel]:
    """`count` of them, evenly spaced in the order of their sizes; in the order in which they came."""
    by_size = sorted(hosts, key=lambda host: (host.bytes, host.name))
    step = len(by_size) / count
    names = {by_size[int((number + 0.5) * step)].name for number in range(count)}
    return [host for host in hosts if host.name in names]


def _with_fewer_files(host: HostModel, factor: float) -> HostModel:
    """Multiplies the files and changes by that, but not so few that nothing could be drawn from them."""
    files = max(round(host.files * factor), min(host.files, FEW_FILES))
    real = files / host.files
    return replace(host, files=files, created=host.created * real, deleted=host.deleted * real, changed=host.changed * real)


def _with_smaller_files(host: HostModel, factor: float) -> HostModel:
    factor = min(factor, 1.0)
    return replace(host, mean_size=host.mean_size * factor, created_size=host.created_size * factor)


def largest_file(size: int) -> int:
    """Bytes of the largest file that a pool of `size` gets."""
    return int(size * LARGEST)
