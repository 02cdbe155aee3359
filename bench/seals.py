"""The cost of the comparison of all backups with their seals: one pass through the root tree of a pool with that many snapshots.

python -m bench.seals --snapshots 90000
"""

import json
import time

from bench.common import own_folder, plain_parser, say
from btrkeep.pool.subvolume import create, opened, snapshot
from btrkeep.treescan import last_changes
from tests.beds import btrfs


def main() -> None:
    """Runs the command line."""
    parser = plain_parser(__doc__)
    parser.add_argument("--snapshots", type=int, default=10_000, help="number of snapshots")
    options = parser.parse_args()
    with own_folder(options):
        top = btrfs.make("8G")
        create(top / "first")
        (top / "first/file").write_text("x")
        folder = top
        for number in range(options.snapshots):
            if not number % 1000:
                say(f"{number:,} snapshots")
                folder = top / f"{number // 1000}"
                folder.mkdir()
            snapshot(top / "first", folder / f"{number}", read_only=True)
        seconds = []
        with opened(top) as fd:
            for _ in range(5):
                begun = time.process_time()
                subvolumes = len(last_changes(fd))
                seconds.append(time.process_time() - begun)
    print(
        json.dumps(
            {"subvolumes": subvolumes, "cpu_seconds": round(min(seconds), 3), "all": [round(duration, 3) for duration in seconds]}
        )
    )


if __name__ == "__main__":
    main()
