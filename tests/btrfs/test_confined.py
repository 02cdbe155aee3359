"""The rsync that talks to a host is confined to that host's own data/: the possibilities of an rsync that a host has taken over."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.watch import wait_for

TAKEN_OVER = Path(__file__).resolve().parents[1] / "beds" / "taken_over.py"

pytestmark = [pytest.mark.root, pytest.mark.btrfs, pytest.mark.slow]


def taken_over(nights: Nights, confine: str, **more: Any) -> dict[str, str]:
    """Replaces rsync by the program; returns the environment for a run with it."""
    folder = nights.top / "taken"
    folder.mkdir(exist_ok=True)
    nights.settings("backup", confine=confine)
    disk = Path(work("findmnt", "-n", "-o", "SOURCE", "--target", nights.pool).stdout.split("[")[0].strip())
    number = disk.stat().st_rdev
    outside = nights.top / "outside"
    outside.mkdir(exist_ok=True)
    other = nights.pool / "hosts" / "other"
    cell = confine == "always"
    own, administration = nights.working("web").parent, nights.pool / ".btrkeep"
    real = ("/", "/etc/cron.d", "/usr/bin", "/usr/lib", "/opt", "/run", "/dev/shm", "/tmp", "/root") if cell else ()
    secret = ["/etc/passwd", nights.config, nights.state / "catalogue.sqlite", other / "secret", own / "backup.json"]
    targets = {
        "words": ["web", "rsync"],
        "cell": cell,
        "secret": list(map(str, (*secret, *(path for path in administration.rglob("*") if path.is_file())))),
        "folders": list(map(str, (outside, other, own, nights.pool, administration, *real))),
        "disk": [os.major(number), os.minor(number)],
        "pid": os.getpid(),
        "memory": int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.6),
        **more,
    }
    other.mkdir(exist_ok=True)
    (other / "secret").write_text("secret")
    text = TAKEN_OVER.read_text("utf-8").replace("TARGETS: dict[str, Any] = {}", f"TARGETS: dict[str, Any] = {targets!r}")
    (folder / "rsync").write_text(text)
    (folder / "rsync").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def attack_results(nights: Nights) -> dict[str, str]:
    return dict(json.loads(Path(nights.working("web"), "found").read_text()))


@pytest.fixture
def web(nights: Nights) -> Nights:
    nights.source.joinpath("file").write_text("of the host")
    nights.host("web", nights.source)
    return nights


def test_an_rsync_that_a_host_has_taken_over_can_do_nothing(web: Nights) -> None:
    env = taken_over(web, "always")
    web.run("web", status=1, env=env)
    tried = attack_results(web)
    assert len(tried) > 70
    assert [name for name, why in tried.items() if not why] == []
    alive = Path(web.working("web"), "alive")
    text = alive.read_text() if alive.exists() else ""
    time.sleep(0.2)
    assert text == (alive.read_text() if alive.exists() else ""), "it goes on after the run"
    assert not list(web.top.rglob("evil"))


def test_the_same_program_can_do_nearly_all_of_it_without(web: Nights) -> None:
    """Shows that the test above can fail."""
    env = taken_over(web, "never")
    web.run("web", status=1, env=env)
    refused = {name for name, why in attack_results(web).items() if why}
    assert len(refused) < 15, refused
    assert not {f"write to {web.pool}", f"read {web.config}", "open the disk by a node of its own", "call mount"} & refused


@pytest.mark.parametrize("confine", ["always", "never"])
def test_an_rsync_that_gives_files_back_can_do_nothing_either(web: Nights, confine: str) -> None:
    """Without a cell it can do nearly all of it, so this test can fail. It must read the backup, and cannot write anywhere."""
    web.host("web", web.source, address="root@web")
    web.run("web")
    backup = web.pool / "hosts" / "web" / web.names("web")[-1]
    env = taken_over(web, confine, gives=True, words=["-l", "root", "web", "rsync"])
    done = web.backupd("restore", "web", str(web.source), "--to-host", check=False, env=env)
    assert done.returncode == 1, done.stderr
    (answer,) = re.findall(r"it tried (\d+) and could do (\d+)", done.stderr)
    tried, could = map(int, answer)
    assert tried > 70
    assert could == 0 if confine == "always" else could > 60, done.stderr
    assert bool(list(web.top.rglob("evil"))) == (confine == "never")
    assert (backup / "data" / str(web.source).strip("/") / "file").read_text() == "of the host"


def test_one_that_starts_processes_without_end_is_ended(web: Nights) -> None:
    web.host("web", web.source, stall="4s")
    env = taken_over(web, "always", forks=True)
    result = web.run("web", status=1, env=env)["web"]
    assert re.search(r"its rsync started \d+ processes", result["error"])
    wait_for(lambda: str(web.top / "taken") not in work("ps", "-eo", "args").stdout, 60)


def test_attributes_that_take_all_rights_arrive(web: Nights) -> None:
    """trusted.* as overlayfs notes what it covers, security.* as SELinux has it on every file, and a program's capabilities."""
    file = web.source / "file"
    for name, value in (("trusted.overlay.opaque", b"y"), ("security.selinux", b"system_u:object_r:etc_t:s0\0")):
        os.setxattr(file, name, value)
    os.mknod(web.source / "disk", 0o60600, os.makedev(7, 200))
    (web.source / "disk").chmod(0o666)  # a mode that no umask gives
    os.mkfifo(web.source / "pipe")
    (web.source / "pipe").chmod(0o622)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(web.source / "socket"))
    (web.source / "socket").chmod(0o777)
    web.settings("backup", confine="always")
    assert web.run("web")["web"]["outcome"] == "complete"
    arrived = web.data("web", file)
    assert {name: os.getxattr(arrived, name) for name in os.listxattr(arrived)} == {
        name: os.getxattr(file, name) for name in os.listxattr(file)
    }
    assert work("rsync", "-n", "-i", "-aHAXc", "--numeric-ids", f"{web.source}/", f"{web.data('web', web.source)}/").stdout == ""
    assert web.record("web")["confined"] is True


def test_always_runs_nothing_where_it_does_not_work(web: Nights) -> None:
    """Without bubblewrap; by default the run continues, and its record has that fact."""
    folder = web.top / "bin"
    folder.mkdir()
    for name in ("rsync", "bash", "sh", "env", "python3", "btrfs", "dirname", "touch", "sleep"):
        program = subprocess.run(["which", name], capture_output=True, text=True, check=False).stdout.strip()
        if program:
            (folder / name).symlink_to(program)
    env = {"PATH": f"{folder}:{Path(sys.executable).parent}"}
    web.settings("backup", confine="always")
    done = web.backupd("run", "web", check=False, env=env)
    assert (done.returncode, "bubblewrap is not installed" in done.stderr) == (1, True)
    web.settings("backup", confine="auto")
    assert web.run("web", env=env)["web"]["outcome"] == "complete"
    assert web.record("web")["confined"] is False
    answer = json.loads(web.backupd("doctor", "--json", check=False, env=env).stdout)
    assert any(finding["name"] == "confinement" and web.names("web")[-1] in str(finding) for finding in answer["findings"]), answer


def test_an_rsync_with_known_holes_talks_to_hosts_in_its_cell_or_not_at_all(web: Nights) -> None:
    """Except as configured; it may always read this machine's own files."""
    folder = web.top / "old"
    folder.mkdir()
    (folder / "rsync").write_text(
        '#!/bin/bash\n[[ $1 == -VV ]] && { echo \'{"version": "3.2.7", "protocol": "32"}\'; exit; }\n'
        f'exec {work("which", "rsync").stdout.strip()} "$@"\n'
    )
    (folder / "rsync").chmod(0o755)
    (folder / "bwrap").write_text("#!/bin/sh\necho bwrap: not here >&2; exit 1\n")
    (folder / "bwrap").chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    web.host("own", web.source, address=None)
    web.settings("backup", confine="auto")
    answer = web.run(status=1, env=env)
    assert (answer["own"]["outcome"], answer["web"]["outcome"]) == ("complete", "failed")
    assert "rsync 3.2.7 may not connect to hosts" in answer["web"]["error"]
    (folder / "bwrap").unlink()
    assert web.run("web", env=env)["web"]["outcome"] == "complete"
    assert web.record("web")["confined"] is True
    (folder / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bwrap").chmod(0o755)
    back = ("restore", "web", str(web.source), "--to-host")
    refused = web.backupd(*back, check=False, env=env)
    assert (refused.returncode, "rsync 3.2.7 may not connect to hosts" in refused.stderr) == (1, True), refused.stderr
    web.settings("backup", confine="never")
    assert web.run("web", env=env)["web"]["outcome"] == "complete"
    assert web.record("web")["confined"] is False
    web.backupd(*back, env=env)


def test_a_look_at_a_host_is_confined_too(web: Nights) -> None:
    """The program that replaces rsync makes a file, if it can, or prints the configuration."""
    folder = web.top / "taken"
    folder.mkdir()
    trace = web.top / "trace"
    (folder / "rsync").write_text(
        f"#!/bin/bash\n[[ $1 == -VV || $1 == --version ]] && exec {work('which', 'rsync').stdout.strip()} $1\n"
        f"echo >{trace} && exit 0\ncat {web.config} >&2\nexit 13\n"
    )
    (folder / "rsync").chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    for confine, open_to_it in (("always", False), ("never", True)):
        web.settings("backup", confine=confine)
        output = web.backupd("check", "--connect", check=False, env=env).stdout
        assert ("can be listed" in output, trace.exists()) == (open_to_it, open_to_it), output
        assert "[pool]" not in output


def test_a_host_that_is_there_is_reached_from_the_cell(web: Nights) -> None:
    web.settings("backup", confine="always")
    output = web.backupd("check", "--connect", check=False).stdout
    assert "reached, 1 path can be listed" in output
