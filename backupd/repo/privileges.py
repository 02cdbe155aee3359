"""Refuses what this process has no capability for, before anything is begun."""

import os
from collections.abc import Collection

from btrkeep.capabilities import SYS_ADMIN, read_capabilities
from btrkeep.decisions.privileges import NEEDS, missing_privileges, privilege_advice, privilege_words
from btrkeep.errors import PoolUnusable

REQUIRED = frozenset(need.capability for need in NEEDS if need.required)
"""Without these no backup can be made as it should."""


def require_privileges(names: Collection[str] = (SYS_ADMIN,)) -> None:
    """Raises PoolUnusable if this process lacks one of these capabilities. Where /proc cannot be read, nothing is known."""
    known, root = read_capabilities(), os.geteuid() == 0
    if known is None:
        return
    for need in missing_privileges(known, [need for need in NEEDS if need.capability in names]):
        raise PoolUnusable(privilege_words(need, root=root), privilege_advice(known, need, root=root))
