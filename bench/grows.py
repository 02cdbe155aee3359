"""How commands and the dashboard grow with the number of hosts.

    python -m bench.grows [--hosts 280,2800,28000] [--parts status,list] [--backups 4] [--json]

status, list, metrics and overview (the dashboard's first page) read a catalogue of bench.make_catalogue; there is no backup in the
pool. The others use a pool of real subvolumes, each with one file of one byte, made in batches by bench.churned: afresh is a
rebuild without a catalogue, rebuild one with it; after both the rows are compared with `btrfs subvolume list`. pool-status,
pool-list and plan (expire --dry-run) come between the two. expiry deletes the oldest backup of every host. night backs up every
host once, from one empty folder, through tests/fakessh. All sizes have the same few backups of each host, so that the hosts alone
differ.

Each figure is that of whole processes with their children: seconds on the wall, seconds of CPU time, the peak of memory of the
largest process, and the counters of /proc/PID/io. For overview it is that of one request to a running server, once after a change
of the catalogue and once from the server's cache; there the memory is the server's peak since its start, and CPU time counts in
steps of 10 ms. An exponent is the slope of a least squares line through the logarithms: 1 means that twice the hosts take twice as
much. Start-up flattens the small sizes, so with three sizes or more a second exponent is of the two largest alone.
"""

import argparse
import http.client
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bench import churned, make_catalogue
from bench.catalogue_commands import NOW, configuration
from bench.churned import ChurnedPool, Shape
from bench.common import FAKESSH, own_folder, plain_parser, report, say, wait_for_quiet
from bench.counted import counted
from bench.growth import COUNTERS, CPU, MEMORY, SECONDS, Figures, megabytes, summary
from bench.web_load import cpu_of, memory
from btrkeep.catalogue import Catalogue
from btrkeep.config import load, publish
from tests.beds import TOP, btrfs, session, work
from tests.beds.dashboard import Dashboard, serving

COMMANDS: Mapping[str, tuple[str, ...]] = {"status": ("status",), "list": ("list", "--json"), "metrics": ("metrics",)}
READING = (*COMMANDS, "overview")
CACHED = "overview, cached"
_YOUNG = 1.2
"""Seconds after which the dashboard uses no result of an older catalogue (`Caches` of web.source: 1)."""
ON_POOL: Mapping[str, tuple[str, ...]] = {
    "afresh": ("rebuild",),
    "pool-status": ("status",),
    "pool-list": ("list", "--json"),
    "plan": ("expire", "--dry-run"),
    "rebuild": ("rebuild",),
}
WRITING = (*ON_POOL, "expiry", "night")
"""In the order in which they run: night needs what the others leave."""
PARTS = (*READING, *WRITING)


def measured(argv: Sequence[str]) -> tuple[Figures, str]:
    """Runs a command to its end. Returns its figures and its output; its failure ends the bench."""
    done = counted(argv)
    if done.status:
        raise SystemExit(f"{' '.join(argv)} failed: {done.status} {done.stdout[-1000:]} {done.stderr[-1000:]}")
    return done.figures, done.stdout


def reading(options: argparse.Namespace, folder: Path, hosts: int) -> Iterator[tuple[str, list[Figures]]]:
    """Yields each chosen part that reads the catalogue alone, with its figures of each round."""
    pool = btrfs.make("1G", options="noatime") / "pool"
    config, state = folder / "reading.toml", folder / "state"
    config.write_text(configuration(pool, state, hosts), encoding="utf-8")
    _initialize(pool, config, state, hosts, options.backups)
    for part in (part for part in COMMANDS if part in options.parts):
        argv = (sys.executable, "-m", "backupd", "--config", str(config), *COMMANDS[part], "--now", NOW)
        measured(argv)  # with cold caches
        yield part, [measured(argv)[0] for _ in range(options.rounds)]
    if "overview" in options.parts:
        with serving(folder, state) as web:
            requested(web)
            yield "overview", [_after_a_change(web) for _ in range(options.rounds)]
            yield CACHED, [requested(web) for _ in range(options.rounds)]
    session.remove(pool.parent.parent)


def _initialize(pool: Path, config: Path, state: Path, hosts: int, backups: int) -> None:
    work(sys.executable, "-m", "backupd", "--config", config, "init", "--rehearsal", pool, cwd=TOP)
    marker = pool / ".btrkeep" / "pool.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "id": make_catalogue.POOL_ID}), encoding="utf-8")
    make_catalogue.make(state, hosts, backups)
    with Catalogue.open(state) as catalogue:
        publish(load(file=config), catalogue, rehearsal=True)


def _after_a_change(web: Dashboard) -> Figures:
    """Returns the figures of a request for which the server computes all results that depend on the catalogue, as after each event
    of a night.
    """
    with Catalogue.open(web.state) as catalogue:
        catalogue.set_fact("bench", str(time.time_ns()))
    time.sleep(_YOUNG)
    return requested(web)


def requested(web: Dashboard) -> Figures:
    """Returns the figures of one request of the overview; the memory is the peak of the server since its start."""
    cpu, before = cpu_of(web), _counters(web.pid)
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=600)
    connection.request("GET", "/", headers={"Cookie": web.cookie})
    answer = connection.getresponse()
    answer.read()
    seconds = time.perf_counter() - begun
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"the overview answers {answer.status}: {web.log_text[-1000:]}")
    after = _counters(web.pid)
    counted = {name: after[name] - before[name] for name in COUNTERS}
    return {SECONDS: seconds, CPU: cpu_of(web) - cpu, MEMORY: memory(web)["most"] / 1e6, **megabytes(counted)}


def _counters(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def writing(options: argparse.Namespace, folder: Path, hosts: int) -> Iterator[tuple[str, list[Figures]]]:
    """Yields each chosen part that needs real subvolumes, with its figures; each runs once."""
    keep, paths = options.backups - 1, options.paths
    shape = Shape(hosts, options.backups, keep, files=1, changed=0, smallest=1, largest=1, paths=paths)
    mount = btrfs.make(f"{2048 + hosts * options.backups // 8}M", mkfs=("-m", "single"), options="noatime")
    made = churned.build(mount, folder, shape)
    backups, chosen = hosts * options.backups, [part for part in WRITING if part in options.parts]
    for part in (part for part in ON_POOL if part in chosen):
        if part == "afresh":
            shutil.rmtree(folder / "state")
        figures, output = measured(made.backupd(*ON_POOL[part]))
        if ON_POOL[part] == ("rebuild",):
            _require_subvolumes(mount, backups)
            _require_same(mount, folder / "state")
        if part == "pool-list" and len(json.loads(output)) != backups:
            raise SystemExit(f"{len(json.loads(output))} backups are listed, where {backups} should be")
        yield part, [figures]
    if "expiry" in chosen:
        figures, _ = measured(made.backupd("expire"))
        backups -= hosts
        _require_subvolumes(mount, backups)
        yield "expiry", [figures]
    if "night" in chosen:
        yield "night", [_night(folder, made)]
        _require_subvolumes(mount, backups + hosts)
    session.remove(mount.parent)


def _night(folder: Path, made: ChurnedPool) -> Figures:
    source = folder / "source"
    source.mkdir()
    text = made.config.read_text(encoding="utf-8").replace('paths = ["/srv"]', f'paths = ["{source}"]')
    made.config.write_text(f'{text}[ssh]\ncommand = "{FAKESSH}"\n', encoding="utf-8")
    figures, output = measured(made.backupd("run", "--all", "--json"))
    outcomes = {result["outcome"] for result in json.loads(output)}
    if outcomes != {"complete"}:
        raise SystemExit(f"a host of the night is not complete: {outcomes}")
    return figures


def _require_subvolumes(mount: Path, backups: int) -> None:
    subvolumes = len(work("btrfs", "subvolume", "list", "-r", mount).stdout.splitlines())
    if subvolumes != backups:
        raise SystemExit(f"{subvolumes} read-only subvolumes, where {backups} should be")


def _require_same(mount: Path, state: Path) -> None:
    """Requires that the catalogue's rows, read by SQLite, are the subvolumes that the `btrfs` program lists: path, id and UUID of
    each.
    """
    lines = (line.split(" path ", 1) for line in work("btrfs", "subvolume", "list", "-r", "-u", mount).stdout.splitlines())
    subvolumes = {(path.removeprefix("pool/"), int(words.split()[1]), words.split()[-1]) for words, path in lines}
    with closing(sqlite3.connect(f"file:{state / 'catalogue.sqlite'}?mode=ro", uri=True)) as catalogue:
        rows = set(catalogue.execute("SELECT path, subvolume_id, uuid FROM backup"))
    if rows != subvolumes:
        raise SystemExit(
            f"only in the catalogue: {sorted(rows - subvolumes)[:9]}; only in the pool: {sorted(subvolumes - rows)[:9]}"
        )


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Returns all figures of all sizes, and their growth."""
    figures_by_part: dict[str, dict[int, list[Figures]]] = {}
    folder.chmod(0o755)  # the dashboard runs as another user
    quiet = []
    for hosts in options.hosts:
        for parts, run in ((READING, reading), (WRITING, writing)):
            if set(parts).isdisjoint(options.parts):
                continue
            place = folder / f"{run.__name__}{hosts}"
            place.mkdir()
            quiet.append(wait_for_quiet(options))
            for part, figures in run(options, place, hosts):
                figures_by_part.setdefault(part, {})[hosts] = figures
                say(
                    f"{hosts} hosts: {part}: "
                    + ", ".join(f"{figures[-1][measure]:.2f} {measure}" for measure in (SECONDS, CPU, MEMORY))
                )
    return {"backups of each host": options.backups, "quiet": all(quiet), **summary(figures_by_part)}


def _sizes(text: str) -> list[int]:
    sizes = sorted({int(word) for word in text.split(",")})
    if not 1 <= sizes[0] <= sizes[-1] <= make_catalogue.MOST_HOSTS:
        raise argparse.ArgumentTypeError(f"from 1 to {make_catalogue.MOST_HOSTS} hosts, not {text}")
    return sizes


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}")
    return [part for part in PARTS if part in parts]


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--hosts", type=_sizes, default="280,2800,28000", help="numbers of hosts")
    made.add_argument("--parts", type=_parts, default=",".join(PARTS), help="what to measure")
    made.add_argument("--backups", type=int, default=4, help="backups of each host, at all sizes")
    made.add_argument("--paths", type=int, default=0, help="source paths in each real backup's record; 0: a short record")
    made.add_argument("--rounds", type=int, default=3, help="measured rounds of each part that reads, after an unmeasured one")
    options = made.parse_args()
    if options.backups < 2:
        made.error("--backups: at least 2, because expiry deletes one of each host and night needs another")
    with own_folder(options) as folder:
        report(options, "Growth with the number of hosts", measure(options, folder))


if __name__ == "__main__":
    main()
