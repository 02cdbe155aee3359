"""`backupd restore --to-host` over ssh, with a real sshd and the machine's own rsync."""

import ctypes
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.files import host_rsync
from backupd.files.restore_types import RestorePreview
from backupd.files.to_host import HostRestore
from backupd.rsync.command import rsync_version
from tests.beds import TOP, differences, manifest, session, ssh, within, work
from tests.beds.everything import everything, write
from tests.beds.nights import Nights
from tests.beds.within import restore

_libc = ctypes.CDLL(None)
SAYER = TOP / "tests" / "beds" / "sayer.py"

pytestmark = [pytest.mark.root, pytest.mark.btrfs, pytest.mark.ssh]


@pytest.fixture
def web1(nights: Nights, sshd: ssh.Sshd) -> Nights:
    """A pool whose host web1 is reached over ssh, not backed up yet."""
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", nights.source / "srv", address=sshd.address, port=sshd.port)
    return nights


def test_all_comes_back_to_where_it_was(web1: Nights) -> None:
    srv = everything(web1.source / "srv")
    web1.night("web1")
    before = manifest(srv, blocks=True)
    shutil.rmtree(srv / "contents")
    shutil.rmtree(srv / "attributes")
    (srv / "names" / "ours").write_text("came since")
    seen = restore(web1, "web1", srv, "--dry-run", "--to-host")
    assert (seen["possible"], seen["refused"]["count"], seen["overwritten"]["count"]) == (True, 0, 0)
    done = restore(web1, "web1", srv, "--to-host")
    assert (done["good"], done["differences"]["count"], done["problems"]["count"]) == (True, 0, 0)
    assert done["new"]["count"] == seen["new"]["count"] > 20
    (srv / "names" / "ours").unlink()
    os.utime(srv / "names", ns=(0, before[b"names"].mtime // 10**9 * 10**9))
    by_name = manifest(srv, blocks=True)
    assert {name for name in before if name != b"names"} == {name for name in by_name if name != b"names"}
    assert [line for line in differences(before, by_name) if not line.startswith("b'names': mtime")] == []


def test_another_machine_and_folder_get_a_path_by_its_last_name_or_whole(web1: Nights, sshd: ssh.Sshd, tmp_path: Path) -> None:
    srv = web1.source / "srv"
    write(srv / "www" / "index.html", "welcome")
    web1.night("web1")
    to = f"--to-host=root@localhost:{tmp_path}/new"
    text = sshd.known_hosts.read_text().replace("[127.0.0.1]", "[localhost]")
    (tmp_path / "known").write_text(text)
    web1.settings("ssh", known_hosts=str(tmp_path / "known"))
    (tmp_path / "new").mkdir()
    restore(web1, "web1", srv / "www", to, f"--port={sshd.port}")
    assert (tmp_path / "new" / "www" / "index.html").read_text() == "welcome"
    restore(web1, "web1", srv / "www", to, f"--port={sshd.port}", "--parents")
    assert (tmp_path / "new" / str(srv / "www" / "index.html").strip("/")).read_text() == "welcome"
    assert differences(manifest(srv / "www"), manifest(tmp_path / "new" / "www")) == []


def test_of_paths_with_one_last_name_or_below_another_nothing_is_merged(web1: Nights, sshd: ssh.Sshd, tmp_path: Path) -> None:
    srv, options = web1.source / "srv", (f"--to-host={sshd.address}:{tmp_path}", f"--port={sshd.port}")
    for folder in ("www/www", "other"):
        write(srv / folder / "conf", folder)
    web1.night("web1")
    output = restore(web1, "web1", srv / "www/www/conf", srv / "other/conf", *options, status=2)["stderr"]
    assert "would both become conf" in output
    restore(web1, "web1", srv / "www", srv / "www/www", *options)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("conf")] == [Path("www/www/conf")]


def test_the_whole_backup_goes_to_where_it_was_and_nowhere_else(web1: Nights) -> None:
    srv = web1.source / "srv"
    write(srv / "www" / "index.html", "welcome")
    web1.night("web1")
    before, everywhere = manifest(srv), {path.name for path in Path("/").iterdir()}
    shutil.rmtree(srv)
    done = json.loads(web1.backupd("restore", "--json", "web1", "/", "--to-host", check=False).stdout)
    theirs = {str(path) for path in session.folder().parents}  # other sessions may make folders there, before it is compared
    assert {sample["place"] for sample in done["differences"]["samples"]} <= theirs
    assert (done["new"]["count"], done["refused"]["count"], done["problems"]["count"]) == (3, 0, 0)
    assert differences(before, manifest(srv)) == []
    assert {path.name for path in Path("/").iterdir()} == everywhere


def test_what_is_in_the_way_is_named_and_nothing_is_written(web1: Nights) -> None:
    srv = web1.source / "srv"
    for name in ("changed", "gone", "same"):
        write(srv / name, name)
    web1.night("web1")
    write(srv / "changed", "since then")
    (srv / "gone").unlink()
    before = manifest(srv)
    seen = restore(web1, "web1", srv, "--dry-run", "--to-host", status=1)
    assert [sample["place"] for sample in seen["refused"]["samples"]] == [str(srv / "changed")]
    assert [sample["place"] for sample in seen["new"]["samples"]] == [str(srv / "gone")]
    output = restore(web1, "web1", srv, "--to-host", status=1)["stderr"]
    assert f"{srv}/changed: differs: size, time" in output
    assert differences(before, manifest(srv)) == []


@pytest.mark.parametrize(
    ("overwrite", "changed", "older"),
    [("never", "since then", "long ago"), ("older", "since then", "older"), ("all", "changed", "older")],
)
def test_overwrite_says_which_of_the_two_stays(web1: Nights, overwrite: str, changed: str, older: str) -> None:
    srv = web1.source / "srv"
    for name in ("changed", "older", "gone"):
        write(srv / name, name)
    web1.night("web1")
    write(srv / "changed", "since then")
    os.utime(write(srv / "older", "long ago"), ns=(0, 10**18))
    (srv / "gone").unlink()
    done = restore(web1, "web1", srv, f"--overwrite={overwrite}", "--to-host")
    assert ((srv / "changed").read_text(), (srv / "older").read_text(), (srv / "gone").read_text()) == (changed, older, "gone")
    wanted = {"never": (0, 2), "older": (1, 1), "all": (2, 0)}[overwrite]
    assert (done["overwritten"]["count"], done["kept"]["count"]) == wanted


@pytest.mark.parametrize("seconds", [-1, -0.25, 0.25])
def test_a_folder_whose_time_is_less_than_a_second_off_gets_its_time(web1: Nights, seconds: float) -> None:
    """--overwrite=older compares times with a window of a second, so that no newer file is overwritten."""
    srv, time_ns = web1.source / "srv", 10**18 + 500_000_000
    write(srv / "folder" / "file", "the same")
    write(srv / "newer", "of the backup")
    os.utime(srv / "folder", ns=(0, time_ns))
    web1.night("web1")
    os.utime(srv / "folder", ns=(0, time_ns + int(seconds * 10**9)))
    was = (srv / "newer").stat()
    write(srv / "newer", "came since")
    os.utime(srv / "newer", ns=(was.st_atime_ns, was.st_mtime_ns + 250_000_000))
    done = restore(web1, "web1", srv, "--overwrite=older", "--to-host")
    assert (done["good"], done["differences"]["samples"]) == (True, [])
    assert (srv / "folder").stat().st_mtime_ns == time_ns
    assert ((srv / "newer").read_text(), done["kept"]["count"]) == ("came since", 1)


@pytest.mark.parametrize(
    ("special", "letters"),
    [("", ""), ("setfacl -m u:1234:rw", "AX"), ("setfattr -n user.a -v b", "AX"), ("truncate -s 1M", "S")],
    ids=["plain", "ACL", "attribute", "hole"],
)
def test_rsync_is_spared_what_no_file_needs_and_no_file_inherits_an_acl(
    web1: Nights, sshd: ssh.Sshd, tmp_path: Path, special: str, letters: str
) -> None:
    """`letters`: options that the rsync of the host gets, of those for ACLs, attributes and holes."""
    srv, log, wrapper = web1.source / "srv", tmp_path / "log", tmp_path / "rsync"
    wrapper.write_text(f'#!/bin/sh\necho "$*" >>{log}\nexec rsync "$@"\n')
    wrapper.chmod(0o755)
    web1.host("web1", srv, address=sshd.address, port=sshd.port, rsync_path=str(wrapper))
    for name in ("www/index.html", "www/inner/page.html"):
        write(srv / name, name)
    if special:
        work(*special.split(), srv / "www" / "inner" / "page.html")
    web1.night("web1")
    before = manifest(srv / "www", blocks=True)
    shutil.rmtree(srv / "www")
    work("setfacl", "-m", "d:u:1234:rwx", srv)
    log.unlink()
    done = restore(web1, "web1", srv / "www", "--to-host")
    assert (done["good"], done["new"]["count"], done["differences"]["samples"]) == (True, 4, [])
    assert differences(before, manifest(srv / "www", blocks=True)) == []
    options = [next(word for word in line.split() if word[:1] == "-" and word[:2] != "--") for line in log.read_text().splitlines()]
    writing = [word.partition("e.")[0] for word in options if "n" not in word.partition("e.")[0]]
    assert ["".join(letter for letter in "AXS" if letter in word) for word in writing] == ["AXS", letters]


@pytest.mark.parametrize("overwrite", ["older", "all"])
def test_where_nothing_was_what_comes_after_the_look_is_not_deleted_to_make_room(
    web1: Nights, monkeypatch: pytest.MonkeyPatch, overwrite: str
) -> None:
    srv, preview = web1.source / "srv", HostRestore.preview
    write(srv / "www" / "inner" / "page.html")
    web1.night("web1")
    shutil.rmtree(srv / "www")

    def preview_and_come(self: HostRestore, *, content: bool = True) -> RestorePreview:
        restore_preview = preview(self, content=content)
        write(srv / "www" / "inner", "theirs")
        return restore_preview

    monkeypatch.setattr(HostRestore, "preview", preview_and_come)
    words = ("restore", "--json", f"--overwrite={overwrite}", "web1", srv / "www", "--to-host")
    done = within.within("--config", web1.config, *words, check=False)
    assert (srv / "www" / "inner").read_text() == "theirs"
    assert {"place": str(srv / "www" / "inner"), "why": "it is missing"} in json.loads(done.stdout)["differences"]["samples"]


@pytest.mark.parametrize("overwrite", ["older", "all"])
def test_where_something_was_what_comes_after_the_look_is_not_deleted_to_make_room(
    web1: Nights, monkeypatch: pytest.MonkeyPatch, overwrite: str
) -> None:
    srv, preview = web1.source / "srv", HostRestore.preview
    for name in (
        "www/inner/page.html",
        "www/inner/deep/page.html",
        "www/[odd] *?/page.html",
        "www/other.html",
        "www/kept/page.html",
    ):
        write(srv / name, "of the backup")
    web1.night("web1")
    for name in ("inner", "[odd] *?"):
        shutil.rmtree(srv / "www" / name)
    os.utime(write(srv / "www" / "other.html", "changed"), ns=(0, 10**18))

    def preview_and_come(self: HostRestore, *, content: bool = True) -> RestorePreview:
        restore_preview = preview(self, content=content)
        for name in ("inner", "[odd] *?"):
            write(srv / "www" / name, "theirs")
        return restore_preview

    monkeypatch.setattr(HostRestore, "preview", preview_and_come)
    words = ("restore", "--json", f"--overwrite={overwrite}", "web1", srv / "www", "--to-host")
    done = json.loads(within.within("--config", web1.config, *words, check=False).stdout)
    assert [(srv / "www" / name).read_text() for name in ("inner", "[odd] *?")] == ["theirs", "theirs"]
    assert {"place": str(srv / "www" / "inner"), "why": "it is missing"} in done["differences"]["samples"]
    assert (srv / "www" / "other.html").read_text() == "changed"
    assert any("since the preview, so nothing was overwritten" in sample["why"] for sample in done["problems"]["samples"])
    assert done["overwritten"]["count"] == 0
    assert done["good"] is False


@pytest.mark.parametrize("overwrite", [(), ("--overwrite=all",)])
def test_what_is_of_another_kind_there_is_never_deleted_to_make_room(
    web1: Nights, tmp_path: Path, overwrite: tuple[str, ...]
) -> None:
    """rsync would delete it: above all a symlink to a folder, instead of a folder."""
    srv = web1.source / "srv"
    write(srv / "folder" / "file", "of the backup")
    write(srv / "plain", "of the backup")
    web1.night("web1")
    shutil.move(srv / "folder", tmp_path / "elsewhere")
    (srv / "folder").symlink_to(tmp_path / "elsewhere")
    (srv / "plain").unlink()
    (srv / "plain").mkdir()
    before, by_name = manifest(srv), manifest(tmp_path)
    output = restore(web1, "web1", srv, *overwrite, "--to-host", status=1)["stderr"]
    assert f"{srv}/folder: it is not a folder there" in output
    assert f"{srv}/plain: it is not a file there" in output
    assert differences(before, manifest(srv)) == []
    assert differences(by_name, manifest(tmp_path)) == []


def test_a_key_that_may_only_read_is_told_with_what_to_do(web1: Nights, sshd: ssh.Sshd) -> None:
    srv = web1.source / "srv"
    write(srv / "file")
    web1.settings("ssh", key=str(sshd.authorize('restrict,command="rrsync -ro /"')))
    assert web1.run("web1")["web1"]["outcome"] == "complete"
    (srv / "file").unlink()
    output = restore(web1, "web1", srv, "--to-host", status=1)["stderr"]
    assert "can only read on the host" in output
    assert "the host does not have the restore key" in output
    assert "setup --host web1 --no-run` prints the line of the restore key" in output
    web1.settings("ssh", key=str(sshd.authorize('restrict,command="rrsync /"')))
    assert restore(web1, "web1", srv, "--to-host")["good"]
    assert (srv / "file").exists()


def test_it_waits_for_an_rrsync_that_is_about_to_end(web1: Nights, sshd: ssh.Sshd) -> None:
    srv = web1.source / "srv"
    write(srv / "file")
    web1.settings("ssh", key=str(sshd.authorize('restrict,command="rrsync /"')))
    web1.run("web1")
    (srv / "file").unlink()
    folder = os.open("/", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as rrsync does while it runs
    release = threading.Timer(1.5, os.close, [folder])
    release.start()
    assert restore(web1, "web1", srv, "--to-host")["good"]
    assert release.finished.is_set()
    assert (srv / "file").exists()


def test_a_host_that_cannot_be_reached_is_told(web1: Nights, sshd: ssh.Sshd) -> None:
    write(web1.source / "srv" / "file")
    web1.night("web1")
    web1.host("web1", web1.source / "srv", address=sshd.address, port=9)
    output = restore(web1, "web1", "/", "--to-host", status=1)["stderr"]
    assert "refuses the connection" in output


def test_a_full_disk_over_there_is_told_and_no_half_file_is_left(web1: Nights, sshd: ssh.Sshd, tmp_path: Path) -> None:
    srv = web1.source / "srv"
    write(srv / "large").write_bytes(os.urandom(3_000_000))
    web1.night("web1")
    work("mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", tmp_path)
    try:
        output = restore(web1, "web1", srv, f"--to-host={sshd.address}:{tmp_path}", status=1)["stderr"]
        assert "No space left on device" in output or "error in file I/O" in output  # the receiver's last message may be lost
        assert "hint: check the free space" in output
        assert not (tmp_path / "srv" / "large").exists()
    finally:
        for _ in range(100):  # the remote receiver may take a moment to end
            if work("umount", tmp_path, check=False).returncode == 0:
                break
            time.sleep(0.1)


def test_stopped_it_leaves_no_process_and_no_half_file_and_goes_on(
    web1: Nights, tmp_path: Path, sshd: ssh.Sshd, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    srv = web1.source / "srv"
    for number in range(30):
        write(srv / f"file{number:02}").write_bytes(os.urandom(1_000_000))
    web1.night("web1")
    for number in range(9):  # a machine may be faster than the signal: then the next one is tried
        to = tmp_path / str(number)
        to.mkdir()
        words = ("restore", "web1", srv, f"--to-host={sshd.address}:{to}")
        process = backupd_running("--config", web1.config, *words)
        while not list(to.glob("srv/file*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=60)
        if process.returncode:
            break
    assert (process.returncode, "the same command continues" in output) == (143, True)
    assert {path.stat().st_size for path in to.glob("srv/file*")} == {1_000_000}
    web1.backupd(*words)
    assert differences(manifest(srv), manifest(to / "srv")) == []


def test_a_host_that_is_this_machine_is_restored_to_without_rsync(nights: Nights) -> None:
    srv = everything(nights.source / "srv")
    nights.host("here", srv, address=None)
    nights.run("here")
    before = manifest(srv)
    shutil.rmtree(srv / "contents")
    done = restore(nights, "here", srv, "--to-host")
    assert done["good"]
    assert differences(before, manifest(srv)) == []


@pytest.mark.parametrize("overwrite", [(), ("--overwrite=older",), ("--overwrite=all",)])
def test_when_nothing_is_there_rsync_does_not_go_through_it_for_a_look(web1: Nights, overwrite: tuple[str, ...]) -> None:
    """A check of the path itself is enough: the preview counts the written names. Only writing and comparing descend, after the
    path itself was made.
    """
    srv = everything(web1.source / "srv")
    web1.night("web1")
    before = manifest(srv, blocks=True)
    (srv / "contents").rename(srv.parent / "contents")
    started = web1.source / "started"
    counting = write(web1.source / "rsync", f'#!/bin/sh\necho "$2" "$3" >>{shlex.quote(str(started))}\nexec rsync "$@"\n')
    counting.chmod(0o755)
    web1.tables["host"]["web1"]["rsync_path"] = str(counting)
    web1.write()
    seen = restore(web1, "web1", srv / "contents", *overwrite, "--to-host", "--dry-run")
    below = [name for name in before if name == b"contents" or name.startswith(b"contents/")]
    assert (seen["possible"], seen["new"]["count"], recursive(started)) == (True, len(below), [False, False])
    started.unlink()
    done = restore(web1, "web1", srv / "contents", *overwrite, "--to-host")
    assert (done["good"], done["new"], recursive(started)) == (True, seen["new"], [False, False, False, True, True])
    assert differences(manifest(srv.parent / "contents", blocks=True), manifest(srv / "contents", blocks=True)) == []


def recursive(started: Path) -> list[bool]:
    """Returns for each rsync that the host started whether it goes down into folders: an r among the letters of its options."""
    lines = started.read_text().splitlines()
    return ["r" in next(word for word in line.split() if not word.startswith("--")).partition("e.")[0] for line in lines]


def test_the_look_at_what_is_not_there_counts_the_same_as_rsync_s_own(
    web1: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srv = everything(web1.source / "srv")
    web1.night("web1")
    (tmp_path / "new").mkdir()
    host = web1.tables["host"]["web1"]
    paths = (srv / "contents", srv / "attributes")
    to = (f"--to-host={host['address']}:{tmp_path / 'new'}", f"--port={host['port']}")
    short = restore(web1, "web1", *paths, *to, "--dry-run")
    monkeypatch.setattr(HostRestore, "_is_all_absent", lambda _: False)
    whole = restore(web1, "web1", *paths, *to, "--dry-run")
    for answer in (short, whole):
        assert len(answer["new"].pop("samples")) == 20  # the first ones, in the order of the walk
    assert 0 <= whole.pop("bytes") - short.pop("bytes") < 100  # rsync counts the targets of symlinks too
    assert short["new"]["count"] > 20
    assert short == whole


@pytest.mark.parametrize("overwrite", [(), ("--overwrite=never",), ("--overwrite=all",)])
def test_a_symlink_in_the_place_of_a_folder_above_leads_nowhere(web1: Nights, tmp_path: Path, overwrite: tuple[str, ...]) -> None:
    """A user of the host makes the symlink from their own folder, so that root writes their file to a place of their choice."""
    srv = web1.source / "srv"
    write(srv / "his" / "inner" / "passwd", "planted")
    web1.night("web1")
    write(tmp_path / "etc" / "kept", "of root")
    shutil.rmtree(srv / "his" / "inner")
    (srv / "his" / "inner").symlink_to(tmp_path / "etc")
    before = manifest(tmp_path)
    done = web1.backupd("restore", "web1", srv / "his" / "inner" / "passwd", *overwrite, "--to-host", check=False)
    assert differences(before, manifest(tmp_path)) == []
    assert (done.returncode, f"{srv}/his/inner: it is not a folder there" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("overwrite", [(), ("--overwrite=all",)])
def test_a_folder_that_a_user_exchanges_for_a_symlink_meanwhile_leads_to_no_place_of_root(
    web1: Nights, overwrite: tuple[str, ...]
) -> None:
    """The user does it repeatedly, also while rsync writes. The folder belongs to the user, `etc` beside it to root."""
    if rsync_version().numbers < (3, 5):
        pytest.skip("an older rsync on the host goes through such symlinks")
    srv, home = web1.source / "srv", web1.source / "srv" / "home"
    for number in range(200):
        write(home / "docs" / f"folder{number % 40:02}" / f"file{number}", "planted")
    web1.night("web1")
    shutil.rmtree(home / "docs")
    (srv / "etc").mkdir()
    (home / "docs").mkdir()
    (home / "away").symlink_to("../etc")
    work("chown", "-Rh", "1000:1000", home)
    ended = threading.Event()

    def exchange() -> None:
        while not ended.wait(0.001):
            _libc.renameat2(-100, bytes(home / "away"), -100, bytes(home / "docs"), 2)

    attacker = threading.Thread(target=exchange)
    attacker.start()
    try:
        for _ in range(3):
            web1.backupd("restore", "web1", home / "docs", *overwrite, "--compare=metadata", "--to-host", check=False)
    finally:
        ended.set()
        attacker.join()
    assert list((srv / "etc").iterdir()) == []
    if (home / "docs").is_symlink():
        _libc.renameat2(-100, bytes(home / "away"), -100, bytes(home / "docs"), 2)
    web1.backupd("restore", "web1", home / "docs", "--overwrite=all", "--to-host")
    assert len(list((home / "docs").rglob("file*"))) == 200


def asked_for(nights: Nights, *words: str) -> str:
    """Returns the error of a preview of a restore to web1. A preview that runs for a minute is ended."""
    command = (sys.executable, "-m", "backupd", "--config", str(nights.config), "restore", "web1", str(nights.source), *words)
    with subprocess.Popen((*command, "--to-host"), cwd=TOP, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, output = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    assert (process.returncode, "Traceback" in output) == (1, False), output
    return output


def test_a_host_that_prints_items_without_end_is_not_listened_to_without_end(nights: Nights) -> None:
    write(nights.source / "file")
    nights.host("web1", nights.source)
    nights.run("web1")
    says = write(nights.top / "says", "".join(f">f+++++++++|1|invented{number}\n" for number in range(10_000)))
    nights.host("web1", nights.source, rsync_path=shlex.join([sys.executable, str(SAYER), "0", str(says), "rsync"]))
    assert "sends output without end, so btrkeep stopped reading" in asked_for(nights, "--dry-run")
    assert "sends output without end, so btrkeep stopped reading" in asked_for(nights)


@pytest.mark.parametrize(
    ("keys", "why"),
    [({"stall": "2s"}, "no progress for 2.0s"), ({"deadline": "2s"}, "comparing with the existing files takes longer than 2.0s")],
)
def test_a_host_that_says_nothing_is_not_waited_for_without_end(nights: Nights, keys: dict[str, str], why: str) -> None:
    write(nights.source / "file")
    nights.host("web1", nights.source)
    nights.run("web1")
    silent = write(nights.top / "silent", "#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    nights.host("web1", nights.source, rsync_path=str(silent), **keys)
    assert why in asked_for(nights, "--dry-run")


def test_many_names_may_all_be_told_of(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the largest allowed output."""
    monkeypatch.setattr(host_rsync, "_OUTPUT_LIMIT", 1000)
    for number in range(100):
        write(nights.source / ("folder" * 20) / f"file{number}\n")
    nights.host("web1", nights.source)
    nights.run("web1")
    before = manifest(nights.source)
    shutil.rmtree(nights.source / ("folder" * 20))
    done = within.within("--config", nights.config, "restore", "--json", "web1", nights.source, "--overwrite=all", "--to-host")
    assert (done.returncode, '"good": true' in done.stdout) == (0, True), done.stdout + done.stderr
    assert {name for name in before if b"file" in name} == {name for name in manifest(nights.source) if b"file" in name}
