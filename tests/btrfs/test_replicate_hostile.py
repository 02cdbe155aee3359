"""A second server with a stolen key, and a compromised first one: what they can read and write, and the report of `check`."""

import json
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from backupd.replicate.naming import ExpectedBackup, NotReceived, require_whole
from backupd.repo.backup_json import Record
from backupd.repo.backup_json import write as write_record
from backupd.repo.common_backups import common_with, copied_to, write_common, write_copied
from btrkeep import __version__
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import open_pool
from btrkeep.pool.subvolume import create, set_received
from tests.beds import TOP, work
from tests.beds.deep import deepen
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd
from tests.beds.two_pools import TwoPools, shown
from tests.beds.walls import with_own_mounts

pytestmark = pytest.mark.btrfs


def test_a_key_that_has_a_name_and_hosts_gets_no_others(two: TwoPools) -> None:
    """It only protects its own backups from expiry, and does not see other hosts."""
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.first.host("db1", two.source)
    two.first.backupd("run", "db1", "--now", "2026-03-01T22:00:00Z")
    two.over_ssh('exec "$@" --replica backup2 --host "web*"')
    assert [(fetched_backup["host"], fetched_backup["backup"]) for fetched_backup in two.fetch()[0]["fetched"]] == [("web1", first)]
    common = two.first.pool / ".btrkeep/common"
    assert [path.name for path in common.iterdir()] == ["backup2.json"]
    assert json.loads((common / "backup2.json").read_text())["hosts"] == {"web1": first}
    answers = [
        sys.executable,
        "-m",
        "backupd",
        "--config",
        str(two.first.config),
        "send-only",
        "--replica",
        "backup2",
        "--host",
        "web*",
    ]
    hidden = two.names(two.first.pool, "db1")[0]
    uuid = json.loads((two.first.pool / "hosts/db1" / hidden / "backup.json").read_text())["uuid"]
    asked = [
        {"verb": "send", "host": "db1", "name": hidden, "uuid": uuid},
        {"verb": "common", "fetch": None, "replica": "other", "hosts": {"web1": first}, "copied": {"web1": ["../../etc"]}},
        {
            "verb": "common",
            "fetch": None,
            "replica": "other",
            "hosts": {"db1": first, "web1": first},
            "copied": {"db1": [first], "web1": [first]},
        },
    ]
    output = work(*answers, input="".join(f"{json.dumps(row)}\n" for row in asked)).stdout
    assert "there is no such host" in output
    assert "the list of backups is invalid" in output
    for folder, names in ((common, first), (common.with_name("copied"), [first])):
        assert [path.name for path in folder.iterdir()] == ["backup2.json"]
        assert json.loads((folder / "backup2.json").read_text())["hosts"] == {"web1": names}


def test_a_key_of_some_hosts_takes_away_nothing_that_a_replica_has_of_others(nights: Nights) -> None:
    """Without a name of its own it names any replica."""
    pool, name = open_pool(nights.pool), "2026-03-01T220000Z"
    write_common(pool, "backup2", {"web1": name, "db1": name})
    write_copied(pool, "backup2", {"web1": [name], "db1": [name]})
    asked = {"verb": "common", "fetch": None, "replica": "backup2", "hosts": {"db1": "2026-03-02T220000Z"}, "copied": {}}
    words = [sys.executable, "-m", "backupd", "--config", str(nights.config), "send-only", "--host", "web*"]
    work(*words, input=f"{json.dumps(asked)}\n")
    assert common_with(pool, "backup2") == {"db1": name}
    assert copied_to(pool, "backup2") == {"db1": [name]}


def of_replicas(nights: Nights, *words: str) -> list[tuple[str, str]]:
    """Returns level and text of the findings of `check` about replicas."""
    answer = json.loads(nights.backupd("check", "--json", *words, check=False).stdout)
    return [(row["level"], row["message"]) for row in answer if row["subject"].startswith("replica")]


def test_a_key_without_a_name_of_its_own_names_a_hundred_replicas_and_no_more(nights: Nights) -> None:
    """Each of them keeps a backup from being deleted, and has a file in the pool."""
    pool, name = open_pool(nights.pool), "2026-03-01T220000Z"
    for number in range(100):
        write_common(pool, f"backup{number}", {"web1": name})
    with pytest.raises(OperatorError, match="100 replicas already"):
        write_common(pool, "backup100", {"web1": name})
    write_common(pool, "backup7", {"web1": "2026-03-02T220000Z"})
    assert common_with(pool, "backup7") == {"web1": "2026-03-02T220000Z"}
    assert len(list((pool.path / ".btrkeep/common").iterdir())) == 100


def test_check_says_how_a_copy_is_doing_and_whether_the_key_runs_anything_else_there(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.second.tables.pop("host.web1", None)
    assert of_replicas(two.second) == [("note", "never fetched")]
    two.over_ssh('exec "$@"')
    two.fetch()
    ((level, text),) = of_replicas(two.second)  # on the true day
    assert level == "warning"
    assert text.startswith("not fetched for")
    answered = of_replicas(two.second, "--connect")[-1]
    assert answered[0] == "ok"
    assert re.fullmatch(
        rf"reached, btrkeep {re.escape(__version__)}, 1 host to fetch, [\d.]+ [KMG]iB used there, [\d.]+ [MG]iB free there",
        answered[1],
    )
    two.over_ssh('exec "$@"')
    file = two.second.top / "ssh"
    file.write_text(file.read_text().replace("cd ", 'last="${@: -1}"; [[ $last != echo* ]] || exec bash -c "$last"\ncd ', 1))
    assert of_replicas(two.second, "--connect")[-1][0] == "warning"
    assert "can run any command" in of_replicas(two.second, "--connect")[-1][1]
    two.over_ssh("echo 'Permission denied (publickey).' >&2; exit 255")
    assert of_replicas(two.second, "--connect")[-1] == ("error", "Permission denied (publickey).")


def test_check_says_that_a_copy_on_the_same_filesystem_is_none(two: TwoPools) -> None:
    (two.second.top / "beside").mkdir()
    beside = Nights(two.second.top / "beside", "--rehearsal")
    two.second.tables["replica.office"]["from"] = str(beside.pool)
    two.second.write()
    text = f"{beside.pool} is on the same filesystem as this pool: if that is lost, the copy is lost too"
    assert ("warning", text) in of_replicas(two.second)


AIMED = ("through-a-symlink", "through-a-folder", "above", "absolute", "moved-out", "hard-link")
OTHERS = ("nested", "clone", "another-record", "no-record", "bad-host", "bad-name")


def test_a_server_that_was_taken_over_writes_nothing_but_what_is_thrown_away(two: TwoPools, tmp_path: Path) -> None:
    """Its targets: a file of this machine, this host's notes, and another host's folder."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    other, notes = two.second.pool / "hosts/other", two.second.pool / "hosts/web1/notes.json"
    other.mkdir()
    before = everything(two.second.pool)
    targets = (str(victim), "../notes.json", "../../other/taken")
    for attack, target in (*((attack, target) for attack in AIMED for target in targets), *((attack, "x") for attack in OTHERS)):
        two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool {attack} {shlex.quote(target)}")
        two.fetch(status=1)
        assert victim.read_text() == "mine", attack
        assert [path.name for path in tmp_path.iterdir()] == ["victim"], attack
        new = {path for path in everything(two.second.pool) - before if not path.startswith(".btrkeep/")}
        assert new <= {"hosts/web1", "hosts/web1/notes.json"}, attack
        if notes.exists():  # nothing arrived, so it is not a copy
            assert json.loads(notes.read_text())["backups"] == {}, attack
            assert "replica" not in json.loads(notes.read_text()), attack


@pytest.mark.parametrize("target", ["../.trash", "stolen"])
def test_a_server_that_was_taken_over_cannot_rename_what_came_before(two: TwoPools, target: str) -> None:
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool device x")
    two.fetch()
    before = everything(two.second.pool)
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool renamed-away {target}")
    two.fetch(status=1)
    assert everything(two.second.pool) == before


def everything(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="left out: numbers of system calls (they are of x86-64)")
def test_a_receive_that_was_taken_over_makes_no_call_that_it_does_not_need(two: TwoPools) -> None:
    """A program that replaces `btrfs` in the cell: every other system call and ioctl is refused, and no files are visible."""
    two.night("2026-03-01T22:00:00Z", "a")
    program = two.second.top / "btrfs"
    shutil.copyfile(TOP / "tests/beds/taken_over_receive.py", program)
    program.chmod(0o755)
    words = ("--config", two.second.config, "replicate", "--json", "--now", "2026-03-20T12:00:00Z")
    mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
    btrfs = shutil.which("btrfs")
    assert btrfs
    line = with_own_mounts("sh", "-c", mounted, program, Path(btrfs).resolve(), sys.executable, "-m", "backupd", *words)
    done = work(*line, check=False, cwd=TOP)
    (failed,) = json.loads(done.stdout)[0]["failed"]
    tried, could, saw = json.loads(failed["error"].removeprefix("btrfs receive: "))
    assert tried == 40
    assert could == []
    assert saw == []


def test_by_ssh_the_key_lists_and_sends_and_does_nothing_else(two: TwoPools, sshd: Sshd) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    words = [sys.executable, "-m", "backupd", "--config", str(two.first.config), "send-only"]
    answers = f"cd {shlex.quote(str(TOP))} && {shlex.join(words)}"
    key = sshd.authorize(f'restrict,command="{answers}"')
    two.second.settings("ssh", command="ssh", key=str(key), known_hosts=str(sshd.known_hosts))
    two.second.tables["replica.office"] |= {"from": f"ssh://{sshd.address}", "port": sshd.port}
    two.second.write()
    assert [fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]] == [first]
    assert two.differences(first) == ""
    asked = [
        "cat /etc/passwd",
        json.dumps({"verb": "send", "host": "../..", "name": "etc", "uuid": "x"}),
        json.dumps({"verb": "delete"}),
    ]
    sending = "rsync --server --sender -logDtprXe.iLsfxCIvu . /etc/passwd"
    for line, command in [*((line, "cat /etc/passwd") for line in asked), (asked[0], sending)]:
        process = work(*sshd.ssh(key), sshd.address, command, input=line + "\n", check=False)
        assert "root:" not in process.stdout
        assert "error" in process.stdout
    assert two.names(two.first.pool) == [first]


def test_a_difference_to_another_backup_than_the_one_that_was_named_is_refused(two: TwoPools) -> None:
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool device x")
    two.fetch()
    before = everything(two.second.pool)
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool wrong-parent x")
    (failed,) = two.fetch(status=1)[0]["failed"]
    assert "difference to another subvolume" in failed["error"]
    assert everything(two.second.pool) == before


def test_a_received_copy_is_the_backup_that_was_expected_or_is_refused(shared_btrfs: Path) -> None:
    """A stream has the mark of the promised backup, but contains the record of another one."""
    expected = ExpectedBackup("web1", "2026-03-01T220000Z", str(uuid4()))
    path = shared_btrfs / "hosts/web1/.receiving" / expected.name
    path.parent.mkdir(parents=True)
    create(path)
    with pytest.raises(NotReceived, match="the received copy is incomplete"):  # without a mark
        require_whole(path, expected)
    set_received(path, str(uuid4()))
    with pytest.raises(NotReceived, match="the received copy is incomplete"):
        require_whole(path, expected)
    set_received(path, expected.uuid)
    with pytest.raises(NotReceived, match="describes another backup"):  # it has no record
        require_whole(path, expected)
    right = Record("web1", expected.uuid, "complete", datetime(2026, 3, 1, 22, tzinfo=UTC), name=expected.name)
    for wrong in ({"uuid": str(uuid4())}, {"name": "2026-03-02T220000Z"}, {"state": "running", "name": None}):
        write_record(path, replace(right, **wrong))
        with pytest.raises(NotReceived, match="describes another backup"):
            require_whole(path, expected)
    write_record(path, replace(right, host="db1"))
    with pytest.raises(NotReceived, match="names the host 'db1'"):
        require_whole(path, expected)
    (path.parent.parent / "notes.json").write_text('{"format": 1, "backups": {}, "was": ["db1"]}')
    assert require_whole(path, expected).host == "db1", "the host was renamed"
    write_record(path, right)
    assert require_whole(path, expected) == right


def test_a_stream_without_an_end_is_stopped_and_the_earlier_copy_stays(make_btrfs: Callable[..., Path]) -> None:
    """It writes to the same place again and again, so that the pool does not become full. The filesystem has 300 MB."""
    two = TwoPools(make_btrfs(size="1G"), make_btrfs(size="300M"))
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool device x")
    two.fetch()
    before = everything(two.second.pool)
    copy = two.second.pool / "hosts/web1/2026-03-01T220000Z"
    was = (shown(copy), work("sha256sum", copy / "backup.json").stdout)
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool endless x")
    (failed,) = two.fetch(status=1)[0]["failed"]
    assert failed["host"] == "web1"
    assert "more than the limit of" in failed["error"]
    assert everything(two.second.pool) == before
    assert (shown(copy), work("sha256sum", copy / "backup.json").stdout) == was


def test_what_one_server_leaves_does_not_keep_another_ones_backups_from_coming(two: TwoPools) -> None:
    """Nested folders beside the backup; and then an entry that cannot be removed: a subvolume in them."""
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.first.host("db1", two.source)
    two.first.backupd("run", "db1", "--now", "2026-03-01T22:00:00Z")
    left, genuine = two.second.pool / "hosts/web1/.receiving", dict(two.second.tables["replica.office"])
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool deep x")
    assert [failure["host"] for failure in two.fetch(status=1)[0]["failed"]] == ["web1"]
    assert not left.exists()
    shutil.rmtree(left.parent)  # it is noted as the hostile server's
    two.second.tables["replica.office"] = genuine
    two.second.write()
    (left / "x/d").mkdir(parents=True)
    deepen(left / "x/d", 1200)
    work("btrfs", "subvolume", "create", left / "x/of-somebody")
    (left / "x/of-somebody/stays").write_text("stays")
    answer = two.fetch(status=1)[0]
    assert [(failure["host"], len(failure)) for failure in answer["failed"]] == [("web1", 2)], answer
    assert [fetched_backup["host"] for fetched_backup in answer["fetched"]] == ["db1"]
    work("btrfs", "subvolume", "delete", left / "x/of-somebody")
    assert [(fetched_backup["host"], fetched_backup["backup"]) for fetched_backup in two.fetch()[0]["fetched"]] == [("web1", first)]
    assert not left.exists()


def test_without_a_cell_nothing_is_received_from_a_folder_either_unless_configured(two: TwoPools) -> None:
    """On a manipulated disk, names lead out of the folder, and the kernel sends them."""
    first, folder = two.night("2026-03-01T22:00:00Z", "a"), two.second.top / "bin"
    folder.mkdir()
    for name in ("rsync", "bash", "sh", "env", "btrfs", "mount", "umount"):
        if program := shutil.which(name):
            (folder / name).symlink_to(program)
    env = {"PATH": f"{folder}:{Path(sys.executable).parent}"}
    words = ("replicate", "--json", "--now", "2026-03-20T12:00:00Z")
    done = two.second.backupd(*words, check=False, env=env)
    assert (done.returncode, "bubblewrap is not installed" in done.stderr) == (1, True)
    assert not (two.second.pool / "hosts" / "web1").exists()
    two.second.tables.setdefault("backup", {})["confine"] = "never"
    two.second.write()
    two.second.backupd(*words, env=env)
    assert two.second.names("web1") == [first]
