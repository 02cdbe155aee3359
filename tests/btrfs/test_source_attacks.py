"""btrkeep-source against attackers who have the key, control the environment, or have an account on the host.

Each test checks the target of the attack, not a message. docs/restricted-keys.rst has the table.
"""

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from backupd.source import btrkeep_source as program
from tests.beds import work
from tests.beds.source_program import HIDDEN, PROGRAM, SourceHost
from tests.beds.ssh import Sshd
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.takes(30)]

SECRET = "of no allowed path"


@pytest.fixture
def tree(btrfs_mount: Path) -> Path:
    """srv may be read; secret may not, and links lead to it."""
    (btrfs_mount / "srv/user").mkdir(parents=True)
    (btrfs_mount / "secret").mkdir()
    (btrfs_mount / "secret/key").write_text(SECRET)
    (btrfs_mount / "srv/file").write_text("x")
    (btrfs_mount / "srv/user/out").symlink_to(btrfs_mount / "secret")
    (btrfs_mount / "srv/user/up").symlink_to("../../secret")
    return btrfs_mount


@pytest.fixture
def host(sshd: Sshd, tree: Path) -> SourceHost:
    return SourceHost(sshd, f"[paths]\nallow = {tree}/srv\n[restore]\nallow = {tree}/srv\n")


def has_secret(folder: Path) -> bool:
    return any(SECRET in path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_only_the_allowed_paths_are_read_and_no_link_leads_out(host: SourceHost, tree: Path, tmp_path: Path) -> None:
    answer = host.begin(tree / "srv")
    assert answer["paths"][0]["consistency"] == "snapshot"
    for name in (answer["session"], ""):
        fetched = host.fetch(name, tree / "srv", tmp_path / f"to-{name}")
        assert (fetched / "file").read_text() == "x"
        assert (fetched / "user/out").is_symlink()
        target = tmp_path / f"out-{name}"
        for path in ("srv/user/out", "srv/user/up", "secret", "srv/../secret", "srv/user/out/key", "srv/file/../../secret", ""):
            target.mkdir(exist_ok=True)
            # -L would be refused; what a server sends as the path itself is followed by rsync.
            assert work(*host.rsync_words(name, tree / path, target), check=False).returncode != 0, path
        words = f"--server --sender -r . {tree}/srv/./user/out/key"
        assert host.request(f"btrkeep-source rsync {name} {words}" if name else f"rsync {words}", check=False).returncode != 0
        assert not has_secret(target)
    for path in ("srv/user/out", "srv/user/up", "secret", "srv/../secret", "", "srv/user/out/key"):
        assert host.refusal(f"btrkeep-source begin {tree}/{path}")
    host.end(answer["session"])
    assert host.left(tree) == []


@pytest.mark.parametrize("is_live", [False, True], ids=["session", "live"])
def test_a_list_of_names_reads_only_allowed_paths(host: SourceHost, tree: Path, tmp_path: Path, is_live: bool) -> None:
    """The client sends the names as they are."""
    name = "" if is_live else host.begin(tree / "srv")["session"]
    key, listed = f"{tree}/secret/key", tmp_path / "names"
    names = f"../secret/key user/../../secret/key {key} /{key} ../../../../../../etc/passwd /etc/passwd user/out/key user/up/key"
    names += " user/out/ user/up/. user/./out/key user/up/../../secret/key file"
    listed.write_bytes(os.fsencode(names.replace(" ", "\0")))
    for options in ((), ("--no-implied-dirs",), ("--no-relative",), ("-r",)):
        target = tmp_path / "".join(("to", *options))
        work(*host.rsync_words(name, tree / "srv", target, f"--files-from={listed}", "--from0", *options), check=False)
        assert list(target.rglob("file"))
        assert (has_secret(target), list(target.rglob("passwd"))) == (False, []), options
    words = f"--server --sender -r --files-from={key} . {tree}/srv/"
    assert "not allowed" in host.refusal(f"btrkeep-source rsync {name} {words}" if name else f"rsync {words}")
    if name:
        host.end(name)


def test_a_session_reads_only_the_paths_that_it_was_begun_with(sshd: Sshd, tree: Path) -> None:
    host = SourceHost(sshd)
    name = host.begin(tree / "srv/user")["session"]
    refusal = host.refusal(f"btrkeep-source rsync {name} --server --sender -r . {tree}/secret/")
    assert "is not one of the allowed paths" in refusal
    host.end(name)


@pytest.mark.parametrize(
    "command",
    [
        "id >{out}",
        "sh -c 'id >{out}'",
        "rsync --server --sender -r . /etc; id >{out}",
        "rsync --server --sender -r . $(id >{out})",
        "rsync --server --sender -r . `id >{out}`",
        "rsync --server --sender -r . /etc | tee {out}",
        "rsync --server --sender -r --log-file={out} . /etc",
        "rsync --server --sender -r . /etc --log-file={out}",
        "rsync --server --sender -re.LsfxC --log-file {out} . /etc",
        "rsync --server --sender --write-batch={out} -r . /etc",
        "rsync --server --sender -e 'sh -c id>{out}' . /etc",
        "rsync --server --daemon --config={out} .",
        "rsync --server -r . {out}",
        "rsync --server --sender --server -r . {out}",
        "rsync --sender --server -r . /etc",
        "rsync --rsync-path='id >{out}' -r localhost:/etc {out}",
        "btrkeep-source begin '/etc; id >{out}'",
        "btrkeep-source begin /etc\nid >{out}",
        "btrkeep-source end 'x; id >{out}'",
        "btrkeep-source --config /dev/stdin check",
        "btrkeep-source --state {out} begin /etc",
        "btrkeep-source dump '; id >{out}' /etc/shadow",
        "btrkeep-source restore",
        "btrkeep-source clean",
        "",
    ],
)
def test_a_request_starts_and_writes_nothing(command: str, host: SourceHost, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = host.request(command.format(out=out), check=False)
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert not out.exists()


def test_the_key_opens_no_shell_and_forwards_nothing(host: SourceHost) -> None:
    assert "login is not allowed" in host.refusal("")
    forward = ("-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:9")
    assert work(*host.ssh(), *forward, host.sshd.address, "btrkeep-source check", check=False).returncode == 255


def test_the_environment_of_a_request_changes_nothing(host: SourceHost, tree: Path, tmp_path: Path) -> None:
    """sshd passes variables of the client where AcceptEnv lists them."""
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("rsync", "lvs", "sh", "zfs", "systemd-run", "python3"):
        (evil / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
        (evil / name).chmod(0o755)
    for name in ("json.py", "sitecustomize.py", "usercustomize.py"):
        (evil / name).write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    environment = {
        "PATH": f"{evil}:/usr/bin",
        "PYTHONPATH": str(evil),
        "PYTHONHOME": str(evil),
        "PYTHONSTARTUP": str(evil / "json.py"),
        "PYTHONUSERBASE": str(evil),
        "RSYNC_RSH": str(evil / "sh"),
        "RSYNC_ICONV": "utf-8",
        "RSYNC_OLD_ARGS": "1",
        "LC_ALL": "ja_JP.SJIS",
        "HOME": str(evil),
        "TMPDIR": str(evil),
        "SSH_ORIGINAL_COMMAND": f"btrkeep-source begin {tree}/srv",
    }
    done = work("env", *(f"{name}={value}" for name, value in environment.items()), *host.words(), cwd=evil)
    assert '"consistency": "snapshot"' in done.stdout
    listed = "rsync --server --sender -d --list-only . /"
    work(
        "env",
        *(f"{key}={value}" for key, value in environment.items()),
        f"SSH_ORIGINAL_COMMAND={listed}",
        *host.words(),
        check=False,
    )
    assert not (tmp_path / "was-run").exists()
    work(*host.words(), "end", done.stdout.split('"session": "')[1].split('"')[0])


def test_a_path_with_odd_bytes_is_read_as_it_is(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    host = SourceHost(sshd)
    folder = btrfs_mount / os.fsdecode(b"a b'c\"d$(id)`x`\\ \xc3\xa4\xff")
    folder.mkdir()
    (folder / "file").write_text("x")
    answer = host.begin(folder)
    assert answer["paths"][0]["path"] == str(folder)
    assert (host.fetch(answer["session"], folder, tmp_path / "to") / "file").read_text() == "x"
    host.end(answer["session"])


@pytest.mark.parametrize("kind", ["link", "folder of a user", "file"])
def test_a_user_who_made_the_folder_of_snapshots_gets_none_into_it(sshd: Sshd, btrfs_mount: Path, kind: str) -> None:
    host, elsewhere = SourceHost(sshd), btrfs_mount / "elsewhere"
    elsewhere.mkdir()
    match kind:
        case "link":
            (btrfs_mount / HIDDEN).symlink_to(elsewhere)
        case "file":
            (btrfs_mount / HIDDEN).touch()
        case _:
            (btrfs_mount / HIDDEN).mkdir()
            os.chown(btrfs_mount / HIDDEN, 1234, 1234)
    answer = host.begin(btrfs_mount)
    assert (answer["paths"][0]["consistency"], answer["filesystems"]) == ("live", [])
    assert answer["paths"][0]["reason"].startswith(f"{btrfs_mount}: ")
    host.end(answer["session"])
    assert list(elsewhere.iterdir()) == []


def test_a_replaced_snapshot_is_refused(sshd: Sshd, btrfs_mount: Path) -> None:
    """The owner of the top folder of a subvolume can rename the folder of its snapshots."""
    host = SourceHost(sshd)
    name = host.begin(btrfs_mount)["session"]
    (btrfs_mount / HIDDEN).rename(btrfs_mount / "away")
    (btrfs_mount / HIDDEN).mkdir()
    (btrfs_mount / HIDDEN / f"{name}.0").mkdir()
    words = f"btrkeep-source rsync {name} --server --sender -r . {btrfs_mount}/"
    assert "was replaced" in host.refusal(words)
    (btrfs_mount / HIDDEN / f"{name}.0").rmdir()
    (btrfs_mount / HIDDEN / f"{name}.0").symlink_to("/etc")
    assert "symlink" in host.refusal(words)
    (btrfs_mount / HIDDEN / f"{name}.0").unlink()
    (btrfs_mount / HIDDEN).rmdir()
    (btrfs_mount / "away").rename(btrfs_mount / HIDDEN)
    host.end(name)
    assert host.left(btrfs_mount) == []


@pytest.mark.parametrize("deep", [0, 20], ids=["beside", "deeper than any path"])
@pytest.mark.parametrize("has_record", [True, False], ids=["end", "after a reboot"])
def test_a_snapshot_is_removed_wherever_the_owner_of_the_top_hides_its_folder(
    sshd: Sshd, btrfs_mount: Path, deep: int, has_record: bool
) -> None:
    host = SourceHost(sshd)
    name = host.begin(btrfs_mount)["session"]
    script = "import os, sys\ntop = os.open('.', os.O_RDONLY)\n"
    script += f"for _ in range({deep}): os.mkdir('d' * 220); os.chdir('d' * 220)\n"
    script += "os.rename(sys.argv[1], 'away', src_dir_fd=top)"
    work(sys.executable, "-c", script, HIDDEN, cwd=btrfs_mount)
    listed = work("btrfs", "subvolume", "list", btrfs_mount, check=False)
    assert f"{name}.0" in listed.stdout or "File name too long" in listed.stderr
    if has_record:
        host.end(name)
    else:
        shutil.rmtree(host.state)
        host.end(host.begin(btrfs_mount)["session"])
    assert work("btrfs", "subvolume", "list", btrfs_mount).stdout == ""
    assert host.left(btrfs_mount) == []


def test_a_user_who_replaces_the_folder_of_snapshots_by_a_link_stops_no_later_session(sshd: Sshd, btrfs_mount: Path) -> None:
    """Each session that cannot be removed counts against `most`."""
    host = SourceHost(sshd)
    for night in range(3):
        host.begin(btrfs_mount)
        if not (btrfs_mount / HIDDEN).is_symlink():
            (btrfs_mount / HIDDEN).rename(btrfs_mount / f"away{night}")
            (btrfs_mount / HIDDEN).symlink_to("/etc")
    (btrfs_mount / HIDDEN).unlink()
    host.end(host.begin(btrfs_mount)["session"])
    assert host.left(btrfs_mount) == []


def test_root_deletes_no_subvolume_from_a_folder_that_a_user_made(sshd: Sshd, btrfs_mount: Path) -> None:
    """Only root can delete a read-only snapshot of root's. A user who owns the folder can rename it to a name of ours."""
    host = SourceHost(sshd)
    work("btrfs", "-q", "subvolume", "create", btrfs_mount / "data")
    (btrfs_mount / HIDDEN).mkdir()
    os.chown(btrfs_mount / HIDDEN, 1234, 1234)
    kept = btrfs_mount / HIDDEN / "office-20260101T000000Z-aaaaaa.0"
    work("btrfs", "-q", "subvolume", "snapshot", "-r", btrfs_mount / "data", kept)
    host.end(host.begin(btrfs_mount)["session"])
    work(*host.words(), "clean")
    assert kept.is_dir()


def test_a_name_with_an_impossible_time_does_not_stop_the_timer(sshd: Sshd, btrfs_mount: Path) -> None:
    host = SourceHost(sshd)
    (btrfs_mount / HIDDEN).mkdir(0o700)
    (btrfs_mount / HIDDEN / "office-99999999T999999Z-aaaaaa.0").mkdir()
    assert work(*host.words(), "clean").stdout == '{"format": 1, "removed": 0}\n'


def test_a_subvolume_deeper_than_any_path_does_not_make_the_filesystem_live(sshd: Sshd, btrfs_mount: Path) -> None:
    """Any user can make one; the kernel does not return its path."""
    host = SourceHost(sshd)
    script = "import os\nfor _ in range(20): os.mkdir('d' * 220); os.chdir('d' * 220)\n"
    script += "os.execvp('btrfs', ['btrfs', '-q', 'subvolume', 'create', 'deep'])"
    work(sys.executable, "-c", script, cwd=btrfs_mount)
    answer = host.begin(btrfs_mount)
    assert answer["paths"][0]["consistency"] == "snapshot", answer
    host.end(answer["session"])


RENAMES = """
import os, sys
while True:
    for number in range(20):
        for names in (("a", "b"), ("b", "a")):
            os.rename(*(f"{sys.argv[1]}/{name}{number}" for name in names))
"""


def test_a_user_who_renames_subvolumes_all_the_time_stops_no_transfer(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    host = SourceHost(sshd)
    (btrfs_mount / "file").write_text("x")
    for number in range(20):
        work("btrfs", "-q", "subvolume", "create", btrfs_mount / f"a{number}")
    with subprocess.Popen([sys.executable, "-c", RENAMES, btrfs_mount]) as user:
        try:
            for night in range(6):
                answer = host.begin(btrfs_mount)
                assert str(btrfs_mount) in [each["mount"] for each in answer["filesystems"]], "the whole filesystem was read live"
                assert (host.fetch(answer["session"], btrfs_mount, tmp_path / str(night)) / "file").read_text() == "x"
                host.end(answer["session"])
            assert user.poll() is None
        finally:
            user.kill()
    assert host.left(btrfs_mount) == []


def test_a_moved_subvolume_is_live_in_the_answer(btrfs_mount: Path) -> None:
    """The outer snapshot has no folder for it."""
    for name in ("kept", "moved"):
        work("btrfs", "-q", "subvolume", "create", btrfs_mount / name)
    mounts, paths = program.read_mounts(), [str(btrfs_mount)]
    plan = program.make_plan(mounts, paths, program.SourceConfig(), "office-20261130T092400Z-1a2b3c")
    (btrfs_mount / "moved").rename(btrfs_mount / "away")
    outer, *nested = plan.pieces.values()
    program.take_btrfs(outer)
    (btrfs_mount / "away").rename(btrfs_mount / "moved")
    for piece in nested:
        program.take_btrfs(piece)
    program.drop_moved(plan)
    for piece in (outer, *nested):
        program.remove_btrfs(piece)
    answer = program.consistency(plan, mounts, paths[0])
    assert answer["consistency"] == "live"
    assert answer["reason"] == f"{btrfs_mount}/moved: it was renamed or deleted while the snapshots were taken"


# --- dumps, with a user who can change the folder


@pytest.fixture
def app(btrfs_mount: Path) -> Path:
    """A user's folder, and root's beside it."""
    app = btrfs_mount / "app"
    app.mkdir()
    os.chown(app, 1234, 1234)
    (btrfs_mount / "root").mkdir(0o700)
    return app


@pytest.mark.parametrize("command", ["echo '* * * * * root id'", "sqlite {0}/root/app.db"])
def test_no_dump_goes_through_a_folder_that_a_user_can_change(sshd: Sshd, app: Path, command: str) -> None:
    """With a link to /etc/cron.d, a line of the user would get there; the folder of a copy of SQLite is the user's for a moment."""
    (app / "dumps").symlink_to(app.parent / "root")
    for output in (app / "dumps/nightly", app / "nightly", app / "new/nightly"):
        host = SourceHost(sshd, f"[dump app]\ncommand = {command.format(app.parent)}\noutput = {output}\n")
        with closing(sqlite3.connect(app.parent / "root/app.db")) as database:
            database.executescript("CREATE TABLE IF NOT EXISTS entry (text TEXT)")
        answer = host.begin(app.parent)
        host.end(answer["session"])
        assert answer["dumps"][0]["status"] == 1
        assert "another user can change" in answer["dumps"][0]["error"]
    assert [path.name for path in (app.parent / "root").iterdir()] == ["app.db"]
    assert [path.name for path in app.iterdir()] == ["dumps"]


def test_no_user_gets_roots_database_or_roots_rights_by_a_link(sshd: Sshd, app: Path) -> None:
    """It would be opened as root, and so would a database of his with a prepared journal in its place."""
    with closing(sqlite3.connect(app.parent / "root/key.db")) as database:
        database.executescript("CREATE TABLE entry (text TEXT)")
    (app / "app.db").symlink_to(app.parent / "root/key.db")
    host = SourceHost(sshd, f"[dump app]\ncommand = sqlite {app}/app.db\noutput = {app.parent}/root/dump\n")
    answer = host.begin(app.parent)
    host.end(answer["session"])
    assert answer["dumps"][0]["status"] == 1
    assert not (app.parent / "root/dump").exists()


def test_a_request_with_very_many_paths_is_refused(host: SourceHost) -> None:
    """Each of them costs time for each mount, while other servers wait."""
    words = " ".join(f"/{number}" for number in range(2001))
    assert "2000 paths" in host.refusal(f"btrkeep-source check {words}")


# --- a key for restores


def push(host: SourceHost, source: Path, target: Path | str, *options: str) -> int:
    words = ("rsync", "-aHAX", "--numeric-ids", *options, "-e", shlex.join(host.ssh(mode="restore")))
    return work(*words, source, f"{host.sshd.address}:{target}", check=False).returncode


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "backup"
    source.mkdir()
    (source / "file").write_text("restored")
    os.chown(source / "file", 1234, 2345)
    return source


def test_a_restore_writes_below_its_folders_and_nowhere_else(host: SourceHost, tree: Path, source: Path) -> None:
    assert push(host, source, f"{tree}/srv/") == 0
    restored = tree / "srv/backup/file"
    assert (restored.read_text(), restored.stat().st_uid, restored.stat().st_gid) == ("restored", 1234, 2345)
    for target in (f"{tree}/secret/", f"{tree}/srv/../secret/", f"{tree}/srv/user/out/", f"{tree}/", "/etc/", "/tmp/"):
        assert push(host, source, target) != 0, target
    assert push(host, source / "file", f"{tree}/srv/user/out/key") != 0
    assert sorted(path.name for path in (tree / "secret").iterdir()) == ["key"]
    assert (tree / "secret/key").read_text() == SECRET
    assert not os.path.lexists("/etc/backup")
    assert not os.path.lexists(tree / "backup")


def test_a_restore_deletes_nothing_and_uses_no_other_folder(host: SourceHost, tree: Path, source: Path) -> None:
    for option in ("--delete", "--backup", "--temp-dir=/tmp", "--link-dest=/etc", "--keep-dirlinks"):
        assert push(host, source, f"{tree}/srv/", option) != 0, option
    assert (tree / "srv/file").exists()
    assert not (tree / "srv/backup").exists()


def test_a_restore_key_reads_nothing(host: SourceHost, tree: Path, tmp_path: Path) -> None:
    for command in (f"rsync --server --sender -r . {tree}/srv/", f"btrkeep-source begin {tree}/srv", "btrkeep-source check", "id"):
        assert host.refusal(command, mode="restore")
    assert host.refusal(f"rsync --server -r . {tree}/srv/"), "the key for backups does not write"


def test_a_restore_brings_no_setuid_no_capability_no_device_and_no_link_that_leads_out(
    host: SourceHost, tree: Path, source: Path
) -> None:
    for name in ("setuid", "setgid", "capable"):
        (source / name).write_text("x")
    (source / "setuid").chmod(0o4755)
    (source / "setgid").chmod(0o2755)
    work("setcap", "cap_setuid+ep", source / "capable")
    os.mknod(source / "device", 0o20666, os.makedev(1, 1))
    (source / "out").symlink_to("/etc/passwd")
    (source / "within").symlink_to("file")
    assert push(host, source, f"{tree}/srv/") == 23
    restored = tree / "srv/backup"
    assert [oct(os.lstat(restored / name).st_mode)[-4:] for name in ("setuid", "setgid")] == ["0755", "0755"]
    assert not os.path.lexists(restored / "device")
    assert "security.capability" not in os.listxattr(restored / "capable") if (restored / "capable").exists() else True
    assert not os.path.lexists(restored / "out")
    assert str((restored / "within").readlink()) == "file"
    assert (restored / "file").read_text() == "restored"


@pytest.mark.parametrize("options", [("--no-acls", "--no-perms"), ("--no-acls", "--no-perms", "--inplace"), ("--inplace",)])
def test_a_restore_does_not_change_a_setuid_program_that_stays_one(
    host: SourceHost, tree: Path, source: Path, options: tuple[str, ...]
) -> None:
    program_of_root = tree / "srv/backup/file"
    program_of_root.parent.mkdir()
    program_of_root.write_text("a program")
    program_of_root.chmod(0o6755)
    push(host, source, f"{tree}/srv/", *options)
    assert program_of_root.read_text() == "restored"
    assert program_of_root.stat().st_mode & 0o6000 == 0


def test_a_restore_that_breaks_off_leaves_no_setuid_program_with_other_content(host: SourceHost, tree: Path, source: Path) -> None:
    """--inplace writes into the file itself, long before the mode is set."""
    program_of_root = tree / "srv/backup/file"
    program_of_root.parent.mkdir()
    program_of_root.write_text("a program")
    program_of_root.chmod(0o6755)
    (source / "file").write_bytes(os.urandom(8 << 20))
    words = ("rsync", "-a", "--inplace", "--whole-file", "--bwlimit=500", "-e", shlex.join(host.ssh(mode="restore")))
    with subprocess.Popen([*words, source, f"{host.sshd.address}:{tree}/srv/"]) as push_of_attacker:
        wait_for(lambda: program_of_root.stat().st_size > 100_000)
        push_of_attacker.kill()
    assert program_of_root.stat().st_mode & 0o4000 == 0


def test_what_the_administrator_allows_is_restored(sshd: Sshd, tree: Path, source: Path) -> None:
    host = SourceHost(sshd, f"[restore]\nallow = {tree}/srv\nsetuid = yes\ndevices = yes\nlinks = yes\n")
    (source / "file").chmod(0o4755)
    os.mknod(source / "device", 0o20666, os.makedev(1, 3))
    (source / "out").symlink_to("/etc/passwd")
    assert push(host, source, f"{tree}/srv/") == 0
    restored = tree / "srv/backup"
    assert oct((restored / "file").stat().st_mode)[-4:] == "4755"
    assert (restored / "device").stat().st_rdev == os.makedev(1, 3)
    assert str((restored / "out").readlink()) == "/etc/passwd"


def test_without_a_folder_for_restores_there_are_none(sshd: Sshd, tree: Path, source: Path) -> None:
    host = SourceHost(sshd)
    assert "restores are not allowed" in host.refusal(f"rsync --server -r . {tree}/srv/", mode="restore")


def test_the_program_is_a_file_that_runs_by_itself(tmp_path: Path) -> None:
    copy = tmp_path / "btrkeep-source"
    copy.write_bytes(PROGRAM.read_bytes())
    copy.chmod(0o755)
    done = work(copy, "--help", env={"SSH_ORIGINAL_COMMAND": "id"})
    assert "--server NAME" in done.stdout
