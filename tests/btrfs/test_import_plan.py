"""The output of `backupd import` before and while it copies: a dry run, a configuration, the progress."""

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.old_trees import dated, imported
from tests.beds.terminal import at_a_terminal

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="900M"))


def test_a_dry_run_tells_the_bytes_that_are_not_here_and_a_configuration(nights: Nights, ext4: Path) -> None:
    def fill(source: Path, number: int) -> None:
        (source / f"new{number}").write_bytes(os.urandom(50_000 + number * 10_000))
        (source / f"linked{number}").hardlink_to(source / f"new{number}")
        (source / "other name").unlink(missing_ok=True)
        (source / "other name").hardlink_to(source / "new0")

    root = dated(ext4, 3, fill)
    every = work("find", root, "-type", "f", "-printf", "%i %b\\n").stdout.splitlines()
    first = work("find", root / "2026-03-01", "-type", "f", "-printf", "%i %b\\n").stdout.splitlines()

    def size(lines: set[str]) -> int:
        return sum(int(line.split()[1]) * 512 for line in lines)

    (answer,) = imported(nights, "tree", root, "--host", "old1", "--dry-run")["hosts"]
    assert (answer["backups"], answer["bytes"]) == (3, size(set(every)))
    (root / "2026-03-03").rename(ext4 / "aside")
    (root / "2026-03-02").rename(ext4 / "aside too")
    imported(nights, "tree", root, "--host", "old1", "--verify", "none")
    (ext4 / "aside").rename(root / "2026-03-03")
    (ext4 / "aside too").rename(root / "2026-03-02")
    planned = imported(nights, "tree", root, "--host", "old1", "--dry-run")
    assert planned["here_already"] == 1
    (answer,) = planned["hosts"]
    assert (answer["backups"], answer["bytes"]) == (2, size(set(every) - set(first)))
    assert answer["first"] == "2026-03-02T00:00:00Z"
    assert "suggested_configuration" not in planned


def test_rsnapshot_conf_is_read_with_what_it_includes_and_gives_a_configuration(nights: Nights, ext4: Path) -> None:
    for host in ("web1", "here"):
        (ext4 / "root" / "daily.0" / host).mkdir(parents=True)
    conf, more = ext4 / "rsnapshot.conf", ext4 / "more.conf"
    conf.write_text(
        "# a comment\ninclude_conf\tmore.conf\nretain  daily  7\ninterval\tmonthly\t3\nretain\thourly\t6\n"
        "exclude\t*.iso\nexclude_file\t" + f"{ext4}/excluded\n"
        "backup\troot@web1.example.org:/etc/\tweb1/\nbackup root@web1.example.org:/srv/www/ web1/\n"
        "backup\t/home/\there/\nbackup\trsync://a/b/\there/\nbackup_script\t/bin/true\there/\n"
    )
    more.write_text(f"snapshot_root   {ext4}/root/\n")
    (ext4 / "excluded").write_text("# no\n/var/tmp\n")
    text = imported(nights, "rsnapshot", conf, "--dry-run")["suggested_configuration"]
    assert tomllib.loads(text) == {
        "host": {
            "web1": {
                "address": "root@web1.example.org",
                "paths": ["/etc", "/srv/www"],
                "exclude": ["*.iso", "/var/tmp"],
                "retention": {"daily": 7, "monthly": 3},
            },
            "here": {"paths": ["/home"], "exclude": ["*.iso", "/var/tmp"], "retention": {"daily": 7, "monthly": 3}},
        }
    }
    assert [line for line in text.splitlines() if line[:1] == "#"] == [
        f"# not translated: {line}" for line in ("retain hourly 6", "backup rsync://a/b/ here/", "backup_script /bin/true here/")
    ]
    nights.config.write_text(nights.config.read_text() + text)
    assert "web1" in nights.backupd("status").stdout  # it is a valid one
    assert imported(nights, "rsnapshot", conf, "--dry-run", "--host", "web1")["suggested_configuration"] == ""
    more.write_text(f"include_conf\t{conf}\n")
    assert "without end" in imported(nights, "rsnapshot", conf, "--dry-run", status=2)
    more.write_text("include_conf\t`touch it`\n")
    assert "would run a command" in imported(nights, "rsnapshot", conf, "--dry-run", status=2)


def test_a_terminal_shows_how_far_each_tree_is(nights: Nights, ext4: Path) -> None:
    def fill(source: Path, number: int) -> None:
        for name in range(40):
            (source / f"{name}-{number}").write_bytes(os.urandom(9_000))

    root = dated(ext4, 2, fill)
    slow = 'case "$*" in *--archive*) sleep 2.5 ;; esac; exec "$REAL" "$@"'
    words = (sys.executable, "-m", "backupd", "--config", nights.config, "import", "tree", root, "--host", "old1")
    with at_a_terminal(words, env={**nights.rsync(slow), "TERM": "xterm"}, cwd=TOP) as terminal:
        terminal.wait_for(r"old1 +tree 1 of 2 .* of about 40 new files")
        terminal.wait_for(r"old1 +tree 2 of 2 .* of about 40 new files")
        assert terminal.ends() == 0
        assert "2 backups imported" in terminal.text
