"""Quotas of hosts: their remaining data by simple quotas, a host that exceeds its quota, and groups that are removed.

The expected values come from the sources, and from `btrfs qgroup show`.
"""

import json
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep.catalogue import Catalogue
from btrkeep.pool import qgroups
from btrkeep.pool.marker import open_pool
from tests.beds import work
from tests.beds.nights import Nights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/sys/fs/btrfs/features/simple_quota").exists(), reason="this kernel knows no simple quotas"),
]
MIB = 1 << 20
METADATA = MIB
"""More than the trees of these small backups take."""


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    nights = Nights(make_btrfs(size="1G"))
    for host in ("web", "db"):
        (nights.source / host).mkdir()
        nights.host(host, nights.source / host)
    return nights


def noise(path: Path, mib: int) -> None:
    path.write_bytes(random.Random(str(path)).randbytes(mib * MIB))


def groups(nights: Nights) -> dict[str, int]:
    """Returns the bytes of each group by number, according to btrfs-progs."""
    work("btrfs", "filesystem", "sync", nights.top)
    lines = work("btrfs", "qgroup", "show", "--raw", nights.top).stdout.splitlines()[2:]
    return {line.split()[0]: int(line.split()[1]) for line in lines}


def of_hosts(nights: Nights) -> list[int]:
    return sorted(size for name, size in groups(nights).items() if not name.startswith("0/"))


def about(count: int, mib: int) -> bool:
    return mib * MIB <= count <= mib * MIB + METADATA


def dropped(nights: Nights) -> None:
    work("btrfs", "filesystem", "sync", nights.top)
    work("btrfs", "subvolume", "sync", nights.top)
    work("btrfs", "filesystem", "sync", nights.top)


def test_what_a_host_wrote_counts_while_any_backup_holds_it(nights: Nights) -> None:
    noise(nights.source / "web" / "old", 3)
    nights.run()
    nights.host("db", nights.source / "db", max_files=1)
    noise(nights.source / "db" / "unfinished", 1)
    (nights.source / "db" / "more").mkdir()
    nights.run("db", status=1)
    nights.backupd("quota", "enable", "--yes")
    working = work("btrfs", "inspect-internal", "rootid", nights.backup("db", ".working")).stdout.strip()
    shown = work("btrfs", "qgroup", "show", "-p", nights.top).stdout
    assert re.search(rf"^0/{working} .* 1/\d+ ", shown, re.MULTILINE), "what a run under way writes counts at once"
    nights.host("db", nights.source / "db")
    (nights.source / "db" / "unfinished").unlink()
    (nights.source / "web" / "old").unlink()
    noise(nights.source / "web" / "new", 8)
    noise(nights.source / "db" / "new", 2)
    nights.run()
    noise(nights.source / "web" / "more", 4)
    nights.run()
    db, web = of_hosts(nights)
    assert (about(web, 12), about(db, 2)) == (True, True), "what was written before belongs to nobody"

    shown = nights.json("quota", "show")
    assert {host["host"]: host["bytes"] for host in shown["hosts"]} == {"web": web, "db": db}
    assert nights.json("usage", "web")["alive"] == web
    assert {host["host"]: host["alive_bytes"] for host in nights.json("status")["hosts"]} == {"web": web, "db": db}
    matches = re.findall(r'^btrkeep_host_alive_bytes\{host="(\w+)",.*\} (.*)$', nights.backupd("metrics").stdout, re.MULTILINE)
    assert {host: float(number) for host, number in matches} == {"web": web, "db": db}

    nights.backupd("sample")
    with Catalogue.open_readonly(nights.state) as catalogue:
        assert json.loads(catalogue.get_fact("alive") or "") == {"web": web, "db": db}, "for the dashboard"

    second = nights.names("web")[1]
    nights.backupd("delete", f"web@{second}", "--now-without-grace")
    dropped(nights)
    assert about(of_hosts(nights)[1], 12), "the third backup has all that the second one wrote"
    nights.backupd("rename", "web", "www", "--yes")
    assert {host["host"] for host in nights.json("quota", "show")["hosts"]} == {"www", "db"}


def test_a_host_that_uses_its_quota_up_is_stopped_alone_and_completes_when_it_fits_again(nights: Nights) -> None:
    nights.host("web", nights.source / "web", quota="20MiB")
    nights.backupd("quota", "enable", "--yes")
    noise(nights.source / "web" / "first", 12)
    noise(nights.source / "db" / "first", 1)
    nights.run()
    noise(nights.source / "web" / "second", 30)
    noise(nights.source / "db" / "second", 30)
    answer = nights.run(status=1)
    assert (answer["web"]["outcome"], answer["db"]["outcome"]) == ("partial", "complete")
    assert "quota is used up" in answer["web"]["error"], answer["web"]
    assert "of 20.0 MiB" in answer["web"]["error"], answer["web"]
    assert nights.record("web", ".working")["cause"]["code"] == "quota"
    web = of_hosts(nights)[0]
    assert 19 * MIB < web <= 20 * MIB, "the kernel lets nothing beyond it"

    assert nights.run("web", status=1)["web"]["outcome"] == "partial", "it does not fit now either, and the record was written"
    noise(nights.source / "web" / "second", 6)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", nights.source / "web") == []

    noise(nights.source / "web" / "third", 10)
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    nights.host("web", nights.source / "web", quota="40MiB")
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", nights.source / "web") == []


def test_a_run_that_begins_anew_has_the_room_of_what_the_last_one_left(nights: Nights) -> None:
    """A deleted backup counts until the kernel has dropped it; here an open file delays that."""
    nights.host("web", nights.source / "web", quota="20MiB")
    nights.backupd("quota", "enable", "--yes")
    noise(nights.source / "web" / "a", 6)
    noise(nights.source / "web" / "b", 30)
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    noise(nights.source / "web" / "b", 12)
    held = (nights.working("web", nights.source / "web") / "a").open("rb")
    closing = threading.Timer(3, held.close)
    closing.start()
    assert nights.run("web")["web"]["outcome"] == "complete"
    closing.join()


def test_data_that_no_backup_owns_leaves_no_group_behind(nights: Nights) -> None:
    nights.backupd("quota", "enable", "--yes")
    stranger = nights.top / "stranger"
    work("btrfs", "subvolume", "create", stranger)
    work("btrfs", "qgroup", "create", "1/7", nights.top)
    for number in range(3):
        noise(nights.source / "web" / "changed", 2 + number)
        noise(nights.source / "web" / f"kept {number}", 1)
        nights.run()
    *older, _ = (f"web@{name}" for name in nights.names("web"))
    before = len(groups(nights))
    nights.backupd("delete", *older, "--now-without-grace")
    dropped(nights)
    assert len(groups(nights)) == before, "what they wrote first is in the third"

    for path in (nights.source / "web").iterdir():
        path.unlink()
    noise(nights.source / "web" / "new", 1)
    nights.settings("backup", shrink_limit="100%")
    (third,) = nights.names("web")
    nights.run("web")
    nights.backupd("delete", f"web@{third}", "--now-without-grace")
    dropped(nights)
    nights.backupd("expire")
    subvolumes = len(work("btrfs", "subvolume", "list", nights.top).stdout.splitlines())
    left = groups(nights)
    assert sum(name.startswith("0/") for name in left) == subvolumes + 1, "and the filesystem itself"
    assert "1/7" in left
    assert len(of_hosts(nights)) == 3

    del nights.tables["host"]["web"]
    nights.tables["retention"] = {"daily": 1, "grace": "1s"}
    nights.write()
    nights.backupd("forget", "web", "--yes")
    nights.backupd("expire")
    time.sleep(1.1)
    for _ in range(2):  # backups deleted by the first expiry are dropped before the second
        nights.backupd("expire", "--force", "pool", "--force", "hosts")
        dropped(nights)
    assert not (nights.pool / "hosts" / "web").exists()
    assert len(of_hosts(nights)) == 2

    refused = nights.backupd("quota", "disable", "--yes", check=False)
    assert (refused.returncode, "1/7" in refused.stderr) == (1, True), refused.stderr
    work("btrfs", "qgroup", "destroy", "1/7", nights.top)
    nights.backupd("quota", "disable", "--yes")
    assert work("btrfs", "qgroup", "show", nights.top, check=False).returncode != 0


def test_a_limit_left_by_a_killed_run_stops_no_host(nights: Nights) -> None:
    def leave_limit() -> None:
        (group,) = (name for name in groups(nights) if not name.startswith("0/"))
        work("btrfs", "qgroup", "limit", "1M", group, nights.top)

    nights.host("web", nights.source / "web", quota="4MiB")
    nights.backupd("quota", "enable", "--yes")
    noise(nights.source / "web" / "first", 8)
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    leave_limit()
    nights.host("web", nights.source / "web", quota="20MiB")
    assert nights.run("web")["web"]["outcome"] == "complete", "what is there is continued, and its record written"
    leave_limit()
    nights.host("web", nights.source / "web")
    noise(nights.source / "web" / "second", 4)
    assert nights.run("web")["web"]["outcome"] == "complete", "its quota was taken away"
    assert nights.differences("web", nights.source / "web") == []


def test_nothing_is_switched_on_before_its_costs_are_said(nights: Nights) -> None:
    nights.host("web", nights.source / "web", quota="20MiB")
    assert "1 host has a quota without effect" in nights.backupd("doctor", check=False).stdout
    assert "simple quotas are not switched on" in nights.backupd("check", check=False).stdout
    for words in (("--dry-run",), ()):
        process = nights.backupd("quota", "enable", *words, check=False)
        assert "btrfstune --remove-simple-quota" in process.stdout
        assert process.returncode == (0 if words else 2)
        assert work("btrfs", "qgroup", "show", nights.top, check=False).returncode != 0
    pool = open_pool(nights.pool)
    qgroups.limit(pool, qgroups.group_number(5, 256), 1)  # as if simple quotas were disabled at the start of a host's run
    noise(nights.source / "web" / "much", 30)
    assert nights.run("web")["web"]["outcome"] == "complete", "a quota that cannot hold stops nobody"
    work("btrfs", "quota", "enable", nights.top)
    refused = nights.backupd("quota", "enable", "--yes", check=False)
    assert (refused.returncode, "qgroups are switched on" in refused.stderr) == (1, True), refused.stderr
    refused = nights.backupd("quota", "disable", "--yes", check=False)
    assert refused.returncode == 1, refused.stderr
    work("btrfs", "qgroup", "show", nights.top)
