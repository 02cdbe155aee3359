"""The actions of bench.silence on the machine: how each fault is made, and how it is undone; and the type of a fault.

A function that is called in the table of faults returns an act; one that is named there is an act itself.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.silence_machine import HOSTS, PLACES, POOL, STATE, Machine

Act = Callable[[Machine], object]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    `make`, `undo`: the actions. `words`: a pattern that a complaint of status, overview and webhook must match. `jobs`: services
    that are started after it is made, as by their timers. `nights`: how many simulated nights it may take to be reported; 0: it is
    made by day, and no time passes. `days`: how long one of these nights is. `wait`: seconds before a second reading, if the first
    one does not show it. `places`: the places that must report it; `because`: why not all four. `after`: services that run after it
    is undone.
    """

    name: str
    kind: str
    make: Act
    undo: Act
    words: str
    jobs: tuple[str, ...] = ("sample", "news")
    nights: int = 0
    days: float = 1
    wait: float = 0
    places: tuple[str, ...] = PLACES
    because: str = ""
    after: tuple[str, ...] = ()

    @property
    def is_simulated(self) -> bool:
        """True if the clocks are moved before it is reported."""
        return self.nights > 0 or self.wait != 0


def nothing(_machine: Machine) -> None:
    """Does nothing, so that only time passes."""


def config(old: str, new: str) -> Act:
    return lambda machine: machine.configured(old, new)


def restore(machine: Machine) -> None:
    machine.restore_config()


def drop_in(text: str) -> Act:
    return lambda machine: machine.drop_in("fault", text)


def timer(*lines: str) -> Act:
    def act(machine: Machine) -> None:
        machine.override("btrkeep-backup@main.timer", "\n".join(["[Timer]", "OnCalendar=", *lines, ""]))
        machine.run("systemctl", "restart", "btrkeep-backup@main.timer")

    return act


def timer_back(machine: Machine) -> None:
    machine.restore_config()
    machine.override("btrkeep-backup@main.timer", "")
    machine.run("systemctl", "restart", "btrkeep-backup@main.timer")


def both(*acts: Act) -> Act:
    def act(machine: Machine) -> None:
        for each in acts:
            each(machine)

    return act


def systemctl(*words: str) -> Act:
    return lambda machine: machine.run("systemctl", *words, check=True)


def host(name: str, text: str) -> Act:
    return lambda machine: machine.host(name, text)


def shell(name: str, script: str) -> Act:
    return lambda machine: machine.shell(name, script)


def shell_back(name: str) -> Act:
    return lambda machine: machine.authorize(name)


def ended(name: str) -> Act:
    return lambda machine: machine.no_sshd(name)


def started(name: str) -> Act:
    return lambda machine: machine.sshd(name)


def key(name: str, *, trusted: bool) -> Act:
    def act(machine: Machine) -> None:
        machine.host_key(name, trusted=trusted)
        machine.sshd(name)

    return act


def unit(job: str, text: str) -> Act:
    return lambda machine: machine.override(f"btrkeep-{job}@main.service", text)


def broken_service(job: str) -> Act:
    """Restarts a service that cannot start again."""

    def act(machine: Machine) -> None:
        machine.override(f"btrkeep-{job}@main.service", "[Service]\nExecStart=\nExecStart=/bin/false\nRestart=no\n")
        machine.run("systemctl", "restart", f"btrkeep-{job}@main.service")

    return act


def mended_service(job: str) -> Act:
    """Removes the override and starts the dashboard."""

    def act(machine: Machine) -> None:
        machine.override(f"btrkeep-{job}@main.service", "")
        machine.run("systemctl", "reset-failed", f"btrkeep-{job}@main.*")
        start_web(machine)

    return act


def away(path: str) -> Act:
    return lambda _machine: Path(path).rename(f"{path}-away")


def back(path: str) -> Act:
    return lambda _machine: Path(f"{path}-away").rename(path)


# --- the catalogue and its folder


def lock_catalogue(machine: Machine) -> None:
    program = (
        "import sqlite3, sys, time\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN EXCLUSIVE')\n"
        "time.sleep(900)"
    )
    machine.children["lock"] = subprocess.Popen(["/usr/bin/python3", "-c", program, STATE / "catalogue.sqlite"])
    time.sleep(1)


def stop_web(machine: Machine) -> None:
    machine.run("systemctl", "stop", "btrkeep-web@main.service", "btrkeep-serve@main.service")


def start_web(machine: Machine) -> None:
    machine.run("systemctl", "start", "btrkeep-serve@main.socket", "btrkeep-web@main.service")


def catalogue_away(machine: Machine) -> None:
    stop_web(machine)
    for file in STATE.glob("catalogue.sqlite*"):
        file.unlink()
    start_web(machine)


def damage_catalogue(machine: Machine) -> None:
    stop_web(machine)
    file = STATE / "catalogue.sqlite"
    machine.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    with file.open("r+b") as opened:
        opened.write(os.urandom(8192))
    start_web(machine)


def new_catalogue(machine: Machine) -> None:
    stop_web(machine)
    for file in STATE.glob("catalogue.sqlite*"):
        file.unlink()
    machine.backupd("rebuild", check=True)
    machine.unit("verify")
    start_web(machine)


def newer_catalogue(machine: Machine) -> None:
    """Makes a catalogue like that of a newer btrkeep."""
    version = machine.run("sqlite3", STATE / "catalogue.sqlite", "PRAGMA user_version", check=True).stdout.strip()
    machine.write("/run/silence/version", version)
    machine.sql("PRAGMA user_version = 9999")


def older_catalogue(machine: Machine) -> None:
    machine.sql(f"PRAGMA user_version = {Path('/run/silence/version').read_text()}")


def fill_state(machine: Machine) -> None:
    machine.run("dd", "if=/dev/zero", f"of={STATE.parent}/ballast", "bs=64k")
    machine.run("dd", "if=/dev/zero", f"of={STATE.parent}/ballast2", "bs=512")


def empty_state(_machine: Machine) -> None:
    for file in STATE.parent.glob("ballast*"):
        file.unlink()


def remount(path: object, options: str) -> Act:
    return lambda machine: machine.run("mount", "-o", f"remount,{options}", path, check=True)


# --- the pool


def degrade(machine: Machine) -> None:
    stop_web(machine)
    machine.unmount()
    machine.run("btrfs", "device", "scan", "--forget", machine.devices[1])
    machine.mount("degraded")
    start_web(machine)


def whole(machine: Machine) -> None:
    stop_web(machine)
    machine.unmount()
    machine.mount()
    machine.run("btrfs", "scrub", "start", "-B", "/srv")
    machine.run("btrfs", "device", "stats", "-z", "/srv")
    start_web(machine)


_MARK = Path("/run/silence/mark")
"""The content of the file that will be damaged: another one each time, for the disks keep those of deleted files."""


def marked(machine: Machine) -> None:
    """Makes a backup with a file whose content can be found on the disks."""
    _MARK.write_bytes(os.urandom(20_000))
    shutil.copyfile(_MARK, HOSTS / "here" / "marked")
    machine.night()


def overwrite(machine: Machine, devices: tuple[str, ...]) -> None:
    stop_web(machine)
    machine.unmount()
    mark = _MARK.read_bytes()[:4096]
    for device in devices:
        with Path(device).open("r+b", buffering=0) as disk:
            place, places = 0, []
            while piece := disk.read(16 << 20):
                if (at := piece.find(mark)) >= 0:
                    places.append(place + at)
                place += len(piece)
            if not places:
                raise RuntimeError(f"the file is not on {device}")
            for place in places:
                disk.seek(place)
                disk.write(b"?" * 4096)
            os.fsync(disk.fileno())
    machine.mount()
    start_web(machine)


def damage_both(machine: Machine) -> None:
    marked(machine)
    overwrite(machine, machine.devices)


def damage_one(machine: Machine) -> None:
    marked(machine)
    overwrite(machine, machine.devices[1:])
    for file in POOL.glob("hosts/here/2*/data/hosts/here/marked"):
        for _ in range(6):  # which of the two copies is read is the kernel's choice
            machine.run("sh", "-c", f"echo 1 >/proc/sys/vm/drop_caches; cat '{file}' >/dev/null")
    machine.run("btrfs", "scrub", "start", "-B", "/srv")


def undamage(machine: Machine) -> None:
    """Deletes the file on the host, and the damaged backups that contain it."""
    (HOSTS / "here" / "marked").unlink()
    machine.night()
    for backup in sorted(POOL.glob("hosts/here/2*")):
        if (backup / "data/hosts/here/marked").exists():
            machine.backupd("delete", f"here@{backup.name}", "--now-without-grace", check=True)
    machine.run("btrfs", "subvolume", "sync", "/srv")
    machine.unit("verify")
    machine.run("btrfs", "device", "stats", "-z", "/srv")


_BALLAST = Path("/srv/ballast")


def fill_pool(machine: Machine) -> None:
    with _BALLAST.open("wb") as file:
        for step in (16 << 20, 1 << 20, 4096):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), file.tell(), step)
                    file.seek(step, os.SEEK_CUR)
            except OSError:
                continue
    machine.run("btrfs", "filesystem", "sync", "/srv")


def empty_pool(machine: Machine) -> None:
    for file in _BALLAST.parent.glob("ballast*"):
        file.unlink()
    machine.run("btrfs", "filesystem", "sync", "/srv")
    machine.run("btrfs", "balance", "start", "-dusage=5", "/srv")


def fill_metadata(machine: Machine) -> None:
    """Allocates all space, with holes in the data, and fills metadata down to half of the limit of the alarm.

    It stops before ENOSPC: this kernel ends read-only when the last metadata are used, and that would be another fault.
    """
    fill_pool(machine)
    ballast = _BALLAST.stat().st_size
    for start in range(0, ballast - (16 << 20), 32 << 20):  # each second extent: a block group without data would be given back
        machine.run("fallocate", "--punch-hole", "--offset", start, "--length", 16 << 20, _BALLAST, check=True)
    machine.run("btrfs", "filesystem", "sync", "/srv")
    large = Path("/srv/ballast-metadata")
    large.touch()
    pool = os.statvfs("/srv")
    limit = pool.f_blocks * pool.f_frsize // 200
    for number in range(100_000):
        if number % 32 == 0:
            machine.run("btrfs", "filesystem", "sync", "/srv", check=True)
            if machine.free_metadata() < limit:
                return
        os.setxattr(large, f"user.{number}", bytes(16_000))  # a leaf of its own
    raise RuntimeError(f"metadata did not become full: {machine.run('btrfs', 'filesystem', 'df', '/srv').stdout}")


# --- hosts


def mount_on_host(machine: Machine) -> None:
    folder = HOSTS / "web1" / "mounted"
    folder.mkdir()
    machine.run("mount", "-t", "tmpfs", "tmpfs", folder, check=True)
    for number in range(3):
        (folder / f"database{number}").write_bytes(os.urandom(100))
    machine.night()
    machine.run("umount", folder, check=True)


def mount_gone(machine: Machine) -> None:
    (HOSTS / "web1" / "mounted").rmdir()
    machine.night()
    machine.backupd("accept", "web1", "latest")


def empty_host(share: int) -> Act:
    def act(_machine: Machine) -> None:
        shutil.copytree(HOSTS / "web1", HOSTS / "kept", symlinks=True)
        for number, path in enumerate(sorted(path for path in (HOSTS / "web1").rglob("*") if path.is_file())):
            if number % 10 < share:
                path.unlink()

    return act


def full_host(_machine: Machine) -> None:
    shutil.rmtree(HOSTS / "web1")
    (HOSTS / "kept").rename(HOSTS / "web1")


def as_nobody(path: str, mode: int) -> Act:
    """Makes the host's rsync run as the user nobody, which may not read a path."""

    def act(machine: Machine) -> None:
        target = HOSTS / "web1" / path
        if "." not in path:
            target.mkdir(exist_ok=True)
            (target / "file").write_bytes(b"secret")
        else:
            target.write_bytes(b"secret")
        target.chmod(mode)
        machine.host("web1", 'rsync_path = "setpriv --reuid=65534 --regid=65534 --clear-groups rsync"')

    return act


def readable(path: str) -> Act:
    def act(machine: Machine) -> None:
        machine.restore_config()
        target = HOSTS / "web1" / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return act


def deep(machine: Machine) -> None:
    script = (
        "import os, sys\n"
        "for name in ['deep'] + ['d' * 220] * 21:\n"
        "    os.mkdir(name)\n"
        "    os.chdir(name)\n"
        "open('file', 'w').write('too deep')"
    )
    machine.run("sh", "-euc", f'cd {HOSTS}/web1; exec /usr/bin/python3 -c "$1"', "sh", script, check=True)


def not_deep(machine: Machine) -> None:
    machine.run("rm", "-rf", HOSTS / "web1" / "deep", check=True)


def sudo(script: str) -> Act:
    def act(machine: Machine) -> None:
        if script:
            machine.write("/usr/local/bin/sudo", f"#!/bin/sh\n{script}\n", 0o755)
        machine.host("web1", 'rsync_path = "sudo rsync"')

    return act


def no_sudo(machine: Machine) -> None:
    machine.restore_config()
    Path("/usr/local/bin/sudo").unlink(missing_ok=True)


# --- copies

_OFFICE = '[replica.office]\nfrom = "ssh://root@127.0.0.1"\nport = 2204\npool_name = "office"\n'
PASSWORD = Path("/etc/btrkeep/offsite.password")
_OFFSITE = f'[offsite.box]\nrepository = "/srv/restic"\npassword_file = "{PASSWORD}"\n'


def office(settings: str = "") -> Act:
    """Starts the other backup server, from which this one fetches its host; makes a first copy."""

    def act(machine: Machine) -> None:
        folder = HOSTS / "shop"
        folder.mkdir(exist_ok=True)
        (folder / "file").write_bytes(os.urandom(2000))
        if not Path("/etc/btrkeep/office.toml").exists():
            machine.write("/etc/btrkeep/office.toml", '[pool]\npath = "/srv/office"\n[host.shop]\npaths = ["/hosts/shop"]\n')
            machine.backupd("--pool", "office", "init", "/srv/office", check=True)
        machine.backupd("--pool", "office", "run", "shop", check=True)
        machine.authorize("office", 'restrict,command="/usr/local/sbin/backupd --pool office send-only --replica main"')
        machine.drop_in("office", f"{_OFFICE}{settings}")
        machine.backupd("replicate", "office", check=True)

    return act


def no_office(machine: Machine) -> None:
    """Removes the replica of the other server, and deletes its copies."""
    machine.sshd("office")
    machine.drop("office")
    for backup in sorted((POOL / "hosts" / "shop").glob("2*")):
        machine.backupd("delete", f"shop@{backup.name}", "--now-without-grace", "--force", check=True)


def box(settings: str = "") -> Act:
    def act(machine: Machine) -> None:
        machine.write(PASSWORD, "a password\n")
        machine.drop_in("box", f"{_OFFSITE}{settings}")
        if not Path("/srv/restic").exists():
            machine.backupd("offsite", "init", "box", check=True)
        machine.backupd("offsite", "run", "box", check=True)

    return act


def no_box(machine: Machine) -> None:
    machine.drop("box")
    machine.drop("fault")


NO_CAPABILITIES = "[Service]\nCapabilityBoundingSet=\n"
KILLED = "[Service]\nExecStart=\nExecStart=/bin/sh -c 'kill -9 $$$$'\n"
