"""Malicious hosts that speak rsync's protocol (tests/beds/attacks.py), all in one night with honest hosts."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.attacks import Honest
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, receivers, rows, transferring

ATTACKS = Path(__file__).resolve().parents[1] / "beds" / "attacks.py"
EVIL = Path("/tmp/btrkeep-evil")
SOURCE = "/srv/www"
FEW = {"max_files": 500}
LITTLE = {"max_new_bytes": "10MB"}

# name of the attack, limits of the host, outcome of the run, part of its error
WHAT_BECOMES: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("dot-dot", {}, "failed", "the host's rsync cannot do this"),
    ("dot-dot-first", {}, "failed", "the host's rsync cannot do this"),
    ("absolute", {}, "failed", "the host's rsync cannot do this"),
    ("beside", {}, "failed", "the host's rsync cannot do this"),
    ("record", {}, "failed", "the host's rsync cannot do this"),
    ("root-is-file", {}, "failed", "protocol error"),
    ("nul-in-name", {}, "complete", ""),
    ("link-and-folder", {}, "complete", ""),
    ("folder-and-link", {}, "complete", ""),
    ("link-only", {}, "failed", "protocol error"),
    ("link-above", {}, "failed", "protocol error"),
    ("long-names", {}, "suspect", "could not be"),
    ("too-long-path", {}, "failed", "out of memory"),
    ("devices", {}, "complete", ""),
    ("setuid", {}, "complete", ""),
    ("odd-modes", {}, "failed", "protocol error"),
    ("empty-files=3000", FEW, "partial", "more than `max_files` allows (500)"),
    ("hard-links=3000", FEW, "partial", "more than `max_files` allows (500)"),
    ("endless-delta", LITTLE, "partial", "more than `max_new_bytes` allows"),
    ("endless-blocks", LITTLE, "partial", "more than `max_new_bytes` allows"),
    ("attributes=400", {"max_new_bytes": "4MB"}, "partial", "more than `max_new_bytes` allows"),
    ("huge-sizes", LITTLE, "complete", ""),
    ("negative-size", {}, "failed", "the host's rsync cannot do this"),
    ("many-attributes=5000", {}, "complete", ""),
    ("too-large-attributes=100", {}, "suspect", "could be read"),
    ("endless-list", {"max_memory": "120MiB"}, "partial", "more than `max_memory` allows"),
    ("flood=100", {}, "complete", ""),
    ("flood-of-errors=50", {}, "suspect", ""),
    ("flood-of-nothing=2000", {}, "complete", ""),
    ("drip", {"deadline": "3s"}, "partial", "the deadline has passed"),
    ("hangs-at-end", {"stall": "1s"}, "partial", "no progress"),
    ("garbage=5", {}, "failed", "the connection broke"),
    ("garbage-in-list=3", {}, "failed", ""),
    ("other-algorithms", {}, "failed", "the host's rsync cannot do this"),
    ("not-asked", {}, "failed", "protocol error"),
    ("wrong-number", {}, "failed", "protocol error"),
    ("wrong-checksum", {}, "suspect", "nothing could be read"),
    ("replay", {"stall": "1s"}, "partial", "no progress"),
)
BEFORE = {"neighbour": "honest", "endless-blocks": "large", "replay": "recorded"}  # those that have been honest before


def answers(nights: Nights, attack: str, host: str = "", **keys: Any) -> None:
    """Configures a host with this behaviour."""
    words = shlex.join(["env", f"RECORDED={nights.top / 'recorded'}", sys.executable, "-P", str(ATTACKS), attack])
    nights.host(host or attack.partition("=")[0], SOURCE, rsync_path=words, **keys)


def contents(folder: Path) -> str:
    """Returns the checksums of all files, by sha256sum."""
    return work("find", folder, "-type", "f", "-exec", "sha256sum", "{}", "+").stdout


def written_elsewhere(nights: Nights, since: Path) -> list[str]:
    """Returns the files changed since then, except those that the runs write: the hosts' own folders, locks, the catalogue."""
    hosts = {attack.partition("=")[0] for attack, *_ in WHAT_BECOMES}
    done = work("find", nights.top, "-xdev", "-newer", since, "-not", "-type", "d", "-printf", "%P\\n").stdout.splitlines()
    own = [f"pool/hosts/{host}/" for host in (*hosts, "neighbour")]
    return [name for name in done if not name.startswith(("pool/.btrkeep/", *own)) and name != nights.config.name]


def test_every_attack_harms_its_own_host_alone_and_the_next_night_is_well(nights: Nights) -> None:
    nights.settings("backup", concurrency=3)
    for host, attack in BEFORE.items():
        answers(nights, attack, host)
    for result in nights.run(*BEFORE).values():
        assert result["outcome"] == "complete", result
    before = contents(nights.backup("neighbour"))
    for attack, keys, _, _ in WHAT_BECOMES:
        answers(nights, attack, **keys)
    started = nights.top / "started"
    started.touch()

    by_name = {result.host: result for result in nights.night()}

    wrong = [
        (attack, outcome, words, by_name[host].outcome, by_name[host].error)
        for attack, _, outcome, words in WHAT_BECOMES
        if (host := attack.partition("=")[0]) and (by_name[host].outcome != outcome or words not in (by_name[host].error or ""))
    ]
    assert wrong == []
    assert by_name["neighbour"].outcome == "complete"
    assert contents(nights.backup("neighbour", nights.names("neighbour")[0])) == before
    assert sorted(path.name for path in (nights.pool / "hosts" / "neighbour").iterdir() if not path.name.startswith("20")) == [
        "latest",
        "seals.json",
    ]
    assert written_elsewhere(nights, started) == []
    assert not EVIL.exists()
    assert nights.pool.stat().st_mode & 0o777 == 0o700  # so users cannot reach the setuid programs
    assert [receivers(nights), transferring(nights), disagreements(nights)] == [[], [], []]
    for host in ("empty-files", "endless-delta"):
        assert "or `exclude` some files" in str(nights.status(host))

    for attack, _, _, _ in WHAT_BECOMES:
        answers(nights, "honest", attack.partition("=")[0], shrink_limit="100%")
    assert {result.host: result.error for result in nights.night() if result.outcome != "complete"} == {}
    for attack, _, _, _ in WHAT_BECOMES:
        data = nights.data(attack.partition("=")[0], SOURCE)
        assert (data / "file").read_bytes() == Honest.content
        assert sorted(path.name for path in data.rglob("*")) == ["file", "folder", "link"]
    assert disagreements(nights) == []


# --- the limits, on hosts that mean no harm


def uuid(nights: Nights) -> str:
    """Returns the UUID of `.working`."""
    return nights.subvolume("web", ".working")["UUID"]


def files(nights: Nights, number: int) -> Path:
    """Makes a source of that many files in one folder."""
    tree = nights.source / "srv"
    tree.mkdir(exist_ok=True)
    for value in range(number):
        (tree / f"{value}").write_bytes(b"x" * 5000)
    return tree


@pytest.mark.parametrize(
    ("limit", "raised", "code"),
    [
        ({"max_files": 30}, {"max_files": 1000}, "max-files"),
        ({"max_new_bytes": "100KiB"}, {"max_new_bytes": "none"}, "max-new-bytes"),
    ],
)
def test_what_a_limit_stopped_is_kept_begun_anew_while_it_holds_and_continued_when_it_is_raised(
    nights: Nights, limit: dict[str, Any], raised: dict[str, Any], code: str
) -> None:
    tree = files(nights, 40)
    nights.host("web", tree, **limit)
    answer = nights.run("web", status=1)["web"]
    assert answer["outcome"] == "partial"
    assert [json.loads(cause)["code"] for (cause,) in rows(nights, "select cause from run")] == [code]
    first = uuid(nights)
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    second = uuid(nights)
    assert second != first
    nights.host("web", tree, **raised)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.subvolume("web")["UUID"] == second
    assert nights.differences("web", tree) == []
    nights.host("web", tree, **limit)  # unchanged data is not new
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert disagreements(nights) == []


def test_a_host_that_is_its_old_self_again_completes_whatever_it_brought_before(nights: Nights) -> None:
    tree = files(nights, 10)
    nights.host("web", tree, max_files=30, shrink_limit="100%")
    nights.run("web")
    files(nights, 100)
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    for number in range(10, 100):
        (tree / f"{number}").unlink()
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
