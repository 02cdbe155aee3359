"""Plain files are restored in batches, by several processes: the result is the same, whatever entries are in between."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from backupd.files import plain_files, to_folder
from backupd.files.destination import Destination
from backupd.files.restore_types import RestoreProgress, RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Descent, Tree
from backupd.files.walking import PlainFile
from tests.beds import TOP, cgroups, differences, exclusive_bytes, manifest, work
from tests.beds.everything import write
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.watch import does_at
from tests.beds.within import restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


def _program(nights: Nights) -> tuple[str | Path, ...]:
    return ("env", f"PYTHONPATH={TOP}", sys.executable, "-m", "backupd", "--config", nights.config)


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Nights(shared_btrfs)


def _many(nights: Nights, number: int = 300) -> Path:
    """A host with many small files in one folder and some in others: owners, modes, times, attributes, links and empty ones."""
    top = nights.source / "many"
    for count in range(number):
        path = write(top / "wide" / f"file{count:04d}", f"{count} " * (count % 50), 0o600 + count % 64)
        if count % 3 == 0:
            os.chown(path, 1000 + count, 2000)
        if count % 5 == 0:
            os.setxattr(path, "user.number", b"%d" % count)
        os.utime(path, ns=(0, 10**18 + count * 7))
    work("setfacl", "-m", "u:1234:rw", top / "wide" / "file0007")
    work("setcap", "cap_net_raw+ep", top / "wide" / "file0008")
    (top / "wide" / "file0009").chmod(0o4755)
    os.link(top / "wide" / "file0010", top / "wide" / "file0010-again")
    (top / "wide" / "file0011-link").symlink_to("file0011")
    for count in range(20):
        write(top / f"folder{count}" / "below" / "inside", f"{count}")
        (top / f"folder{count}" / "below").chmod(0o2750)
        os.utime(top / f"folder{count}" / "below", ns=(0, 10**18 + count))
    write(top / "folder0" / "large").write_bytes(os.urandom(3 << 20))
    nights.host("web1", top)
    nights.run("web1")
    return top


@pytest.mark.parametrize("processors", ["0", "0-1"])
@pytest.mark.parametrize("compare", ["content", "metadata"])
def test_the_result_is_the_same_with_one_processor_and_with_more(
    nights: Nights, tmp_path: Path, processors: str, compare: str
) -> None:
    top, out = _many(nights), tmp_path / "out"
    done = work(
        "taskset", "-c", processors, *_program(nights), "restore", "--json", f"--compare={compare}", "--privileged",
        "web1", top, "--to", out,
    )  # fmt: skip
    assert differences(manifest(top), manifest(out / "many")) == []
    names = len(work("find", top).stdout.splitlines())
    assert f'"new": {{\n    "count": {names}' in done.stdout
    assert not list(out.rglob(".btrkeep-restore-*"))


def test_attributes_that_give_privileges_stay_behind_and_are_counted_once(nights: Nights, tmp_path: Path) -> None:
    top, out = _many(nights), tmp_path / "out"
    seen = restore(nights, "web1", top, "--to", out, "--dry-run")["left_out"]
    done = restore(nights, "web1", top, "--to", out)["left_out"]
    assert seen == done
    assert (done["capabilities"]["count"], done["setuid"]["count"]) == (1, 1)
    assert "security.capability" not in os.listxattr(out / "many" / "wide" / "file0008")
    assert (out / "many" / "wide" / "file0009").stat().st_mode & 0o7777 == 0o755
    assert os.getxattr(out / "many" / "wide" / "file0005", "user.number") == b"5"


def test_on_the_pools_filesystem_data_are_shared(nights: Nights) -> None:
    top = _many(nights, 20)
    for count in range(30):
        write(top / "shared" / f"file{count}").write_bytes(os.urandom(100_000))
    nights.run("web1")
    done = restore(nights, "web1", top, "--to", nights.top / "out")
    work("btrfs", "filesystem", "sync", nights.top)
    assert done["copied_bytes"] == 0
    assert {exclusive_bytes(path) for path in (nights.top / "out" / "many" / "shared").iterdir()} == {0}
    assert done["compared_bytes"] < 100  # of files with privileges; others with inline data are compared by the items of the trees


def test_what_the_destination_hands_down_does_not_stay(nights: Nights) -> None:
    """The default ACL of the destination folder."""
    top, out = _many(nights, 30), nights.top / "out"
    out.mkdir()
    work("setfacl", "-d", "-m", "u:1234:rwx", out)
    restore(nights, "web1", top / "wide", "--to", out, "--privileged")
    assert differences(manifest(top / "wide"), manifest(out / "wide")) == []


def test_what_comes_into_a_new_folder_meanwhile_stays(nights: Nights, tmp_path: Path) -> None:
    top, out = _many(nights, 900), tmp_path / "out"
    first, last = out / "many/wide/file0000", out / "many/wide/file0899"

    def come(progress: RestoreProgress) -> None:
        if progress.phase == "writing" and first.exists() and not last.exists():  # groups are being copied into that folder
            write(last, "theirs")

    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (os.fsencode(top),), str(out))
        doing = LocalRestore(tree, request, reflinks=False, tell=come)
        done = doing.run(doing.preview())
    assert last.read_text() == "theirs"
    assert [place for place, _ in done.problems.samples] == [os.fsencode(last)]


@pytest.mark.parametrize("content", [True, False])
def test_a_small_file_that_changes_before_the_comparison_is_named(nights: Nights, tmp_path: Path, content: bool) -> None:
    top, out = _many(nights), tmp_path / "out"
    name = out / "many/wide/file0123"

    def change(progress: RestoreProgress) -> None:
        if progress.phase == "syncing":
            status = name.stat()
            with name.open("r+b") as file:
                file.write(b"!")
            os.utime(name, ns=(0, status.st_mtime_ns if content else 1))

    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (os.fsencode(top),), str(out), content=content)
        doing = LocalRestore(tree, request, reflinks=False, tell=change)
        done = doing.run(doing.preview())
    why = "differs: content" if content else "differs: time"
    assert done.differences.samples == [(os.fsencode(name), why)]


def test_on_the_pool_a_file_that_changes_after_the_sync_is_named(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new data is not on the disk yet, and its time equals that of the backup."""
    top, out, sync = nights.source / "top", nights.top / "out", to_folder._sync
    for folder in ("one", "other"):
        for number in range(40):
            write(top / folder / f"file{number}", f"{number} " * 1000 * (number % 2) or "inline")
    for number in range(300):
        write(top / "many" / f"file{number}").write_bytes(os.urandom(5000))
    nights.host("web1", top)
    nights.run("web1")
    names = [out / "top" / name for name in ("many/file7", "one/file8", "other/file9")]

    def change_after(to: Destination) -> None:
        sync(to)
        for name in names:
            status = name.stat()
            with name.open("r+b") as file:
                file.write(b"!")
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))

    monkeypatch.setattr(to_folder, "_sync", change_after)
    with Tree(nights.backup("web1")) as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=True)
        done = doing.run(doing.preview())
    assert sorted(done.differences.samples) == [(os.fsencode(name), "differs: content") for name in names]


def test_a_killed_process_of_a_restore_ends_it_with_a_reason_and_the_next_one_goes_on(
    nights: Nights, tmp_path: Path, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    top, out = nights.source / "big", tmp_path / "out"
    for number in range(60):
        write(top / f"file{number}").write_bytes(os.urandom(1_000_000))
    nights.host("web1", top)
    nights.run("web1")
    words = ("--config", nights.config, "restore", "web1", top, "--to", out)
    running = backupd_running(*words)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    written, content = list[Path](), list[str]()
    while not (written and content):
        assert running.poll() is None
        with suppress(FileNotFoundError):  # a staging folder was renamed while it was read
            written = list(out.rglob("file*"))
        content = children.read_text().split()
        time.sleep(0.002)
    os.kill(int(content[0]), signal.SIGKILL)
    _, text = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "a process of this command was killed" in text
    for path in out.rglob("file*"):
        assert path.stat().st_size == 1_000_000
    nights.backupd(*words[2:])
    assert differences(manifest(top), manifest(out / "big")) == []


def test_a_very_deep_tree_needs_few_descriptors(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / "deep", tmp_path / "out"
    top.mkdir()
    work("sh", "-c", "for n in $(seq 400); do echo $n >file; mkdir d; cd -P d; done; echo end >last", cwd=top)
    nights.host("web1", top)
    nights.run("web1")
    work("prlimit", "--nofile=220", *_program(nights), "restore", "web1", top, "--to", out)
    count = "find . | wc -l; find . -name last | wc -c"
    assert work("sh", "-c", count, cwd=out / "deep").stdout == work("sh", "-c", count, cwd=top).stdout


def test_a_mount_that_gives_files_the_group_of_their_folder_gets_those_of_the_backup(nights: Nights, ext4: Path) -> None:
    work("mount", "-o", "remount,grpid", ext4)
    top, out = nights.source / "groups", ext4 / "out"
    write(top / "inside", "its group is root, that of the folder is not")
    os.chown(top, 0, 1234)
    nights.host("web1", top)
    nights.run("web1")
    restore(nights, "web1", top, "--to", out)
    assert differences(manifest(top), manifest(out / "groups")) == []


@pytest.mark.parametrize("swapped", ["fifo", "symlink", "folder", "device"])
def test_what_is_swapped_in_before_the_contents_are_compared_is_named_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    source, to, files = tmp_path / "source", tmp_path / "to", []
    for number in range(3):
        path = write(source / f"file{number}", "text")
        status = path.stat()
        files.append(PlainFile(os.fsencode(path.name), 4, 4096, status.st_mode & 0o7777, 0, 0, status.st_mtime_ns))
    work("cp", "-a", source, to)
    look, seen = os.stat, list[bytes]()

    def look_and_swap(name: Any, **more: Any) -> os.stat_result:
        status = look(name, **more)
        if name == b"file1" and more.get("dir_fd") == sides[1] and not seen:
            seen.append(name)
            (to / "file1").unlink()
            create = {
                "fifo": lambda: os.mkfifo(to / "file1"),
                "symlink": lambda: (to / "file1").symlink_to(source / "file1"),
                "folder": (to / "file1").mkdir,
                "device": lambda: os.mknod(to / "file1", 0o020600, os.makedev(1, 5)),  # /dev/zero
            }
            create[swapped]()
        return status

    sides = os.open(source, os.O_RDONLY), os.open(to, os.O_RDONLY)
    monkeypatch.setattr("os.stat", look_and_swap)
    try:
        done = plain_files.compare(*sides, files, reflinks=False, privileged=True, content=True)
    finally:
        for fd in sides:
            os.close(fd)
    assert seen
    assert done[:2] == ([1], 8)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_limit_of_processes_does_not_end_a_restore(nights: Nights, tmp_path: Path, processes: int) -> None:
    if why := cgroups.why_not("pids"):
        pytest.skip(why)
    top, out = _many(nights, 100), tmp_path / "out"
    code = f"""
from backupd.files.restore_types import RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from pathlib import Path
with Tree(Path({str(nights.backup("web1"))!r})) as tree:
    restore = LocalRestore(tree, RestoreRequest("web1", "", ({os.fsencode(top)!r},), {str(out)!r}, privileged=True), reflinks=False)
    assert restore.run(restore.preview()).good
"""
    with cgroups.limited("pids", processes) as group:
        work("env", f"PYTHONPATH={TOP}", *cgroups.words_within(group, sys.executable, "-c", code))
    assert differences(manifest(top), manifest(out / "many")) == []


def test_a_folder_that_cannot_keep_an_attribute_is_the_one_that_is_named(nights: Nights, ext4: Path) -> None:
    top, out = nights.source / "folder", ext4 / "out"
    write(top / "below" / "inside", "text")
    os.setxattr(top, "user.large", bytes(8000))  # more than ext4 holds
    nights.host("web1", top)
    nights.run("web1")
    (out / "folder").mkdir(parents=True)
    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (os.fsencode(top),), str(out), overwrite="all")
        doing = LocalRestore(tree, request, reflinks=False)
        done = doing.run(doing.preview())
    assert done.problems.samples == [(os.fsencode(out / "folder"), "cannot be stored here: user.large")]


def test_what_the_disk_does_not_read_again_for_the_comparison_is_named(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, out = _many(nights, 20), tmp_path / "out"
    with Tree(nights.backup("web1")) as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False)
        enter, stat = Descent.enter, os.stat

        def is_readable(name: object, unreadable: bytes) -> bool:
            if doing.progress.phase == "comparing" and name == unreadable:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return True

        # With more, other processes compare, and these were started before.
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
        monkeypatch.setattr(Descent, "enter", lambda self, name: is_readable(name, b"folder3") and enter(self, name))
        monkeypatch.setattr(os, "stat", lambda path, **options: is_readable(path, b"file0005") and stat(path, **options))
        done = doing.run(doing.preview())
    places = [os.fsencode(out / "many" / name) for name in ("folder3", "wide/file0005")]
    assert sorted(done.differences.samples) == [(place, "it cannot be read in the backup: Input/output error") for place in places]


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_the_disk_does_not_give_to_a_process_is_named_and_all_else_is_restored(
    make_btrfs: Callable[..., Path], tmp_path: Path, when: str
) -> None:
    """While files are copied, or afterwards, while they are compared."""
    nights, top, out = Nights(make_btrfs(size="400M")), tmp_path / "many", tmp_path / "out"
    for number in range(300):
        write(top / "wide" / f"file{number}").write_bytes(os.urandom(5000))
    for number in range(60):
        write(top / f"folder{number % 20}" / f"file{number}").write_bytes(os.urandom(5000))
    nights.host("web1", top)
    nights.run("web1")
    bad = ["folder7/file27", "folder8/file8", "wide/file0", "wide/file123", "wide/file299"]
    program = (
        "import sys; from pathlib import Path; from tests.beds.faults import damage_in_use; "
        "damage_in_use(Path(sys.argv[1]), *(Path(name).read_bytes()[:4096] for name in sys.argv[2:]))"
    )
    damaging = shlex.join(
        ["env", f"PYTHONPATH={TOP}", sys.executable, "-c", program, str(nights.top), *(str(top / name) for name in bad)]
    )
    words = ("restore", "--json", "web1", str(top), "--to", str(out))
    if when == "before":
        damage(nights.top, *((top / name).read_bytes()[:4096] for name in bad))
        done = nights.backupd(*words, check=False)
    else:
        done = does_at(nights, damaging, "after", "filesystem synced", *words)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["good"]) == (1, False)
    named = answer["problems" if when == "before" else "differences"]["samples"]
    why = "it cannot be read in the backup: Input/output error"
    assert sorted((sample["place"], sample["why"]) for sample in named) == [(str(out / "many" / name), why) for name in bad]
    assert answer["problems"]["count"] + answer["differences"]["count"] == len(bad)
    missing = {line for line in differences(manifest(top), manifest(out / "many")) if "mtime" not in line}
    assert len(missing) == (len(bad) if when == "before" else 0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor there are no processes")
def test_a_process_that_is_killed_while_it_compares_leaves_no_good_result(nights: Nights, tmp_path: Path) -> None:
    top, out = _many(nights), tmp_path / "out"
    kill = "for c in $(cat /proc/$PPID/task/$PPID/children); do [ $c = $$ ] || kill -9 $c; done"
    words = ("restore", "--json", "--privileged", "web1", str(top), "--to", str(out))
    done = does_at(nights, kill, "after", "filesystem synced", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "a process of this command was killed" in done.stderr
    assert json.loads(nights.backupd(*words).stdout)["good"]
    assert differences(manifest(top), manifest(out / "many")) == []
