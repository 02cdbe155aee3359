"""docs/second-copy.rst with two servers: its commands are executed as printed, from the first fetch to the return.

Four booted machines on one network: a host, a first server, a second one, and a new first one. Their contents are read by find and
sha256sum in them.
"""

import json
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, btrfs, session
from tests.beds.machine import booted, machine, why_not
from tests.systemd.test_two_servers import destroy, network

INSIDE = Path(__file__).resolve().parent / "inside"
LONGEST = 900.0  # seconds

pytestmark = [
    pytest.mark.long,
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.ssh,
    pytest.mark.skipif(bool(why_not()), reason=f"left out: under real systemd ({why_not()})"),
    pytest.mark.timeout(LONGEST + 300),
]


def section(title: str) -> str:
    text = (TOP / "docs/second-copy.rst").read_text(encoding="utf-8")
    return re.split(r"\n[^\n]+\n-{4,}\n", text.partition(f"\n{title}\n---")[2])[0] + "\n"


def blocks(title: str) -> list[str]:
    """Returns the literal blocks of a section, in their order."""
    matches = re.finditer(r"::\n\n(?P<block>(?P<indent> +)\S.*\n(?:(?P=indent).*\n|\n)*)", section(title))
    return [textwrap.dedent(match["block"]).strip() + "\n" for match in matches]


def line(title: str, text: str) -> str:
    """Returns a command that the section names, or fails if it does not."""
    assert text in {" ".join(row.split()) for row in re.findall(r"``([^`]+)``", section(title))}, text
    return text


def typed() -> dict[str, str]:
    """Returns the typed commands, by name."""
    make, pull_line, output, replica, fetched_by = blocks("Two servers")
    push_line, push_replica, push, _ = blocks("A first server that cannot be reached")
    gone, back = "When the first server is gone", "When the first server comes back"
    return {
        "make": make,
        "pull-line": pull_line,
        "known": output,
        "replica": replica,
        "fetched-by": fetched_by,
        "push-line": push_line,
        "push-replica": push_replica,
        "push": push,
        "fingerprint": line("Two servers", "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"),
        "check": line("Two servers", "backupd check --connect"),
        "dry-run": line("Two servers", "backupd replicate office --dry-run"),
        "fetch": line("Two servers", "backupd replicate office"),
        "timer": line("Two servers", "systemctl enable --now btrkeep-replicate@main.timer"),
        "send": line("A first server that cannot be reached", "backupd replicate backup2"),
        "promote": line(gone, "backupd promote '*'"),
        "run-all": line(gone, "backupd run --all"),
        "stop": line(back, "systemctl disable --now btrkeep-backup@main.timer"),
        "demote-back": line(back, "backupd demote back '*'"),
        "fetch-back": line(back, "backupd replicate back"),
        "demote-office": line(back, "backupd demote office '*'"),
        "forget-key": line(back, "ssh-keygen -R backup1.example.org -f /etc/btrkeep/known_hosts"),
    }


@pytest.fixture(scope="module")
def walked(no_leftovers: None) -> Iterator[Path]:
    """The folder in which the machines left their results, after all have ended."""
    machine()  # made once, not by four at a time
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir=session.folder()))
    files = {path.name: path.read_text(encoding="utf-8") for path in INSIDE.iterdir()}
    files |= {f"page-{name}": text for name, text in typed().items()}
    pools = {name: btrfs.make(size="2G") for name in ("first", "second", "new")}
    try:
        with network() as namespace, ThreadPoolExecutor(4) as threads:

            def live(name: str) -> None:
                binds = [(folder, "/shared"), *([(pools[name], "/srv")] if name in pools else [])]
                try:
                    with booted({**files, "main.sh": files[f"walk_{name}.sh"]}, binds, LONGEST, namespace):
                        pass
                    if name == "first":
                        destroy(pools[name])
                        (folder / "first-is-gone").touch()
                except BaseException:
                    (folder / "failed").touch()  # so that the others stop waiting
                    raise

            for done in as_completed([threads.submit(live, name) for name in ("host", *pools)]):
                done.result()
        yield folder
    finally:
        problems = [problem for point in pools.values() for problem in session.remove(point.parent)]
        shutil.rmtree(folder, ignore_errors=True)
    assert not problems, "\n".join(problems)


def read(walked: Path, name: str) -> str:
    return (walked / name).read_text(encoding="utf-8")


def copies(walked: Path, name: str) -> list[tuple[str, str, str]]:
    answer: list[dict[str, Any]] = json.loads(read(walked, name))["copies"]
    return [(row["kind"], row["replica"], row["state"]) for row in answer]


@pytest.mark.parametrize("who", ["second-2", "second-3", "first-3", "second-4", "new-5", "second-6", "second-7"])
def test_the_newest_backup_of_each_server_is_what_the_host_had(walked: Path, who: str) -> None:
    assert read(walked, who) == read(walked, f"source-{who[-1]}")


def test_the_fingerprints_that_the_page_compares_are_one(walked: Path) -> None:
    assert read(walked, "first-fingerprint").split()[1] in read(walked, "second-known")


def test_both_servers_say_that_the_copy_is_new(walked: Path) -> None:
    assert copies(walked, "second-status") == [("replica", "office", "ok")]
    assert copies(walked, "first-status") == [("fetched_by", "backup2", "ok")]
    assert "common with replica backup2" in read(walked, "explained")
    assert ("push", "backup2", "ok") in copies(walked, "new-status")


def test_without_the_section_nothing_is_said_of_a_server_that_is_gone(walked: Path) -> None:
    assert copies(walked, "second-alone") == []


def test_no_backup_was_lost_on_the_way(walked: Path) -> None:
    assert len(json.loads(read(walked, "second-list"))) == 7
    assert {row["state"] for row in json.loads(read(walked, "second-list"))} == {"complete"}
