"""The configuration that a new pool starts with."""

import tomllib
from pathlib import Path

from btrkeep.config.problems import InvalidValue, quoted
from btrkeep.config.sources import normalised
from btrkeep.errors import UsageError

_TEXT = """\
# btrkeep: the backups of one pool. `man btrkeep.toml` explains every key.
# Hosts may also have separate files, in the folder {pool}.d/ beside this file.
# `backupd check` shows mistakes in this file, `backupd run` makes the first backups.

[pool]
path = {path}

[backup]
# window = "22:00-06:00"      # in UTC, or in the pool's own: zone = "Europe/Berlin" in [pool]
# bandwidth = "16MB"          # per second, for all transfers together

[retention]                   # how many days, weeks and months keep a backup; without rules every backup is kept
daily = 14
weekly = 13
monthly = 12
# min_keep = 3                # never fewer complete backups of a host than this
# grace = "1d"                # how long an expired backup can still be restored

# [host.here]                 # no address: this machine
# paths = ["/etc", "/home"]

# [host.web1]
# address = "root@web1.example.org"
# paths = ["/etc", "/srv"]
"""


def example(path: Path = Path("/srv/backup"), pool: str = "main") -> str:
    """Returns a configuration of the pool at `path` without a host: its other settings are comments, which take effect without
    their `# `.

    Raises UsageError for a path that a configuration cannot contain.
    """
    try:
        text = normalised(str(path))
        text.encode()
    except (InvalidValue, UnicodeEncodeError) as error:
        raise UsageError(f"the pool's path {quoted(str(path))} cannot be written into a configuration: {error}") from None
    return _TEXT.format(path=quoted(text), pool=pool)


def is_example(text: str, pool: str) -> bool:
    """Returns True if `text` is an unchanged example, for whatever path."""
    try:
        path = tomllib.loads(text)["pool"]["path"]
        return text == example(Path(path), pool)
    except (ValueError, KeyError, TypeError, UsageError):
        return False
