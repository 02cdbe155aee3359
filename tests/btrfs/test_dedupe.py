"""`backupd dedupe`: equal files of backups share their data, and nothing else changes; judged by btrfs, sha256sum and rsync."""

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backupd.dedupe.deduper import Deduper, Pacer, SharedBackup
from backupd.files.backup_selector import restorable
from backupd.repo.checksums import NO_DIGEST, Checksums, ReadBefore, key_of
from btrkeep.catalogue import Catalogue
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import open_pool
from btrkeep.process.progress import Cancellation
from tests.beds import btrfs, exclusive_bytes, manifest, work
from tests.beds.cli import TOP
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.watch import does_at, is_locked, killed, rows, wait_for
from tests.btrfs.test_after_crash import ANOTHER, noted, reboot
from web.jobs.data import jobs

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]
MIB = 1 << 20
SMALL = ("--min-size", "64KiB")


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    """Two hosts of a group, which share one file under different names, and each have another one twice; two nights."""
    nights = Nights(make_btrfs(size="600M"))
    nights.settings("backup", confine="never")
    nights.tables["verify"] = {"after_crash": "1s"}
    content, twice = os.urandom(MIB), os.urandom(MIB // 2)
    for host in ("web1", "web2"):
        tree = nights.source / host
        (tree / "lib").mkdir(parents=True)
        (tree / "lib" / f"of {host}").write_bytes(content)
        (tree / "once").write_bytes(twice)
        (tree / "again\n").write_bytes(twice)
        (tree / "alone").write_bytes(os.urandom(MIB))
        nights.host(host, tree, address=None, group="g")
    nights.tables["group.g"] = {"inplace": "always"}
    nights.write()
    nights.run()
    for host in ("web1", "web2"):
        (nights.source / host / "new").write_text("new")
    nights.run()
    return nights


def deduped(nights: Nights, *words: str) -> Any:
    time.sleep(1.1)  # after_crash
    return json.loads(nights.backupd("dedupe", *words, "--json").stdout)


def looks(nights: Nights) -> dict[str, tuple[Any, dict[str, str]]]:
    """The files of each backup, and the output of `btrfs subvolume show` without the generation."""
    by_name = {}
    for host in ("web1", "web2"):
        for name in nights.names(host):
            shown = {title: value for title, value in nights.subvolume(host, name).items() if title != "Generation"}
            by_name[f"{host} {name}"] = (manifest(nights.backup(host, name)), shown)
    return by_name


def files(nights: Nights, pattern: str) -> list[Path]:
    return sorted(path for path in (nights.pool / "hosts").glob(f"web?/20*/data/**/{pattern}") if not path.parent.is_symlink())


def addresses(paths: list[Path]) -> set[str]:
    """Returns the places of their first extents."""
    return {re.search(r"^ +0: .*?: +(\d+)\.\.", work("filefrag", "-v", path).stdout, re.MULTILINE)[1] for path in paths}  # type: ignore[index]


def spoil(nights: Nights, file: Path, content: bytes) -> None:
    """Overwrites its first block on the disk, without the filesystem; the page cache keeps the old content."""
    (block,) = (int(address) * 4096 for address in addresses([file]))
    (loop,) = btrfs.devices_of(nights.top)
    words = work("btrfs-map-logical", "-l", str(block), loop).stdout.split()
    image = Path(work("losetup", "--noheadings", "--output", "BACK-FILE", loop).stdout.strip())
    with image.open("r+b") as disk:
        disk.seek(int(words[words.index("physical") + 1]))
        assert disk.read(4096) == content[:4096]
        disk.seek(-4096, os.SEEK_CUR)
        disk.write(bytes(4096))


def is_readable(path: Path) -> bool:
    return work("sha256sum", path, check=False).returncode == 0


def test_a_host_whose_file_ends_in_a_hole_keeps_no_others_from_sharing(nights: Nights) -> None:
    """The digest ignores zeros, so its file, which is read first, has the same digest."""
    content = (nights.source / "web1/lib/of web1").read_bytes()
    for name in ("a1", "a2"):
        (nights.source / "web1" / name).write_bytes(content + bytes(MIB))
    nights.run()
    deduped(nights, *SMALL)
    assert len(addresses(files(nights, "of web?"))) == 1


def test_equal_files_share_whatever_they_are_called_and_nothing_else_changes(nights: Nights) -> None:
    before = looks(nights)
    assert len(addresses(files(nights, "of web?"))) == 2
    planned = deduped(nights, "--dry-run", *SMALL)
    assert planned["unread_bytes"] == 2 * (MIB + MIB // 2 + MIB // 2 + MIB)  # each once, however many snapshots have it
    assert looks(nights) == before
    answer = deduped(nights, *SMALL)
    assert (answer["is_whole"], answer["read_bytes"]) == (True, planned["unread_bytes"])
    assert answer["shared_bytes"] == 2 * (MIB + MIB // 2 * 3)  # in both nights
    assert MIB + MIB // 2 * 3 <= answer["data_before"] - answer["data_after"] <= 2 * MIB + MIB // 2 * 3
    assert len(files(nights, "of web?")) == 4
    assert len(addresses(files(nights, "of web?"))) == 1
    assert len(addresses(files(nights, "once") + files(nights, "again*"))) == 1
    assert looks(nights) == before
    for host in ("web1", "web2"):
        assert nights.differences(host, nights.source / host) == []
    nights.backupd("verify")
    assert deduped(nights, *SMALL)["shared_bytes"] == 0  # and reads nothing again
    assert deduped(nights, "--dry-run", *SMALL)["unread_bytes"] == 0
    nights.run()
    assert {nights.grew_from(host) for host in ("web1", "web2")} == {nights.names("web1")[-2], nights.names("web2")[-2]}
    assert nights.differences("web2", nights.source / "web2") == []


def test_hosts_of_other_groups_share_only_when_that_is_allowed(nights: Nights) -> None:
    for host in ("web1", "web2"):
        nights.host(host, nights.source / host, address=None)
    answer = deduped(nights, *SMALL)
    assert answer["shared_bytes"] == 2 * 2 * (MIB // 2)  # within each
    assert len(addresses(files(nights, "of web?"))) == 2
    for host in ("web1", "web2"):
        nights.host(host, nights.source / host, address=None, share_across_groups=True)
    deduped(nights, *SMALL)
    assert len(addresses(files(nights, "of web?"))) == 1


def test_a_difference_sent_to_an_older_replica_gives_the_same_content(nights: Nights, make_btrfs: Callable[..., Path]) -> None:
    other = make_btrfs(size="300M")
    first, second = nights.names("web2")

    def send(*words: str | Path) -> None:
        work("sh", "-c", 'btrfs send -q "$@" | btrfs receive -q "$0"', other, *words)

    send(nights.backup("web2", first))
    deduped(nights, *SMALL)
    send("-p", nights.backup("web2", first), nights.backup("web2", second))
    assert manifest(other / second) == manifest(nights.backup("web2", second))


def test_what_others_work_with_is_left(nights: Nights) -> None:
    newest = nights.backup("web1")
    fd = os.open(newest, os.O_RDONLY | os.O_DIRECTORY)
    lock = os.open(nights.pool / ".btrkeep" / "locks" / "host-web2", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = deduped(nights, *SMALL)
    finally:
        os.close(fd)
        os.close(lock)
    left = {(backup["host"], backup["name"]): backup.get("left") for backup in answer["backups"]}
    assert left["web1", newest.name] == "it is being read"
    assert left["web1", nights.names("web1")[0]] is None
    assert all("is running (process" in str(why) for (host, _), why in left.items() if host == "web2")


def test_a_night_makes_it_wait_and_a_verify_keeps_it_out(nights: Nights) -> None:
    for name in ("night", "verify"):
        lock = os.open(nights.pool / ".btrkeep" / "locks" / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = nights.backupd("dedupe", "--time", "2s", "--json", *SMALL, check=False)
        finally:
            os.close(lock)
        assert done.returncode == (0 if name == "night" else 3), done.stderr
        if name == "night":
            answer = json.loads(done.stdout)
            assert (answer["is_whole"], answer["shared_bytes"]) == (False, 0)


class Sharing:
    """A deduper for all backups; `meanwhile` is called whenever it reports that it waits."""

    def __init__(self, nights: Nights, alone: Callable[[], AbstractContextManager[object]], meanwhile: Callable[[], None]) -> None:
        self.pool, self.cancellation = open_pool(nights.pool), Cancellation()
        pacer = Pacer(self.pool.locks, self.cancellation, seconds=None, pressure=None, tell=self._say)
        self._meanwhile = meanwhile
        self._deduper = Deduper(self.pool, datetime.now(UTC), pacer, 64 << 10, lambda _: None, alone)

    def _say(self, line: str) -> None:
        if line.startswith("waits: "):
            self._meanwhile()

    def done(self) -> dict[str, SharedBackup]:
        backups = [backup for host in ("web1", "web2") for backup in restorable(self.pool, host)]
        return {f"{backup.backup.host} {backup.backup.name}": backup for backup in self._deduper.share(backups)}


@pytest.mark.parametrize("is_stopped", [False, True], ids=["verified", "stopped"])
def test_a_verify_that_has_begun_meanwhile_is_waited_for(nights: Nights, is_stopped: bool) -> None:
    lock = nights.pool / ".btrkeep/locks/verify"
    with subprocess.Popen(["flock", "--no-fork", lock, "sleep", "250"]) as verify:
        wait_for(lambda: is_locked(lock))

        def meanwhile() -> None:
            assert len(addresses(files(nights, "of web?"))) == 2
            if is_stopped:
                sharing.cancellation.handle_signal(signal.SIGTERM)
            else:
                verify.kill()
                verify.wait()

        sharing = Sharing(nights, lambda: take_lock(lock, "backupd dedupe", "2026-03-20T12:00:00Z"), meanwhile)
        sharing.done()
        verify.kill()
    assert len(addresses(files(nights, "of web?"))) == (2 if is_stopped else 1)


def test_a_backup_that_is_deleted_before_its_turn_is_left_and_the_others_share(nights: Nights) -> None:
    gone = nights.backup("web1", nights.names("web1")[1])

    def alone() -> AbstractContextManager[object]:
        if gone.exists():
            work("btrfs", "subvolume", "delete", gone)
        return nullcontext()

    left = {name: backup.left for name, backup in Sharing(nights, alone, lambda: None).done().items() if backup.left}
    assert [*left] == [f"web1 {gone.name}"]
    assert "was deleted" in left[f"web1 {gone.name}"] or "gone" in left[f"web1 {gone.name}"]
    assert len(addresses(files(nights, "of web?"))) == 1


def test_while_it_waits_in_the_middle_of_a_backup_all_locks_are_free(nights: Nights) -> None:
    """The night waits if any of them is held; the rest is done afterwards."""
    locks, came = nights.pool / ".btrkeep/locks", nights.top / "all were free"
    backups = " ".join(str(nights.backup(host, name)) for host in ("web1", "web2") for name in nights.names(host))
    free = f"for lock in {locks}/verify {backups}; do flock -n -x $lock true || exit 1; done"
    night = f"for n in $(seq 300); do if ({free}); then touch '{came}'; exit; fi; sleep 0.1; done"
    hold = f"flock -x {locks}/night sh -c {shlex.quote(night)} >{nights.top}/said 2>&1 </dev/null & sleep 2"
    time.sleep(1.1)  # after_crash
    done = does_at(nights, hold, "after", "file shared", "dedupe", *SMALL, count=3)
    assert (done.returncode, came.exists()) == (0, True), done.stderr
    assert len(addresses(files(nights, "of web?"))) == 1
    assert len(addresses(files(nights, "once") + files(nights, "again*"))) == 1


def night_in_the_middle(nights: Nights, steps: str) -> None:
    """Deduplicates the newest backup of web1; after the first shared file a night starts, and these steps are done
    after all reads.
    """
    locks, helper = nights.pool / ".btrkeep/locks", nights.top / "spoil.py"
    helper.write_text(
        "import sys\nfrom pathlib import Path\nfrom types import SimpleNamespace\nfrom tests.btrfs.test_dedupe import spoil\n"
        f"top, file = Path({str(nights.top)!r}), Path(sys.argv[1])\n"
        "spoil(SimpleNamespace(top=top), file, (top / 'was').read_bytes())\n"
    )
    top = shlex.quote(str(TOP))
    python = f"PYTHONPATH={top} {shlex.quote(sys.executable)}"
    tools = f'spoil() {{ {python} {helper} "$1"; }}; backupd() {{ {python} -m backupd --config {nights.config} "$@"; }}'
    night = f"cd {top}; {tools}; flock -x {locks}/verify true; {steps}"
    hold = f"flock -x {locks}/night sh -c {shlex.quote(night)} >{nights.top}/said 2>&1 </dev/null & sleep 2"
    time.sleep(1.1)  # after_crash
    done = does_at(nights, hold, "after", "file shared", "dedupe", f"web1@{nights.names('web1')[-1]}", *SMALL)
    assert done.returncode == 0, done.stderr


def test_what_a_verify_finds_while_it_waits_stays_known(nights: Nights) -> None:
    """The file was undamaged before the wait; at the end that must not replace a newer record."""
    (nights.source / "web1/zz").write_bytes((nights.source / "web1/once").read_bytes())
    nights.run("web1")
    backup = nights.backup("web1")
    victim = next(backup.glob("data/**/alone"))
    (nights.top / "was").write_bytes(victim.read_bytes())
    night_in_the_middle(nights, f"spoil {victim}; backupd verify web1@{backup.name}")
    text = (nights.top / "said").read_text()
    assert "1 file damaged" in text
    status = victim.stat()
    with Checksums(nights.pool / "hosts/web1") as checksums:
        record = checksums.find(key_of(status.st_ino, status.st_ctime_ns, status.st_size))
    assert record
    assert record.damaged
    assert len(addresses([backup / victim.parent / name for name in ("once", "zz")])) == 1, text  # it continued


def test_data_that_is_only_in_memory_after_a_wait_is_not_shared(nights: Nights) -> None:
    """During the wait, its disk has damaged the file that would keep its data; the next file is good."""
    content = (nights.source / "web1/once").read_bytes()
    (nights.source / "web1/zz").write_bytes(content)
    (nights.top / "was").write_bytes(content)
    nights.run("web1")
    folder = next(nights.backup("web1").glob("data/**/once")).parent
    night_in_the_middle(nights, f"cat {folder}/once {folder}/again* >/dev/null; spoil {folder}/once")
    assert len(addresses([folder / "once", folder / "again\n"])) == 1, (nights.top / "said").read_text()
    damage(nights.top)  # nothing more: it is unmounted and mounted
    assert not is_readable(folder / "once")
    assert (folder / "zz").read_bytes() == content


def test_each_run_is_in_the_catalogue_with_what_it_saved(nights: Nights) -> None:
    assert nights.json("status")["dedupe"] is None
    time.sleep(1.1)  # after_crash
    killed(nights, "after", "file shared", "dedupe", *SMALL)
    assert nights.json("status")["dedupe"]["outcome"] == "killed"
    result = deduped(nights, *SMALL)
    query = (
        "select outcome, backups, files, shared_bytes, read_bytes, left_out, data_saved, finished > started from dedupe order by id"
    )
    first, last = rows(nights, query)
    sums = [sum(backup[name] for backup in result["backups"]) for name in ("files", "shared_bytes", "read_bytes")]
    assert (first[0], last) == ("killed", ("complete", 4, *sums, 0, result["data_before"] - result["data_after"], 1))
    answer = nights.json("status")["dedupe"]
    assert (answer["outcome"], answer["shared_bytes"], answer["data_saved"]) == ("complete", sums[1], last[6])
    assert "last dedupe" in nights.backupd("status").stdout
    with Catalogue.open(nights.state) as catalogue:
        (ended, broken) = jobs(catalogue, None, datetime.now(UTC), 1, ("dedupe",), 1.0)
        exported = [row for table, row in catalogue.history_rows() if table == "dedupe"]
    assert (ended.state, broken.state) == ("complete", "killed")
    assert len(exported) == 2


def test_a_dry_run_says_which_backups_would_be_left(nights: Nights) -> None:
    nights.tables["verify"] = {"after_crash": "10m"}
    nights.write()
    left = json.loads(nights.backupd("dedupe", "--dry-run", "--json").stdout)["left"]
    assert {(row["host"], row["name"]) for row in left} == {
        (host, name) for host in ("web1", "web2") for name in nights.names(host)
    }
    for words in (("--dry-run",), ()):
        assert nights.backupd("dedupe", *words).stdout.count("skipped: made in the last minutes") == 1
    assert "4 backups skipped: made in the last minutes" in nights.backupd("dedupe").stdout


def test_what_a_crash_left_in_doubt_is_read_before_it_waits_for_a_night(nights: Nights) -> None:
    """Otherwise each would wait for the other for ever: the night for the lock `verify`, which dedupe holds, and dedupe for the
    night.
    """
    reboot(nights)
    lock = os.open(nights.pool / ".btrkeep" / "locks" / "night", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        nights.backupd("dedupe", "--time", "2s", "--json", *SMALL)
    finally:
        os.close(lock)
    assert noted(nights)["boot"] != ANOTHER
    assert noted(nights)["unread"] == []


def test_data_that_is_only_in_memory_is_not_shared(nights: Nights) -> None:
    """The file that would keep its data was intact when it was read, but its disk has damaged it since; the other file is good."""
    nights.backupd("verify")
    source, other = nights.backup("web1"), nights.backup("web2")
    ours, theirs = (next(path.glob("data/**/of web?")) for path in (source, other))
    content = theirs.read_bytes()
    assert ours.read_bytes() == content  # from here on it is in memory
    spoil(nights, ours, content)
    assert ours.read_bytes() == content
    deduped(nights, *SMALL)
    damage(nights.top)  # nothing: it is unmounted and mounted
    assert work("sha256sum", ours, check=False).returncode == 1
    assert theirs.read_bytes() == content


def test_a_file_that_verify_found_damaged_stays_so(nights: Nights) -> None:
    """A readable file with wrong content has no digest."""
    once = nights.backup("web1") / "data" / str(nights.source)[1:] / "web1" / "once"
    status, folder = once.stat(), nights.pool / "hosts" / "web1"
    key = key_of(status.st_ino, status.st_ctime_ns, status.st_size)
    with Checksums(folder) as checksums:
        checksums.write({key: ReadBefore(1, True, NO_DIGEST)}, None)
    deduped(nights, *SMALL)
    with Checksums(folder) as checksums:
        assert checksums.find(key) == ReadBefore(1, True, NO_DIGEST)


def test_a_full_pool_gets_room(nights: Nights) -> None:
    """The digests of the files are not recorded then, because that would need space."""
    with (nights.top / "fill").open("wb") as file, suppress(OSError):
        while True:
            file.write(b"x" * MIB)
            file.flush()
    work("sync", "-f", nights.top)
    answer = deduped(nights, *SMALL)
    assert answer["data_before"] - answer["data_after"] >= MIB
    assert len(addresses(files(nights, "of web?"))) == 1


def test_killed_after_any_file_the_next_one_does_the_rest(nights: Nights) -> None:
    before = looks(nights)
    time.sleep(1.1)  # after_crash
    for when, count in (("before", 1), ("after", 1), ("after", 2)):
        killed(nights, when, "file shared", "dedupe", *SMALL, count=count)
        assert looks(nights) == before
    deduped(nights, *SMALL)
    assert len(addresses(files(nights, "of web?"))) == 1
    assert looks(nights) == before
    assert exclusive_bytes(files(nights, "of web?")[0]) == 0


def test_by_default_small_files_of_many_backups_are_left_for_they_cost_more(nights: Nights) -> None:
    for host in ("web1", "web2"):
        for name in ("a", "b"):
            (nights.source / host / name).write_bytes(b"x" * (80 << 10))
    nights.run()  # three backups: 96 KiB
    deduped(nights)
    assert len(addresses(files(nights, "of web?"))) == 1
    assert len(addresses(files(nights, "a"))) == 2


def test_a_copy_of_another_pool_shares_and_stays_a_copy_and_a_parent(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    content = os.urandom(MIB)
    for name in ("once", "again"):
        (two.source / name).write_bytes(content)
    two.night("2026-03-10T22:00:00Z", "a")
    two.night("2026-03-11T22:00:00Z", "b")
    two.fetch()
    names, copies = two.names(two.second.pool), two.second.pool / "hosts/web1"
    words = ("dedupe", *SMALL, "--json", "--now", "2026-03-12T10:00:00Z")
    answer = json.loads(two.second.backupd(*words).stdout)
    assert ([backup["left"] for backup in answer["backups"]], answer["shared_bytes"] >= MIB) == ([None, None], True), answer
    for name in names:
        assert len(addresses([next((copies / name).rglob("once")), next((copies / name).rglob("again"))])) == 1
    work("btrfs", "filesystem", "sync", two.second.top)
    two.night("2026-03-12T22:00:00Z", "c")
    (fetched,) = two.fetch()[0]["fetched"]
    assert fetched["parent"] == names[-1]
    two.second.backupd("verify", "--now", "2026-03-13T10:00:00Z")
    assert {row["state"] for row in two.second.json("list", "web1", "--now", "2026-03-13T10:00:00Z")} == {"complete"}
    assert [two.differences(name) for name in two.names(two.second.pool)] == ["", "", ""]
    assert two.fetch()[0]["fetched"] == []


def test_a_crash_takes_nothing_that_is_not_told_of(nights: Nights) -> None:
    """Data of the last night may not be on the disk yet: a file that shares it would be lost with it, without a report."""
    nights.tables["verify"] = {"after_crash": "10m", "new_files": "none"}
    nights.write()
    content = os.urandom(MIB)
    for host in ("web1", "web2"):
        (nights.source / host / "fresh").write_bytes(content)
        nights.run(host)
    deduped(nights, *SMALL)
    spoil(nights, files(nights, "fresh")[0], content)
    damage(nights.top)  # nothing more: it is unmounted and mounted
    reboot(nights)
    nights.backupd("verify", "--after-crash", check=False)
    lost = {tuple(path.relative_to(nights.pool / "hosts").parts[:2]) for path in files(nights, "fresh") if not is_readable(path)}
    assert ("web1", nights.names("web1")[-1]) in lost
    assert set(rows(nights, "select distinct host, name from damage")) == lost
