"""The faults of bench.silence, as a table: how each is made and undone, and who must report it, in which words, after how long.

Kinds are the sections of the issue that asked for the bench. A: nothing runs, and nobody would hear of it. B: a condition that
lasts. C: reasons. D: what reports is itself at fault. E: the pool and the copies on the second day.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.silence_machine import DAY, HOSTS, PLACES, POOL, STATE, Machine

Act = Callable[[Machine], object]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    `make`, `undo`: what is done. `words`: a pattern that a complaint of status, overview and webhook must match. `jobs`: services
    that are started after it is made, as their timers would. `nights`: how many simulated nights it may take to be reported; 0: it
    is made by day, and no time passes. `days`: how long one of these nights is. `wait`: seconds that pass before a second look, if
    the first one does not show it. `places`: who must report it; `because`: why not all four. `after`: services that run after it
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


def _nothing(_machine: Machine) -> None:
    """Only time passes."""


def _config(old: str, new: str) -> Act:
    return lambda machine: machine.configured(old, new)


def _restore(machine: Machine) -> None:
    machine.restore_config()


def _drop_in(text: str) -> Act:
    return lambda machine: machine.drop_in("fault", text)


def _timer(*lines: str) -> Act:
    def act(machine: Machine) -> None:
        machine.override("btrkeep-backup@main.timer", "\n".join(["[Timer]", "OnCalendar=", *lines, ""]))
        machine.run("systemctl", "restart", "btrkeep-backup@main.timer")

    return act


def _timer_back(machine: Machine) -> None:
    machine.restore_config()
    machine.override("btrkeep-backup@main.timer", "")
    machine.run("systemctl", "restart", "btrkeep-backup@main.timer")


def _both(*acts: Act) -> Act:
    def act(machine: Machine) -> None:
        for each in acts:
            each(machine)

    return act


def _systemctl(*words: str) -> Act:
    return lambda machine: machine.run("systemctl", *words, check=True)


def _host(name: str, text: str) -> Act:
    return lambda machine: machine.host(name, text)


def _shell(name: str, script: str) -> Act:
    return lambda machine: machine.shell(name, script)


def _shell_back(name: str) -> Act:
    return lambda machine: machine.authorize(name)


def _ended(name: str) -> Act:
    return lambda machine: machine.no_sshd(name)


def _started(name: str) -> Act:
    return lambda machine: machine.sshd(name)


def _key(name: str, *, trusted: bool) -> Act:
    def act(machine: Machine) -> None:
        machine.host_key(name, trusted=trusted)
        machine.sshd(name)

    return act


def _unit(job: str, text: str) -> Act:
    return lambda machine: machine.override(f"btrkeep-{job}@main.service", text)


def _away(path: str) -> Act:
    return lambda _machine: Path(path).rename(f"{path}-away")


def _back(path: str) -> Act:
    return lambda _machine: Path(f"{path}-away").rename(path)


# --- the catalogue and its folder


def _lock_catalogue(machine: Machine) -> None:
    program = (
        "import sqlite3, sys, time\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN EXCLUSIVE')\n"
        "time.sleep(900)"
    )
    machine.children["lock"] = subprocess.Popen(["/usr/bin/python3", "-c", program, STATE / "catalogue.sqlite"])
    time.sleep(1)


def _stop_web(machine: Machine) -> None:
    machine.run("systemctl", "stop", "btrkeep-web@main.service", "btrkeep-serve@main.service")


def _start_web(machine: Machine) -> None:
    machine.run("systemctl", "start", "btrkeep-serve@main.socket", "btrkeep-web@main.service")


def _catalogue_away(machine: Machine) -> None:
    _stop_web(machine)
    for file in STATE.glob("catalogue.sqlite*"):
        file.unlink()
    _start_web(machine)


def _damage_catalogue(machine: Machine) -> None:
    _stop_web(machine)
    file = STATE / "catalogue.sqlite"
    machine.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    with file.open("r+b") as opened:
        opened.write(os.urandom(8192))
    _start_web(machine)


def _new_catalogue(machine: Machine) -> None:
    _stop_web(machine)
    for file in STATE.glob("catalogue.sqlite*"):
        file.unlink()
    machine.backupd("rebuild", check=True)
    machine.unit("verify")
    _start_web(machine)


def _newer_catalogue(machine: Machine) -> None:
    """As a newer btrkeep would have left it."""
    version = machine.run(
        "sqlite3", STATE / "catalogue.sqlite", "SELECT version_num FROM alembic_version", check=True
    ).stdout.strip()
    machine.write("/run/silence/version", version)
    machine.sql(f"UPDATE alembic_version SET version_num = '{'9' * len(version)}'")


def _older_catalogue(machine: Machine) -> None:
    machine.sql(f"UPDATE alembic_version SET version_num = '{Path('/run/silence/version').read_text()}'")


def _fill_state(machine: Machine) -> None:
    machine.run("dd", "if=/dev/zero", f"of={STATE.parent}/ballast", "bs=64k")
    machine.run("dd", "if=/dev/zero", f"of={STATE.parent}/ballast2", "bs=512")


def _empty_state(_machine: Machine) -> None:
    for file in STATE.parent.glob("ballast*"):
        file.unlink()


def _remount(path: object, options: str) -> Act:
    return lambda machine: machine.run("mount", "-o", f"remount,{options}", path, check=True)


# --- the pool


def _degrade(machine: Machine) -> None:
    _stop_web(machine)
    machine.unmount()
    machine.run("btrfs", "device", "scan", "--forget", machine.devices[1])
    machine.mount("degraded")
    _start_web(machine)


def _whole(machine: Machine) -> None:
    _stop_web(machine)
    machine.unmount()
    machine.mount()
    machine.run("btrfs", "scrub", "start", "-B", "/srv")
    machine.run("btrfs", "device", "stats", "-z", "/srv")
    _start_web(machine)


_MARK = b"a file that will be damaged on the disk\n" * 500


def _marked(machine: Machine) -> None:
    """A backup that has a file with a content by which it is found on the disks."""
    (HOSTS / "here" / "marked").write_bytes(_MARK)
    machine.night()


def _overwrite(machine: Machine, devices: tuple[str, ...]) -> None:
    _stop_web(machine)
    machine.unmount()
    for device in devices:
        with Path(device).open("r+b", buffering=0) as disk:
            place = 0
            while piece := disk.read(16 << 20):
                at = piece.find(_MARK[:4096])
                if at >= 0:
                    disk.seek(place + at)
                    disk.write(b"?" * 4096)
                    os.fsync(disk.fileno())
                    break
                place += len(piece)
                if place > 1 << 30:
                    raise RuntimeError(f"the file was not found on {device}")
    machine.mount()
    _start_web(machine)


def _damage_both(machine: Machine) -> None:
    _marked(machine)
    _overwrite(machine, machine.devices)


def _damage_one(machine: Machine) -> None:
    _marked(machine)
    _overwrite(machine, machine.devices[1:])
    for file in POOL.glob("hosts/here/2*/data/hosts/here/marked"):
        for _ in range(6):  # which of the two copies is read is the kernel's choice
            machine.run("sh", "-c", f"echo 1 >/proc/sys/vm/drop_caches; cat '{file}' >/dev/null")
    machine.run("btrfs", "scrub", "start", "-B", "/srv")


def _undamage(machine: Machine) -> None:
    """The file is deleted on the host, and the damaged backups with it."""
    (HOSTS / "here" / "marked").unlink()
    machine.night()
    for backup in sorted(POOL.glob("hosts/here/2*")):
        if (backup / "data/hosts/here/marked").exists():
            machine.backupd("delete", "here", backup.name, "--yes")
    machine.run("btrfs", "subvolume", "sync", "/srv")
    machine.run("btrfs", "device", "stats", "-z", "/srv")


def _fill_pool(machine: Machine) -> None:
    with Path("/srv/ballast").open("wb") as file:
        for step in (16 << 20, 1 << 20, 4096):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), file.tell(), step)
                    file.seek(step, os.SEEK_CUR)
            except OSError:
                continue
    machine.run("btrfs", "filesystem", "sync", "/srv")


def _empty_pool(machine: Machine) -> None:
    Path("/srv/ballast").unlink()
    machine.run("btrfs", "filesystem", "sync", "/srv")
    machine.run("btrfs", "balance", "start", "-dusage=5", "/srv")


# --- hosts


def _mount_on_host(machine: Machine) -> None:
    folder = HOSTS / "web1" / "mounted"
    folder.mkdir()
    machine.run("mount", "-t", "tmpfs", "tmpfs", folder, check=True)
    for number in range(3):
        (folder / f"database{number}").write_bytes(os.urandom(100))
    machine.night()
    machine.run("umount", folder, check=True)


def _mount_gone(machine: Machine) -> None:
    (HOSTS / "web1" / "mounted").rmdir()
    machine.night()
    machine.backupd("accept", "web1", "latest")


def _empty_host(share: int) -> Act:
    def act(_machine: Machine) -> None:
        shutil.copytree(HOSTS / "web1", HOSTS / "kept", symlinks=True)
        for number, path in enumerate(sorted(path for path in (HOSTS / "web1").rglob("*") if path.is_file())):
            if number % 10 < share:
                path.unlink()

    return act


def _full_host(_machine: Machine) -> None:
    shutil.rmtree(HOSTS / "web1")
    (HOSTS / "kept").rename(HOSTS / "web1")


def _as_nobody(path: str, mode: int) -> Act:
    """The host's rsync runs as nobody, and may not read a path."""

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


def _readable(path: str) -> Act:
    def act(machine: Machine) -> None:
        machine.restore_config()
        target = HOSTS / "web1" / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return act


def _deep(machine: Machine) -> None:
    script = (
        "import os, sys\n"
        "for name in ['deep'] + ['d' * 220] * 21:\n"
        "    os.mkdir(name)\n"
        "    os.chdir(name)\n"
        "open('file', 'w').write('too deep')"
    )
    machine.run("sh", "-euc", f'cd {HOSTS}/web1; exec /usr/bin/python3 -c "$1"', "sh", script, check=True)


def _not_deep(machine: Machine) -> None:
    machine.run("rm", "-rf", HOSTS / "web1" / "deep", check=True)


def _sudo(script: str) -> Act:
    def act(machine: Machine) -> None:
        if script:
            machine.write("/usr/local/bin/sudo", f"#!/bin/sh\n{script}\n", 0o755)
        machine.host("web1", 'rsync_path = "sudo rsync"')

    return act


def _no_sudo(machine: Machine) -> None:
    machine.restore_config()
    Path("/usr/local/bin/sudo").unlink(missing_ok=True)


# --- copies

_OFFICE = '[replica.office]\nfrom = "ssh://root@127.0.0.1"\nport = 2204\npool_name = "office"\nengine = "send"\n'
_PASSWORD = Path("/etc/btrkeep/offsite.password")
_OFFSITE = f'[offsite.box]\nrepository = "/var/tmp/restic"\npassword_file = "{_PASSWORD}"\n'


def _office(settings: str = "") -> Act:
    """The other backup server, from which this one fetches its host; a first copy is made."""

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


def _no_office(machine: Machine) -> None:
    machine.sshd("office")
    machine.drop("office")
    for host in (POOL / "hosts").glob("shop*"):
        machine.backupd("forget", host.name, "--yes")


def _box(settings: str = "") -> Act:
    def act(machine: Machine) -> None:
        machine.write(_PASSWORD, "a password\n")
        machine.drop_in("box", f"{_OFFSITE}{settings}")
        if not Path("/var/tmp/restic").exists():
            machine.backupd("offsite", "init", "box", check=True)
        machine.backupd("offsite", "run", "box", check=True)

    return act


def _no_box(machine: Machine) -> None:
    machine.drop("box")
    machine.drop("fault")


_NO_CAPABILITIES = "[Service]\nCapabilityBoundingSet=\n"
_KILLED = "[Service]\nExecStart=\nExecStart=/bin/sh -c 'kill -9 $$$$'\n"
_NIGHT = ("backup", "sample", "news")
_SENDER = "nothing runs that could send a message: [notify] ping is for this"

FAULTS: tuple[Fault, ...] = (
    # A. Nothing runs, and nobody would hear of it
    Fault("key misspelt in main.toml", "A", _config("[retention]", "[retention]\ndayly = 3"), _restore, "dayly"),
    Fault("main.toml is no TOML", "A", _config("[retention]", "[retention"), _restore, r"main\.toml"),
    Fault("value out of range in main.toml", "A", _config("daily = 3", 'daily = "many"'), _restore, "daily"),
    Fault("unknown section in main.toml", "A", _config("[retention]", "[bakcup]\n[retention]"), _restore, "bakcup"),
    Fault("wrong zone in main.toml", "A", _config('"UTC"', '"Europe/Atlantis"'), _restore, "Atlantis"),
    Fault("main.toml is gone", "A", _away("/etc/btrkeep/main.toml"), _back("/etc/btrkeep/main.toml"), r"main\.toml"),
    Fault("drop-in is no TOML", "A", _drop_in("[host.web1\n"), _restore, r"fault\.toml"),
    Fault(
        "drop-in is a dangling link",
        "A",
        lambda _: Path("/etc/btrkeep/main.d/fault.toml").symlink_to("/nowhere"),
        _restore,
        r"fault\.toml",
    ),
    Fault("host of a group that does not exist", "A", _host("web1", 'group = "debian"'), _restore, "debian", _NIGHT, 1),
    Fault("key of a host misspelt", "A", _host("web1", 'pahts = ["/etc"]'), _restore, "pahts", _NIGHT, 1),
    Fault("host without paths", "A", _host("new", 'address = "root@127.0.0.1"'), _restore, "new", _NIGHT, 1),
    Fault(
        "timer of the backups disabled",
        "A",
        _systemctl("disable", "--now", "btrkeep-backup@main.timer"),
        _systemctl("enable", "--now", "btrkeep-backup@main.timer"),
        "nothing starts",
    ),
    Fault(
        "timer of the backups masked",
        "A",
        _both(_systemctl("stop", "btrkeep-backup@main.timer"), _systemctl("mask", "--runtime", "btrkeep-backup@main.timer")),
        _both(_systemctl("unmask", "--runtime", "btrkeep-backup@main.timer"), _systemctl("start", "btrkeep-backup@main.timer")),
        "nothing starts",
    ),
    Fault(
        "timer that meets no window",
        "A",
        _both(_drop_in('[backup]\nwindow = "22:00-06:00"\n'), _timer("OnCalendar=*-*-* 12:00")),
        _timer_back,
        "window",
    ),
    Fault(
        "zone that moves the window away from the timer",
        "A",
        _both(
            _config('"UTC"', '"America/Los_Angeles"'),
            _drop_in('[backup]\nwindow = "22:00-04:00"\n'),
            _timer("OnCalendar=*-*-* 23:00"),
        ),
        _timer_back,
        "window",
    ),
    Fault(
        "every shorter than the timer",
        "A",
        _both(_host("web1", 'every = "2h"'), _timer("OnCalendar=daily")),
        _timer_back,
        "in time|schedule",
    ),
    Fault("no run for three days", "A", _nothing, _nothing, "late|no complete", ("sample", "news"), wait=3 * DAY),
    Fault(
        "notify does not run any more",
        "A",
        _both(lambda m: m.night(), _systemctl("stop", "btrkeep-news@main.timer")),
        _systemctl("start", "btrkeep-news@main.timer"),
        "last hour|last check is old",
        (),
        wait=2 * 3600,
        places=("status", "overview", "metrics"),
        because=_SENDER,
    ),
    Fault(
        "catalogue locked for longer than a quarter of an hour",
        "A",
        _both(_lock_catalogue, lambda m: m.unit("news")),
        _ended("lock"),
        "catalogue|last hour|last check is old",
        wait=3700,
    ),
    Fault("catalogue damaged", "A", _damage_catalogue, _new_catalogue, "catalogue|database"),
    Fault("catalogue of a newer version", "A", _newer_catalogue, _older_catalogue, "newer|catalogue"),
    Fault("catalogue lost", "A", _catalogue_away, _new_catalogue, "catalogue|lost|rebuild"),
    Fault("state folder full", "A", _fill_state, _empty_state, "full|space|room|catalogue|last hour", _NIGHT, 1),
    Fault(
        "state folder read-only",
        "A",
        _remount(STATE.parent, "ro"),
        _remount(STATE.parent, "rw"),
        "read-only|catalogue|last hour",
        wait=4000,
    ),
    Fault(
        "pool not mounted",
        "A",
        _both(_stop_web, lambda m: m.unmount(), _start_web),
        _both(_stop_web, lambda m: m.mount(), _start_web),
        "mounted|no pool|pool cannot|does not exist",
    ),
    Fault(
        "another filesystem in the place of the pool",
        "A",
        _both(
            _stop_web,
            lambda m: m.unmount(),
            lambda m: m.run("mount", "-t", "tmpfs", "tmpfs", "/srv", check=True),
            lambda _: POOL.mkdir(),
            _start_web,
        ),
        _both(_stop_web, lambda m: m.unmount(), lambda m: m.mount(), _start_web),
        "pool",
    ),
    Fault("pool read-only", "A", _remount("/srv", "ro"), _remount("/srv", "rw"), "read-only"),
    Fault(
        "service of the backups cannot start",
        "A",
        _unit("backup", "[Service]\nExecStart=\nExecStart=/nowhere/backupd\n"),
        _unit("backup", ""),
        "btrkeep-backup@main",
        ("backup", "news"),
    ),
    Fault(
        "backups killed",
        "A",
        _unit("backup", _KILLED),
        _unit("backup", ""),
        "btrkeep-backup@main",
        ("backup", "news"),
    ),
    Fault("clock three days behind", "A", lambda m: m.later(-3 * DAY), lambda m: m.later(3 * DAY), "clock"),
    # B. A condition that lasts
    Fault(
        "file unreadable for three nights", "B", _as_nobody("secret.key", 0o600), _readable("secret.key"), r"secret\.key", nights=3
    ),
    Fault(
        "folder unreadable, so deletions are skipped", "B", _as_nobody("private", 0o700), _readable("private"), "private", nights=3
    ),
    Fault("mount of a host missing", "B", _mount_on_host, _mount_gone, "mounted", nights=3),
    Fault("source path gone", "B", _away("/hosts/web1"), _back("/hosts/web1"), "web1", nights=1),
    Fault("source path empty", "B", _empty_host(10), _full_host, "web1", nights=1),
    Fault("most of a host's files gone", "B", _empty_host(7), _full_host, "web1", nights=1),
    Fault("optional host absent for too long", "B", _ended("laptop"), _started("laptop"), "laptop", nights=4, days=5),
    Fault(
        "optional host with another host key", "B", _key("laptop", trusted=False), _key("laptop", trusted=True), "laptop", nights=1
    ),
    Fault("optional host refuses the key", "B", _shell("laptop", ""), _shell_back("laptop"), "laptop", nights=1),
    Fault(
        "optional host with a misspelt name",
        "B",
        _host("laptop2", 'address = "root@laptop.invalid"\npaths = ["/etc"]\noptional = true'),
        _restore,
        "laptop2",
        nights=1,
    ),
    Fault(
        "drills not made any more",
        "B",
        _both(_drop_in('[drill]\nmax_age = "2d"\n'), lambda m: m.unit("drill")),
        _restore,
        "drill|restore",
        nights=4,
    ),
    Fault(
        "verification not made any more",
        "B",
        _both(_drop_in('[verify]\nmax_age = "2d"\n'), lambda m: m.unit("verify")),
        _restore,
        "verif|read",
        nights=4,
    ),
    Fault(
        "verification killed",
        "B",
        _unit("verify", _KILLED),
        _unit("verify", ""),
        "verify",
        ("verify", "news"),
        after=("verify",),
    ),
    Fault("scrub fails", "B", _unit("scrub", _NO_CAPABILITIES), _unit("scrub", ""), "scrub", ("scrub", "news"), after=("scrub",)),
    Fault(
        "balance fails",
        "B",
        _unit("balance", _NO_CAPABILITIES),
        _unit("balance", ""),
        "balance",
        ("balance", "news"),
        after=("balance",),
    ),
    Fault(
        "expiry fails", "B", _unit("expire", _NO_CAPABILITIES), _unit("expire", ""), "expir", ("expire", "news"), after=("expire",)
    ),
    Fault("samples killed", "B", _unit("sample", _KILLED), _unit("sample", ""), "sample", ("sample", "news"), after=("sample",)),
    # C. Reasons
    Fault("host down", "C", _ended("web1"), _started("web1"), "web1.*refused", nights=1),
    Fault(
        "no route to a host",
        "C",
        _host("web1", 'address = "root@192.0.2.1"'),
        _restore,
        "web1.*(unreachable|route|answer)",
        nights=1,
    ),
    Fault(
        "name of a host does not resolve",
        "C",
        _host("web1", 'address = "root@web1.invalid"'),
        _restore,
        "web1.*(resolve|name|known)",
        nights=1,
    ),
    Fault(
        "key refused",
        "C",
        lambda _: Path("/run/silence/web1.authorized").write_text(""),
        _shell_back("web1"),
        "web1.*(key|permission denied|refused)",
        nights=1,
    ),
    Fault("host key changed", "C", _key("web2", trusted=False), _key("web2", trusted=True), "web2.*key", nights=1),
    Fault(
        "host key unknown",
        "C",
        _away("/etc/btrkeep/known_hosts"),
        _back("/etc/btrkeep/known_hosts"),
        "web1.*key|key.*web1",
        nights=1,
    ),
    Fault("own key lost", "C", _away("/etc/btrkeep/id_ed25519"), _back("/etc/btrkeep/id_ed25519"), "web1.*key", nights=1),
    Fault(
        "no rsync on a host",
        "C",
        _shell("web1", 'PATH=/nowhere exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'),
        _shell_back("web1"),
        "web1.*rsync.*(not|install)",
        nights=1,
    ),
    Fault(
        "shell of a host prints something",
        "C",
        _shell("web1", 'echo "Welcome to web1"; eval "$SSH_ORIGINAL_COMMAND"'),
        _shell_back("web1"),
        "web1.*login shell",
        nights=1,
    ),
    Fault(
        "account of a host without a shell",
        "C",
        _shell("web1", 'echo "This account is currently not available."; exit 1'),
        _shell_back("web1"),
        "web1.*login shell",
        nights=1,
    ),
    Fault("no sudo on a host", "C", _sudo(""), _no_sudo, "web1.*sudo", nights=1),
    Fault(
        "sudo wants a password, in German",
        "C",
        _sudo(
            "echo 'sudo: Zum Lesen des Passworts ist ein Terminal erforderlich; verwenden Sie die Option -S' >&2\n"
            "echo 'sudo: Ein Passwort ist notwendig' >&2\nexit 1"
        ),
        _no_sudo,
        "web1.*sudo",
        nights=1,
    ),
    Fault(
        "rsync of a host killed",
        "C",
        _shell("web1", '(eval "$SSH_ORIGINAL_COMMAND") & p=$!; sleep 0.05; kill -9 $p; pkill -9 -P $p; exit 137'),
        _shell_back("web1"),
        "web1",
        nights=1,
    ),
    Fault(
        "host says nothing any more",
        "C",
        _both(_host("web1", 'stall = "5s"'), _shell("web1", "sleep 120")),
        _both(_restore, _shell_back("web1")),
        "web1",
        nights=1,
    ),
    Fault(
        "host takes longer than its deadline",
        "C",
        _both(_host("web1", 'deadline = "5s"'), _shell("web1", "sleep 120")),
        _both(_restore, _shell_back("web1")),
        "web1",
        nights=1,
    ),
    Fault("path of more than 4,096 bytes", "C", _deep, _not_deep, "web1", nights=1),
    Fault(
        "hook fails",
        "C",
        _host("web1", 'before = ["/bin/sh", "-c", "echo no database; exit 3"]'),
        _restore,
        "web1.*(database|before|3)",
        nights=1,
    ),
    Fault(
        "hook is missing",
        "C",
        _host("web1", 'before = ["/usr/local/bin/dump-databases"]'),
        _restore,
        "web1.*dump-databases",
        nights=1,
    ),
    Fault("hook is stuck", "C", _host("web1", 'before = ["/bin/sleep", "300"]\ndeadline = "5s"'), _restore, "web1", nights=1),
    Fault(
        "more new files than max_files",
        "C",
        _both(_host("web1", "max_files = 10"), lambda _: shutil.copytree(HOSTS / "web1/folder1", HOSTS / "web1/many")),
        _both(_restore, lambda _: shutil.rmtree(HOSTS / "web1/many")),
        "web1.*(max_files|files)",
        nights=1,
    ),
    Fault(
        "more new data than max_new_bytes",
        "C",
        _both(_host("web1", 'max_new_bytes = "1KiB"')),
        _restore,
        "web1.*(max_new_bytes|new)",
        nights=1,
    ),
    Fault("no rsync here", "C", _away("/usr/bin/rsync"), _back("/usr/bin/rsync"), "rsync|backup@main", nights=1),
    Fault(
        "no bubblewrap here, and confine is always",
        "C",
        _both(_config('"auto"', '"always"'), _away("/usr/bin/bwrap")),
        _both(_restore, _back("/usr/bin/bwrap")),
        "bubblewrap|bwrap|confine|backup@main",
        nights=1,
    ),
    # D. What reports is itself at fault
    Fault(
        "webhook down, and a host down",
        "D",
        _both(_ended("web1"), lambda m: m.no_webhook(), lambda m: m.night(), lambda m: m.webhook()),
        _started("web1"),
        "web1.*refused",
    ),
    Fault(
        "mail does not arrive, and a host is down",
        "D",
        _both(_config('8099/"', '8099/", "mailto://user:secret@127.0.0.1:9?to=admin@example.org"'), _ended("web1")),
        _both(_restore, _started("web1")),
        "mailto",
        nights=1,
    ),
    Fault(
        "file of metrics cannot be written",
        "D",
        lambda m: m.run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/var/lib/node", check=True),
        lambda m: m.run("umount", "/var/lib/node", check=True),
        ".",
        places=("metrics",),
        because="the file is written by cron, and is missing or old: Prometheus sees that",
    ),
    Fault(
        "dashboard cannot start",
        "D",
        _both(
            _unit("web", "[Service]\nExecStart=\nExecStart=/bin/false\nRestart=no\n"),
            lambda m: m.run("systemctl", "restart", "btrkeep-web@main.service"),
        ),
        _both(_unit("web", ""), lambda m: m.run("systemctl", "reset-failed", "btrkeep-web@main.service"), _start_web),
        "btrkeep-web|no answer",
    ),
    Fault(
        "root service cannot start",
        "D",
        _both(
            _unit("serve", "[Service]\nExecStart=\nExecStart=/bin/false\nRestart=no\n"),
            lambda m: m.run("systemctl", "restart", "btrkeep-serve@main.service"),
        ),
        _both(
            _unit("serve", ""),
            lambda m: m.run("systemctl", "reset-failed", "btrkeep-serve@main.service", "btrkeep-serve@main.socket"),
            _start_web,
        ),
        "btrkeep-serve",
    ),
    Fault(
        "backups without capabilities",
        "D",
        _unit("backup", _NO_CAPABILITIES),
        _unit("backup", ""),
        "capab|privileg|not permitted|backup@main",
        nights=1,
    ),
    # E. The pool and the copies on the second day
    Fault("device missing", "E", _degrade, _whole, "missing"),
    Fault("device with errors", "E", _damage_one, _undamage, "error"),
    Fault(
        "file of a backup damaged",
        "E",
        _both(lambda m: m.unit("verify"), _damage_both),
        _undamage,
        "damaged|error",
        ("verify", "sample", "news"),
        after=("verify",),
    ),
    Fault("pool full", "E", _fill_pool, _empty_pool, "full|space|room|unallocated", _NIGHT, 1),
    Fault("more used than used_limit", "E", _drop_in('[notify]\nused_limit = "1%"\n'), _restore, "used"),
    Fault("less free than min_free", "E", _drop_in('[pool]\nmin_free = "99%"\n'), _restore, "min_free|free", _NIGHT, 1),
    Fault(
        "offsite server down",
        "E",
        _both(_box(), _away("/var/tmp/restic")),
        _both(_back("/var/tmp/restic"), _no_box),
        "box",
        ("offsite", "news"),
        1,
    ),
    Fault(
        "offsite with a wrong password",
        "E",
        _both(_box(), lambda m: m.write(_PASSWORD, "another\n")),
        _no_box,
        "box.*password|password.*box",
        ("offsite", "news"),
        1,
    ),
    Fault("offsite not sent any more", "E", _box('max_age = "1d"\n'), _no_box, "box", _NIGHT, 3),
    Fault("other backup server down", "E", _both(_office(), _ended("office")), _no_office, "office", ("replicate", "news"), 1),
    Fault(
        "other backup server refuses the key",
        "E",
        _both(_office(), lambda _: Path("/run/silence/office.authorized").write_text("")),
        _no_office,
        "office",
        ("replicate", "news"),
        1,
    ),
    Fault("replica not fetched any more", "E", _office('max_age = "1d"\n'), _no_office, "office", _NIGHT, 3),
    Fault("nobody fetches from here any more", "E", _drop_in('[fetched_by.vault]\nmax_age = "1d"\n'), _restore, "vault", _NIGHT, 3),
)
