"""demo.sh as a new user runs it: it succeeds, can be interrupted anywhere, and leaves nothing behind.

Only the long form tests its output, its continuation after a kill, and an end while a deleted backup is being read.

Users who have not decided yet run it as root: anything that it leaves behind stays on that machine.
"""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from tests.beds import TOP, session, work
from tests.beds.anyone import NOBODY, readable, without_rights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.ssh,
    pytest.mark.btrfs,
    pytest.mark.timeout(600),  # the first of them makes the virtual environment
]

DEMO = TOP / "demo.sh"
MIB = 1 << 20


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder with room for a demonstration; files that a failed test leaves there are removed with the session."""
    path = Path(tempfile.mkdtemp(prefix="demo-", dir=session.folder(1 << 30)))
    path.chmod(0o755)  # the dashboard's user passes through here
    yield path
    subprocess.run([DEMO, "--clean", "--in", path], check=False, stdin=subprocess.DEVNULL)


def demo(*words: str | Path, check: bool = True, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return work(DEMO, *words, check=check, env=env, timeout=500, cwd=Path("/"))


@contextmanager
def demo_at(line: str, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Yields a demonstration that has just printed a line with this beginning, and kills it at the end if it still runs."""
    argv = [DEMO, *words]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
    assert process.stdout is not None
    output = []
    try:
        for text in process.stdout:
            output.append(text)
            if text.startswith(line):
                break
        else:
            raise AssertionError("".join(output))
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def left_in(place: Path) -> list[str]:
    """Returns mounts, loop devices, processes and files of a demonstration in `place`, according to the kernel's tables."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{place}/" in line]
    loops = [
        line
        for line in work("losetup", "--list", "--noheadings", "--output", "BACK-FILE").stdout.splitlines()
        if f"{place}/" in line
    ]
    return [*mounts, *loops, *processes_in(place), *map(str, place.iterdir())]


def processes_in(place: Path) -> list[str]:
    """Returns processes that name `place` in their command line or their environment, except this one."""
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:  # gone
            continue
        if os.fsencode(f"{place}/") in words and folder.name != str(os.getpid()):
            result.append(f"{folder.name} {words[:200]!r}")
    return result


@pytest.mark.takes(60)
@pytest.mark.long
def test_after_a_kill_in_the_middle_it_runs_again_and_what_is_kept_can_be_used_and_cleaned_away(place: Path) -> None:
    """Its normal end removes the same as Ctrl-C does, and is the one that .ci/run checks."""
    with demo_at("$ backupd --config demo.toml run", "--no-serve", "--in", place) as process:
        process.kill()
        process.wait()
    left = left_in(place)
    assert any(" btrfs " in line for line in left)
    assert any("sshd" in line for line in left)
    done = demo("--keep", "--in", place)
    see_what_it_said(done.stdout)
    see_the_pictures(place)
    folder = place / "btrkeep-demo"
    work(TOP / ".venv" / "bin" / "backupd", "--config", folder / "demo.toml", "run", "shop")
    assert len(list((folder / "pool/hosts/shop").glob("2*Z"))) == 3
    assert f"--clean --in {place}" in done.stdout
    see_three_backups(*re.search(r"still runs: (http\S+), user demo, password (\w+)", done.stdout).groups())  # type: ignore[union-attr]
    assert "  runs as   nobody\n" in done.stdout
    own = [line for line in processes_in(place) if "btrkeep-web" in line or r"-m\x00web\x00" in line]
    pids = [line.split()[0] for line in own if "--users" not in line]  # the login service's own folder of users
    assert len(pids) == len(own) - 1
    assert {Path("/proc", pid).stat().st_uid for pid in pids} == {NOBODY}
    demo("--clean", "--in", place)
    assert left_in(place) == []


def see_what_it_said(output: str) -> None:
    assert "\x1b" not in output, "colours are for terminals"
    first, second = re.findall(r"^ *(\d+) +(\d+) +\d+  pool/hosts/shop/", output, re.MULTILINE)
    assert int(first[0]) > 64 * MIB < int(second[0])
    assert MIB <= int(second[1]) < 3 * MIB
    assert "green tea  3.20\ngreen tea  3.50\n" in output
    assert "identical" in output.splitlines()
    see_the_weeks(output)
    see_the_balance(output)
    see_the_dashboard(output)
    assert "$ grep green prices-of-the-first-night/prices.txt\ngreen tea  3.20\n" in output


def see_the_dashboard(output: str) -> None:
    """Opens every page of the menu; the demonstration itself checks the content."""
    pages = dict(re.findall(r"^  (/\S*) +\d+ ms  (.+)$", output, re.MULTILINE))
    assert {"/", "/hosts", "/hosts/shop", "/files/shop", "/pool", "/pool/heatmap", "/jobs", "/log", "/doctor"} <= set(pages)
    assert re.search(r"^  address   http://127\.0\.0\.1:\d+\n  name      demo\n  password  \w{12,}$", output, re.MULTILINE)


def see_the_pictures(place: Path) -> None:
    """Checks that there are one picture and one timelapse with as many frames as there were steps."""
    folder = place / "btrkeep-demo-pictures"
    assert {path.name for path in folder.iterdir()} == {"heatmap.png", "timelapse.gif", "by-btrkeep-demo"}
    with Image.open(folder / "heatmap.png") as picture:
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 10
    with Image.open(folder / "timelapse.gif") as film:
        assert film.n_frames == 6  # type: ignore[attr-defined]


def see_the_balance(output: str) -> None:
    """Checks the balance: every second of 3,200 files was deleted, which leaves as many holes; most of them are gone afterwards."""
    [before, after] = re.search(r"^fragments +([\d,]+) +([\d,]+) +-", output, re.MULTILINE).groups()  # type: ignore[union-attr]
    assert int(before.replace(",", "")) > 1500
    assert int(after.replace(",", "")) < 500
    assert "The run ended: " in output


def see_the_weeks(output: str) -> None:
    """Checks what is kept of 24 nights that begin on a Monday: daily 7, weekly 3, the months' first, and a held one."""
    days = ["10-12", "10-14", "10-19", "10-26", *(f"10-{day}" for day in range(29, 32)), *(f"11-0{day}" for day in range(1, 5))]
    assert re.findall(r"^hosts/diary/2026-(\d\d-\d\d)T\d+Z$", output, re.MULTILINE) == days
    strip = r"^2026-10 +MxHxxxxWxxxxxxWxxddd  7 kept, 13 to delete\n2026-11  MWdd +4 kept$"
    assert re.search(strip, output, re.MULTILINE)
    assert re.search(r"^13 of 13 deleted, \d+ of at most 100 waiting for the cleaner", output, re.MULTILINE)
    assert re.findall(r"^(waiting +1|no) deleted subvolume", output, re.MULTILINE) == ["waiting     1", "no"]
    assert "2026-10-14: all is well" in output.splitlines()


def test_ctrl_c_in_the_middle_leaves_nothing_and_a_second_one_at_the_same_time_is_refused(place: Path) -> None:
    with demo_at("$ backupd --config demo.toml run", "--in", place) as process:
        second = demo("--in", place, check=False)
        assert second.returncode == 1
        assert "is running in" in second.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert left_in(place) == []


@pytest.mark.long
def test_ctrl_c_while_a_deleted_backup_is_read_leaves_nothing(place: Path) -> None:
    with demo_at("$ backupd --config weeks.toml expire --now 2026-11-05", "--no-serve", "--in", place) as process:
        assert len([line for line in left_in(place) if " btrfs " in line]) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert left_in(place) == []


def see_three_backups(address: str, password: str) -> None:
    """Checks that the dashboard that was left running shows later events, and only to users with the password."""
    assert work("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"{address}/hosts/shop").stdout == "303"  # to the login
    with tempfile.TemporaryDirectory() as folder:
        jar = ("curl", "-sS", "--cookie-jar", f"{folder}/jar", "--cookie", f"{folder}/jar")
        token = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', work(*jar, f"{address}/login").stdout)
        assert token
        fields = {"name": "demo", "password": password, "csrf_token": token[1]}
        form = [word for key, value in fields.items() for word in ("--data-urlencode", f"{key}={value}")]
        work(*jar, "-o", "/dev/null", *form, f"{address}/login")
        page = work(*jar, f"{address}/hosts/shop").stdout
    assert len(set(re.findall(r"2\d{3}-\d\d-\d\dT\d{6}Z", page))) == 3


def test_a_step_that_fails_ends_it_with_the_reason_and_cleans_up(place: Path, tmp_path: Path) -> None:
    broken = tmp_path / "ssh-keygen"
    broken.write_text("#!/bin/sh\necho no keys today >&2\nexit 7\n")
    broken.chmod(0o755)
    done = demo("--in", place, check=False, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 1
    assert "no keys today" in done.stderr
    assert "this failed with exit status 7: ssh-keygen" in done.stderr
    assert left_in(place) == []


def test_a_folder_that_is_not_its_own_is_left_alone(place: Path) -> None:
    mine = place / "btrkeep-demo" / "mine"
    mine.mkdir(parents=True)
    assert demo("--in", place, check=False).returncode == 1
    demo("--clean", "--in", place)
    assert mine.is_dir()
    mine.rmdir()
    mine.parent.rmdir()


def test_help_needs_no_root_and_an_unknown_option_is_refused() -> None:
    assert "--keep" in work(*without_rights(), readable().top / "demo.sh", "--help", cwd=Path("/")).stdout
    assert demo("--no-such-thing", check=False).returncode == 2
