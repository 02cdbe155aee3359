"""Optional hosts over a real ssh: an absent host differs from a refused key, another host key, or a name that never resolved."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.beds.nights import Nights
from tests.beds.ssh import Sshd
from tests.beds.within import Within
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs]


class Laptop(Within):
    """A pool with one optional host behind `sshd`, and known hosts of its own."""

    def __init__(self, top: Path, sshd: Sshd) -> None:
        super().__init__(top, "--rehearsal")
        self.sshd = sshd
        self.known_hosts = top / "known_hosts"
        shutil.copy(sshd.known_hosts, self.known_hosts)
        shutil.copy(sshd.key, top / "key")
        shutil.copy(f"{sshd.key}.pub", top / "key.pub")
        (self.source / "file").write_text("x")
        self.tables["ssh"] = {"key": str(top / "key"), "known_hosts": str(self.known_hosts)}
        self.reached_by()

    def reached_by(self, **keys: object) -> None:
        given = {"address": self.sshd.address, "port": self.sshd.port, "optional": True, **keys}
        self.host("laptop", self.source, **given)

    def outcome(self, day: int) -> str:
        done = self.backupd("run", "laptop", "--json", "--now", at(day), check=False)
        return str(json.loads(done.stdout)[0]["outcome"])

    def alarms(self, day: int, *, sent: bool = False) -> dict[str, str]:
        report = json.loads(self.backupd("notify", "--json", "--now", at(day), check=False).stdout)
        return {alarm["subject"]: alarm["text"] for alarm in report["alarms" if sent else "standing"]}


def at(day: int) -> str:
    return f"2026-11-{day:02}T22:00:00Z"


@pytest.fixture
def laptop(shared_btrfs: Path, sshd: Sshd) -> Laptop:
    return Laptop(shared_btrfs, sshd)


def another_key(laptop: Laptop) -> None:
    """Records another host key than that of the host."""
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", laptop.top / "other")
    kind, key, *_ = (laptop.top / "other.pub").read_text().split()
    laptop.known_hosts.write_text(f"[127.0.0.1]:{laptop.sshd.port} {kind} {key}\n")


def test_an_optional_host_that_was_there_is_absent_only_when_it_is_not_there(laptop: Laptop) -> None:
    assert laptop.outcome(1) == "complete"
    laptop.reached_by(port=1)
    assert laptop.outcome(2) == "skipped"
    laptop.reached_by(ssh_options=["HostName=nowhere.invalid"])
    assert laptop.outcome(3) == "skipped", "its name resolved when it was backed up"
    laptop.reached_by(address="root@nowhere.invalid")
    assert laptop.outcome(4) == "failed", "a new name is misspelt until it has resolved"
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", laptop.top / "refused")
    laptop.tables["ssh"]["key"] = str(laptop.top / "refused")
    laptop.reached_by()
    assert laptop.outcome(5) == "failed"
    assert "host laptop" in laptop.alarms(5)


def test_another_host_key_is_sent_at_once_though_the_host_was_failing_and_the_hint_works(laptop: Laptop) -> None:
    assert laptop.outcome(1) == "complete"
    laptop.reached_by(optional=False, address="root@nowhere.invalid", attempts=1)
    assert laptop.outcome(2) == "failed"
    assert list(laptop.alarms(2)) == ["host laptop"]
    laptop.reached_by()
    another_key(laptop)
    assert laptop.outcome(3) == "failed"
    text = laptop.alarms(3)["hostkey laptop"]
    laptop.reached_by(port=1)
    laptop.outcome(4)
    assert "hostkey laptop" in laptop.alarms(4), "nobody has seen since that it has its key again"
    laptop.reached_by()

    checked = laptop.backupd("check", "--connect", "--json", check=False).stdout
    hints = [finding["hint"] for finding in json.loads(checked) if finding["subject"] == "laptop" and finding["level"] == "error"]
    for hint in (text, *hints):
        assert f"ssh-keygen -R '[127.0.0.1]:{laptop.sshd.port}' -f {laptop.known_hosts}" in hint, hint
    assert hints
    (remove,) = re.findall(r"`(ssh-keygen -R [^`]*)`", text)
    subprocess.run(remove, shell=True, check=True, capture_output=True)
    (accept,) = re.findall(r"`backupd (--config [^`]*)`", text)
    laptop.backupd(*shlex.split(accept), check=False)
    assert laptop.outcome(5) == "complete"
    assert not laptop.alarms(5)


def test_an_absent_host_is_a_message_after_max_absence(laptop: Laptop) -> None:
    assert laptop.outcome(1) == "complete"
    laptop.reached_by(port=1, max_absence="10d")
    assert laptop.outcome(9) == "skipped"
    assert not laptop.alarms(9)
    assert laptop.outcome(12) == "skipped"
    assert "host laptop" in laptop.alarms(12)
    assert json.loads(laptop.backupd("status", "--json", "--now", at(12)).stdout)["hosts"][0]["state"] == "late"
    laptop.reached_by(port=1, max_absence="none")
    assert not laptop.alarms(28)


def test_a_name_that_never_resolved_is_a_failure(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    nights.settings("ssh", command="ssh")
    nights.host("laptop", nights.source, address="root@nowhere.invalid", optional=True)
    assert nights.run("laptop", status=1)["laptop"]["outcome"] == "failed"
