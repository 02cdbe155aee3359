"""`engine = "rsync"` with a first server that was taken over, or a second one whose key is stolen."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, work
from tests.beds.attacks import ATTACKS
from tests.beds.ssh import Sshd
from tests.beds.two_pools import TwoPools

pytestmark = pytest.mark.btrfs

ATTACKING = TOP / "tests/beds/attacks.py"
EVIL = Path("/tmp/btrkeep-evil")
TRIED = (
    *("honest", "dot-dot", "absolute", "root-is-file", "link-and-folder", "folder-and-link", "link-only", "link-above", "devices"),
    *("setuid", "endless-delta", "negative-size", "flood=100", "flood-of-errors=50", "garbage=5", "wrong-number"),
)
FEW = ("honest", "link-and-folder")


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    return TwoPools(make_btrfs(), make_btrfs(size="300M"), engine="rsync")


def attacked(two: TwoPools, attack: str) -> None:
    """The first server lists what it has, and sends that."""
    words = shlex.join([sys.executable, "-P", str(ATTACKING), attack, "rsync"])
    asked = "${SSH_ORIGINAL_COMMAND#*send-only -- }"
    two.over_ssh(f'case "$SSH_ORIGINAL_COMMAND" in *--server*) exec {words} {asked};; esac\nexec "$@"')


def everything(two: TwoPools) -> set[str]:
    """All names of the second pool but for locks and what says how it is going."""
    found = (str(path.relative_to(two.second.pool)) for path in two.second.pool.rglob("*"))
    return {name for name in found if not name.startswith((".btrkeep/locks", ".btrkeep/common", ".btrkeep/bandwidth"))}


def require_harmless(two: TwoPools, attacks: tuple[str, ...]) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.night("2026-03-02T22:00:00Z", "b")
    two.over_ssh('exec "$@"')
    before = everything(two)
    for attack in attacks:
        attacked(two, attack)
        done = two.second.backupd("replicate", "--json", "--now", "2026-03-20T12:00:00Z", check=False)
        assert done.returncode in (1, 4), f"{attack}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, attack
        assert everything(two) == before, attack
        assert not EVIL.exists(), attack
    assert two.names(two.second.pool) == [first]
    assert two.differences(first) == ""


def test_zeros_without_end_which_need_no_room_are_ended(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('exec "$@"')
    attacked(two, "endless-zeros")
    (failed,) = two.fetch(status=1)[0]["failed"]
    assert "so it has no end" in failed["error"]
    assert not (two.second.pool / "hosts/web1/.receiving").exists()


def test_a_first_server_that_was_taken_over_harms_nothing_and_gives_no_backup(two: TwoPools) -> None:
    require_harmless(two, FEW)


@pytest.mark.long
def test_no_attack_of_a_sender_harms_anything_or_gives_a_backup(two: TwoPools) -> None:
    """All that fit; the one above has one of each kind."""
    assert {name.partition("=")[0] for name in TRIED} <= ATTACKS.keys()
    require_harmless(two, tuple(name for name in TRIED if name not in FEW))


@pytest.mark.slow
def test_an_rsync_that_the_first_server_has_taken_over_can_do_nothing(two: TwoPools) -> None:
    """The program in the place of rsync on the second server tries what it should not be able to do (tests/beds/taken_over.py)."""
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('case "$SSH_ORIGINAL_COMMAND" in *--server*) printf "!"; cat > /dev/null; exit;; esac\nexec "$@"')
    folder = two.second.top / "taken"
    folder.mkdir()
    pool, receiving = two.second.pool, two.second.pool / "hosts/web1/.receiving"
    number = Path(work("findmnt", "-n", "-o", "SOURCE", "--target", pool).stdout.split("[")[0].strip()).stat().st_rdev
    targets: dict[str, Any] = {
        "words": ["-l", "root", "first", "backupd --pool main send-only --"],
        "cell": True,
        "secret": ["/etc/passwd", str(two.second.config), str(pool / ".btrkeep/pool.json"), str(pool / "hosts/web1/notes.json")],
        "folders": [str(path) for path in (receiving, receiving.parent, pool, pool / ".btrkeep", "/", "/usr/bin", "/tmp", "/root")],
        "disk": [os.major(number), os.minor(number)],
        "pid": os.getpid(),
        "memory": int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.6),
    }
    text = (TOP / "tests/beds/taken_over.py").read_text("utf-8")
    text = text.replace("TARGETS: dict[str, Any] = {}", f"TARGETS: dict[str, Any] = {targets!r}")
    # what it found would be deleted with what was received, so it is said
    could = "[one for one in tried.found if not tried.found[one]]"
    said = f'os.write(2, b"error: " + json.dumps([len(tried.found), {could}]).encode() + b"\\n")'
    text = text.replace('(tried.data / "found").write_text(json.dumps(tried.found))', said)
    (folder / "rsync").write_text(text)
    (folder / "rsync").chmod(0o755)
    done = two.second.backupd(
        "replicate", "--json", "--now", "2026-03-20T12:00:00Z", check=False, env={"PATH": f"{folder}:{os.environ['PATH']}"}
    )
    (failed,) = json.loads(done.stdout)[0]["failed"]
    tried, could = json.loads(failed["error"].partition("rsync: ")[2])
    assert tried > 70
    assert could == []
    assert not receiving.exists()


@pytest.mark.long
def test_by_ssh_the_key_has_one_backup_sent_by_rsync_and_nothing_else(two: TwoPools, sshd: Sshd) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    words = [sys.executable, "-m", "backupd", "--config", str(two.first.config), "send-only"]
    key = sshd.authorize(f'restrict,command="cd {shlex.quote(str(TOP))} && {shlex.join(words)}"')
    two.second.settings("ssh", command="ssh", key=str(key), known_hosts=str(sshd.known_hosts))
    two.second.tables["replica.office"] |= {"from": f"ssh://{sshd.address}", "port": sshd.port}
    two.second.write()
    assert [one["backup"] for one in two.fetch()[0]["fetched"]] == [first]
    assert two.differences(first) == ""
    uuid = json.loads((two.first.pool / f"hosts/web1/{first}/backup.json").read_text())["uuid"]
    stolen = two.second.top / "stolen"
    asking = ("rsync", "-aHAX", "--numeric-ids", "-e", shlex.join(map(str, sshd.ssh(key))))
    done = work(*asking, f"{sshd.address}:{two.first.top}/", f"{stolen}/", check=False)
    assert "HOST/NAME/UUID" in done.stderr
    done = work(*asking, f"{two.first.top}/", f"{sshd.address}:web1/{first}/{uuid}/", check=False)
    assert "only to send a backup" in done.stderr


LOOKS = r"""#!/usr/bin/bash
for path in "$@"; do :; done
{ [ -e "$path/backup.json" ] && echo "the backup"; ls /etc /root /home /var /run && echo "other places"; } >&2
cat "$path/../notes.json" "$path/../../../.btrkeep/pool.json" /etc/passwd >&2
for place in "$path" "$path/data" /usr/bin / /tmp; do touch "$place/evil" && echo "wrote $place" >&2; done
{ [ "$(ulimit -v)" = unlimited ] || [ "$(</proc/self/oom_score_adj)" -lt 800 ]; } && echo "memory without end" >&2
: < /dev/tcp/127.0.0.1/22 && echo "a socket" >&2
exit 1
"""


def test_the_rsync_that_sends_sees_one_backup_and_can_write_nothing(two: TwoPools) -> None:
    """A program in the place of rsync on the first server, as if the second one had taken it over."""
    two.night("2026-03-01T22:00:00Z", "a")
    folder = two.first.top / "taken"
    folder.mkdir()
    (folder / "rsync").write_text(LOOKS)
    (folder / "rsync").chmod(0o755)
    said = two.first.top / "said"
    two.over_ssh(f'case "$SSH_ORIGINAL_COMMAND" in *--server*) PATH="{folder}:$PATH" "$@" 2> {said}; exit 1;; esac\nexec "$@"')
    two.fetch(status=1)
    lines = [line for line in said.read_text().splitlines() if not line.startswith(("ls: ", "cat: ", "touch: ", str(folder)))]
    assert lines == ["the backup"]


@pytest.mark.parametrize(("stall", "longest", "ends"), [(1, 600.0, 30), (600, 1.5, 1)])
def test_whoever_asks_for_a_backup_and_then_says_nothing_does_not_keep_it_for_ever(
    two: TwoPools, stall: int, longest: float, ends: int
) -> None:
    name = two.night("2026-03-01T22:00:00Z", "a")
    two.night("2026-03-02T22:00:00Z", "b")
    host = two.first.pool / "hosts" / "web1"
    uuid = json.loads((host / name / "backup.json").read_text())["uuid"]
    program = (
        "import sys; from backupd.replicate import rsync_sender; from backupd.cli import main\n"
        f"rsync_sender.STALL, rsync_sender.LONGEST = {stall}, {longest}\n"
        "main()"
    )
    words = ["--config", str(two.first.config), "send-only", "--replica", "copy"]
    asked = f"rsync --server --sender -logDtprXe.iLsfxCIvu . web1/{name}/{uuid}/"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, *words],
        env={**os.environ, "PYTHONPATH": str(TOP), "SSH_ORIGINAL_COMMAND": asked},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.wait(60) == ends, process.stderr and process.stderr.read()
    two.first.backupd("delete", "--now-without-grace", f"web1@{name}")
    assert not (host / name).exists()
