"""Downloads of a real backup, through the root service and the dashboard: whole, cancelled, and with a damaged file."""

import http.client
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds import btrfs, session, work
from tests.beds.cli import BACKUPD
from tests.beds.dashboard import LOGIN, QUICK, Dashboard, own_folder, serving, user_id
from tests.beds.faults import damage
from tests.beds.leftout import needs_program
from tests.beds.nights import Nights
from tests.beds.serving import serving as root_service
from tests.web.files_visit import files

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

LARGE = 24 << 20  # more than the kernel's buffers of both sockets take
BLOCK = 4096


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host's own files, outside the pool."""
    return tmp_path_factory.mktemp("source")


@pytest.fixture(scope="module")
def web(source: Path) -> Iterator[Dashboard]:
    """The dashboard of one host: a large file, a folder of small ones, and a file with a damaged block on the disk."""
    top = btrfs.make("400M")
    nights = Nights(top)
    nights.state.parent.chmod(0o755)
    (source / "good" / "small").mkdir(parents=True)
    (source / "good" / "large").write_bytes(os.urandom(LARGE))
    for number in range(300):
        (source / "good" / "small" / f"file {number}").write_bytes(os.urandom(number * 20))
    damaged = os.urandom(300_000)
    (source / "bad").mkdir()
    (source / "bad" / "a").write_bytes(os.urandom(200_000))
    (source / "bad" / "b").write_bytes(damaged)
    nights.tables["serve"] = QUICK
    nights.host("web1", source)
    nights.run()
    damage(top, damaged[40 * BLOCK : 41 * BLOCK])
    with (
        own_folder() as folder,
        root_service(nights.config, "--allow", str(user_id()), "--login", folder / LOGIN) as service,
        serving(folder, nights.state, service.socket) as dashboard,
    ):
        dashboard.nights, dashboard.service = nights, service
        yield dashboard
    session.remove(top.parent)


def address(source: Path, name: str, kind: str) -> str:
    return files("web1", os.fsencode(source / name), "/download", **{"as": kind})


@needs_program("unzip")
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_comes_whole(web: Dashboard, source: Path, kind: str, tmp_path: Path) -> None:
    answer = web.ask("GET", address(source, "good", kind), Cookie=web.cookie)
    assert answer.status == 200
    (tmp_path / "archive").write_bytes(answer.body)
    (tmp_path / "out").mkdir()
    extract = ("tar", "-xf") if kind == "tar" else ("unzip", "-q")
    work(*extract, tmp_path / "archive", cwd=tmp_path / "out")
    work("diff", "-r", source / "good", f"{tmp_path / 'out'}{source}/good")


def test_a_file_comes_whole(web: Dashboard, source: Path) -> None:
    answer = web.ask("GET", address(source, "good/large", "file"), Cookie=web.cookie)
    assert answer.body == (source / "good" / "large").read_bytes()


@pytest.mark.parametrize(("name", "kind"), [("good/large", "file"), ("good", "tar"), ("good", "zip")])
def test_a_download_that_the_client_cancels_leaves_nothing_behind(web: Dashboard, source: Path, name: str, kind: str) -> None:
    """It leaves no open file of the backup, no spool, no thread, no process and no connection."""
    assert web.service
    assert web.ask("GET", address(source, "good/small", kind if kind != "file" else "tar"), Cookie=web.cookie).status == 200
    pids = (web.service.process.pid, web.pid)
    wait_until(lambda: all(not of_downloads(pid) for pid in pids))
    before = [held(pid) for pid in pids]
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        line.connect(("127.0.0.1", web.port))
        line.sendall(f"GET {address(source, name, kind)} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {web.cookie}\r\n\r\n".encode())
        assert line.recv(1000).startswith(b"HTTP/1.1 200")
        wait_until(lambda: of_downloads(pids[0]) and held(pids[0]) != before[0])  # otherwise this test would prove nothing
    wait_until(lambda: all(map(is_no_more, map(held, pids), before)) and not any(map(of_downloads, pids)))
    assert "Traceback" not in web.log_text + web.service.log_text


def is_no_more(now: tuple[int, int, int], before: tuple[int, int, int]) -> bool:
    return all(count <= earlier for count, earlier in zip(now, before, strict=True))


def held(pid: int) -> tuple[int, int, int]:
    """Counts the threads, descriptors and children of a process."""
    folder = Path(f"/proc/{pid}")
    children = (folder / "task" / str(pid) / "children").read_text().split()
    return len([*(folder / "task").iterdir()]), len([*(folder / "fd").iterdir()]), len(children)


def of_downloads(pid: int) -> list[str]:
    """Returns the open files that belong to the backup or are spooled."""
    paths = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            paths.append(str(fd.readlink()))
        except FileNotFoundError:
            continue
    return [path for path in paths if "/hosts/" in path or (path.startswith(("/var/tmp", "/tmp")) and path.endswith("(deleted)"))]


def wait_until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@needs_program("unzip")
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_with_an_unreadable_file_is_incomplete_for_every_reader(
    web: Dashboard, source: Path, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(http.client.IncompleteRead) as caught:
        web.ask("GET", address(source, "bad", kind), Cookie=web.cookie)
    require_broken(caught.value.partial, kind, tmp_path)
    assert "failed midway: the server could not read the backup: Input/output error" in web.log_text


def test_the_tar_of_the_command_line_with_such_a_file_is_incomplete_for_every_reader(
    web: Dashboard, source: Path, tmp_path: Path
) -> None:
    assert web.nights
    bad = source / "bad"
    with (tmp_path / "piped").open("wb") as out:
        words = (*BACKUPD, "--config", web.nights.config, "restore", "web1", bad, "--tar", "-")
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert f"{bad / 'b'} cannot be read in the backup: Input/output error" in done.stderr
    require_broken((tmp_path / "piped").read_bytes(), "tar", tmp_path)
    (tmp_path / "new").mkdir()
    done = web.nights.backupd("restore", "web1", str(bad), "--tar", str(tmp_path / "new" / "file.tar"), check=False)
    assert done.returncode == 1
    assert f"{bad / 'b'} cannot be read in the backup: Input/output error" in done.stderr
    assert not [*(tmp_path / "new").iterdir()]


def require_broken(data: bytes, kind: str, folder: Path) -> None:
    """Info-ZIP and GNU tar list the part that arrived, and fail."""
    (folder / "part").write_bytes(data)
    done = work(*(("tar", "-tf") if kind == "tar" else ("unzip", "-t")), folder / "part", check=False)
    assert done.returncode != 0
    if kind == "tar":
        assert len(done.stdout.splitlines()) == 2, "only the folder and the file before the damaged one"
        assert "Unexpected EOF" in done.stderr
        with pytest.raises(tarfile.ReadError), tarfile.open(folder / "part") as tar:
            tar.getnames()
