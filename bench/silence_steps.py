"""Faults of bench.silence in the steps beside the backups: expiry, deduplication, comparison with the host, quotas."""

import fcntl
import os
import struct
import subprocess
import time

from bench.silence_acts import Act
from bench.silence_machine import DAY, HOSTS, STATE, Machine


def too_much(machine: Machine) -> None:
    """Makes sixteen backups of each host, of which a mistyped number keeps one."""
    machine.configured("daily = 3", "daily = 60")
    machine.configured("min_keep = 3", "min_keep = 1")
    for _ in range(16):
        machine.later(1.1 * DAY)
        machine.unit("backup")
    machine.unit("news")
    machine.messages()
    machine.configured("daily = 60", "daily = 1")


def forced(machine: Machine) -> None:
    machine.restore_config()
    machine.backupd("expire", "--force", "pool", "--force", "hosts", check=True)


def killed_dedupe(machine: Machine) -> None:
    """Kills four runs, each as soon as it is in the catalogue. The last one still seems to be running."""
    for _ in range(4):
        before = machine.run("sqlite3", STATE / "catalogue.sqlite", "SELECT count(*) FROM dedupe").stdout
        child = subprocess.Popen(["backupd", "dedupe"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while (
            child.poll() is None
            and machine.run("sqlite3", STATE / "catalogue.sqlite", "SELECT count(*) FROM dedupe").stdout == before
        ):
            time.sleep(0.01)
        child.kill()
        child.wait()
        machine.later(60)


def dedupe_again(machine: Machine) -> None:
    machine.backupd("dedupe", check=True)


def not_compared(machine: Machine) -> None:
    machine.no_sshd("web1")
    for _ in range(3):
        machine.backupd("verify", "--against-source", "web1")
        machine.later(3600)
    machine.sshd("web1")


def compared_again(machine: Machine) -> None:
    machine.backupd("verify", "--against-source", "web1", check=True)


_QUOTA_CTL = 0xC0109428


def _control_quotas(command: int) -> None:
    """BTRFS_IOC_QUOTA_CTL: btrfs-progs before 6.7 cannot switch simple quotas on."""
    folder = os.open("/srv", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(folder, _QUOTA_CTL, bytearray(struct.pack("=QQ", command, 0)))
    finally:
        os.close(folder)


def quota(limit: str) -> Act:
    def act(machine: Machine) -> None:
        _control_quotas(4)
        machine.host("web1", f'quota = "{limit}"')
        (HOSTS / "web1" / "large").write_bytes(os.urandom(1 << 20))

    return act


def no_quota(machine: Machine) -> None:
    machine.restore_config()
    (HOSTS / "web1" / "large").unlink()
    _control_quotas(2)
