"""What the options before the command chose."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options before the command; None: not given."""

    pool: str
    state: Path | None
    data: Path | None
    socket: Path | None
