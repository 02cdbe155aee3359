"""Mounts, the option that an expiry may change, and bytes written; compared with /proc as plain text, findmnt and diskstats."""

import errno
import importlib
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.drill import boot
from btrkeep.pool.activity import written_bytes
from btrkeep.pool.mounts import allocator, mount_of, set_allocator
from tests.beds import TOP, work
from tests.beds.btrfs import devices_of
from tests.beds.walls import with_own_mounts

MODULE = importlib.import_module("btrkeep.pool.mounts")
pytestmark = [pytest.mark.btrfs, pytest.mark.root]
WORDS = ("ssd", "ssd_spread", "nossd")
GIVEN = "nosuid,nodev,noatime,compress=zstd:3,commit=77,space_cache=v2,discard=async,max_inline=1024,thread_pool=3,metadata_ratio=4"


def lines(point: Path) -> list[str]:
    """Returns the lines of mountinfo about this bed, unchanged."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return [line for line in text.splitlines() if str(point.parent) in line]


def words_in(line: str) -> list[str]:
    return [word for word in line.rsplit(" ", 1)[1].split(",") if word in WORDS]


def without_word(line: str) -> str:
    head, options = line.rsplit(" ", 1)
    return f"{head} {','.join(word for word in options.split(',') if word not in WORDS)}"


@pytest.fixture
def bound(make_btrfs: Callable[..., Path]) -> Iterator[tuple[Path, Path]]:
    """A btrfs mounted with many options, and a bind mount of a folder in it with very different ones."""
    point = make_btrfs(size="512M", options=GIVEN)
    (point / "folder").mkdir()
    other = point.parent / "other"
    other.mkdir()
    work("mount", "--bind", point / "folder", other)
    work("mount", "-o", "remount,bind,suid,dev,noexec,relatime,nodiratime", other)
    yield point, other
    work("umount", other)


def reconfigured(path: Path, option: str) -> None:
    set_allocator(path, option)


def remounted(path: Path, option: str) -> None:
    MODULE.remount(mount_of(path), MODULE.ALLOCATORS[option])


@pytest.mark.parametrize("switch", [reconfigured, remounted])
@pytest.mark.parametrize("which", [0, 1], ids=["mount", "bind"])
def test_every_change_of_the_option_changes_nothing_else(
    bound: tuple[Path, Path], switch: Callable[[Path, str], None], which: int
) -> None:
    point = bound[0]
    before = lines(point)
    assert len(before) == 2
    assert "noexec" not in before[0]
    assert "nosuid,nodev,noatime" in before[0]
    assert "noexec" in before[1]
    for old, new in itertools.product(WORDS, WORDS):
        work("mount", "-o", f"remount,nossd,{old}", point)
        assert [words_in(line) for line in lines(point)] == [[old], [old]]
        switch(bound[which], new)
        assert [words_in(line) for line in lines(point)] == [[new], [new]], (old, new)
        assert [without_word(line) for line in lines(point)] == [without_word(line) for line in before], (old, new)
        assert allocator(mount_of(point)) == allocator(mount_of(bound[1])) == new


FLAGS = [
    "strictatime",
    "strictatime,nodiratime",
    "relatime",
    "noatime",
    "nodiratime,relatime",
    "nosymfollow,noexec",
    "lazytime,sync",
    "dirsync,nodev",
]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_remount_keeps_each_flag_that_there_is(make_btrfs: Callable[..., Path], flags: str) -> None:
    """For kernels without fspick: all flags must be passed to mount(2)."""
    point = make_btrfs(size="256M")
    if work("mount", "-o", f"remount,nossd,{flags}", point, check=False).returncode:
        pytest.skip(f"mount does not know {flags}")
    [before] = lines(point)
    assert words_in(before) == ["nossd"]
    remounted(point, "ssd_spread")
    [after] = lines(point)
    assert words_in(after) == ["ssd_spread"]
    assert without_word(after) == without_word(before)


@pytest.mark.parametrize("number", ["_FSPICK", "_FSCONFIG"])
def test_without_fspick_or_fsconfig_mount_does_it(bound: tuple[Path, Path], number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = bound[0]
    set_allocator(point, "ssd")
    before = lines(point)
    monkeypatch.setattr(MODULE, number, 99_999)  # no system call has that number: ENOSYS
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSYS):
        MODULE._call("none", 99_999, 0, b"", 0)
    set_allocator(point, "ssd_spread")
    assert [words_in(line) for line in lines(point)] == [["ssd_spread"]] * 2
    assert [without_word(line) for line in lines(point)] == [without_word(line) for line in before]


@pytest.mark.parametrize("switch", [reconfigured, remounted])
def test_a_read_only_filesystem_stays_read_only(make_btrfs: Callable[..., Path], switch: Callable[[Path, str], None]) -> None:
    point = make_btrfs(size="256M", options="nossd")
    work("mount", "-o", "remount,ro", point)
    [before] = lines(point)
    switch(point, "ssd")
    [after] = lines(point)
    assert after == before.replace("nossd", "ssd")
    assert after.rsplit(" ", 1)[1].startswith("ro,")


def test_through_a_read_only_bind_mount_the_filesystem_stays_writable(bound: tuple[Path, Path]) -> None:
    point, other = bound
    work("mount", "-o", "remount,bind,ro", other)
    set_allocator(point, "nossd")
    before = lines(point)
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EROFS):
        remounted(other, "ssd")
    assert lines(point) == before
    set_allocator(other, "ssd")
    assert lines(point) == [line.replace(",nossd", ",ssd") for line in before]
    (point / "file").touch()


def test_another_filesystem_another_word_and_no_capability_are_refused(btrfs_mount: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ssd_spread"):
        set_allocator(btrfs_mount, "autodefrag")
    with pytest.raises(OSError, match="not a btrfs"):
        set_allocator(tmp_path, "ssd")
    before = lines(btrfs_mount)
    imports = "from pathlib import Path; from btrkeep.pool.mounts import set_allocator"
    code = f"{imports}; set_allocator(Path({str(btrfs_mount)!r}), 'nossd')"
    words = ("setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", code)
    done = work(*words, check=False, env={"PYTHONPATH": str(Path.cwd())})
    assert "PermissionError" in done.stderr
    assert lines(btrfs_mount) == before


@pytest.mark.parametrize(("rotates", "output"), [("1", "nossd"), ("0", "ssd")])
def test_a_mount_without_a_word_is_nossd(make_btrfs: Callable[..., Path], rotates: str, output: str) -> None:
    point = make_btrfs(size="256M")
    [device] = devices_of(point)
    work("umount", point)
    Path(f"/sys/block/{Path(device).name}/queue/rotational").write_text(rotates)
    work("mount", device, point)
    assert words_in(lines(point)[0]) == ([] if rotates == "1" else ["ssd"])
    assert allocator(mount_of(point)) == output


def test_of_both_words_the_stronger_one_holds(btrfs_mount: Path) -> None:
    assert allocator(replace(mount_of(btrfs_mount), super_options=("rw", "ssd", "ssd_spread"))) == "ssd_spread"


def test_another_error_than_a_missing_call_is_not_tried_again(btrfs_mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lines(btrfs_mount)

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(MODULE, "reconfigure", busy)
    for option in WORDS:
        with pytest.raises(OSError, check=lambda error: error.errno == errno.EBUSY):
            set_allocator(btrfs_mount, option)
    assert lines(btrfs_mount) == before


NAMES = [b"plain", b"a space", b"a\ttab\nand line", b"back\\040slash", b"#hash", "ümläut".encode(), b"not-\xff-utf8"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_mount_is_found_under_any_name(bound: tuple[Path, Path], name: bytes) -> None:
    target = bound[0].parent / os.fsdecode(name)
    target.mkdir()
    work("mount", "--bind", bound[0] / "folder", target)
    try:
        (target / "deep").mkdir(exist_ok=True)
        mount = mount_of(target / "deep")
        assert mount.target == target
        assert mount.root == "/folder"
        assert mount.filesystem == "btrfs"
        assert (mount.source,) == tuple(devices_of(bound[0]))
    finally:
        work("umount", target)


def test_findmnt_says_the_same(bound: tuple[Path, Path]) -> None:
    for point in bound:
        columns = ("ID", "TARGET", "SOURCE", "FSTYPE", "FSROOT", "VFS-OPTIONS", "FS-OPTIONS")
        texts = [work("findmnt", "--noheadings", "--nofsroot", "-o", column, point).stdout.strip() for column in columns]
        mount = mount_of(point)
        names = [str(mount.id), str(mount.target), mount.source, mount.filesystem, mount.root]
        assert [*names, ",".join(mount.mount_options), ",".join(mount.super_options)] == texts


def test_of_two_mounts_on_one_place_the_one_that_is_seen_counts(bound: tuple[Path, Path]) -> None:
    point, other = bound
    work("mount", "-t", "tmpfs", "tmpfs", other)
    try:
        assert mount_of(other).filesystem == "tmpfs"
    finally:
        work("umount", other)
    file = point.parent / "file"
    file.touch()
    (point / "content").touch()
    work("mount", "--bind", point / "content", file)
    try:
        assert mount_of(file).root == "/content"
        assert mount_of(point).target == point
    finally:
        work("umount", file)


def test_a_symlink_is_followed_to_its_mount(bound: tuple[Path, Path]) -> None:
    link = bound[0].parent / "link"
    link.symlink_to(bound[1])
    assert mount_of(link).target == bound[1]
    with pytest.raises(FileNotFoundError):
        mount_of(bound[0] / "nothing")


def diskstats(devices: list[str]) -> int:
    """Returns the written bytes from /proc/diskstats: the tenth column counts sectors of 512."""
    rows = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    return sum(int(row[9]) * 512 for row in rows if f"/dev/{row[2]}" in devices)


def test_written_bytes_are_those_of_all_devices(make_btrfs: Callable[..., Path]) -> None:
    path = make_btrfs(size="512M", options="commit=300")
    two = make_btrfs(size="512M", devices=2, mkfs=("-d", "raid1", "-m", "raid1"), options="commit=300")
    (path / "folder").mkdir()
    for point, copies in ((path, 1), (two, 2)):
        work("btrfs", "filesystem", "sync", point)
        before = written_bytes(point)
        assert before == diskstats(devices_of(point))
        (point / "file").write_bytes(os.urandom(8 << 20))
        work("btrfs", "filesystem", "sync", point)
        grown = written_bytes(point) - before
        assert copies * (8 << 20) <= grown < copies * (12 << 20)
        assert before + grown == diskstats(devices_of(point))
    assert written_bytes(path / "folder") == written_bytes(path)


def test_of_a_device_that_was_removed_nothing_is_counted(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="512M", devices=2, mkfs=("-d", "single", "-m", "single"), options="commit=300")
    gone = devices_of(point)[-1]
    work("btrfs", "device", "remove", gone, point)
    left = [device for device in devices_of(point) if device != gone]
    assert written_bytes(point) == diskstats(left)


def test_what_is_no_btrfs_has_no_devices_of_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOTTY):
        written_bytes(tmp_path)


def test_in_a_chroot_whose_root_is_no_mount_point_nothing_is_known_to_be_the_machines(tmp_path: Path) -> None:
    """As a rescue system may have it. /proc/self/mountinfo has no line there for entries beside the mounts."""
    folders = {Path("/usr"), Path("/proc"), TOP, Path(sys.prefix)}
    for link in ("bin", "lib", "lib64"):
        (tmp_path / link).symlink_to(f"usr/{link}")
    for folder in folders:
        (tmp_path / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
    mounting = "; ".join(
        f"mount --bind {shlex.quote(str(folder))} {shlex.quote(f'{tmp_path}{folder}')}" for folder in sorted(folders)
    )
    asked = "from pathlib import Path; from btrkeep.pool.mounts import is_machines; print(is_machines(Path('/')))"
    program = shlex.join(["chroot", str(tmp_path), "env", f"PYTHONPATH={TOP}", sys.executable, "-c", asked])
    assert work(*with_own_mounts("sh", "-ec", f"{mounting}; {program}")).stdout == "False\n"


def test_what_is_unmounted_on_the_machine_during_a_drill_is_not_kept_in_use_by_it(tmp_path: Path) -> None:
    """A disk that its administrator unmounts and removes would lose data. The machine shares its mounts, as under systemd."""
    disk, root = tmp_path / "disk", tmp_path / "root"
    for folder in (disk, root):
        folder.mkdir()
    drill = ("sh", "-c", f"echo; read -r _; cut -d ' ' -f 5 /proc/self/mountinfo >{shlex.quote(str(tmp_path / 'seen'))}")
    script = f"""\
mount --make-rshared /
mount -t tmpfs tmpfs {shlex.quote(str(disk))}
coproc drill {{ {shlex.join(boot._in_groups((), root, drill))}; }}
read -r _ <&"${{drill[0]}}"
umount {shlex.quote(str(disk))}
echo >&"${{drill[1]}}"
wait $drill_PID
"""
    work(*with_own_mounts("bash", "-euc", script))
    seen = (tmp_path / "seen").read_text().split()
    assert (str(root) in seen, str(disk) in seen) == (True, False)
