"""The limit of open files of this process, for what holds a lock for each host or each backup."""

import resource
from contextlib import suppress


def raise_limit() -> None:
    """Allows as many as the system does: 1,024 is what a shell has by default. Programs that are started from now on inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
