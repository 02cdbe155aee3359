"""Users other than root may write to the state folder: btrkeep writes nothing there, backups continue, and the printed command
repairs it.
"""

import json
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.expiries import LATER, NOW, Expiries, at
from tests.beds.leftout import needs_root
from tests.beds.nights import Nights
from tests.beds.receivers import web
from tests.beds.watch import disagreements

OTHER = 61234
PLANTED = {
    "what": "failure",
    "subject": "catalogue",
    "text": "x",
    "grade": 9,
    "since": "2026-11-01T00:00:00+00:00",
    "times": 1,
    "told": "2026-11-01T00:00:00+00:00",
    "recovered": None,
    "cleared": None,
}
"""An alarm that counts as sent: what a member of the group could write."""
pytestmark = needs_root


@pytest.mark.parametrize(
    ("spoil", "is_parent"), [(("chmod", "g+w"), False), (("chmod", "o+w"), True), (("chown", str(OTHER)), False)]
)
def test_it_is_not_used_until_the_printed_command_was_typed(nights: Nights, spoil: tuple[str, str], is_parent: bool) -> None:
    (nights.source / "file").write_text("it")
    nights.host("web", nights.source)
    nights.run("web")
    folder = nights.state.parent if is_parent else nights.state
    nights.state.parent.chmod(0o755)
    work(*spoil, folder)
    before = contents(nights.state)
    done = nights.backupd("run", "--all", "--json", check=False)
    assert (done.returncode, [result["outcome"] for result in json.loads(done.stdout)]) == (1, ["complete"]), done.stderr
    assert f"is not used: {folder} " in done.stderr
    sampled = nights.backupd("sample", check=False)
    assert sampled.returncode != 0
    assert contents(nights.state) == before
    (hint,) = {finding["hint"] for finding in findings(nights, "check") if finding["subject"] == "catalogue"}
    assert hint in {f"chmod go-w {folder}", f"chown -h root {folder}"}
    (commands,) = [finding["commands"] for finding in findings(nights, "doctor") if finding["name"] == "catalogue"]
    assert commands == [hint]
    work("sh", "-c", hint)
    nights.run("web")
    assert disagreements(nights) == []


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: ((status := path.lstat()).st_ino, status.st_mtime_ns) for path in folder.iterdir()}


def findings(nights: Nights, command: str) -> list[dict[str, Any]]:
    answer = json.loads(nights.backupd(command, "--json", check=False).stdout)
    return list(answer["findings"] if isinstance(answer, dict) else answer)


def test_doctor_ends_where_the_state_folder_is_none(nights: Nights) -> None:
    (nights.source / "file").write_text("it")
    nights.host("web", nights.source)
    nights.run("web")
    config = nights.config.read_text()
    assert str(nights.state) in config
    nights.config.write_text(config.replace(str(nights.state), str(nights.source / "file" / "state")))
    done = nights.backupd("doctor", "--json", check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert json.loads(done.stdout)["findings"], done


def test_what_the_message_prints_leads_out(nights: Nights) -> None:
    """The message used to print `backupd rebuild`, which refuses the same state."""
    (nights.source / "file").write_text("it")
    nights.host("web", nights.source)
    with web() as server:
        nights.tables["notify"] = {"urls": [f"json://127.0.0.1:{server.port}/"], "digest": "none"}
        nights.write()
        nights.run("web")
        nights.backupd("notify")
        nights.state.chmod(0o770)
        planted = json.dumps({"format": 1, "ahead": True, "digest": None, "rows": [dict(PLANTED)]})
        (nights.state / "alarms.json").write_text(planted)
        for _ in range(3):
            nights.backupd("run", "--all", check=False)
            nights.backupd("notify", check=False)
        (message,) = server.json()
        assert (nights.state / "alarms.json").read_text() == planted
        metrics = nights.backupd("metrics", check=False).stdout
        assert 'btrkeep_alarms{event="failure",pool="main"} 1.0' in metrics  # a file remembers it, not the catalogue
        command = printed_command(message["message"])
        assert command[-1] == "check"
        (hint,) = {finding["hint"] for finding in findings(nights, command[-1]) if finding["subject"] == "catalogue"}
        (nights.state / "alarms.json").unlink()
        work("sh", "-c", hint)
        nights.backupd("notify")
        assert server.json()[-1]["type"] == "success"


def printed_command(text: str) -> list[str]:
    match = re.search(r"backupd --config [^)]+", text)
    assert match, text
    return shlex.split(match[0])


def test_clocks_that_others_could_write_hold_no_expiry_back(shared_btrfs: Path) -> None:
    pool = Expiries(shared_btrfs)
    names = pool.history("web", 6)
    pool.expire(NOW)
    with closing(sqlite3.connect(pool.state / "dashboard.sqlite")) as copy, copy:
        planted = json.dumps({"wall": "2099-01-01T00:00:00Z", "boottime": 0.0, "boot_id": "x"})
        assert copy.execute("UPDATE about SET value = ? WHERE name = 'expiry_clock'", (planted,)).rowcount == 1
    pool.state.chmod(0o770)
    done = pool.backupd("expire", "--json", *at(LATER), check=False)
    assert (done.returncode, json.loads(done.stdout)["deleted"]) == (1, 3), (done.stdout, done.stderr)
    assert pool.left("web") == names[3:]
