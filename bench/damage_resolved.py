"""Our side of bench.damage, a process that imports nothing else: prints the names of the files that lie at some addresses.

python -m bench.damage_resolved MOUNT FILE
"""

import json
import os
import sys
from pathlib import Path

from backupd.proof.read_errors import Resolver
from btrkeep.fs.openat import FOLDER


def main(top: str, note: str) -> None:
    """Prints the names. `note`: a file with the addresses, and the id, host and name of each backup."""
    asked = json.loads(Path(note).read_text())
    fd = os.open(top, FOLDER)
    resolver = Resolver(fd, {id_: (host, name) for id_, host, name in asked["backups"]})
    file_places = [place for _, places in resolver.resolve(asked["vaddrs"]) for place in places or ()]
    print(json.dumps([f"{file_place.host}/{file_place.name}/data{os.fsdecode(file_place.path)}" for file_place in file_places]))


if __name__ == "__main__":
    main(*sys.argv[1:])
