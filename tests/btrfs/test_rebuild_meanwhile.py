"""`rebuild` while another command is running, in the catalogue that both have open, or in a new one: nothing is recorded
wrongly afterwards."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP
from tests.beds.two_pools import TwoPools
from tests.beds.watch import does_at, rows

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20
NOW = ("--now", "2026-03-12T10:00:00Z")
LATER = ("--now", "2026-03-12T12:00:00Z")
DEDUPE = ("dedupe", "--min-size", "64KiB")
Deed = tuple[tuple[str, ...], str, str]
REPLICATE: Deed = (("replicate",), "after", "stream received")
REPLICATE_ROW: Deed = (("replicate",), "after", "backup sealed")
VERIFY: Deed = (("verify",), "after", "verifications written")
VERIFY_FILE: Deed = (("verify",), "before", "verified.json replaced")
DEDUPED: Deed = (DEDUPE, "after", "file shared")
ALL = [REPLICATE, REPLICATE_ROW, VERIFY, VERIFY_FILE, DEDUPED]


def state(two: TwoPools) -> dict[str, Any]:
    """Returns the second pool's own records, without the times of this test."""
    status = two.second.json("status", *LATER)
    (copy,) = status["copies"]
    return {
        "copy": {key: copy[key] for key in ("state", "error", "hosts", "newest", "behind", "running")},
        "verification": {key: status["verification"][key] for key in ("states", "damaged")},
        "dedupe": {key: (status["dedupe"] or {}).get(key) for key in ("outcome", "backups", "left", "files", "shared_bytes")},
        "rest": {key: status[key] for key in ("running", "altered", "in_doubt", "repeated", "failed", "lost")},
        "backups": {backup["name"]: backup["state"] for backup in two.second.json("list", "web1", *LATER)},
        "damaged": json.loads(two.second.backupd("damaged", "--json", *LATER, check=False).stdout),
        "runs": rows(two.second, "select count(*) from run where finished is null"),
    }


def two_pools(make_btrfs: Callable[..., Path], commands: tuple[tuple[str, ...], ...]) -> TwoPools:
    """Two nights of a host with equal files; those commands were run in the second pool."""
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    content = os.urandom(MIB)
    for name in ("a", "b"):
        (two.source / name).write_bytes(content)
    for day in (10, 11):
        two.night(f"2026-03-{day}T22:00:00Z", str(day))
    for words in commands:
        two.second.backupd(*words, *NOW)
    return two


def rebuild_at(two: TwoPools, deed: Deed, before: str = "") -> None:
    """Runs the command, with a `rebuild` in the middle."""
    words, when, checkpoint = deed
    rebuild = shlex.join([sys.executable, "-m", "backupd", "--config", str(two.second.config), "rebuild", *NOW])
    line = f"cd {TOP}; {before} {rebuild} >{two.second.top}/said 2>&1; echo $? >>{two.second.top}/said"
    done = does_at(two.second, line, when, checkpoint, *words, *NOW)
    assert (two.second.top / "said").read_text().splitlines()[-1] == "0", (two.second.top / "said").read_text()
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 0 or before, done


@pytest.mark.parametrize("deed", ALL, ids=lambda deed: " ".join((deed[0][0], *deed[1:])))
def test_a_command_that_a_rebuild_meets_ends_as_without_it(make_btrfs: Callable[..., Path], deed: Deed) -> None:
    order = (("replicate",), ("verify",), DEDUPE)
    done = order[: order.index(deed[0])]
    two = two_pools(make_btrfs, done)
    rebuild_at(two, deed)
    met = state(two)
    for words in order[len(done) + 1 :]:
        two.second.backupd(*words, *NOW)
    assert met["rest"] == {"running": [], "altered": [], "in_doubt": None, "repeated": [], "failed": [], "lost": False}
    assert (set(met["backups"].values()), len(met["backups"]), met["damaged"], met["runs"]) == ({"complete"}, 2, [], [(0,)])
    assert (met["copy"]["state"], met["copy"]["error"], met["copy"]["behind"], met["copy"]["running"]) == ("ok", None, [], None)
    whole = state(two)
    assert whole["verification"]["states"]["whole"] == 2
    assert deed[0] == ("replicate",) or met["verification"]["states"]["whole"] == 2
    assert whole["dedupe"] == {"outcome": "complete", "backups": 2, "left": 0, "files": 2, "shared_bytes": 2 * MIB}
    assert deed[0] != DEDUPE or met["dedupe"] == whole["dedupe"]


@pytest.mark.parametrize("deed", [REPLICATE, VERIFY, DEDUPED], ids=lambda deed: " ".join((deed[0][0], *deed[1:])))
def test_a_command_whose_catalogue_is_made_anew_claims_nothing_and_the_next_one_is_right(
    make_btrfs: Callable[..., Path], deed: Deed
) -> None:
    order = (("replicate",), ("verify",), DEDUPE)
    two = two_pools(make_btrfs, order[: order.index(deed[0])])
    catalogue = shlex.quote(str(two.second.state / "catalogue.sqlite"))
    rebuild_at(two, deed, f"rm {catalogue}*;")
    two.second.backupd(*deed[0], *LATER)
    met = state(two)
    assert met["rest"] == {"running": [], "altered": [], "in_doubt": None, "repeated": [], "failed": [], "lost": False}
    assert (set(met["backups"].values()), len(met["backups"]), met["damaged"], met["runs"]) == ({"complete"}, 2, [], [(0,)])
    assert met["copy"]["running"] is None
    if deed[0] != ("replicate",):
        assert met["verification"]["states"]["whole"] == 2
