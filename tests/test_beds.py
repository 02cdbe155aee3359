"""The beds of the tests work as described, and leave the machine unchanged.

If they are wrong, a test passes that compared nothing, an administrator's machine keeps mounts and loop devices after `./test.sh`,
or CI passes a change for which it left out the tests that count.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import TOP, differences, exclusive_bytes, manifest, session, shares, work
from tests.beds import btrfs as beds
from tests.beds.anyone import NOBODY, readable
from tests.beds.walls import walled
from tests.beds.watch import wait_for

AWKWARD = (b"new\nline", b"no utf-8 \xff", b"back\\slash", b"a=b # file: x", b" space ", b"tab\tand \x01")


def test_sharing_is_counted_in_bytes(shared_btrfs: Path) -> None:
    (shared_btrfs / "file").write_bytes(os.urandom(1 << 20))
    assert exclusive_bytes(shared_btrfs / "file") == 1 << 20
    work("cp", "--reflink=always", shared_btrfs / "file", shared_btrfs / "copy")
    with (shared_btrfs / "copy").open("r+b") as file:
        file.write(b"x" * 4096)
    assert exclusive_bytes(shared_btrfs / "copy") == 4096
    assert shares(shared_btrfs / "copy").total == 1 << 20


def make_awkward_tree(top: Path) -> None:
    """Makes a tree with every kind of file that a backup has to restore."""
    folder = os.fsencode(top)
    for name in AWKWARD:
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(b"content of " + name)
    (top / "folder").mkdir()
    (top / "folder").chmod(0o2751)
    (top / "folder" / "link").symlink_to("../no\nwhere")
    os.link(top / "tab\tand \x01", top / "folder" / "second name")
    os.mkfifo(top / "fifo")
    work("python3", "-c", "import socket; socket.socket(socket.AF_UNIX).bind('socket')", cwd=top)
    with (top / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    work("setfattr", "-n", "user.note", "-v", "a note", top / "new\nline")
    work("setfacl", "-m", "u:12345:r", top / "back\\slash")
    if os.geteuid() == 0:
        work("mknod", top / "null", "c", "1", "3")
        work("setcap", "cap_net_raw+ep", top / "new\nline")
        os.chown(top / " space ", 4711, 4712)


@pytest.mark.root
def test_a_manifest_shows_every_kind_of_file_under_its_very_name(shared_btrfs: Path) -> None:
    make_awkward_tree(shared_btrfs)
    result = manifest(shared_btrfs, blocks=True)
    assert set(AWKWARD) < result.keys()
    assert len(result) == len(AWKWARD) + 8
    assert result[b"folder/link"].target == b"../no\nwhere"
    assert result[b"folder/second name"].links == (b"folder/second name", b"tab\tand \x01")
    assert result[b"null"].device == (1, 3)
    assert (result[b"folder"].mode, result[b"sparse"].blocks) == ("2751", 0)
    assert {"security.capability", "user.note"} <= dict(result[b"new\nline"].xattrs).keys()
    assert (12345).to_bytes(4, "little") in dict(result[b"back\\slash"].xattrs)["system.posix_acl_access"]
    assert result[b" space "].sha256 == work("sha256sum", shared_btrfs / " space ").stdout[:64]
    assert str(result[b"fifo"].mtime) == work("stat", "-c", "%.9Y", shared_btrfs / "fifo").stdout.strip().replace(".", "")
    assert (result[b" space "].uid, result[b" space "].gid) == (4711, 4712)
    assert {entry.kind for entry in result.values()} == {"f", "d", "l", "p", "s", "c"}


CHANGES = {
    "content": "printf X | dd of='tab\tand \1' conv=notrunc",
    "content of the same time": "touch -r sparse ../ref; printf X | dd of=sparse conv=notrunc; touch -r ../ref sparse",
    "mode": "chmod 600 fifo",
    "owner": "chown 99 null",
    "nanoseconds": "touch -d '2020-01-01 00:00:00.000000001' folder",
    "acl": "setfacl -m u:5:rwx 'back\\slash'",
    "default acl": "setfacl -d -m u:5:rwx folder",
    "xattr": "setfattr -n user.note -v other 'new\nline'",
    "capability": "setcap cap_chown+ep 'new\nline'",
    "hard link broken": "cp -p 'folder/second name' t && mv t 'folder/second name'",
    "symlink": "ln -sfn elsewhere folder/link",
    "device": "rm null; mknod null c 1 5",
    "name": "mv ' space ' space",
    "hole filled": "fallocate -l 1M sparse",
}


@pytest.mark.root
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_two_manifests_are_equal_until_anything_changes(change: str, shared_btrfs: Path) -> None:
    tree, copy = shared_btrfs / "tree", shared_btrfs / "copy"
    tree.mkdir()
    make_awkward_tree(tree)
    work("cp", "-a", tree, copy)
    assert differences(manifest(tree, blocks=True), manifest(copy, blocks=True)) == []
    work("bash", "-ec", change, cwd=copy)
    assert differences(manifest(tree, blocks=True), manifest(copy, blocks=True))


MEASURED = """import os, pytest
from pathlib import Path

class Fixture:
    tries = 0
    def begin_anew(self):
        self.tries = 0

@pytest.fixture
def anew():
    return Fixture()

@pytest.mark.alone
@pytest.mark.parametrize("needed", [1, 2, 3, 4])
def test_it(needed, anew):
    anew.tries += 1
    with Path("tries").open("a") as file:
        file.write(str(needed))
    assert anew.tries == 1
    assert Path("tries").read_text().count(str(needed)) >= needed
"""


@pytest.mark.slow
def test_what_measures_is_tried_again_at_last_alone_and_then_fails(tmp_path: Path, place: Path) -> None:
    (tmp_path / "test_it.py").write_text(MEASURED)
    words = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-c", TOP / "pyproject.toml", "--rootdir", tmp_path)
    env = {"PYTHONPATH": str(TOP), session.PLACE: str(place)}
    done = work(sys.executable, "-m", "pytest", "-q", *words, tmp_path / "test_it.py", cwd=tmp_path, env=env, check=False)
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert sorted((tmp_path / "tries").read_text()) == sorted("1" + "22" + "333" + "444")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("why", "ci", "status"),
    [
        pytest.param("x is not installed", "true", 1, id="where it decides"),
        pytest.param("left out: on a real btrfs (no btrfs on a loop device: x)", "true", 1, id="no loop device"),
        pytest.param("x is not installed", "", 0, id="elsewhere", marks=pytest.mark.long),
    ],
)
def test_what_could_be_installed_is_not_left_out_where_the_tests_decide(tmp_path: Path, why: str, ci: str, status: int) -> None:
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n\n@pytest.mark.skipif(True, reason={why!r})\ndef test_a(): pass\n\ndef test_b(): pass\n"
    )
    words = ("-n2", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", TOP / "pyproject.toml", "--rootdir", tmp_path)
    env = {"PYTHONPATH": str(TOP), "CI": ci}
    done = work(sys.executable, "-m", "pytest", "-q", *words, tmp_path / "test_it.py", cwd=tmp_path, env=env, check=False)
    assert "1 passed, 1 skipped" in done.stdout, done.stdout
    assert done.returncode == status
    assert (f"must not be left out here: Skipped: {why}" in done.stdout) == bool(status)


@pytest.mark.root
def test_without_root_what_makes_its_own_filesystem_is_left_out(tmp_path: Path) -> None:
    code = "from tests.beds import btrfs; btrfs.attach('image')"
    done = work(*readable().run_as(NOBODY, "-c", code), env=readable().environment, cwd=Path("/"), check=False)
    assert "Skipped: left out: on a real btrfs (no root)" in done.stderr


@pytest.mark.root
def test_a_loop_device_that_is_open_for_a_moment_longer_is_gone_when_its_folder_is(place: Path) -> None:
    image = place / "image"
    image.write_bytes(bytes(1 << 20))
    device = beds.attach(image)
    opened = os.open(device, os.O_RDONLY)
    closing = threading.Timer(0.5, os.close, (opened,))
    closing.start()
    assert session.remove(place) == []
    assert str(image) not in work("losetup", "-a").stdout
    closing.join()


@pytest.mark.root
def test_a_folder_that_its_user_may_not_read_is_removed_and_a_symlink_opens_no_other(place: Path) -> None:
    """Tests of --unit make such folders, and an ordinary user's session would leave them in memory."""
    place.chmod(0o777)
    (place / "other").mkdir(mode=0o711)
    code = """
import sys
from pathlib import Path
from tests.beds import session
top = Path(sys.argv[1]) / "top"
(top / "closed/inner").mkdir(parents=True)
(top / "closed/inner/other").symlink_to("../../../other")
for folder in ("closed/inner", "closed"):
    (top / folder).chmod(0)
print(session.remove(top), top.exists())
"""
    words = readable().run_as(NOBODY, "-c", code, place)
    assert work(*words, env=readable().environment, cwd=Path("/")).stdout == "[] False\n"
    assert (place / "other").stat().st_mode & 0o777 == 0o711


def test_what_a_command_leaves_elsewhere_in_memory_is_gone_with_its_session(tmp_path: Path) -> None:
    """The memory of sent alarms stays if a test fails before the state folder can be used again."""
    (tmp_path / "memory").mkdir()
    code = f"""
from pathlib import Path
from tests.beds import session
session.remove_at_end(Path({str(tmp_path / "memory")!r}))
session.end_session(f"{{session.PREFIX}}1-1")
print(Path({str(tmp_path / "memory")!r}).exists())
session.end_session(session.own_name())
"""
    assert work(sys.executable, "-c", code, env={"PYTHONPATH": str(TOP)}).stdout == "True\n"
    assert not (tmp_path / "memory").exists()


# The session as a whole: other pytest processes, with a test file of their own and our conftest as a plugin.

RESTLESS = """
import os, subprocess, time
from pathlib import Path
import pytest

def busy(point):
    subprocess.run(["btrfs", "subvolume", "create", point / "sub"], check=True)
    subprocess.run(["mount", "--bind", point / "sub", point], check=True)

def test_it(make_btrfs, shared_btrfs, sshd):
    point = make_btrfs(devices=2)
    busy(point)
    Path(os.environ["STARTED"]).touch()
    {deed}
"""

DEEDS = {
    "passes": "pass",
    "fails": "assert False",
    "exceeds its time": "time.sleep(60)",
    "leaves a process": "subprocess.Popen(['sleep', '1000'], cwd=point)",
    "leaves a process elsewhere": "subprocess.Popen(['sleep', '1001'])",
    "is interrupted": "time.sleep(60)",
    "is asked to end": "time.sleep(60)",
    "is killed": "time.sleep(60)",
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for the sessions of one test, which other sessions do not find when they clean up after killed ones."""
    folder = Path(tempfile.mkdtemp(prefix="place-", dir=session.folder()))
    yield folder
    session.remove(folder)


def start_session(folder: Path, place: Path, deed: str, *words: str) -> subprocess.Popen[str]:
    test = folder / "test_restless.py"
    test.write_text(RESTLESS.format(deed=deed), encoding="utf-8")
    plugins = ("-p", "tests.conftest", "-p", "no:cacheprovider", "--import-mode=importlib")
    environment = {**os.environ, "PYTHONPATH": str(TOP), "STARTED": str(folder / "started"), session.PLACE: str(place)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    argv = [sys.executable, "-m", "pytest", *plugins, "-c", "/dev/null", "--rootdir", str(folder), *words, str(test)]
    return subprocess.Popen(argv, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)


def sessions_of(process: subprocess.Popen[str]) -> list[str]:
    """Returns the session of a pytest process, and those of its children, workers or not."""
    children = work("pgrep", "-P", str(process.pid), check=False).stdout.split()
    pids = [process.pid, *(int(pid) for pid in children)]
    return [f"{session.PREFIX}{pid}-{session.start_time(pid)}" for pid in pids]


def traces_of(names: list[str], place: Path) -> list[str]:
    """Returns the traces of sessions in the kernel and in folders, found with other programs."""
    result = [work(*argv).stdout for argv in (("findmnt", "-rn"), ("losetup", "-a"), ("ps", "-eww", "-o", "pid,args"))]
    lines = [line for text in result for line in text.splitlines() if any(name in line for name in names)]
    return lines + [str(path) for name in names for path in place.glob(name)]


# Otherwise a worker is informed of the end. Each takes seconds, so the two ways are not combined with all actions.
SESSIONS = [
    ("leaves a process elsewhere", "-n0"),
    ("is interrupted", "-n1"),
    *(
        pytest.param(deed, workers, marks=pytest.mark.long)
        for deed, workers in (
            ("leaves a process", "-n0"),
            ("exceeds its time", "-n0"),
            ("is interrupted", "-n0"),
            ("is asked to end", "-n1"),
            ("fails", "-n1"),
        )
    ),
]


@pytest.mark.slow
@pytest.mark.btrfs
@pytest.mark.ssh
@pytest.mark.parametrize(("deed", "workers"), SESSIONS)
def test_nothing_is_left_by_a_session_whose_test(deed: str, workers: str, tmp_path: Path, place: Path) -> None:
    process = start_session(tmp_path, place, DEEDS[deed], workers, "--timeout=3" if deed == "exceeds its time" else "--timeout=0")
    wait_for((tmp_path / "started").exists, 60)
    names = sessions_of(process)
    assert deed not in ("exceeds its time", "is interrupted", "is asked to end") or traces_of(names, place)
    if deed in ("is interrupted", "is asked to end"):
        process.send_signal(signal.SIGINT if deed == "is interrupted" else signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == {"is interrupted": 2, "is asked to end": 2}.get(deed, 1), output
    assert traces_of(names, place) == []
    if deed == "leaves a process":
        assert re.search(r"AssertionError: process \d+ was still running: sleep 1000", output)
    if deed == "leaves a process elsewhere":
        assert re.search(r"left behind by tests:\n.*process \d+ was still running: sleep 1001", output)


@pytest.mark.slow
@pytest.mark.btrfs
@pytest.mark.ssh
def test_what_a_killed_session_left_is_cleared_away_by_the_next_one(tmp_path: Path, place: Path) -> None:
    process = start_session(tmp_path, place, DEEDS["is killed"], "-n1")
    wait_for((tmp_path / "started").exists, 60)
    names = sessions_of(process)
    process.kill()
    process.communicate()
    assert len(traces_of(names, place)) > 4
    following = start_session(tmp_path, place, DEEDS["passes"])
    output, _ = following.communicate(timeout=60)
    assert any(f"cleared away after a killed session: {name}" in output for name in names), output
    assert traces_of(names, place) == []


def test_a_running_session_is_not_cleared_away() -> None:
    session.folder()
    assert session.is_alive(session.own_name())
    assert session.own_name() not in session.dead_sessions()
    assert not session.is_alive(f"{session.PREFIX}{os.getpid()}-1")


def test_a_command_behind_walls_sees_its_own_beds_and_lets_go_of_those_of_other_workers(btrfs_mount: Path) -> None:
    """Another worker is simulated: a process of another name starts the command, with a separate bed mounted."""
    assert f" {btrfs_mount} " in work(*walled("cat", "/proc/self/mountinfo")).stdout
    other = "print(work(*walled('cat', '/proc/self/mountinfo')).stdout)"
    imports = "from tests.beds import work; from tests.beds.walls import walled"
    seen = work(sys.executable, "-c", f"{imports}; {other}", cwd=TOP).stdout
    assert f" {btrfs_mount} " not in seen
    assert f" {btrfs_mount} " in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_program_that_has_copied_all_mounts_keeps_no_bed_in_use(btrfs_mount: Path) -> None:
    """For example a container that is started on this machine at the same time."""
    uuid = work("findmnt", "-n", "-o", "UUID", btrfs_mount).stdout.strip()
    [device] = beds.devices_of(btrfs_mount)
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as copy:
        assert copy.stdout is not None
        copy.stdout.readline()
        assert session.mounts_below(btrfs_mount, copy.pid) == [btrfs_mount]
        beds.unmount(btrfs_mount)
        assert copy.poll() is None
        copy.kill()
    assert not Path("/sys/fs/btrfs", uuid).exists()
    work("mount", device, btrfs_mount)


@pytest.mark.root
def test_who_has_no_rights_runs_the_code_of_this_checkout_and_may_not_change_it() -> None:
    code = "import os, web; print(web.__file__); print(os.getuid(), os.access(web.__file__, os.W_OK))"
    done = work(*readable().run_as(61234, "-c", code), env=readable().environment, cwd=Path("/")).stdout.splitlines()
    assert done == [str(readable().top / "web/__init__.py"), "61234 False"]
    work("diff", "-r", "-x", "__pycache__", TOP / "web", readable().top / "web")
