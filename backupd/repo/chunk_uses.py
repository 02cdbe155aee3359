"""Reads how much is used in the chunks of each type, profile and set of devices."""

from collections import Counter
from pathlib import Path

import numpy as np

from btrkeep.pool.allocation import profile_of, type_of
from btrkeep.pool.space_by_profile import ChunkUse
from btrkeep.pool.subvolume import opened
from btrkeep.treescan.block_groups import block_groups, chunks


def chunk_uses(path: Path) -> tuple[ChunkUse, ...]:
    """Reads the chunk tree and the block groups of the btrfs of `path`. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    with opened(path) as fd:
        chunk = chunks(fd)
        groups = block_groups(fd, chunk)
    used_at = dict(zip(groups.vaddr.tolist(), groups.used.tolist(), strict=True))
    ends, devids = np.cumsum(chunk.stripes).tolist(), chunk.stripe_devid.tolist()
    sums: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for vaddr, flags, end, stripes in zip(chunk.vaddr.tolist(), chunk.type.tolist(), ends, chunk.stripes.tolist(), strict=True):
        sums[flags, tuple(devids[end - stripes : end])] += used_at.get(vaddr, 0)
    return tuple(ChunkUse(type_of(flags), profile_of(flags), used, of) for (flags, of), used in sums.items())
