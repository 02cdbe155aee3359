"""Boot drills: a Debian that was backed up over ssh, by its own rsync, is booted, and its problems are reported."""

import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.beds import btrfs, leftout, session, work
from tests.beds.machine import debian, why_not
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd
from tests.beds.watch import killed

pytestmark = [
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.takes(40),
    pytest.mark.skipif(bool(why_not()), reason=leftout.reason("booting", why_not())),
]
SERVICE = "[Unit]\nDescription=of the test\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/bin/sh -c '{command}'\n"


class System(Nights):
    """A host that is backed up from its root over ssh: a real sshd runs all commands with the folder `root` as their /."""

    def __init__(self, top: Path, sshd: Sshd) -> None:
        super().__init__(top)
        self.config = self.state.parent / "main.toml"  # can be written when the pool is full
        self.root = top / "vm"
        work("cp", "-a", debian(), self.root)
        enter = f'chroot {shlex.quote(str(self.root))} /bin/sh -c \\"$SSH_ORIGINAL_COMMAND\\"'
        key = sshd.authorize(f'restrict,command="{enter}"')
        self.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
        self.tables["drill"] = {"boot_timeout": "60s"}
        exclude = ["/proc/*", "/sys/*", "/dev/*", "/run/*", "/tmp"]
        self.host("vm", "/", address=sshd.address, port=sshd.port, exclude=exclude)

    def keys(self, **keys: Any) -> None:
        self.tables["host"]["vm"] |= keys
        self.write()

    def unit(self, command: str | None) -> None:
        """Writes a unit that is started at each boot; None: removes it."""
        file = self.root / "etc/systemd/system/mine.service"
        wanted = self.root / "etc/systemd/system/multi-user.target.wants/mine.service"
        wanted.parent.mkdir(exist_ok=True)
        for path in (file, wanted):
            path.unlink(missing_ok=True)
        if command:
            file.write_text(SERVICE.format(command=command))
            wanted.symlink_to("/etc/systemd/system/mine.service")

    def boot(self, *words: str, status: int = 0) -> dict[str, Any]:
        done = self.backupd("drill", *(words or ("vm@latest",)), "--boot", "--json", check=False)
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        (answer,) = json.loads(done.stdout)
        return dict(answer)

    def left(self) -> list[str]:
        """Returns the possible remains of a boot: subvolumes, cgroups, processes. Not those of another pool, which another worker
        may have.
        """
        pool = json.loads((self.pool / ".btrkeep/pool.json").read_text())["id"]
        scratch = self.pool / ".btrkeep/drill"
        listed = work("btrfs", "subvolume", "list", self.pool).stdout.splitlines()
        processes = work("ps", "-eo", "args").stdout.splitlines()
        return [
            *([path.name for path in scratch.iterdir()] if scratch.exists() else []),
            *(line for line in listed if "/drill/" in line),
            *(str(path) for path in Path("/sys/fs/cgroup").glob(f"*/btrkeep-drill-{pool}")),
            *(line for line in processes if "systemd-nspawn" in line and str(self.pool) in line),
        ]


@pytest.fixture(scope="module")
def vm(sshd: Sshd) -> Iterator[System]:
    point = btrfs.make(size="2G")
    system = System(point, sshd)
    system.run()
    yield system
    problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


def test_a_system_that_was_backed_up_boots_answers_its_checks_and_is_gone(vm: System) -> None:
    vm.keys(boot_checks=["test -s /etc/debian_version", "systemctl is-active dbus.socket", "touch /written"])
    begun = time.monotonic()
    done = vm.boot()
    assert (done["outcome"], done["kind"]) == ("proven", "boot"), done
    assert done["text"].startswith("all units started, 3 of 3 checks passed")
    assert 0 < done["seconds"] < time.monotonic() - begun
    assert not (vm.backup("vm") / "data/written").exists()
    assert vm.left() == []
    assert "not tested" in vm.backupd("drill", "vm@latest", "--boot").stdout
    status = vm.json("status")["drill"]
    assert (status["state"], status["last"]) == ("never", None)  # a boot is not a restore
    assert "would be booted, and 3 checks" in vm.backupd("drill", "vm@latest", "--boot", "--dry-run").stdout


def test_what_is_wrong_with_a_system_is_named(vm: System) -> None:
    vm.keys(boot_checks=["true", "echo no database; exit 3"])
    vm.unit("exit 7")
    vm.run()
    done = vm.boot(status=1)
    assert done["outcome"] == "failed"
    assert "'degraded': mine.service" in done["text"]
    assert "'echo no database; exit 3' ended with 3: no database" in done["text"]
    assert "did not boot correctly" in vm.backupd("status", check=False).stdout
    assert vm.left() == []


def test_a_system_that_never_comes_up_fails_when_its_time_is_over(vm: System) -> None:
    vm.keys(boot_checks=[])
    vm.settings("drill", boot_timeout="4s")
    vm.unit("sleep 1000")
    vm.run()
    done = vm.boot(status=1)
    assert done["outcome"] == "failed"
    assert "did not finish booting" in done["text"]
    assert vm.left() == []


def test_a_system_that_fills_the_pool_is_ended_and_that_says_nothing_of_the_backup(vm: System) -> None:
    vm.settings("drill", boot_timeout="60s")
    vm.unit("cat /dev/zero | tr '\\\\0' x >/fill")
    vm.run()
    vm.settings("pool", min_free="1200MiB")
    done = vm.boot(status=1)
    vm.settings("pool", min_free="0%")
    assert (done["outcome"], "too little free space" in done["text"]) == ("unfinished", True), done
    assert vm.left() == []


def test_a_drill_of_another_pool_is_left_alone(vm: System) -> None:
    top = next(path for path in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")) if path.is_dir())
    group = top / "btrkeep-drill-of-another"
    sleeping = subprocess.Popen(["sleep", "100"])
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(sleeping.pid))
        vm.unit(None)
        vm.run()
        assert vm.boot()["outcome"] == "proven"
        assert sleeping.poll() is None
    finally:
        sleeping.kill()
        sleeping.wait()
        group.rmdir()


def test_a_drill_that_is_killed_leaves_what_the_next_one_clears_away(vm: System) -> None:
    vm.unit(None)
    vm.run()
    killed(vm, "before", "system booted", "drill", "vm@latest", "--boot")
    assert vm.left() != []
    assert vm.boot()["outcome"] == "proven"
    assert vm.left() == []


def test_what_holds_no_system_is_refused(vm: System, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    vm.host("plain", tmp_path, address=None)
    vm.run("plain")
    done = vm.backupd("drill", "plain", "--boot", check=False)
    assert (done.returncode, "is not a system" in done.stderr) == (1, True)
    assert vm.backupd("drill", "--boot", check=False).returncode == 2
