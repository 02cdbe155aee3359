"""Changes of final backups that the seals do not show, like those by a disk."""

import json
import time
from pathlib import Path


def hide_changes(folder: Path, seconds: float = 0.0) -> None:
    """Makes the seals in a host's folder start now, or in that many seconds: earlier changes are not noticed."""
    file = folder / "seals.json"
    if not file.exists():
        return
    fields = json.loads(file.read_text())
    for seal in fields["backups"].values():
        seal[2] = time.time_ns() + int(seconds * 1e9)
    file.write_text(json.dumps(fields))
