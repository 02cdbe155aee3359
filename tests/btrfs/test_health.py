"""check, doctor, status, metrics and alarms report the same about a pool, compared with btrfs and the kernel."""

import ctypes
import json
import os
import re
import shlex
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from btrkeep.pool.allocation import read_room
from btrkeep.pool.mounts import machine_mount, mount_of
from tests.beds import TOP, btrfs, work
from tests.beds.nights import Nights
from tests.beds.walls import with_own_mounts

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

Make = Callable[..., Path]
MIB = 1 << 20
OF_POOL = {"read-only", "missing-device", "device-errors", "room", "unallocated", "used", "catalogue"}
SUBJECTS = {"mount": "read-only"}


def said_by_all(nights: Nights) -> dict[str, dict[str, str]]:
    """Returns the problems of the pool that each of them reports: by check, with the level."""
    check = json.loads(nights.backupd("check", "--json", check=False).stdout)
    doctor = json.loads(nights.backupd("doctor", "--json", check=False).stdout)
    status = nights.json("status")["pool"]
    families = text_string_to_metric_families(nights.backupd("metrics").stdout)
    health = [sample for family in families for sample in family.samples if sample.name == "btrkeep_pool_health"]
    nights.backupd("notify")
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        kept = json.loads(connection.execute("SELECT value FROM about WHERE name = 'health'").fetchone()[0])
    bad = ("warning", "error")
    answer = {
        "check": {SUBJECTS.get(row["subject"], row["subject"]): row["level"] for row in check if row["level"] in bad},
        "doctor": {finding["name"]: finding["severity"] for finding in doctor["findings"] if finding["severity"] in bad},
        "status": {finding["check"]: finding["level"] for finding in status["findings"]},
        "metrics": {sample.labels["check"]: {1: "warning", 2: "error"}[int(sample.value)] for sample in health if sample.value},
        "dashboard": {finding["check"]: finding["level"] for finding in kept["findings"]},
    }
    return {who: {check: level for check, level in row.items() if check in OF_POOL} for who, row in answer.items()}


def agreed(nights: Nights) -> dict[str, str]:
    """Returns the problems that all report, after requiring that they are the same."""
    by_name = said_by_all(nights)
    assert all(row == by_name["doctor"] for row in by_name.values()), by_name
    return by_name["doctor"]


@pytest.fixture
def small(make_btrfs: Make) -> Nights:
    """A separate pool, which may be filled and remounted."""
    nights = Nights(make_btrfs(size="400M", options="noatime,nosuid,nodev"))
    nights.host("here", nights.source, address=None)
    nights.settings("pool", min_free="5%")
    return nights


def test_all_say_the_same_of_a_pool_that_is_full_and_then_read_only(small: Nights) -> None:
    assert agreed(small) == {}
    assert "pool:" not in small.backupd("status").stdout
    fd = os.open(small.top / "big", os.O_CREAT | os.O_WRONLY)
    for size in (64, 16, 4, 1):
        while True:
            try:
                os.posix_fallocate(fd, os.fstat(fd).st_size, size * MIB)
            except OSError:
                break
    os.close(fd)
    work("btrfs", "filesystem", "sync", small.top)
    usage = work("btrfs", "filesystem", "usage", "-b", small.top).stdout
    assert int(re.findall(r"Device unallocated:\s+(\d+)", usage)[0]) < 8 * MIB
    full = agreed(small)
    assert (full["room"], full["used"], "unallocated" in full) == ("error", "warning", True)
    text = small.backupd("status").stdout
    assert re.search(r"^pool: error: no further transfer starts: ", text, re.MULTILINE)
    assert "`backupd check` shows what to do\n" in text
    with closing(sqlite3.connect(small.state / "catalogue.sqlite")) as connection:
        standing = {subject for (subject,) in connection.execute("SELECT subject FROM alarm WHERE what = 'room'")}
    assert {"min_free", "used", "unallocated"} == standing
    btrfs.remount(small.top, "ro")
    assert "ro" in work("findmnt", "-no", "OPTIONS", small.top).stdout.split(",")
    assert agreed(small) == full | {"read-only": "error"}
    btrfs.remount(small.top, "rw")


def test_all_say_the_same_of_the_clock(small: Nights) -> None:
    is_synchronised = kernel_clock_is_synchronised()
    check = json.loads(small.backupd("check", "--json", check=False).stdout)
    doctor = json.loads(small.backupd("doctor", "--json", check=False).stdout)["findings"]
    status = small.json("status")
    expected = [] if is_synchronised else ["note"]
    assert [row["level"] for row in check if row["subject"] == "clock"] == expected
    assert [row["severity"] for row in doctor if row["name"] == "clock"] == expected
    assert (status["clock_synchronised"], status["clock"]) == (is_synchronised, None)
    assert ("clock: " in small.backupd("status").stdout) is not is_synchronised
    small.night("here", now=datetime.now(UTC) + timedelta(days=900))  # one night under a clock that was ahead
    check = json.loads(small.backupd("check", "--json", check=False).stdout)
    doctor = json.loads(small.backupd("doctor", "--json", check=False).stdout)["findings"]
    (answer,) = [row for row in check if (row["subject"], row["level"]) == ("clock", "warning")]
    (deep,) = [row for row in doctor if (row["name"], row["severity"]) == ("clock", "warning")]
    (line,) = [line for line in small.backupd("status").stdout.splitlines() if line.startswith("clock: the clock went")]
    texts = {small.json("status")["clock"], answer["message"], deep["what"], line.removeprefix("clock: ")}
    assert len({re.sub(r" to \S+;", "", text) for text in texts}) == 1, texts
    assert all(text.startswith("the clock went back from ") for text in texts)


def kernel_clock_is_synchronised() -> bool:
    """Reads STA_UNSYNC, another field of the kernel than the one that the program reads."""
    timex = (ctypes.c_long * 64)()
    assert ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) >= 0
    status = ctypes.c_int.from_buffer(timex, 5 * ctypes.sizeof(ctypes.c_long)).value
    return not status & 0x40


SANDBOX = "mount --make-rprivate / && mount -o remount,bind,ro,nosuid,nodev,noexec,noatime {point} && exec {words}"


def test_a_services_own_mount_is_not_taken_for_the_machines(make_btrfs: Make) -> None:
    """As systemd makes it for a unit: a copy of the mount with other flags, which later changes of the original do not affect."""
    nights = Nights(make_btrfs(size="400M", options="nodev,relatime"))
    nights.host("here", nights.source, address=None)

    def inside(*words: str) -> Any:
        command = shlex.join(map(str, (sys.executable, "-m", "backupd", "--config", nights.config, *words, "--json")))
        script = SANDBOX.format(point=nights.top, words=command)
        return json.loads(work(*with_own_mounts("sh", "-c", script), cwd=TOP, check=False).stdout)

    def finding_names(answer: Any) -> set[str]:
        return {finding["name"] for finding in answer["findings"]}

    outside = json.loads(nights.backupd("doctor", "--json", check=False).stdout)
    answer = inside("doctor")
    assert {"atime", "nosuid"} <= finding_names(answer) == finding_names(outside)
    assert answer["not_looked_at"] == outside["not_looked_at"]
    options = work("findmnt", "-no", "OPTIONS", nights.top).stdout.strip().split(",")
    assert set(inside("sample")["options"]) == set(options)
    assert inside("status")["pool"]["level"] == "ok"


@pytest.mark.parametrize("hide", ["mount -t tmpfs tmpfs {}", "mount --bind /run/lock {}"])
def test_a_key_that_a_service_is_not_shown_is_neither_missing_nor_well(nights: Nights, tmp_path: Path, hide: str) -> None:
    """As with ProtectHome=tmpfs and ProtectHome=yes."""
    home = tmp_path / "root"
    (home / ".ssh").mkdir(parents=True)
    nights.settings("ssh", key=str(home / ".ssh" / "id"), known_hosts=str(home / ".ssh" / "known_hosts"))
    nights.host("web", "/etc", address="web.invalid")

    def failed_and_unchecked(before: str) -> tuple[set[str], set[str]]:
        doctor = shlex.join(map(str, (sys.executable, "-m", "backupd", "--config", nights.config, "doctor", "--json")))
        script = f"mount --make-rprivate / && mount -t tmpfs tmpfs /run/lock && {before} && {doctor}"
        answer = json.loads(work(*with_own_mounts("sh", "-c", script), cwd=TOP, check=False).stdout)
        ill, blind = ({row["name"] for row in answer[key]} for key in ("findings", "not_looked_at"))
        return ill & {"ssh-key", "known-hosts"}, blind & {"ssh-key", "known-hosts"}

    assert failed_and_unchecked("true") == ({"ssh-key", "known-hosts"}, set())
    assert failed_and_unchecked(hide.format(home)) == (set(), {"ssh-key", "known-hosts"})


SEEN = "import sys; from pathlib import Path; from btrkeep.pool import mounts; print(mounts.machine_mount(Path(sys.argv[1])))"


def seen_after(script: str, path: Path | str) -> str:
    """Returns the result of `machine_mount` for a path after these shell lines, in a separate mount namespace."""
    words = ("sh", "-c", f'mount --make-rprivate / && {script} "$@"', "sh", sys.executable, "-c", SEEN, path)
    return work(*with_own_mounts(*words), cwd=TOP).stdout.strip()


def test_where_processes_of_others_are_hidden_the_machines_mount_is_unknown() -> None:
    without_rights = "exec setpriv --bounding-set=-all --inh-caps=-all"
    assert "target=PosixPath('/')" in seen_after(without_rights, "/")
    assert seen_after(f"mount -t proc -o hidepid=2,gid=12345 proc /proc && {without_rights}", "/") == "None"


def test_a_mount_that_only_we_have_is_the_pools(make_btrfs: Make) -> None:
    point = make_btrfs(size="256M")
    assert machine_mount(point) == mount_of(point)
    (loop,) = btrfs.devices_of(point)
    btrfs.unmount(point)
    assert "noexec" in seen_after(f"mount -o noexec {loop} {point} && exec", point)
    work("mount", loop, point)


def test_on_a_mixed_filesystem_what_is_free_for_metadata_is_seen(make_btrfs: Make) -> None:
    point = make_btrfs(size="256M", mkfs=("--mixed", "-d", "single", "-m", "single"))
    work("fallocate", "-l", "200M", point / "big")
    work("btrfs", "filesystem", "sync", point)
    (point / "big").unlink()
    (point / "rest").write_bytes(b"x" * 20 * MIB)
    work("btrfs", "filesystem", "sync", point)
    shown = work("btrfs", "filesystem", "df", "-b", point).stdout
    total, used = map(int, re.findall(r"Data\+Metadata, single: total=(\d+), used=(\d+)", shown)[0])
    reserve = int(re.findall(r"GlobalReserve, single: total=(\d+)", shown)[0])
    assert abs(read_room(point).metadata_free - (total - used - reserve)) < MIB
    assert read_room(point).metadata_free > 20 * MIB
