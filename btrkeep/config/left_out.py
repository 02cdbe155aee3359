"""What a backup of this machine must not contain: the pool it is written to, and the catalogue that is open meanwhile.

Source paths are followed when they are symbolic links, links below them are not; so real locations are compared, and the answer is
spelled as rsync will meet it: below the source path as it was written.
"""

import os.path
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from btrkeep.config.sources import literal_pattern


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder to be kept out, and its name in a sentence. `path` is None where the configuration is wrong about it."""

    what: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`source` contains `what`, which `pattern` leaves out; an empty pattern: `source` lies in it, so nothing would remain."""

    source: str
    what: str
    pattern: str


def left_out(sources: Iterable[str], kept: Iterable[Kept]) -> list[LeftOut]:
    """One piece for every source and folder that meet. Looks at the file system for symbolic links only."""
    real = [(each.what, os.path.realpath(each.path)) for each in kept if each.path]
    found = []
    for source in sources:
        real_source = os.path.realpath(source)
        for what, folder in real:
            if below(real_source, folder):
                found.append(LeftOut(source, what, ""))
            elif below(folder, real_source):
                seen = source.rstrip("/") + folder[len(real_source.rstrip("/")) :]
                found.append(LeftOut(source, what, literal_pattern(seen)))
    return found


def below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it; both are real paths."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
