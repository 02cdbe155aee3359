"""The output of `log` and `list` about a run that was killed, before the next one has cleaned up and afterwards."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.beds.expiries import LATER, NOW, Expiries, at
from tests.beds.history import TIME
from tests.beds.nights import Nights
from tests.beds.watch import hold, rows, wait_for


def test_a_killed_run_is_killed_in_the_log_and_what_it_was_at_is_partial(
    nights: Nights, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    (nights.source / "big").write_bytes(b"x" * 2_000_000)
    nights.host("web", nights.source)
    nights.backupd("list")  # makes the catalogue
    flag = hold(nights)
    process = backupd_running("--config", nights.config, "run", "web")
    wait_for(lambda: rows(nights, "select 1 from progress"), 60)
    assert nights.json("log", "web")[0]["outcome"] == "running"
    assert nights.json("list", "web")[0]["state"] == "running"
    assert "rsync has not ended" in nights.backupd("log", "web").stdout
    process.kill()
    process.wait(60)
    (heard,) = rows(nights, "select updated from progress")[0]
    flag.unlink()
    for again in (False, True):
        if again:  # the next run clears up
            nights.ssh("")
            nights.run("web")
        run, output = nights.json("log", "web")[-1], nights.backupd("log", "web").stdout
        assert (run["outcome"], run["exit_code"], run["backup"]) == ("killed", None, None)
        assert "did not run" not in output
        assert "rsync's exit status is unknown" in output
        if again:
            assert run["finished"] == f"{heard[:19]}Z"  # its last sign of life
        else:
            assert [row["state"] for row in nights.json("list", "web")] == ["partial"]
    assert [row["state"] for row in nights.listed("web")] == ["complete"]


def test_the_log_shows_when_and_why_a_backup_was_deleted(shared_btrfs: Path) -> None:
    pool = Expiries(shared_btrfs)
    pool.host("web", pool.source)
    (pool.source / "file").write_text("text")
    pool.run("web", *at(NOW))
    (first,) = pool.names("web")
    pool.run("web", *at(LATER))
    words = ("delete", f"web@{first}", "--reason", "private")
    pool.backupd(*words, *at(LATER))
    asked = LATER.strftime(TIME)
    answer = json.loads(pool.backupd("log", "web", "--json", *at(LATER)).stdout)
    assert [row["deleted"] for row in answer] == [None, {"asked": asked, "at": None, "why": "private", "by": "root"}]
    pool.backupd(*words, "--now-without-grace", *at(LATER))
    assert pool.left("web") == pool.names("web")
    answer = json.loads(pool.backupd("log", "web", "--json", *at(LATER)).stdout)
    assert [row["deleted"] for row in answer] == [None, {"asked": asked, "at": asked, "why": "private", "by": "root"}]
    assert f"    {first} deleted {asked}, requested {asked} by root: private" in pool.backupd("log", "web", *at(LATER)).stdout
