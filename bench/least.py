"""The minimum that a process has to do for a night: a snapshot, the rsync, a sync and the read-only flag for each host.

    python -m bench.least FILE NOTE AT_A_TIME

FILE is a JSON list of [BASE, NEW, [RSYNC WORDS]]; a few threads process it. No catalogue, no record, no lock, no check of
rsync's output. NOTE gets the CPU seconds of this process, without rsync.
"""

import json
import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from btrkeep.pool.subvolume import commit, set_read_only, snapshot


def back_up_host(base: str, new: str, rsync: list[str]) -> None:
    """Backs up one host."""
    path = Path(new)
    snapshot(Path(base), path)
    actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    _, status = os.waitpid(os.posix_spawnp(rsync[0], rsync, os.environ, file_actions=actions), 0)
    assert status == 0, rsync
    commit(path)
    set_read_only(path)


def main() -> None:
    """Runs the command line."""
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with ThreadPoolExecutor(int(sys.argv[3])) as threads:
        for done in [threads.submit(back_up_host, *job) for job in jobs]:
            done.result()
    used = resource.getrusage(resource.RUSAGE_SELF)
    Path(sys.argv[2]).write_text(f"{used.ru_utime + used.ru_stime}\n", encoding="ascii")


if __name__ == "__main__":
    main()
