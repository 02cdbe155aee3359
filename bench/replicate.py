"""Fetching a second copy, side by side with a shell loop over `btrfs send | btrfs receive`, and the plan when nothing is new.

    python -m bench.replicate [--hosts 100] [--files 100] [--nights 5] [--pairs 3] [--plan-hosts 2800] [--plan-backups 32]

Both sides fetch the same backups into an empty filesystem each: of every host the first backup whole, the others as the difference
to the one before. One file in a hundred has changed from night to night. btrkeep runs as the whole command, from a pool in a
folder, so without ssh; once with one host at a time, like the loop, and once with four. The loop syncs its filesystem at the end.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from backupd.repo import backup_json as records
from backupd.repo.notes_json import Notes, write_notes
from bench.catalogue_commands import Measured, Started, make_site, measure
from bench.common import Sides, Timed, alternate, noise, own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from btrkeep.backup_states import COMPLETE
from btrkeep.pool.subvolume import create, describe, set_read_only, snapshot
from btrkeep.units import backup_name
from tests.beds import TOP, btrfs, session, work

FILES, SIZE = 100, 16384
FIRST = datetime(2026, 3, 1, 22, tzinfo=UTC)
RATIO, OWN_CPU, PLAN_SECONDS, PLAN_MEMORY = 1.10, 0.010, 5.0, 200.0
_POOL = ".btrkeep/pool.json"
_OTHER_ID = "00000000-0000-4000-8000-00000000beef"


def make_first(top: Path, hosts: int, nights: int, files: int = FILES) -> Path:
    """Makes a pool with these backups of that many files each, as runs leave them; returns its folder."""
    pool = top / "pool"
    (top / "init.toml").write_text(f'[pool]\npath = "{pool}"\nstate = "{top}/state"\n')
    work(sys.executable, "-m", "backupd", "--config", top / "init.toml", "init", pool, cwd=TOP)
    for number in range(hosts):
        folder = pool / "hosts" / f"host{number:03}"
        folder.mkdir(mode=0o700)
        before = None
        for night in range(nights):
            before = _make_backup(folder, before, night, files)
    work("btrfs", "filesystem", "sync", top)
    return pool


def _make_backup(folder: Path, before: Path | None, night: int, files: int) -> Path:
    started = FIRST + timedelta(days=night)
    path = folder / backup_name(started)
    if before:
        snapshot(before, path)
    else:
        create(path)
        (path / "data").mkdir()
    for number in range(files):
        if not before or number % 100 == night % 100:
            (path / "data" / f"file{number}").write_bytes(os.urandom(SIZE))
    subvolume = describe(path)
    assert subvolume is not None
    records.write(path, records.Record(folder.name, subvolume.uuid, COMPLETE, started, name=path.name))
    set_read_only(path)
    return path


def fetch(folder: Path, first: Path, setting: str) -> tuple[Timed, dict[str, Any]]:
    """Fetches with btrkeep, with that line of the replica's settings, into a separate pool on a new filesystem; returns
    its output.
    """
    top = btrfs.make("8G", options="noatime")
    config = folder / f"{top.parent.name}.toml"
    config.write_text(
        f'[pool]\npath = "{top}/pool"\nstate = "{folder}/{top.parent.name}"\nmin_free = "0%"\n'
        f'[replica.first]\nfrom = "{first}"\n{setting}\n'
    )
    backupd = (sys.executable, "-m", "backupd", "--config", str(config))
    work(*backupd, "init", top / "pool", cwd=TOP)
    work(*backupd, "status", check=False, cwd=TOP)  # makes the catalogue, once in the life of a pool
    done = timed((*backupd, "replicate", "--json"))
    replication = json.loads(done.stdout)[0]
    assert replication["planned"] == len(replication["fetched"]) > 0
    session.remove(top.parent)
    return done, replication


def loop(folder: Path, first: Path) -> Timed:
    """Runs the shell loop, into a new filesystem."""
    top = btrfs.make("8G", options="noatime")
    script = folder / "loop.sh"
    script.write_text("set -e -o pipefail\n" + "\n".join(_lines(first, top)) + f"\nbtrfs filesystem sync {shlex.quote(str(top))}\n")
    done = timed(("bash", str(script)))
    session.remove(top.parent)
    return done


def _lines(first: Path, top: Path) -> Iterator[str]:
    for host in sorted((first / "hosts").iterdir()):
        yield f"mkdir {top}/{host.name}"
        before = ""
        for backup in sorted(host.glob("20*")):
            yield f"btrfs send -q {before}{backup} | btrfs receive -q {top}/{host.name}"
            before = f"-p {backup} "


@dataclass(frozen=True, slots=True)
class PlanSides:
    """The plan of a large pool of which all backups are here: the process that plans, and the one that lists, each measured
    separately.
    """

    plans: Measured
    lists: Measured


def plan_nothing(options: argparse.Namespace, folder: Path) -> list[PlanSides]:
    """Measures it `options.pairs` times, after one run with cold caches that is left out."""
    mine, theirs, pipes = make_two_sites(options, folder)
    sides = [_plan_once(mine, theirs, pipes) for _ in range(options.pairs + 1)]
    return sides[1:]


def make_two_sites(options: argparse.Namespace, folder: Path) -> tuple[Path, Path, Path]:
    """Makes a pool, and a second one that already has all of its backups; yields both configurations, and the folder of
    the pipes.
    """
    far, near = (btrfs.make("4G", options="noatime") for _ in range(2))
    (folder / "far").mkdir()
    (folder / "near").mkdir()
    theirs = make_site(far / "pool", folder / "far", options.plan_hosts, options.plan_backups)
    mine = make_site(near / "pool", folder / "near", options.plan_hosts, options.plan_backups)
    marker = json.loads((near / "pool" / _POOL).read_text())
    (near / "pool" / _POOL).write_text(json.dumps({**marker, "id": _OTHER_ID}))
    with_other_id(folder / "near" / "state", _OTHER_ID)
    mark = Notes(replica={"pool": marker["id"], "name": "first", "at": "2026-03-01T00:00:00Z"})
    for host in (near / "pool" / "hosts").iterdir():
        write_notes(host, mark)
    for name in ("asked", "answered"):
        os.mkfifo(folder / name)
    answers = folder / "ssh"
    answers.write_text(f"#!/bin/sh\ncd {shlex.quote(str(folder))}\nexec 3<&0\ncat <&3 >asked &\nexec cat answered\n")
    answers.chmod(0o755)
    text = "\n".join(line for line in mine.read_text().splitlines() if not line.startswith(("[host", "group =", "address =")))
    mine.write_text(f'{text}\n[ssh]\ncommand = "{answers}"\n[replica.first]\nfrom = "ssh://root@first"\n')
    return mine, theirs, folder


def _plan_once(mine: Path, theirs: Path, pipes: Path) -> PlanSides:
    """Measures one plan. The process that lists is not a child of the one that plans, because the kernel would count its memory
    there.
    """
    argv = (sys.executable, "-m", "backupd", "--config", str(theirs), "send-only")
    with Started(argv, pipes / "asked", pipes / "answered") as lists:
        plans = measure(mine, ("replicate", "--dry-run", "--json"))
    plan = json.loads(plans.output)[0]
    if plan["fetches"] or plan["obstacles"] or not plan["there"]:
        raise SystemExit(f"the two made pools do not agree: {plans.output[:2000]!r}")
    assert lists.measured
    return PlanSides(plans, lists.measured)


def with_other_id(state: Path, pool_id: str) -> None:
    """Makes the catalogue belong to that pool."""
    from btrkeep.catalogue import Catalogue

    with Catalogue.open(state) as catalogue:
        catalogue.set_pool_id(pool_id)


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__ or "")
    made.add_argument("--hosts", type=int, default=100)
    made.add_argument("--files", type=int, default=FILES, help=f"of each host, of {SIZE} bytes")
    made.add_argument("--nights", type=int, default=5)
    made.add_argument("--pairs", type=int, default=3)
    made.add_argument("--plan-hosts", type=int, default=2800, help="hosts of the pool without new backups; 0: leave that part out")
    made.add_argument("--plan-backups", type=int, default=32)
    options = made.parse_args()
    with own_folder(options) as folder:
        report(options, "A second copy", _measure_all(options, folder))


def _measure_all(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    say(f"making {options.hosts} hosts with {options.nights} backups each")
    first = make_first(btrfs.make("8G", options="noatime"), options.hosts, options.nights, options.files)
    alone, four, own = Sides("ours", "loop"), Sides("ours, four at once", "loop"), list[float]()
    for pair in range(options.pairs + 1):
        quiet = wait_for_quiet(options)
        mine, bare = alternate(pair, lambda: fetch(folder, first, "concurrency = 1")[0], lambda: loop(folder, first))
        faster, _ = fetch(folder, first, "concurrency = 4")
        say(f"{mine.seconds:.1f} s, four at once {faster.seconds:.1f} s, the loop {bare.seconds:.1f} s; {noise(quiet, mine, bare)}")
        if pair:  # the first one finds cold caches
            alone.pairs.append((mine.seconds, bare.seconds))
            four.pairs.append((faster.seconds, bare.seconds))
            own.append((mine.cpu - bare.cpu) / (options.hosts * options.nights) * 1000)
    results: dict[str, object] = {
        "seconds, one host at a time": alone.summary(RATIO),
        "seconds, four hosts at a time": four.summary(None),
        "ms of CPU a backup more than the loop": {"ours": {**spread(own), "limit": OWN_CPU * 1000}},
    }
    if options.plan_hosts:
        say(f"making a pool of {options.plan_hosts} hosts with {options.plan_backups} backups each, twice")
        sides = plan_nothing(options, folder)
        planning, listing = [plan_sides.plans for plan_sides in sides], [plan_sides.lists for plan_sides in sides]
        results["nothing is new: seconds of the whole plan"] = {
            "ours": {**spread([measured.seconds for measured in planning]), "limit": PLAN_SECONDS}
        }
        results["nothing is new: MB of memory"] = {
            side: {**spread([measured.memory / 1e6 for measured in of_side]), "limit": PLAN_MEMORY}
            for side, of_side in (("the side that plans", planning), ("the side that lists", listing))
        }
        results["nothing is new: seconds of CPU time"] = {
            side: spread([measured.cpu for measured in of_side])
            for side, of_side in (("the side that plans", planning), ("the side that lists", listing))
        }
    return results


if __name__ == "__main__":
    main()
