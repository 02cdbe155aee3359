"""Reads the facts about the pool and its configuration, and about everything that starts a program automatically: enabled timers
and lines of cron, which are read from files, because systemd need not run.

It needs no facts of the filesystem, because `backupd check` uses it too.
"""

import json
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from backupd.actions.quota import programs
from backupd.doctor.copy_checks import check_copies, check_steps
from backupd.doctor.doctor_facts import KeyFile, SiteFacts
from backupd.expire.report import expiry_words
from backupd.expire.trust import clock_doubt
from backupd.health.pool_facts import read_catalogue, read_pool_schedule
from backupd.repo.backup_json import read
from backupd.repo.pool_files import hosts_of, names_of
from btrkeep.catalogue import Catalogue
from btrkeep.config import Config
from btrkeep.decisions.pool_health import HealthLimits
from btrkeep.decisions.schedule import NOTHING_MISSED
from btrkeep.errors import OperatorError
from btrkeep.hung_storage import answers
from btrkeep.pool import qgroups
from btrkeep.pool.locks import EXPIRE_LOCK, read_holder
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.mounts import is_machines
from btrkeep.pool.temporary_devices import left_devices
from btrkeep.trusted_path import UntrustedStep, untrusted_state
from btrkeep.units import parse_time


def read_site(config: Config, pool: Pool, now: datetime) -> SiteFacts:
    """Reads the facts about this pool. Raises OSError."""
    enabled = [host for host in config.hosts.values() if host.enabled]
    limited = [host for host in enabled if host.quota is not None]
    by_ssh = any(host.address for host in enabled)
    names = {host: names_of(pool, host) for host in hosts_of(pool)}
    expiring = read_holder(pool.locks / EXPIRE_LOCK)
    catalogue = read_catalogue(config.pool.state, pool)
    return SiteFacts(
        limits=HealthLimits.of(config),
        name=config.name,
        file=config.file,
        created=_created(pool),
        hosts=len(enabled),
        unruled=tuple(host.name for host in enabled if host.retention.missing),
        key=read_key_file(config.ssh.key) if by_ssh else None,
        restore_key=read_key_file(config.ssh.key_for_restores) if by_ssh and config.ssh.key_for_restores.exists() else None,
        known_hosts=read_key_file(config.ssh.known_hosts) if by_ssh else None,
        schedule=NOTHING_MISSED if pool.rehearsal else read_pool_schedule(config),
        own_balance=any(True for _ in scheduled_by("btrfs-balancer", "run")),
        mount_option=config.expiry.mount_option,
        expiring=expiring is not None and expiring.is_alive,
        most_backups=max(
            ((host, len(backup_names)) for host, backup_names in names.items()), key=lambda item: item[1], default=None
        ),
        catalogue=catalogue,
        quotas=len(limited),
        quota_since=qgroups.since(pool),
        programs=programs() if limited or qgroups.was_ever_on(pool.filesystem) else ("", True),
        clock_doubt=_clock_doubt(config.pool.state, pool, now) if catalogue.foreign == "" else None,
        confine=config.backup.confine,
        copies=tuple(check_copies(config, now)) if catalogue.foreign == "" else (),
        steps=tuple(check_steps(config, now)) if catalogue.foreign == "" else (),
        left_devices=left_devices(config.pool.state),
        untrusted_state=_untrusted_state(config.pool.state),
        unconfined=_unconfined(pool, {host.name: max(names.get(host.name, ()), default="") for host in enabled if host.address}),
    )


def _unconfined(pool: Pool, newest: Mapping[str, str]) -> str:
    """Returns a host whose rsync was not confined. The trial is made once for all hosts of a run, so one host of the last run is
    enough.
    """
    host = max(newest, key=newest.__getitem__, default="")
    if not host or not newest[host]:
        return ""
    try:
        record = read(pool.hosts / host / newest[host])
    except OSError:
        return ""
    return f"{host}/{newest[host]}" if record and record.confined is False else ""


def _untrusted_state(state: Path) -> UntrustedStep | None:
    """Returns None also if the state folder cannot be read: the rule about the catalogue reports that."""
    if not answers(state):
        return None
    with suppress(OSError):
        return untrusted_state(state)
    return None


def _clock_doubt(state: Path, pool: Pool, now: datetime) -> str | None:
    try:
        with Catalogue.open_readonly(state) as catalogue:
            doubt = clock_doubt(catalogue, now, rehearsal=pool.rehearsal)
            return expiry_words(doubt) if doubt else None
    except OperatorError:  # the rule about the catalogue reports it
        return None


def _created(pool: Pool) -> datetime | None:
    try:
        return parse_time(json.loads((pool.path / MARKER / "pool.json").read_text())["created"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_key_file(path: Path) -> KeyFile:
    """Reads the facts about a file that ssh uses."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open("rb") as file:
            empty = not any(line.strip() and not line.startswith(b"#") for line in file)
    except FileNotFoundError:
        parent = next(folder for folder in path.absolute().parents if folder.exists())
        hidden = "" if is_machines(parent) else f"this process does not see the machine's {parent}"
        return KeyFile(path, None, hidden=hidden)
    except OSError as error:
        return KeyFile(path, None, hidden=f"{path}: {error.strerror}")
    return KeyFile(path, mode, empty)


_UNITS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_CRON = ("etc/crontab", "etc/cron.d", "var/spool/cron/crontabs", "etc/cron.hourly", "etc/cron.daily")


def scheduled_by(program: str, verb: str, root: Path = Path("/")) -> Iterator[str]:
    """Names of enabled timers and of files of cron that run `program ... verb`, possibly for another pool."""
    pattern = re.compile(rf"\b{re.escape(program)}\b[^\n]*\b{re.escape(verb)}\b")
    for timer in sorted(_enabled(root)):
        if any(pattern.search(line) for line in _lines(_service_of(timer, root))):
            yield timer
    for folder in _CRON:
        for file in sorted(_files(root / folder)):
            if any(pattern.search(line) for line in _lines(file)):
                yield str(file)


def _enabled(root: Path) -> set[str]:
    """Timers that a target wants: the links that `systemctl enable` makes for [Install]."""
    return {timer.name for folder in _UNITS for timer in (root / folder).glob("*.wants/*.timer")}


def _service_of(timer: str, root: Path) -> Path | None:
    """The file of the service that a timer of the same name starts; the template for an instance (a@b.timer)."""
    name = timer.removesuffix(".timer")
    template = name.partition("@")[0] + "@" if "@" in name else name
    candidates = (root / folder / f"{unit}.service" for unit in dict.fromkeys((name, template)) for folder in _UNITS)
    return next((file for file in candidates if file.exists()), None)


def _files(place: Path) -> list[Path]:
    with suppress(OSError):
        if place.is_dir():
            return [file for file in place.iterdir() if not file.name.startswith(".")]
    return [place]


def _lines(file: Path | None) -> list[str]:
    """Returns the lines of a file without comments."""
    try:
        text = file.read_text(errors="replace") if file else ""
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
