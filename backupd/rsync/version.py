"""Which rsync and which other programs are here."""

import json
import re
from dataclasses import dataclass

from btrkeep.process.programs import ProgramFailed, run

SAFE = (3, 4, 3)  # older ones have holes that a hostile host can use against the server (see rsync's NEWS)
OLDEST = (3, 1, 3)  # --modify-window=-1


@dataclass(frozen=True, slots=True)
class Rsync:
    """The rsync of this server."""

    version: str
    """As it prints it."""
    protocol: int | None
    """The newest version of the protocol that it knows; None: not known."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Returns (3, 5, 0) for "3.5.0"."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])


def rsync_version() -> Rsync:
    """Returns the version of our rsync. Raises ProgramFailed if there is no rsync."""
    try:
        fields = json.loads(run(["rsync", "-VV"]).stdout)
        return Rsync(str(fields["version"]), int(float(fields["protocol"])))
    except (ValueError, KeyError, ProgramFailed):  # before 3.2.4 it speaks no JSON
        text = run(["rsync", "--version"]).stdout
        match = re.search(r"version v?(\S+)\s+protocol version (\d+)", text)
        return Rsync(match[1], int(match[2])) if match else Rsync("unknown", None)
