"""`backupd verify --against-source` with a real rsync and a real ssh server, compared with sha256sum and the catalogue file."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.proof.against_source import in_slice, slices_of
from backupd.rsync.cell import confined_command
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.source_program import SourceHost
from tests.beds.ssh import Sshd
from tests.beds.watch import ended, rows, wait_for

pytestmark = [pytest.mark.btrfs]


def compared(nights: Nights, *words: str, status: int = 0) -> dict[str, Any]:
    done = nights.backupd("verify", "--against-source", *words, "--json", check=False)
    assert done.returncode == status, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def overwrite(path: Path, content: bytes) -> None:
    """Overwrites a file and restores its time."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.slow
def test_what_differs_though_nothing_moved_is_named_and_fetched_again(shared_btrfs: Path, tree: Path, sshd: Sshd) -> None:
    """With the restricted key that the documentation recommends. A file that was changed on the host since the backup is not
    damaged.
    """
    nights = Nights(shared_btrfs)
    odd = [os.fsdecode(name) for name in (b"caf\xe9\nx", b"-n", b"#hash", b"\\#012", b"a|b [*]?", b" ")]
    for name in (*odd, "touched", "changed", "grown", "gone", "folder", "symlink", "kept"):
        (tree / name).write_bytes(b"as it was" + os.fsencode(name))
    (tree / "below").mkdir()
    (tree / "below" / "deep").write_bytes(b"deep")
    nights.settings(
        "ssh", command="ssh -F none", key=str(sshd.authorize('restrict,command="rrsync -ro /"')), known_hosts=str(sshd.known_hosts)
    )
    nights.host("web", tree, address=sshd.address, port=sshd.port)
    nights.run("web")
    (first,) = nights.names("web")
    (answer,) = compared(nights, "web")["hosts"]
    assert (answer["name"], answer["files"], answer["alike"], answer["is_whole"]) == (first, 14, 14, True)
    for name in odd:
        overwrite(tree / name, b"is other" + b"." + os.fsencode(name))
    overwrite(tree / "below" / "deep", b"peed")
    os.utime(tree / "touched")
    (tree / "changed").write_bytes(b"is other.changed")
    overwrite(tree / "grown", b"is longer than it was")
    for name in ("gone", "folder", "symlink"):
        (tree / name).unlink()
    (tree / "folder").mkdir()
    (tree / "symlink").symlink_to("kept")
    (answer,) = compared(nights, "web", status=1)["hosts"]
    expected = sorted([*(f"{tree}/{name}" for name in odd), f"{tree}/below/deep"], key=os.fsencode)
    assert answer["differs"] == expected
    assert (answer["files"], answer["alike"], answer["changed"]) == (14, 2, 5)
    assert rows(nights, "select name, found_by, count(*) from damage group by name, found_by") == [(first, "source", 7)]
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    second = nights.names("web")[1]
    (answer,) = compared(nights, "web")["hosts"]
    assert (answer["name"], answer["alike"], answer["differing"]) == (second, answer["files"], 0)
    assert all(name == first for (name,) in rows(nights, "select name from damage"))


def test_a_host_is_logged_in_to_once_however_much_is_compared(shared_btrfs: Path, tree: Path, sshd: Sshd) -> None:
    nights, paths = Nights(shared_btrfs), (tree / "a", tree / "b")
    for path in paths:
        path.mkdir()
        for number in range(300):  # more than one rsync compares
            (path / str(number)).write_bytes(b"as it was")
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web", *paths, address=sshd.address, port=sshd.port)
    nights.run("web")
    before = sshd.log.count("Accepted publickey")
    (answer,) = compared(nights, "web")["hosts"]
    assert (answer["files"], answer["alike"], answer["is_whole"]) == (600, 600, True)
    assert sshd.log.count("Accepted publickey") - before == 1


@pytest.mark.slow
@pytest.mark.root
def test_a_host_with_btrkeep_source_is_compared_also_if_only_some_paths_are_allowed(
    shared_btrfs: Path, tree: Path, sshd: Sshd
) -> None:
    nights, program = Nights(shared_btrfs), SourceHost(sshd, f"[paths]\nallow = {tree}\n")
    (tree / "below").mkdir()
    for name in ("file", "below/deep"):
        (tree / name).write_bytes(b"as it was")
    program.ssh()
    nights.settings("ssh", command="ssh -F none", key=str(program.keys["office"]), known_hosts=str(sshd.known_hosts))
    nights.host("web", tree, address=sshd.address, port=sshd.port, snapshots="auto")
    nights.run("web")
    overwrite(tree / "below/deep", b"is other.")
    (answer,) = compared(nights, "web", status=1)["hosts"]
    assert (answer["alike"], answer["differs"]) == (1, [f"{tree}/below/deep"])
    program.config.write_text("[paths]\nallow = /nowhere\n")
    failed = nights.backupd("verify", "--against-source", "web", check=False)
    assert (failed.returncode, "not one of the allowed paths; change allow" in failed.stderr) == (1, True)
    older = "echo btrkeep-source: the rsync option --files-from=- is not allowed >&2; exit 1"
    nights.settings("ssh", key=str(sshd.authorize(f'restrict,command="{older}"')))
    failed = nights.backupd("verify", "--against-source", "web", check=False)
    assert (failed.returncode, "update btrkeep-source on the host" in failed.stderr) == (1, True)


@pytest.mark.slow
def test_a_bit_that_flipped_behind_the_filesystem_is_found(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M", options="nodatasum"))
    content = os.urandom(1 << 20)
    (tree / "database").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    damage(nights.top, content[4096:8192])
    (answer,) = compared(nights, "web", status=1)["hosts"]
    assert answer["differs"] == [f"{tree}/database"]
    output = nights.backupd("verify", "--against-source", "web", check=False).stdout
    assert "database" in output
    assert "the next run fetches them" in output
    nights.run("web")
    assert nights.differences("web", tree) == []


@pytest.mark.parametrize("way", ["unreachable", "babbles", "ends"])
def test_of_a_host_that_fails_nothing_is_recorded(shared_btrfs: Path, tree: Path, way: str) -> None:
    nights = Nights(shared_btrfs)
    for number in range(50):
        (tree / str(number)).write_bytes(b"as it was")
    nights.host("web", tree)
    nights.run("web")
    for number in range(50):
        overwrite(tree / str(number), b"is other.")
    if way == "ends":
        nights.in_the_middle(2000, end="dies")
    else:
        nights.settings("ssh", command={"unreachable": "false", "babbles": "sh -c 'yes' --"}[way])
    done = nights.backupd("verify", "--against-source", "web", check=False)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    assert "web" in done.stderr
    assert rows(nights, "select count(*) from damage") == [(0,)]
    assert not (nights.pool / "hosts/web/compared.json").exists()
    if way == "unreachable":  # the report shows that it was never reached
        for number in range(2):
            assert not nights.backupd("status", "--json", check=False).stdout.count("comparison with the host"), number
            time.sleep(1)  # attempts are identified by the second
            nights.backupd("verify", "--against-source", "web", check=False)
        (repeated,) = json.loads(nights.backupd("status", "--json", check=False).stdout)["repeated"]
        assert (repeated["step"], repeated["name"], repeated["times"]) == ("comparison with the host", "web", 3)
        nights.ssh("")
        nights.backupd("verify", "--against-source", "web", check=False)
        assert json.loads(nights.backupd("status", "--json", check=False).stdout)["repeated"] == []


@pytest.mark.slow
def test_five_slices_of_a_fifth_meet_each_file_once(shared_btrfs: Path, tree: Path) -> None:
    nights = Nights(shared_btrfs)
    for number in range(60):
        (tree / str(number)).write_bytes(b"as it was")
    nights.host("web", tree)
    nights.run("web")
    for number in range(60):
        overwrite(tree / str(number), b"is other.")
    met: list[str] = []
    for _ in range(5):
        for host in compared(nights, "web", "--sample", "20%", status=1)["hosts"]:
            met += host["differs"]
    assert sorted(met) == sorted(str(path) for path in tree.iterdir())


@pytest.mark.slow
def test_a_night_compares_its_share_and_the_next_one_fetches_what_differs(shared_btrfs: Path, tree: Path) -> None:
    nights = Nights(shared_btrfs)
    (tree / "file").write_bytes(b"as it was")
    nights.tables["verify"] = {"against_source": "50%"}
    nights.host("web", tree)
    nights.run()
    overwrite(tree / "file", b"is other.")
    for _ in range(4):
        assert nights.run()["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    assert rows(nights, "select distinct path, found_by from damage") == [(f"{tree}/file", "source")]
    answer = json.loads((nights.pool / "hosts/web/compared.json").read_text())
    assert (answer["next"], len(answer["backups"])) == ({"2": {"slice": 5, "after": None}}, 5)


def test_each_path_is_in_one_of_a_hundred_slices() -> None:
    paths = [b"/srv/%d" % number for number in range(1000)]
    met = [path for number in range(7, 107) for path in paths if in_slice(path, b"key", number, slices_of(0.01))]
    assert sorted(met) == sorted(paths)


def test_what_compares_can_write_nowhere() -> None:
    words = confined_command(("rsync",), None, 3, shown=("/backup/data",))
    assert "--bind" not in words
    assert words[words.index("/backup/data") - 1] == "--ro-bind"
    assert words.index("/backup/data") < words.index("--seccomp")


def test_ctrl_c_ends_it_and_nothing_is_recorded(
    shared_btrfs: Path, tree: Path, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    nights = Nights(shared_btrfs)
    (tree / "file").write_bytes(b"as it was")
    nights.host("web", tree)
    nights.run("web")
    flag = nights.top / "asked"
    nights.settings("ssh", command=f"sh -c 'touch {flag}; exec sleep 60' --")
    process = backupd_running("--config", nights.config, "verify", "--against-source", "web")
    wait_for(flag.exists)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130
    assert not (nights.pool / "hosts/web/compared.json").exists()


def test_a_backup_cannot_be_named(shared_btrfs: Path, tree: Path) -> None:
    nights = Nights(shared_btrfs)
    nights.host("web", tree)
    done = nights.backupd("verify", "--against-source", "web@2026", check=False)
    assert (done.returncode, "newest complete" in done.stderr) == (2, True)
