"""A hostile host in a boot drill: its own init, device nodes, and output without end."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backupd.drill.boot import Console
from tests.beds import btrfs, leftout, session, work
from tests.beds.machine import why_not
from tests.beds.ssh import Sshd
from tests.btrfs.test_boot_drill import System

pytestmark = [
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.takes(40),
    pytest.mark.skipif(bool(why_not()), reason=leftout.reason("booting", why_not())),
]
SECRET = "of-the-backup-server"
INIT = "usr/lib/systemd/systemd"


@pytest.fixture(scope="module")
def vm(sshd: Sshd) -> Iterator[System]:
    point = btrfs.make(size="2G")
    system = System(point, sshd)
    yield system
    problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[int]:
    """Yields the device number of a disk of the server that only root may read."""
    image = tmp_path / "disk"
    image.write_bytes(SECRET.encode().ljust(1 << 20, b"\n"))
    device = Path(work("losetup", "--find", "--show", image).stdout.strip())
    yield device.stat().st_rdev
    subprocess.run(["losetup", "--detach", device], check=True)


def init(vm: System, script: str) -> None:
    """Makes this shell script the system's first process; the drill prints its last line."""
    (vm.root / INIT).unlink()
    (vm.root / INIT).write_text(f"#!/bin/sh\n{script}\n")
    (vm.root / INIT).chmod(0o755)
    vm.run()


def test_a_device_node_of_a_backup_opens_no_disk_of_the_server(vm: System, disk: int) -> None:
    os.mknod(vm.root / "node", 0o60666, disk)
    (vm.root / "node").chmod(0o666)
    init(vm, "head -c 40 /node 2>&1; echo; exit 1")
    done = vm.boot(status=1)
    assert SECRET not in done["text"], done
    assert "Permission denied" in done["text"], done
    assert vm.left() == []


def test_a_system_cannot_choose_to_be_booted_as_the_servers_own_root(vm: System) -> None:
    init(vm, 'echo "users: $(cat /proc/self/uid_map)"; exit 1')
    done = vm.boot(status=1)
    assert re.search(r"users: +0 +[1-9]", done["text"]), done
    assert vm.left() == []


def test_settings_that_a_file_of_systemd_has_for_it_are_not_used(vm: System, tmp_path: Path) -> None:
    """A backup from another server may have a .nspawn file beside its data. The test puts one where systemd trusts it most."""
    (tmp_path / "secret").write_text(SECRET)
    pool = json.loads((vm.pool / ".btrkeep/pool.json").read_text())["id"]
    folder = Path("/run/systemd/nspawn")
    file = folder / f"btrkeep-drill-{pool[:8]}.nspawn"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[Files]\nBindReadOnly={tmp_path}:/shown\n")
    try:
        init(vm, "echo began; cat /shown/secret 2>&1; exit 1")
        done = vm.boot(status=1)
    finally:
        file.unlink()
    assert "No such file" in done["text"], done


def test_without_users_of_its_own_it_is_booted_only_when_that_is_said(
    vm: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older systemd lacks this option; the systemd here behaves like it."""
    real = shutil.which("systemd-nspawn")
    old = tmp_path / "systemd-nspawn"
    old.write_text(f'#!/bin/sh\ncase "$*" in *--private-users*) exit 1 ;; esac\nexec {real} "$@"\n')
    old.chmod(0o755)
    init(vm, 'echo "users: $(cat /proc/self/uid_map)"; exit 1')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = vm.boot(status=1)
    assert (done["outcome"], "--as-root" in done["text"], "users: " in done["text"]) == ("unfinished", True, False), done
    done = vm.boot("vm@latest", "--as-root", status=1)
    assert re.search(r"users: +0 +0", done["text"]), done
    assert vm.left() == []


def test_results_of_unrequested_checks_are_not_kept() -> None:
    console = Console("mark", asked=2)
    console.take(b"".join(b"mark check %d 0 well\n" % number for number in range(100_000)))
    assert console.checks == {0: (0, "well"), 1: (0, "well")}
