"""imports.json in the state folder: which imported backups were compared with their trees, and were equal.

A backup is compared after it has its name. A kill between the two leaves one that is not listed here, and the next import compares
it. Losing the file costs another comparison.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from backupd.repo.backup_json import Record
from backupd.repo.json_file import NOT_UNDERSTOOD, text_of_file
from btrkeep.pool.atomic import write_atomically

_FILE = "imports.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ComparedTrees:
    """The list in one state folder. Backups are known by UUID: a host may be renamed."""

    state: Path

    def has(self, record: Record) -> bool:
        """Returns True if that backup was equal to its tree."""
        return record.uuid in self._read()

    def add(self, record: Record) -> None:
        """Adds an equal one. Raises OSError."""
        known = {**self._read(), record.uuid: f"{record.host}@{record.name}"}
        write_atomically(self.state / _FILE, json.dumps({"format": _FORMAT, "equal": known}, indent=1) + "\n")

    def _read(self) -> dict[str, str]:
        """Returns the names of backups by UUID; empty if the file is missing or cannot be read."""
        try:
            fields = json.loads(text_of_file(self.state / _FILE))
            return {str(uuid): str(name) for uuid, name in fields["equal"].items()} if fields["format"] == _FORMAT else {}
        except (OSError, *NOT_UNDERSTOOD):
            return {}
