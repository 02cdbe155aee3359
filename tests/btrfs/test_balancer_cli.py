"""`btrfs-balancer plan` and `run` on a real btrfs: seen through python-btrfs, btrfs-progs, sysfs and the files that lie on it."""

import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.balancer.program import balancer, theirs
from tests.beds import TOP, btrfs, session, work
from tests.beds.balancing import churn
from tests.beds.nights import Nights
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

ANY_TIME = ("--max-pressure", "none")  # other programs load this machine
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def bed(no_leftovers: None) -> Iterator[Path]:
    """Fragmented block groups with snapshots of their data. Only balancing writes to it."""
    # With atimes, the first read of files writes their inodes, so shared metadata gets more references.
    point = btrfs.make(size="1G", mkfs=("-m", "single"), options="noatime")
    churn(point, 7000, 4)
    yield point
    problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("words", [["score"], ["score", "--json"], ["plan"], ["plan", "--json"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_told_in_one_line(bed: Path, words: list[str], unbuffered: str) -> None:
    line: list[str | Path] = [sys.executable, "-m", "balancer", *words, bed]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=TOP, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: standard output: No space left on device"
    assert len(done.stderr.splitlines()) == 2


def superblock(point: Path, field: str) -> str:
    shown = work("btrfs", "inspect-internal", "dump-super", btrfs.devices_of(point)[0]).stdout
    return next(line.split()[1] for line in shown.splitlines() if line.startswith(field))


def checksum(point: Path) -> str:
    """Returns a checksum of names and contents, in the volume and in one of its snapshots."""
    return work("sh", "-c", "find volume snapshot1 -type f -print0 | sort -z | xargs -0 md5sum | md5sum", cwd=point).stdout


def exclusive(point: Path) -> str:
    uuid = work("findmnt", "-no", "UUID", point).stdout.strip()
    return Path(f"/sys/fs/btrfs/{uuid}/exclusive_operation").read_text().strip()


def nothing_is_left(point: Path) -> None:
    assert work("btrfs", "balance", "status", point, check=False).stdout.startswith("No balance found")
    assert exclusive(point) == "none"


def allocated_and_used(point: Path) -> tuple[int, int]:
    """Returns both for data, by btrfs-progs."""
    shown = work("btrfs", "filesystem", "df", "-b", point).stdout
    match = re.search(r"^Data, single: total=(\d+), used=(\d+)$", shown, re.MULTILINE)
    assert match, shown
    return int(match[1]), int(match[2])


def numbers(point: Path) -> dict[str, Any]:
    """Returns the numbers that the report should have for the filesystem's present state."""
    seen = theirs(point)
    allocated, used = allocated_and_used(point)
    return {
        "block_groups": len(seen),
        "allocated": allocated,
        "used": used,
        "fragments": sum(group.fragments for group in seen.values()),
        "score": pytest.approx(sum(group.score for group in seen.values())),
        "largest_free": max(length for group in seen.values() for length in group.joined),
        "free_in_large": sum(length for group in seen.values() for length in group.joined if length >= 16 << 20),
    }


def without(answer: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in names}


def start(*words: str | Path, **wishes: Any) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "balancer", *map(str, words)]
    return subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **wishes)


# --- before anything moves


def test_a_plan_is_what_python_btrfs_counts_and_changes_nothing(bed: Path) -> None:
    before = superblock(bed, "generation"), btrfs_data(bed)
    answer = json.loads(balancer("plan", bed, "--json").stdout)
    assert answer["filesystem"] == work("findmnt", "-no", "UUID", bed).stdout.strip()
    assert without(answer["before"], "unallocated") == numbers(bed)
    truth, total = theirs(bed), 0
    assert len(answer["planned"]) >= 3
    for planned_group in answer["planned"]:
        seen = truth[planned_group["vaddr"]]
        total += seen.used
        assert (planned_group["length"], planned_group["used"], planned_group["fragments"]) == (
            seen.length,
            seen.used,
            seen.fragments,
        )
        assert (planned_group["extents"], planned_group["references"]) == (seen.extents, seen.references)
        assert planned_group["score"] == pytest.approx(seen.score)
        assert (planned_group["estimate"]["moved"], planned_group["moved_so_far"], planned_group["profile"]) == (
            seen.used,
            total,
            "data, single",
        )
    assert answer["within"] == len(answer["planned"])
    assert (superblock(bed, "generation"), btrfs_data(bed)) == before


def btrfs_data(point: Path) -> list[tuple[int, int]]:
    """Returns vaddr and used bytes of each data block group."""
    return sorted((group.vaddr, group.used) for group in theirs(point).values())


def test_a_plan_for_people_has_the_same_block_groups_in_the_same_order_and_a_line_where_the_budget_ends(bed: Path) -> None:
    first, second, *_ = json.loads(balancer("plan", bed, "--json").stdout)["planned"]
    budget = first["used"] + second["used"] // 2
    answer = json.loads(balancer("plan", bed, "--json", "--budget", str(budget)).stdout)
    text = balancer("plan", bed, "--budget", str(budget)).stdout
    rows = re.findall(r"^ *(\d+  |--- the budget)", text, re.MULTILINE)
    names = [str(planned_group["vaddr"]) for planned_group in answer["planned"]]
    cut = answer["within"]
    assert 0 < cut < len(names)
    assert sum(row["used"] for row in answer["planned"][:cut]) <= budget
    assert [row.strip() for row in rows] == [*names[:cut], "--- the budget", *names[cut:]]
    assert f"{cut} of {len(names)} block groups: " in text


def test_a_dry_run_shows_the_plan_and_changes_nothing(bed: Path) -> None:
    before = superblock(bed, "generation")
    plan = balancer("plan", bed, "--policy", "usage", "--budget", "100MiB").stdout
    assert balancer("run", bed, "--policy", "usage", "--budget", "100MiB", "--dry-run").stdout == plan
    assert superblock(bed, "generation") == before


def test_a_plan_of_nothing_says_which_floor_keeps_all_out(bed: Path) -> None:
    worst = max(theirs(bed).values(), key=lambda group: group.score)
    for option, words in (("--min-benefit", "its benefit of "), ("--min-score", "its score of ")):
        text = " ".join(balancer("plan", bed, option, "1e9").stdout.split())
        assert f"Nothing is worth balancing: the block group at {worst.vaddr} has the highest score, and {words}" in text


# --- what keeps a run from anything


def refused(point: Path, *words: str | Path) -> tuple[int, str, str]:
    """Returns the status and both lines of a run that is refused before it does anything."""
    done = balancer("run", point, *ANY_TIME, *words, check=False)
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert (error[:7], hint[:6]) == ("error: ", "hint: ")
    return done.returncode, error, hint


@pytest.mark.parametrize(
    ("words", "status", "ending", "why"),
    [
        (("--until", "2026-01-01T00:00:00Z"), 0, "window", "the window ended"),
        (("--time", "0s"), 0, "time", "is reached"),
        (("--budget", "4KiB"), 0, "budget", "fits into"),
        (("--min-score", "1e9"), 0, "done", "worth it"),
        (("--min-unallocated", "99%"), 1, "unallocated", "are unallocated"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_run_that_has_no_time_budget_or_room_moves_nothing_and_says_why(
    bed: Path, words: tuple[str, ...], status: int, ending: str, why: str
) -> None:
    before = btrfs_data(bed)
    done = balancer("run", bed, *ANY_TIME, "--json", *words, check=False)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ending"], answer["steps"], answer["moved"]) == (status, ending, [], 0)
    assert why in answer["why"]
    assert answer["amplification"] is None
    assert btrfs_data(bed) == before


def test_what_cannot_be_balanced_is_an_error_of_one_line_and_a_hint(bed: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "none")[0] == 4
    assert refused(Path("/proc"))[0] == 4
    sly = tmp_path / "a\x1b[2Jb"
    sly.mkdir()
    work("mount", "--bind", "-o", "ro", bed, sly)
    try:
        status, error, _ = refused(sly)
    finally:
        work("umount", sly)
    assert status == 4
    assert "read-only" in error
    assert "\x1b" not in error
    assert r"a\x1b[2Jb" in error


@pytest.mark.parametrize("threads", [0, 1])
def test_what_could_not_be_cancelled_for_want_of_a_thread_is_not_begun(bed: Path, threads: int) -> None:
    before = btrfs_data(bed)
    words = (sys.executable, "-m", "tests.beds.no_more_threads", str(threads), "-m", "balancer", "run", bed, *ANY_TIME)
    done = work(*words, check=False, cwd=TOP)
    assert done.returncode == 1
    assert "error: no further thread can be started" in done.stderr
    assert "Traceback" not in done.stderr
    assert btrfs_data(bed) == before


def test_a_filesystem_that_another_process_balances_is_refused_and_the_process_is_named(bed: Path) -> None:
    work("btrfs", "balance", "start", "--background", "-dvrange=0..1", bed)  # over at once: there is no such block group
    wait_for(lambda: exclusive(bed) == "none")
    long = subprocess.Popen(
        ["btrfs", "balance", "start", "--full-balance", bed], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: exclusive(bed) == "balance" or long.poll() is not None)
        work("btrfs", "balance", "pause", bed)
        assert exclusive(bed) == "balance paused"
        status, error, hint = refused(bed)
    finally:
        work("btrfs", "balance", "cancel", bed, check=False)
        long.wait(60)
    assert status == 3
    assert "paused" in error
    assert "btrfs balance cancel" in hint
    nothing_is_left(bed)


# --- a run


def test_a_run_that_is_ended_by_a_signal_says_so_at_once_and_leaves_nothing_behind(bed: Path) -> None:
    files = checksum(bed)
    for number, status, name in ((signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "SIGINT")):
        process = start("run", bed, *ANY_TIME, "--policy", "score", bufsize=1)
        wait_for(lambda: exclusive(bed) == "balance")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (status, ""), out
        assert re.search(rf"^stopping: received {name}; the kernel cancels the block group at \d+$", out, re.MULTILINE)
        assert f"received {name}" in out.splitlines()[-1]
        assert re.search(r"^ +BEFORE +AFTER", out, re.MULTILINE)
        nothing_is_left(bed)
    assert checksum(bed) == files


def test_on_a_terminal_the_block_group_is_drawn_and_ctrl_c_ends_it_with_the_report(bed: Path) -> None:
    screen, status = on_a_terminal(bed, 80, "\x03")
    plain = ESCAPES.sub("", screen)
    assert status == 130
    assert re.search(r"1: block group \d+  score [\d.]+", plain)
    assert "▏" in plain
    assert "stopping: received SIGINT" in plain
    assert plain.rstrip().endswith("The run stopped: received SIGINT.")
    assert screen.rfind("\x1b[?25h") > screen.rfind("\x1b[?25l")  # the cursor is back
    nothing_is_left(bed)


def on_a_terminal(point: Path, columns: int, key: str) -> tuple[str, int]:
    """Returns the output of a run at a terminal, where `key` is typed as soon as the kernel balances ("": it closes), and its
    status.
    """
    pid, fd = pty.fork()
    if pid == 0:
        size = {"COLUMNS": str(columns), "LINES": "30", "TERM": "xterm-256color", "PYTHONPATH": str(TOP), "LC_ALL": "C.UTF-8"}
        os.environ.pop("NO_COLOR", None)
        os.environ.update(size)
        os.execv(sys.executable, [sys.executable, "-m", "balancer", "run", str(point), *ANY_TIME, "--policy", "score"])
    text, typed, end = b"", False, time.monotonic() + 60
    while time.monotonic() < end:
        if not typed and exclusive(point) == "balance" and b"\xe2\x96\x8f" in text:
            typed = True
            if not key:
                break
            os.write(fd, key.encode())
        if select.select([fd], [], [], 0.02)[0]:
            try:
                piece = os.read(fd, 65536)
            except OSError:  # it has closed its end
                break
            text += piece
            if not piece:
                break
    os.close(fd)
    return text.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_terminal_that_goes_away_ends_it_in_good_order_too(bed: Path) -> None:
    _, status = on_a_terminal(bed, 80, "")
    assert status == 143
    nothing_is_left(bed)


def test_a_run_moves_what_it_says_and_no_byte_of_a_file_changes(bed: Path) -> None:
    before, files = theirs(bed), checksum(bed)
    was = numbers(bed)
    planned = json.loads(balancer("plan", bed, "--json").stdout)["planned"]
    assert len(planned) > 1  # so that something remains after the first one has used the whole budget
    budget = before[planned[0]["vaddr"]].used
    sectors = written(bed)
    done = balancer("run", bed, *ANY_TIME, "--json", "--budget", str(budget))
    answer = json.loads(done.stdout)
    assert done.stderr == ""
    assert answer["ending"] == "budget"
    assert 0 < answer["moved"] <= budget
    assert [step["outcome"] for step in answer["steps"]] == ["done"] * answer["balanced"]
    assert without(answer["before"], "unallocated") == was
    assert without(answer["after"], "unallocated") == numbers(bed)
    assert answer["gained"] == pytest.approx(answer["before"]["score"] - answer["after"]["score"])
    first = answer["steps"][0]
    seen = before[first["vaddr"]]
    assert (first["moved"], first["extents"], first["references"]) == (seen.used, seen.extents, seen.references)
    assert not {step["vaddr"] for step in answer["steps"]} & theirs(bed).keys()  # every one of them is gone
    assert 0 < answer["written"] <= written(bed) - sectors
    assert answer["amplification"] == pytest.approx(answer["written"] / answer["moved"])
    assert answer["written"] >= answer["moved"]
    assert checksum(bed) == files
    nothing_is_left(bed)


def written(point: Path) -> int:
    """Returns the bytes written to its devices, by the kernel's statistics of block devices."""
    names = [Path(device).name for device in btrfs.devices_of(point)]
    return sum(int(Path(f"/sys/block/{name}/stat").read_text().split()[6]) * 512 for name in names)


def test_a_pipe_gets_a_line_for_each_block_group_and_the_catalogue_the_same(
    make_btrfs: Callable[..., Path],
) -> None:
    point = make_btrfs(size="512M", mkfs=("-m", "single"))
    churn(point, 2000, 1)
    (point / "top").mkdir()
    nights = Nights(point / "top")
    allocated, _ = allocated_and_used(point)
    out = balancer("run", point, *ANY_TIME, "--config", nights.config).stdout
    lines = re.findall(r"^(\d+): block group (\d+): score .* -> .* moved, .* written \(.*x\), ", out, re.MULTILINE)
    assert len(lines) >= 2
    assert [int(number) for number, _ in lines] == [*range(1, len(lines) + 1)]
    work("btrfs", "filesystem", "sync", point)
    with sqlite3.connect(f"file:{nights.state / 'catalogue.sqlite'}?mode=ro", uri=True) as connection:
        kept = connection.execute("select number, vaddr, outcome from balance_step order by number").fetchall()
        (run,) = connection.execute("select outcome, block_groups, before from balance").fetchall()
    assert kept == [(int(number), int(vaddr), "done") for number, vaddr in lines]
    assert run[:2] == ("done", len(lines))
    assert json.loads(run[2])["allocated"] == allocated
    learnt = json.loads(
        balancer("plan", point, "--json", "--min-score", "0", "--min-benefit", "0", "--config", nights.config).stdout
    )
    plain = json.loads(balancer("plan", point, "--json", "--min-score", "0", "--min-benefit", "0").stdout)
    estimates = [[planned_group["estimate"]["seconds"] for planned_group in row["planned"]] for row in (learnt, plain)]
    assert estimates[0] != estimates[1]  # the estimates learn from the measured cost
    quiet = balancer("run", point, *ANY_TIME, "-q", "--config", nights.config)
    assert (quiet.stdout, quiet.stderr) == ("", "")
