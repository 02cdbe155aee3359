"""The faults of bench.soak: which night has which, drawn from a seed, and how each is caused. A night may have several.

run killed, expire killed, replicate killed, balance killed: SIGKILL at a random checkpoint of that command
source away         a host's folder is missing
host unreachable    its ssh ends with 255
host stalls         its rsync sends nothing any longer
connection lost     its ssh ends in the middle of the transfer
unreadable file     a disk of the host fails to read one file (EIO)
pool full           the pool has a few MiB of free space, or none
state full          the disk of the catalogue has no free space
catalogue lost      the state folder is missing in the morning, `backupd rebuild` makes it again
server off          no command runs in that night
"""

import os
import random
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from bench.soak_site import Site
from tests.beds import badssh, work
from tests.beds.faults import damage

KILLED = ("run killed", "expire killed", "replicate killed", "balance killed")
OF_A_HOST = ("source away", "host unreachable", "host stalls", "connection lost", "unreadable file")
FULL = ("pool full", "state full")
_UNTIL_CURED = timedelta(minutes=75)
CATALOGUE_LOST, SERVER_OFF = "catalogue lost", "server off"
KINDS = (*KILLED, *OF_A_HOST, *FULL, CATALOGUE_LOST, SERVER_OFF)
CALM = 3
"""This many nights at the end have none: what is still left behind then will stay."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a night. `host`: the host that it affects, if any; `share`, below 1: the position in its command, or the
    remaining share of free space.
    """

    kind: str
    host: int
    share: float


def plan(seed: int, nights: int, hosts: int, most: int = 2) -> list[tuple[Fault, ...]]:
    """The faults of each night, at most `most`; none in the first night, which fills the pool, nor in the last ones.

    Each kind comes once before any comes again.
    """
    draw, deck = random.Random(f"{seed} faults"), list[str]()
    faults_by_night: list[tuple[Fault, ...]] = []
    for night in range(nights):
        drawn: list[str] = []
        for _ in range(draw.randint(0, most) if 0 < night < nights - CALM else 0):
            deck = deck or draw.sample(KINDS, len(KINDS))
            drawn.append(deck.pop())
        drawn = [SERVER_OFF] if SERVER_OFF in drawn else list(dict.fromkeys(drawn))
        hit = draw.sample(range(hosts), min(hosts, len(drawn)))
        faults_by_night.append(tuple(Fault(kind, host, draw.random()) for kind, host in zip(drawn, hit, strict=False)))
    return faults_by_night


@contextmanager
def caused(site: Site, faults: Sequence[Fault], moment: datetime) -> Iterator[None]:
    """Those of hosts and full disks are there while the block runs, backups of the hosts that begin after `moment` and at most an
    hour later.
    """
    with ExitStack() as stack:
        for fault in faults:
            host = site.hosts.names[fault.host]
            match fault.kind:
                case "source away":
                    _rename_for_a_while(stack, site.hosts.source(host))
                case "unreadable file":
                    _make_unreadable(stack, site, host, moment)
                case "host unreachable":
                    _ssh(stack, site, host, "refuses", f"ssh: connect to host {host} port 22: No route to host")
                case "host stalls":
                    _ssh(stack, site, host, "hangs", str(int(fault.share * 4000)))
                case "connection lost":
                    _ssh(stack, site, host, "dies", str(int(fault.share * 20_000)))
                case "pool full":
                    _fill(stack, site.first.top, int(fault.share * 4) * _MIB)
                case "state full":
                    _fill(stack, site.first.state, 0)
        yield


def _rename_for_a_while(stack: ExitStack, path: Path) -> None:
    away = path.with_name(f"{path.name}, away")
    path.rename(away)
    stack.callback(away.rename, path)


def _ssh(stack: ExitStack, site: Site, host: str, how: str, value: str) -> None:
    flag = site.faults / host
    flag.write_text(f'exec {shlex.join([sys.executable, str(badssh.__file__), how, value])} "$@"\n')
    stack.callback(flag.unlink)


def _make_unreadable(stack: ExitStack, site: Site, host: str, moment: datetime) -> None:
    """Makes a new file, and overwrites its blocks on the disk: their checksums are wrong."""
    path, content = site.hosts.source(host) / "unreadable", os.urandom(20_000)
    path.write_bytes(content)
    site.hosts.note(host, moment)
    stack.callback(site.hosts.note, host, moment + _UNTIL_CURED)  # runs after the file is gone
    work("btrfs", "filesystem", "sync", site.hosts.sources)
    damage(site.hosts.sources, content)
    stack.callback(path.unlink)


def _fill(stack: ExitStack, folder: Path, room: int) -> None:
    """Fills the filesystem except for that many bytes."""
    ballast = folder / "ballast"
    stack.callback(ballast.unlink, missing_ok=True)
    with ballast.open("wb") as file:
        for step in (64 * _MIB, _MIB, 4096):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), file.tell(), step)
                    file.seek(step, os.SEEK_CUR)
        with suppress(OSError):
            os.truncate(file.fileno(), max(file.tell() - room, 0))


def lose_catalogue(site: Site) -> None:
    """Deletes the state folder's content, as if its disk had been replaced."""
    shutil.rmtree(site.first.state)
