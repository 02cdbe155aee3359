"""The catalogue of a whole site, as the dashboard shows it: hosts in every state, a year of the pool, alarms, jobs, pictures.

    python -m bench.make_site STATE

It is always the same one except its clock: the last night is the one before `now`, so that hosts are as late as intended.
`hostile=True` puts dangerous text into it: markup, escapes, bytes that are not UTF-8, in every place for text of a host or of a
person. tests/beds/dashboard.py serves it to a real browser.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from bench import make_catalogue, site_copies, site_history, site_pictures
from bench.make_catalogue import add_runs
from bench.site_history import FILESYSTEM, POOL
from btrkeep.catalogue import Backup, Catalogue, Progress, Run, StoredAlarm
from btrkeep.config.config_model import Config, HostConfig, Retention
from btrkeep.config.published import publish
from btrkeep.config.settings import PoolSettings
from btrkeep.config.values import Window
from btrkeep.decisions.findings import FACT, USED, WARNING, Finding, PoolVerdict, StoredVerdict, as_text
from btrkeep.decisions.rsync_meaning import ExitCause

GROUPS = ("web", "database", "mail", "shop", "lab")
# The pool of site_history.py: 36.56 TiB of 40.0 on two devices, each byte twice.
_FULL = "91.4% of the pool's 20.0 TiB are used, the limit is 90%: 712 GiB unallocated and 1.02 TiB free in data block groups"
_MORE = "keep fewer backups, or add a device; `backupd usage` shows what each host uses"
STRIP = 30  # nights of which every run is known
ZONE = ZoneInfo("Europe/Amsterdam")
HOSTILE = (
    "<script>window.pwned=1</script>",
    "\"'><img src=x onerror=window.pwned=1>",
    "javascript:window.pwned=1",
    "caf\udce9 \udcff\udcfe",
    "two\nlines\r\nSet-Cookie: pwned=1",
    "\x1b[2J\x1b]0;pwned\x07",
    "\u202egnp.exe \u2066 \ufeff",
    "{{ 7 * 7 }} {% raw %} %s %d ${x}",
    "x" * 3000,
    "a & b &lt; c &amp; d",
)


@dataclass(frozen=True, slots=True)
class Made:
    """The site that was made. `now`: the time for which it was made; `running`: the hosts that are being transferred; `fetched`:
    the hosts of another pool.
    """

    state: Path
    now: datetime
    hosts: tuple[str, ...]
    running: tuple[str, ...]
    backups: int
    fetched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wishes:
    """`pid`, `pid_started`: the process of the running jobs, a living one if they are to be shown as running. `copies`: with
    replicas, an offsite repository, verifications and drills.
    """

    hosts: int = 3000
    count: int = 34
    now: datetime | None = None
    hostile: bool = False
    running: int = 6
    pid: int = 4242
    pid_started: str | None = "1234567"
    pictures: int = 12
    rehearsal: bool = False
    copies: bool = False


def make(state: Path, hosts: int = 3000, count: int = 34, **wishes: object) -> Made:
    """Creates and fills the catalogue in `state`. `wishes` as in Wishes."""
    return make_as(state, Wishes(hosts=hosts, count=count, **wishes))  # type: ignore[arg-type]


def make_as(state: Path, wish: Wishes) -> Made:
    """Does the same with a Wishes object."""
    now = (wish.now or datetime.now(UTC)).replace(microsecond=0)
    last = datetime.combine(now.date() - timedelta(days=1), time(22), UTC)
    names = tuple(name_of(number) for number in range(wish.hosts))
    running = tuple(names[number] for number in range(wish.hosts) if kind_of(number) == "ok")[: wish.running]
    with Catalogue.open(state) as catalogue:
        done = catalogue.replace_backups(make_catalogue.POOL_ID, all_backups(wish, last))
        add_runs(catalogue, runs(wish, last))
        publish(configuration(state, wish), catalogue, rehearsal=wish.rehearsal, filesystem=FILESYSTEM)
        catalogue.put_alarms(alarms(wish, last, now))
        catalogue.set_fact(FACT, as_text(StoredVerdict(now, PoolVerdict((Finding(USED, WARNING, _FULL, _MORE),)))))
        for number, host in enumerate(running):
            _start(catalogue, host, number, wish, now)
        site_history.fill(catalogue, now, HOSTILE if wish.hostile else ())
        if wish.copies:
            newest = {
                newest_backup.host: newest_backup.name
                for newest_backup in catalogue.newest_backups(now)
                if newest_backup.name and newest_backup.state == "complete"
            }
            site_copies.fill(catalogue, newest, now, wish.pid, wish.pid_started, HOSTILE[0] if wish.hostile else "")
    site_pictures.draw(state / "pictures", FILESYSTEM, now, wish.pictures)
    return Made(state, now, names, running, done, site_copies.FETCHED if wish.copies else ())


def name_of(number: int) -> str:
    """Returns names such as web0000.example.org, database0001.example.org."""
    return f"{GROUPS[number % len(GROUPS)]}{number:04}.example.org"


def kind_of(number: int) -> str:
    """Returns the kind of the host with that number: of a hundred, about 96 have no problem."""
    kinds = {3: "late", 41: "failing", 67: "failing", 17: "suspect", 33: "never", 77: "optional", 50: "partial", 91: "disabled"}
    kind = kinds.get(number % 100, "ok")
    seldom = {"suspect", "never", "disabled"}
    return "ok" if kind in seldom and number >= 100 and number // 100 % 4 else kind


def configuration(state: Path, wish: Wishes) -> Config:
    """Returns the text of /etc/btrkeep/main.toml. One host of the lab starts at night only."""
    hosts = {name: _host(number, name, wish.hostile) for number in range(wish.hosts) if (name := name_of(number))}
    plain = Config(Path("/etc/btrkeep/main.toml"), "main", PoolSettings(POOL, state, ZONE), hosts=hosts)
    if not wish.copies:
        return plain
    return replace(plain, replicas=site_copies.REPLICAS, pushes=site_copies.PUSHES, offsites=site_copies.OFFSITES)


def _host(number: int, name: str, hostile: bool) -> HostConfig:
    kind, group = kind_of(number), GROUPS[number % len(GROUPS)]
    paths = ("/etc", "/home", "/srv", "/var/lib")
    return HostConfig(
        name,
        group=group,
        address=f"root@{name}",
        paths=(*paths, f"/srv/{HOSTILE[number % len(HOSTILE)]}") if hostile and number < len(HOSTILE) else paths,
        enabled=kind != "disabled",
        optional=kind == "optional",
        window=Window(time(22), time(6)) if group == "lab" else None,
        retention=Retention(daily=14, weekly=12, monthly=10),  # so of 34 backups the oldest goes, as `backup` has it
    )


def all_backups(wish: Wishes, last: datetime) -> Iterator[Backup]:
    """Yields the backups of this pool's own hosts, and those fetched from another pool."""
    yield from backups(wish, last)
    if wish.copies:
        yield from site_copies.fetched_backups(POOL, list(make_catalogue.nights(wish.count, last)))


def backups(wish: Wishes, last: datetime) -> Iterator[Backup]:
    """Yields all backups, night after night."""
    for night, evening in enumerate(make_catalogue.nights(wish.count, last)):
        for host in range(wish.hosts):
            if (row := backup(host, night, evening, (last - evening).days, wish)) is not None:
                yield row
    yield from (working(number, last) for number in range(wish.hosts) if kind_of(number) == "partial")


def backup(host: int, night: int, evening: datetime, ago: int, wish: Wishes) -> Backup | None:
    """Returns the backup of host number `host` in the night `ago` nights before the last one; None: it has none."""
    kind = kind_of(host)
    if kind == "never" or (kind in ("late", "optional") and ago < 4) or (kind == "failing" and ago < 1 + host % 3):
        return None
    plain = make_catalogue.backup_of(host, night, evening)
    state = "suspect" if kind == "suspect" and ago == 0 else plain.state
    words = HOSTILE[host % len(HOSTILE)] if wish.hostile else "too many files of /srv are gone"
    name = name_of(host)
    grown = 1 - ago / 400 + 0.08 * ((host * 7 + night * 13) % 11) / 11
    return replace(
        plain,
        host=name,
        path=f"{POOL}/hosts/{name}/{plain.name}",
        state="expired" if state == "complete" and night == 0 and host % 3 == 0 else state,
        outcome=state,
        error=None if state == "complete" else f"{state}: {words}",
        warnings=(f'file has vanished: "/srv/{words}"', *plain.warnings)
        if wish.hostile and host < len(HOSTILE)
        else plain.warnings,
        held_why=(f"before the migration {words}" if wish.hostile else "before the migration")
        if host % 40 == 9 and ago == 5
        else None,
        expired=evening + timedelta(days=ago, hours=5) if state == "complete" and night == 0 and host % 3 == 0 else None,
        files=round((plain.files or 0) * grown),
        bytes=round((plain.bytes or 0) * grown),
        new_bytes=round((plain.new_bytes or 0) * (0.3 + (host * 31 + night * 17) % 19 / 10)),
        duration=round((plain.duration or 0) * (0.8 + (host * 3 + night * 29) % 13 / 16), 1),
    )


def working(number: int, last: datetime) -> Backup:
    """Returns an interrupted transfer, which the next run continues."""
    started, name = last + timedelta(minutes=number % 300), name_of(number)
    path = f"{POOL}/hosts/{name}/.working"
    return Backup(name, None, path, "partial", started, None, None, None, None, None, "the host went away: rsync ended with 255")


def runs(wish: Wishes, last: datetime) -> Iterator[Run]:
    """Yields the runs of each of the last STRIP nights, and of earlier nights with kept backups. Hosts with a problem have run,
    too.
    """
    kept = set(make_catalogue.nights(wish.count, last))
    evenings = sorted(kept | {last - timedelta(days=ago) for ago in range(STRIP)})
    for night, evening in enumerate(evenings):
        ago = (last - evening).days
        for host in range(wish.hosts):
            if (row := run(host, night, evening, ago, wish)) is not None:
                yield row


def run(host: int, night: int, evening: datetime, ago: int, wish: Wishes) -> Run | None:
    """Returns the run of a host in a night; None: it was not backed up."""
    kind = kind_of(host)
    if kind in ("never", "disabled", "late") and ago < 4:
        return None
    made = backup(host, night, evening, ago, wish)
    if made is not None:
        return make_catalogue.run_of(replace(made, state=made.outcome or made.state))
    if kind == "never":
        return None
    started = evening + timedelta(seconds=host * 7 % 28000)
    message = HOSTILE[host % len(HOSTILE)] if wish.hostile else "ssh: connect to host port 22: Connection timed out"
    plain = make_catalogue.run_of(make_catalogue.backup_of(host, night, evening))
    return replace(
        plain,
        host=name_of(host),
        started=started,
        finished=started + timedelta(seconds=64),
        outcome="failed",
        backup=None,
        attempts=3,
        exit_code=255,
        meaning=ExitCause.NOT_CONNECTED,
        error=f"the host cannot be reached: {message}",
        last_lines=(message, "rsync error: unexplained error (code 255) at io.c(232) [Receiver=3.4.3]"),
        literal_bytes=0,
        matched_bytes=0,
        received_bytes=0,
    )


def alarms(wish: Wishes, last: datetime, now: datetime) -> Iterator[StoredAlarm]:
    """Yields an alarm for each host with a problem, one for the pool's free space, and one that has ended."""
    for number in range(wish.hosts):
        name, words = name_of(number), HOSTILE[number % len(HOSTILE)] if wish.hostile else "connection timed out"
        if kind_of(number) == "failing":
            yield StoredAlarm("failure", f"host {name}", f"{name}: the backup failed: {words}", 0, last, 1, now, None, None)
        elif kind_of(number) == "late":
            text = f"{name}: no complete backup for 4d 2h"
            yield StoredAlarm("silent", f"host {name}", text, 0, last - timedelta(days=4), 1, now, None, None)
    yield StoredAlarm("room", "used", _FULL, 0, now - timedelta(days=2), 1, now - timedelta(days=2), None, None)
    over = now - timedelta(hours=9)
    yield StoredAlarm("devices", "device 2", "device 2 has counted 3 read errors", 3, last, 1, last, over, over)


def _start(catalogue: Catalogue, host: str, number: int, wish: Wishes, now: datetime) -> None:
    run_id = catalogue.start_run(host, now - timedelta(minutes=7 + number), wish.pid, wish.pid_started, night=True)
    path = f"/srv/{HOSTILE[number % len(HOSTILE)]}" if wish.hostile else "/srv"
    done = 41_234 + 9_000 * (number % 8)
    catalogue.put_progress(
        Progress(
            host, run_id, wish.pid, wish.pid_started, path, done, 120_000, done * 61_000, 11e6 + number * 1e6, done / 120_000, now
        )
    )


def site_as_json(made: Made) -> str:
    """The site, for a program that made it in another process."""
    return json.dumps({"state": str(made.state), "hosts": made.hosts, "running": made.running, "backups": made.backups})


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description="Fill a new catalogue with hosts that have problems, samples, balances, alarms and pictures."
    )
    parser.add_argument("state", type=Path, help="a folder that has no catalogue yet")
    parser.add_argument("--hosts", type=int, default=3000)
    parser.add_argument("--backups", type=int, default=32)
    words = parser.parse_args()
    if (words.state / "catalogue.sqlite").exists():
        parser.error(f"{words.state} has a catalogue already")
    made = make(words.state, words.hosts, words.backups)
    print(f"{made.backups} backups and a year of {words.hosts} hosts in {words.state}")


if __name__ == "__main__":
    main()
