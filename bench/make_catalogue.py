"""The catalogue of a large pool, for the benchmarks: always the same one.

    python -m bench.make_catalogue STATE [--hosts 3000] [--backups 32]

Each host has `--backups` backups: daily ones, then weekly, then monthly ones, written in the order of the nights, as a real
catalogue grows, so that the rows of one host are far apart in the file. Each backup has a run. Some are suspect or failed, some
have warnings. bench/make_site.py makes that of a whole site as the dashboard shows it.
"""

import argparse
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice
from pathlib import Path

from btrkeep.catalogue import Backup, Catalogue, Run
from btrkeep.catalogue.hosts import ensure_hosts
from btrkeep.catalogue.tables import run
from btrkeep.decisions.rsync_meaning import ExitCause
from btrkeep.units import backup_name

POOL_ID = "7d1f3c52-6a0e-4b8e-9a55-0c1d2e3f4a5b"
LAST_NIGHT = datetime(2026, 11, 19, 22, 0, tzinfo=UTC)
DAILY, WEEKLY = 14, 12
MOST_HOSTS = 1_000_000
"""A host with a higher number would share its subvolume ids with another."""
WARNING = 'file has vanished: "/var/lib/apt/lists/partial/mirror.example.org_dists_trixie_InRelease"'


def nights(count: int, last: datetime = LAST_NIGHT) -> list[datetime]:
    """Returns the nights that a retention of 14 daily, 12 weekly and then monthly backups has kept, oldest first."""
    steps = [1] * (DAILY - 1) + [7] * WEEKLY + [30] * count
    ages = list(accumulate(steps[: count - 1], initial=0))
    return [last - timedelta(days=age) for age in reversed(ages)]


def state_of(host: int, night: int) -> str:
    """Returns the state of a backup: one in 200 failed, one in 500 is suspect, all others are complete."""
    place = host * 31 + night * 17
    return "failed" if place % 200 == 7 else "suspect" if place % 500 == 11 else "complete"


def backup_of(host: int, night: int, evening: datetime) -> Backup:
    """Returns the backup of host number `host` in that night."""
    started = evening + timedelta(seconds=host * 7 % 28000, microseconds=host * 977 % 10**6)
    duration = 20.0 + host * 13 % 900
    state, name = state_of(host, night), backup_name(started)
    files, size = 20_000 + host * 37 % 400_000, 10**9 + host * 7_919_113 % 10**11
    return Backup(
        host=f"host{host:04}.example.org",
        name=name,
        path=f"/srv/backup/hosts/host{host:04}.example.org/{name}",
        state=state,
        started=started,
        finished=started + timedelta(seconds=duration),
        duration=duration,
        files=files,
        bytes=size,
        new_bytes=size // 100,
        error=None if state == "complete" else f"{state}: /srv lost too many files",
        warnings=(WARNING,) * 3 if host % 50 == night % 50 else (),
        base=None,
        subvolume_id=256 + night * MOST_HOSTS + host,
        uuid=f"{host:08x}-0000-4000-8000-{night:012x}",
        detail=detail_of(files, size),
    )


def detail_of(files: int, size: int) -> dict[str, object]:
    """Returns details of about the same size as in backup.json."""
    numbers = {"files": files // 4, "bytes": size // 4, "literal": size // 400, "matched": size // 800, "exit_code": 0}
    paths = {path: {**numbers, "deletions": "done", "seconds": 12.5} for path in ("/etc", "/home", "/srv", "/var/lib")}
    return {"paths": paths, "rsync": {"version": "3.4.3", "protocol": 32}, "btrkeep": "0.1.0"}


def run_of(backup: Backup) -> Run:
    """Returns the run that made the backup."""
    assert backup.bytes is not None
    return Run(
        id=0,
        host=backup.host,
        started=backup.started,
        finished=backup.finished,
        outcome=backup.state,
        backup=backup.name,
        attempts=1,
        exit_code=0 if backup.state == "complete" else 23,
        meaning=ExitCause.COMPLETE if backup.state == "complete" else ExitCause.NOT_TRANSFERRED,
        error=backup.error,
        last_lines=() if backup.state == "complete" else ("rsync error: some files/attrs were not transferred (code 23)",),
        literal_bytes=backup.new_bytes,
        matched_bytes=backup.bytes // 200,
        received_bytes=backup.bytes // 90,
        rsync_version="3.4.3",
        protocol=32,
        pid=4242,
        pid_started="1234567",
        night=True,
    )


def backups(hosts: int, count: int) -> Iterator[Backup]:
    """Yields all backups, night after night."""
    for night, evening in enumerate(nights(count)):
        for host in range(hosts):
            yield backup_of(host, night, evening)


def add_runs(catalogue: Catalogue, history: Iterable[Run]) -> None:
    """Inserts past runs under new ids, in the given order. No command does that, so the catalogue has no method for it."""
    source = iter(history)
    with catalogue._writing("runs added") as session:
        while runs := list(islice(source, 1000)):
            ensure_hosts(session, {run.host for run in runs})
            run.add(session, runs)


def make(state: Path, hosts: int = 3000, count: int = 32) -> int:
    """Creates and fills the catalogue in `state`; returns the number of backups."""
    with Catalogue.open(state) as catalogue:
        done = catalogue.replace_backups(POOL_ID, backups(hosts, count))
        add_runs(catalogue, (run_of(backup) for backup in backups(hosts, count)))
    return done


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Fill a new catalogue for the benchmarks.")
    parser.add_argument("state", type=Path, help="a folder that has no catalogue yet")
    parser.add_argument("--hosts", type=int, default=3000)
    parser.add_argument("--backups", type=int, default=32)
    words = parser.parse_args()
    if (words.state / "catalogue.sqlite").exists():
        parser.error(f"{words.state} has a catalogue already")
    print(f"{make(words.state, words.hosts, words.backups)} backups in {words.state}")


if __name__ == "__main__":
    main()
