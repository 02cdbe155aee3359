"""Restores, side by side with cp, rsync, restic, borg, tar and zip: whole processes, in turns, in one run.

    python -m bench.restore [--files 20000] [--rounds 3] [--only "files, warm" tar] [--sides "ours, metadata compared"] [--full]

One backup with a tree of each kind (see restore_trees). Each part restores one tree to a fresh folder of an ext4, or of the pool's
own filesystem, or to a host by a real sshd, or writes an archive into a pipe. Ratios are those of the runs of a round to the first
side. In the cold part caches are dropped before each run; before the others the first side runs once unmeasured. A run ends with
its process, even if data is not on the disk by then, and all is written out before the next one. A missing peer is named.
"""

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.catalogue_commands import measure_stream
from bench.common import ext4, own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from bench.least_restore import STEPS
from bench.restore_trees import SHAPES, START, enlarge, fill
from tests.beds import btrfs, ssh, work
from tests.beds.dashboard import LOGIN, QUICK, Dashboard, serving, user_id
from tests.beds.nights import Nights
from tests.beds.serving import serving as root_service
from tests.web.files_visit import files as address_of

METADATA, CONTENTS = "ours, metadata compared", "ours, contents compared"
CHECKED, LEAST = "cp -a, then compared", "the least in Python"
"""The lower bound for a restore with a comparison of metadata: by C programs (find and getfattr on both sides), and by the steps of
bench.least_restore."""
DOWNLOAD = "download"
LIMITS = {METADATA: 1.2, CONTENTS: 2.0}
"""The limit for a tree of files, as a multiple of the first side's time. For other trees 1.3, for streams and hosts 1.2."""
_OTHER_TREE, _STREAM = 1.3, 1.2
_CHECKED = r"""set -e
list() {
    cd "$1"
    find . -type d -printf '%m %U %G %T@ %P\n' -o -printf '%y %m %U %G %s %T@ %l %P\n' | sort
    getfattr -R -d -h -m - . | sort
}
source=$1 to=$2
shift 2
cp -a "$@" -- "$source" "$to"
sync -f "$to"
cmp <(list "$source") <(list "$to/$(basename "$source")")
wait # else the time that the lists take is not counted
"""
_LOOPBACK = """
import socket, subprocess, sys, time
begun, size, room = time.monotonic(), 0, bytearray(1 << 20)
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as reader:
    writer, _ = server.accept()
    cat = subprocess.Popen(("cat", sys.argv[1]), stdout=writer)
    writer.close()
    while number := reader.recv_into(room):
        first = time.monotonic() - begun if not size else first
        size += number
    cat.wait()
print(first, size)
"""
_LOGOUT = 0.5  # seconds until an sshd has counted what it did for a client
_PEERS = {"restic": "restic", "borg": "borgbackup", "zip": "zip", "curl": "curl"}  # their Debian packages
_SECRET = {"RESTIC_PASSWORD": "bench", "BORG_PASSPHRASE": "bench", "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes"}
_FULL = {"files": 100_000, "large": 20, "big_mib": 10_240, "empty": 1_000_000, "small": 100_000}


@dataclass(frozen=True, slots=True)
class Run:
    """One process. Only of streams: seconds until the first byte, MB of its largest process, and GB per second.

    `start`: CPU seconds of the same side for a tree of one empty file, in the same round; 0 if that was not measured.
    """

    seconds: float
    cpu: float
    first: float = 0.0
    memory: float = 0.0
    rate: float = 0.0
    start: float = 0.0


_OF_STREAMS: Mapping[str, Callable[[Run], float]] = {
    "seconds to the first byte": lambda run: run.first,
    "MB of memory": lambda run: run.memory,
    "GB a second": lambda run: run.rate,
}


@dataclass(frozen=True, slots=True)
class Part:
    """Commands with the same effect. `to` is made again before each; without it they write to their standard output.

    `server`: the process of the sshd that they use, whose CPU time counts as theirs. `servers`: processes that work for the sides
    whose name begins with DOWNLOAD. `start`: the same sides for a tree of one empty file.
    """

    sides: Mapping[str, Sequence[str]]
    to: Path | None
    limits: Mapping[str, float]
    cold: bool = False
    server: int | None = None
    servers: Sequence[int] = ()
    start: "Part | None" = None


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--files", type=int, default=20_000, help="files of up to 6 kB")
    made.add_argument("--large", type=int, default=4, help="large files beside them")
    made.add_argument("--large-mib", type=int, default=20, help="MiB of each large file")
    made.add_argument("--big-mib", type=int, default=1024, help="MiB of the one big file")
    made.add_argument("--empty", type=int, default=50_000, help="empty files")
    made.add_argument("--sparse-mib", type=int, default=4096, help="MiB of the image with holes")
    made.add_argument("--small", type=int, default=10_000, help="names in each of the other trees")
    made.add_argument("--full", action="store_true", help="use the agreed sizes; takes an hour and 40 GiB")
    made.add_argument("--only", nargs="+", metavar="PART", help="only these parts; an unknown name lists all parts")
    made.add_argument("--sides", nargs="+", metavar="SIDE", help="only these sides, in addition to the first side of a part")
    made.add_argument("--rounds", type=int, default=3)
    options = made.parse_args()
    vars(options).update(_FULL if options.full else {})
    os.environ |= _SECRET
    with own_folder(options) as folder:
        report(options, "Restores", _measure_all(options, folder))


def _measure_all(options: argparse.Namespace, folder: Path) -> Mapping[str, object]:
    mib = (
        options.files // 100
        + options.large * options.large_mib
        + options.big_mib
        + options.sparse_mib // 128
        + options.empty // 200
    )
    with ExitStack() as stack:
        disk = stack.enter_context(ext4(folder, 2 * mib + 4096))
        nights = Nights(btrfs.make(f"{4 * mib + 4096}M", options="noatime"))
        say(f"making trees of {mib} MiB, and a backup of them")
        fill(nights.source, options)
        nights.host("web1", nights.source)
        nights.run("web1")
        enlarge(nights.backup("web1"), nights.data("web1", nights.source) / "big/big", options.big_mib)
        shutil.rmtree(nights.source)
        server = ssh.start(folder)
        stack.callback(server.stop)
        nights.settings("ssh", command="ssh -F none", key=str(server.key), known_hosts=str(server.known_hosts))
        web = stack.enter_context(_dashboard(nights, folder))
        parts = dict(_parts(nights, disk, folder, server, web, missing := [name for name in _PEERS if not shutil.which(name)]))
        for name in missing:
            say(f"{name} is not installed, so nothing is compared with it: apt-get install {_PEERS[name]}")
        if unknown := set(options.only or ()) - parts.keys():
            raise SystemExit(f"no part is called {', '.join(sorted(unknown))}; the parts are: {', '.join(parts)}")
        measured, quiet = dict[str, object](), list[bool]()
        for name in options.only or parts:
            quiet.append(wait_for_quiet(options))
            part = _with_sides(parts[name], options.sides)
            runs = _measure(options, nights, disk, part)
            measured |= _summary(name, part, runs)
            say(f"{name}: " + ", ".join(f"{side} {done[-1].seconds:.2f} s" for side, done in runs.items()))
        return {**measured, "missing peers": missing, "quiet": all(quiet)}


def _with_sides(part: Part, sides: Sequence[str] | None) -> Part:
    if sides is None:
        return part
    first = next(iter(part.sides))
    start = _with_sides(part.start, sides) if part.start else None
    return replace(part, sides={name: words for name, words in part.sides.items() if name in (first, *sides)}, start=start)


@contextmanager
def _dashboard(nights: Nights, folder: Path) -> Iterator[Dashboard]:
    place = folder / "dashboard"
    place.mkdir()
    folder.chmod(0o755)
    nights.state.parent.chmod(0o755)
    nights.tables["serve"] = QUICK
    nights.write()
    with (
        root_service(nights.config, "--allow", str(user_id()), "--login", place / LOGIN) as service,
        serving(place, nights.state, service.socket) as web,
    ):
        web.service = service
        yield web


def _parts(
    nights: Nights, disk: Path, folder: Path, server: ssh.Sshd, web: Dashboard, missing: Sequence[str]
) -> Iterator[tuple[str, Part]]:
    data = nights.data("web1", nights.source)
    peers = _peers(folder, data / "files", disk / "to", missing)
    for cold in (False, True):
        yield f"files, {'cold' if cold else 'warm'}", Part(_copies(nights, "files", disk / "to") | peers, disk / "to", LIMITS, cold)
    for shape in SHAPES:
        if shape != "files":
            limits = {METADATA: _OTHER_TREE, CONTENTS: LIMITS[CONTENTS]}
            start = Part(_copies(nights, START, disk / "to"), disk / "to", {})
            yield shape, Part(_copies(nights, shape, disk / "to"), disk / "to", limits, start=start)
    pool = nights.top / "to"
    start = Part(_clones(nights, START, pool), pool, {})
    for shape in ("files", "mixed folders", "big"):
        limits = dict.fromkeys(LIMITS, LIMITS[METADATA])
        yield f"{shape}, on the pool", Part(_clones(nights, shape, pool), pool, limits, start=start)
    for shape in ("files", "big"):
        yield f"tar of {shape}", Part(_tars(nights, shape, data, "-"), None, {"ours": _STREAM})
        yield f"tar of {shape}, to a file", Part(_tars(nights, shape, data, f"{disk}/to/tar"), disk / "to", {"ours": _STREAM})
        if "curl" not in missing:
            assert web.service
            yield (
                f"download of {shape}",
                Part(_downloads(nights, shape, data, web), None, {}, servers=(web.service.process.pid, web.pid)),
            )
    if "zip" not in missing:
        yield "zip of files", Part(_zips(nights, data), None, {"ours": _STREAM})
    limits = dict.fromkeys(LIMITS, _STREAM)
    yield "files, to a host", Part(_hosts(nights, data, disk / "to", server), disk / "to", limits, server=server.process.pid)


def _ours(nights: Nights, shape: str, to: Path) -> dict[str, Sequence[str]]:
    words = _restore(nights, shape, "--to", str(to))
    return {METADATA: (*words, "--compare=metadata"), CONTENTS: words}


def _restore(nights: Nights, shape: str, *words: str) -> tuple[str, ...]:
    config = ("--config", str(nights.config))
    return (sys.executable, "-m", "backupd", *config, "restore", "web1", str(nights.source / shape), *words)


def _copies(nights: Nights, shape: str, to: Path) -> dict[str, Sequence[str]]:
    tree = str(nights.data("web1", nights.source) / shape)
    rsync = ("rsync", "-aHAX", *(("--sparse",) if shape == "sparse" else ()), "--", tree, f"{to}/")
    return {
        "cp -a": ("cp", "-a", "--", tree, str(to)),
        "rsync -aHAX": rsync,
        **_ours(nights, shape, to),
        **(_limits(tree, to) if shape not in ("files", "big", "sparse") else {}),
    }


def _clones(nights: Nights, shape: str, to: Path) -> dict[str, Sequence[str]]:
    tree = str(nights.data("web1", nights.source) / shape)
    return {
        "cp -a --reflink=always": ("cp", "-a", "--reflink=always", "--", tree, str(to)),
        **_ours(nights, shape, to),
        **(_limits(tree, to, "--reflink=always") if shape != "big" else {}),
    }


def _limits(tree: str, to: Path, *options: str) -> dict[str, Sequence[str]]:
    least = (sys.executable, "-m", "bench.least_restore", tree, str(to / Path(tree).name), *(["--reflinks"] if options else []))
    steps = {f"{LEAST}, {step}": (*least, "--steps", step) for step in STEPS}
    steps[f"{LEAST}, copied by cp"] = (*least, "--by-cp")
    steps[f"{LEAST}, contents compared"] = (*least, "--contents")
    return {CHECKED: ("bash", "-c", _CHECKED, "checked", tree, str(to), *options), **steps}


def _peers(folder: Path, tree: Path, to: Path, missing: Sequence[str]) -> dict[str, Sequence[str]]:
    sides = dict[str, Sequence[str]]()
    if "restic" not in missing:
        restic = ("restic", "-q", "--no-cache", "-r", str(folder / "restic"))
        work(*restic, "init")
        work(*restic, "backup", tree)
        sides["restic"] = (*restic, "restore", "latest", "--target", str(to))
    if "borg" not in missing:
        work("borg", "init", "-e", "repokey", folder / "borg")
        work("borg", "create", f"{folder / 'borg'}::one", tree)
        sides["borg"] = ("sh", "-c", f"cd {shlex.quote(str(to))} && exec borg extract {shlex.quote(str(folder / 'borg'))}::one")
    return sides


def _tars(nights: Nights, shape: str, data: Path, to: str) -> dict[str, Sequence[str]]:
    keeps = ("--format=posix", "--xattrs", "--xattrs-include=*", "--acls", "--sparse")  # what ours keeps
    return {"tar": ("tar", *keeps, "-C", str(data), "-cf", to, shape), "ours": _restore(nights, shape, f"--tar={to}")}


def _downloads(nights: Nights, shape: str, data: Path, web: Dashboard) -> dict[str, Sequence[str]]:
    path = os.fsencode(nights.source / shape)
    kinds = [(path, "tar"), (path, "zip")]
    kinds += [(path + b"/big", "file")] if shape == "big" else []
    # Not into a pipe: curl writes 16 KiB at a time, and to wake its reader for each costs more than the download.
    curl = ("curl", "-fsS", "-o", "/dev/null", "-w", "%{time_starttransfer} %{size_download}", "--cookie", web.cookie)
    sides = {
        f"{DOWNLOAD} as {kind}": (*curl, web.url + address_of("web1", name, "/download", **{"as": kind})) for name, kind in kinds
    }
    loopback = {f"{DOWNLOAD} by cat over the loopback": (sys.executable, "-c", _LOOPBACK, str(data / "big/big"))}
    return {"tar": _tars(nights, shape, data, "-")["tar"], **sides, **(loopback if shape == "big" else {})}


def _zips(nights: Nights, data: Path) -> dict[str, Sequence[str]]:
    """Makes zips with the function of the dashboard, because no command makes them."""
    text = (
        "import sys; from pathlib import Path; from backupd.files.archive import write_archive; from backupd.files.tree "
        "import Tree; write_archive(Tree(Path(sys.argv[1])), [sys.argv[2].encode()], 'zip', sys.stdout.buffer)"
    )
    ours = (sys.executable, "-c", text, str(nights.backup("web1")), str(nights.source / "files"))
    return {"zip": ("sh", "-c", f"cd {shlex.quote(str(data))} && exec zip -qry - files"), "ours": ours}


def _hosts(nights: Nights, data: Path, to: Path, server: ssh.Sshd) -> dict[str, Sequence[str]]:
    bare = ("rsync", "-aHAX", "-e", shlex.join(server.ssh()), "--", str(data / "files"), f"{server.address}:{to}/")
    ours = _restore(nights, "files", f"--to-host={server.address}:{to}", f"--port={server.port}")
    compared = f"{shlex.join(bare)} && {shlex.join((*bare[:2], '-n', '-i', *bare[2:]))}"  # what rsync alone takes for both
    words = ("sh", "-c", compared)
    return {"rsync -aHAX": bare, "rsync -aHAX, compared": words, METADATA: (*ours, "--compare=metadata"), CONTENTS: ours}


def _measure(options: argparse.Namespace, nights: Nights, disk: Path, part: Part) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {name: [] for name in part.sides}
    if not part.cold:
        _once(nights, disk, part, next(iter(part.sides)))
    for number in range(options.rounds):
        for name in reversed([*part.sides]) if number % 2 else part.sides:
            start = _once(nights, disk, part.start, name).cpu if part.start else 0.0
            runs[name].append(replace(_once(nights, disk, part, name), start=start))
    return runs


def _once(nights: Nights, disk: Path, part: Part, name: str) -> Run:
    if part.to:
        shutil.rmtree(part.to, ignore_errors=True)
        part.to.mkdir()
    for point in (disk, nights.top):
        work("sync", "-f", point)
    if part.cold:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    if not part.to:
        return _download(part.sides[name], part.servers) if name.startswith(DOWNLOAD) else _stream(part.sides[name])
    served = _cpu_of_ended(part.server)
    done = timed(part.sides[name])
    time.sleep(_LOGOUT * bool(part.server))
    return Run(done.seconds, done.cpu + _cpu_of_ended(part.server) - served)


def _cpu_of_ended(process: int | None) -> float:
    """Returns the CPU seconds of the ended children of a process."""
    if not process:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _stream(words: Sequence[str]) -> Run:
    stream, first = measure_stream((shutil.which(words[0]) or "", *words[1:]))
    return Run(stream.seconds, stream.cpu, first, stream.memory / 1e6, stream.printed / 1e9 / stream.seconds)


def _download(words: Sequence[str], servers: Sequence[int]) -> Run:
    """Runs curl, which prints the time of the first byte and the number of bytes. Its CPU time and that of the servers count."""
    before = sum(map(_cpu, servers))
    for pid in servers:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak of its memory begins now
    done = timed(words)
    first, size = map(float, done.stdout.split())
    cpu = done.cpu + sum(map(_cpu, servers)) - before
    return Run(done.seconds, cpu, first, max(map(_peak, servers)), size / 1e9 / done.seconds)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    """Returns MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def _summary(name: str, part: Part, runs: Mapping[str, Sequence[Run]]) -> dict[str, object]:
    figures: dict[str, Callable[[Run], float]] = {
        "seconds": lambda run: run.seconds,
        "CPU seconds": lambda run: run.cpu,
        **({} if part.to else _OF_STREAMS),
    }
    summary = {
        f"{name}: {words}": {side: spread([figure(run) for run in done]) for side, done in runs.items()}
        for words, figure in figures.items()
    }
    first, *others = runs
    for words in ("seconds", "CPU seconds"):
        summary[f"{name}: {words}, times those of {first}"] = {
            side: {**spread(_ratios(figures[words], runs[side], runs[first])), "limit": part.limits.get(side, 0.0)}
            for side in others
        }
    if part.start:
        summary[f"{name}: CPU seconds without the start, times those of {first}"] = {
            side: {**spread(_ratios(_without_start, runs[side], runs[first])), "limit": part.limits.get(side, 0.0)}
            for side in others
        }
    return dict(summary)


def _without_start(run: Run) -> float:
    return max(run.cpu - run.start, 0.001)


def _ratios(figure: Callable[[Run], float], runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    return [figure(run) / figure(other) for run, other in zip(runs, others, strict=True)]


if __name__ == "__main__":
    main()
