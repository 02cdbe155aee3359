"""The root service on a real pool: its answers equal those of find, stat and sha256sum, and it never keeps the pool busy."""

import io
import json
import os
import re
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from btrkeep.serving.protocol import RequestRefused
from tests.beds import work
from tests.beds.anyone import readable
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.beds.ssh import Sshd
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

GIB, STRANGE = 1 << 30, (b"not\xffutf8", b"new\nline", b"<b>bold", b" ", b"-rf")


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    nights = Nights(module_btrfs)
    web1 = nights.source / "web1"
    (web1 / "folder").mkdir(parents=True)
    for number in range(12):
        (web1 / f"file{number:02}").write_text(f"{number}\n" * number)
    for name in STRANGE:
        Path(os.fsdecode(os.fsencode(web1) + b"/folder/" + name)).write_bytes(name)
    (web1 / "outside").symlink_to("/etc")
    (web1 / "loop").symlink_to(web1)
    (web1 / "sparse").touch()
    os.truncate(web1 / "sparse", GIB)
    nights.host("web1", web1)
    nights.host("web2", web1 / "folder")
    nights.run("web1", "web2")
    (web1 / "file11").write_text("changed\n")
    (web1 / "file10").unlink()
    nights.run("web1")
    return nights


@pytest.fixture(scope="module")
def service(pool: Nights) -> Iterator[Service]:
    with serving(pool.config) as result:
        yield result


def base(pool: Nights) -> str:
    return str(pool.source / "web1")


def browse(service: Service, path: str, **more: object) -> dict:
    return service.agent().ask("browse", host="web1", backup="latest", path=path, **more)


def test_a_folder_is_listed_as_it_is_in_the_source(pool: Nights, service: Service) -> None:
    answer = browse(service, base(pool))
    by_name = {entry.name: entry for entry in os.scandir(base(pool))}
    assert {entry["name"] for entry in answer["entries"]} == set(by_name)
    assert answer["total"] == len(by_name)
    for entry in answer["entries"]:
        status = by_name[entry["name"]].stat(follow_symlinks=False)
        assert (entry["size"], entry["uid"]) == (0 if entry["kind"] == "folder" else status.st_size, status.st_uid) or (
            entry["kind"] == "folder"
        )
    page = browse(service, base(pool), offset=2, limit=3)
    assert [entry["name"] for entry in page["entries"]] == [entry["name"] for entry in answer["entries"]][2:5]


@pytest.mark.parametrize("name", STRANGE)
def test_a_file_of_any_name_is_downloaded_as_it_was(pool: Nights, service: Service, name: bytes) -> None:
    path = os.fsdecode(os.fsencode(base(pool)) + b"/folder/" + name)
    with service.agent().stream("download", host="web1", backup="latest", path=path) as stream:
        assert (os.fsencode(stream.name), stream.length) == (name, len(name))
        assert b"".join(stream) == name


def test_what_is_not_there_is_missing(pool: Nights, service: Service) -> None:
    for host, backup, path in (
        ("web1", "latest", "/nowhere"),
        ("web9", "latest", "/"),
        ("web1", "2001", "/"),
        ("web1", "latest", f"{base(pool)}/outside/passwd"),
        ("web1", "latest", f"{base(pool)}/file01/x"),
    ):
        with pytest.raises(RequestRefused) as refused:
            service.agent().ask("browse", host=host, backup=backup, path=path)
        assert refused.value.kind == "missing", (host, backup, path)


# --- what is started


def finished(service: Service, job: str) -> dict:
    seen: dict = eventually(lambda: seen if (seen := service.agent().ask("job", job=job))["state"] in ("done", "failed") else None)
    return seen


def waiting_host(pool: Nights) -> Path:
    """Configures the host `slow`, whose backup begins once the file is there that this returns."""
    go_on = pool.top / f"go-on-{time.monotonic_ns()}"
    pool.host("slow", pool.source / "web1" / "folder", before=["/bin/sh", "-c", f"until [ -e '{go_on}' ]; do sleep 0.05; done"])
    return go_on


def test_a_backup_is_started_and_its_end_is_told(pool: Nights, service: Service) -> None:
    before = set(pool.names("web1"))
    begun = service.agent("bob").ask("run", host="web1")
    answer = finished(service, begun["job"])
    assert (answer["state"], answer["exit"], answer["who"], begun["unit"]) == ("done", 0, "bob", None), answer
    (name,) = set(pool.names("web1")) - before
    assert any(name in line for line in answer["lines"])
    assert begun["job"] in [row["job"] for row in service.agent().ask("jobs")]


def test_no_host_is_backed_up_twice_at_once_and_the_running_process_is_named(pool: Nights, service: Service) -> None:
    go_on = waiting_host(pool)
    begun = service.agent("bob").ask("run", host="slow")
    with pytest.raises(RequestRefused, match="for bob") as refused:
        service.agent("alice").ask("run", host="slow")
    assert refused.value.kind == "locked"
    go_on.touch()
    assert finished(service, begun["job"])["state"] == "done"
    assert finished(service, service.agent().ask("run", host="slow")["job"])["state"] == "done"


def test_a_backup_by_another_process_blocks_a_request(pool: Nights, service: Service, backupd_running: Callable) -> None:
    go_on = waiting_host(pool)
    running = backupd_running("--config", pool.config, "run", "slow")
    lock = pool.pool / ".btrkeep/locks/host-slow"
    wait_for(lambda: lock.exists() and str(running.pid) in lock.read_text())
    with pytest.raises(RequestRefused, match=f"process {running.pid}") as refused:
        service.agent().ask("run", host="slow")
    assert refused.value.kind == "locked"
    go_on.touch()
    assert running.wait(60) == 0


def test_a_job_that_fails_and_one_that_is_killed_are_told_as_such(pool: Nights, service: Service) -> None:
    pool.host("gone", pool.source / "nowhere")
    answer = finished(service, service.agent().ask("run", host="gone")["job"])
    assert (answer["state"], answer["exit"]) == ("failed", 1)
    assert "the source is missing" in answer["error"]
    pool.host("slow", pool.source / "web1" / "folder", before=["/bin/sleep", "30"])
    job = service.agent().ask("run", host="slow")["job"]
    file = pool.state / "jobs" / f"{job}.json"
    pid = eventually(lambda: json.loads(file.read_text())["pid"])
    lock = pool.pool / ".btrkeep/locks/host-slow"
    wait_for(lambda: lock.exists() and lock.read_text().strip("\0 "))
    holder = json.loads(lock.read_bytes())["pid"]
    os.kill(pid, 9)
    assert "killed" in eventually(lambda: service.agent().ask("job", job=job)["error"])
    os.kill(holder, 15)
    wait_for(lambda: not lock.read_text().strip("\0 "))


def test_a_service_that_ends_leaves_its_jobs_at_work(pool: Nights) -> None:
    pool.host("slow", pool.source / "web1" / "folder", before=["/bin/sleep", "1"])
    with serving(pool.config) as first:
        job = first.agent().ask("run", host="slow")["job"]
    with serving(pool.config) as second:
        assert finished(second, job)["state"] == "done"


def test_only_configured_hosts_are_backed_up(service: Service) -> None:
    for host in ("web9", "all"):
        with pytest.raises(RequestRefused) as refused:
            service.agent().ask("run", host=host)
        assert refused.value.kind == "missing"


def test_what_was_asked_lies_where_only_root_reads_it(pool: Nights, service: Service) -> None:
    finished(service, service.agent().ask("run", host="web2")["job"])
    by_name = {path: path.stat().st_mode & 0o077 for path in [pool.state / "jobs", *(pool.state / "jobs").rglob("*")]}
    assert len(by_name) > 3
    assert set(by_name.values()) == {0}
    assert not list((pool.state / "jobs/asked").iterdir())  # a request is taken once


# --- what is kept


def test_a_hold_is_in_the_notes_with_who_asked_and_ends_again(pool: Nights, service: Service) -> None:
    name = pool.names("web1")[0]
    notes = pool.pool / "hosts/web1/notes.json"
    answer = service.agent("bob").ask("hold", host="web1", backup=name, why="before the move", until="2099-01-01T00:00:00Z")
    assert json.loads(notes.read_text())["backups"][name]["hold"]["why"] == answer["why"] == "before the move (bob)"
    assert answer["until"] == "2099-01-01T00:00:00Z"
    service.agent().ask("release", host="web1", backup=name)
    assert "hold" not in json.loads(notes.read_text())["backups"].get(name, {})
    with pytest.raises(RequestRefused, match="not held") as refused:
        service.agent().ask("release", host="web1", backup=name)
    assert refused.value.kind == "refused"
    for host, backup in (("web1", "2001-01-01T000000Z"), ("web9", "latest")):
        with pytest.raises(RequestRefused) as refused:
            service.agent().ask("hold", host=host, backup=backup)
        assert refused.value.kind == "missing"


def test_a_suspect_backup_is_accepted_and_a_complete_one_is_not(pool: Nights, service: Service) -> None:
    folder = pool.source / "shrinking"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}").write_text("x" * 1000)
    pool.host("shrinking", folder)
    pool.run("shrinking")
    for number in range(8):
        (folder / f"{number}").unlink()
    pool.run("shrinking", status=1)
    first, second = pool.names("shrinking")
    assert service.agent("bob").ask("accept", host="shrinking", backup="latest", why="cleaned up")["name"] == second
    notes = json.loads((pool.pool / "hosts/shrinking/notes.json").read_text())
    assert notes["backups"][second]["accepted"]["why"] == "cleaned up (bob)"
    with pytest.raises(RequestRefused, match="not suspect") as refused:
        service.agent().ask("accept", host="shrinking", backup=first)
    assert refused.value.kind == "refused"


# --- what is looked up


def test_what_commands_say_is_said_here_too(pool: Nights, service: Service) -> None:
    agent = service.agent()
    path = f"{base(pool)}/file11"
    assert agent.ask("retention", host="web1") == pool.json("retention", "explain", "web1")
    answer = pool.json("versions", "web1", path)
    for version in answer["versions"]:
        assert version["entry"].pop("path") == path  # an answer has it once
    assert agent.ask("versions", host="web1", path=path) == {**answer, "of": len(pool.names("web1")), "next": None}
    assert set(agent.ask("doctor")) == {"filesystem", "devices", "checks", "findings", "copies", "not_looked_at"}
    assert "policy" in agent.ask("plan")


def test_the_second_who_asks_for_the_doctor_gets_what_the_first_was_told(pool: Nights, service: Service) -> None:
    """Although there is a new finding, as the command shows."""
    first = service.agent().ask("doctor")
    mount = work("findmnt", "--noheadings", "--output", "TARGET", "--target", pool.top).stdout.strip()
    work("mount", "-o", "remount,commit=900", mount)
    try:
        assert service.agent().ask("doctor") == first
        now = json.loads(pool.backupd("doctor", "--json", check=False).stdout)
    finally:
        work("mount", "-o", "remount,commit=30", mount)
    assert "commit" in {finding["name"] for finding in now["findings"]} - {finding["name"] for finding in first["findings"]}


def test_two_backups_are_compared(pool: Nights, service: Service) -> None:
    first, second, *_ = pool.names("web1")
    agent = service.agent()
    answer = agent.ask("compare", host="web1", path=base(pool), before=first, after=second)
    rows = {(Path(row["path"]).name, row["what"]) for row in answer["differences"]}
    assert (rows, answer["more"], answer["text"]) == ({("file10", "removed"), ("file11", "changed")}, False, None)
    assert agent.ask("compare", host="web1", path=base(pool), before=first, after=second, limit=1)["more"]
    text = agent.ask("compare", host="web1", path=f"{base(pool)}/file11", before=first, after=second)["text"]
    assert text[-1] == "+changed"
    assert len([line for line in text if line == "-11"]) == 11


def test_the_picture_of_a_block_groups_extents_is_a_picture(pool: Nights, service: Service) -> None:
    output = work("btrfs", "inspect-internal", "dump-tree", "-t", "extent", device_of(pool.pool)).stdout
    vaddr = int(next(iter(re.findall(r"\((\d+) BLOCK_GROUP_ITEM", output))))
    with service.agent().stream("extents", vaddr=vaddr, size=8, curve="snake") as stream:
        data = b"".join(stream)
    assert (stream.type, stream.length) == ("image/png", len(data))
    assert Image.open(io.BytesIO(data)).size == (256, 256)
    with pytest.raises(RequestRefused):
        service.agent().stream("extents", vaddr=vaddr + 1)


def device_of(path: Path) -> str:
    return work("findmnt", "-no", "SOURCE", "--target", path).stdout.split("[")[0].strip()


# --- streams


def test_a_folder_as_tar_holds_what_is_there(pool: Nights, service: Service) -> None:
    with service.agent().stream("download", host="web1", backup="latest", path=f"{base(pool)}/folder", **{"as": "tar"}) as stream:
        data = b"".join(stream)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = {os.fsencode(member.name).rpartition(b"/")[2] for member in archive if member.isfile()}
    assert names == set(STRANGE)


def rss(pid: int) -> int:
    """Returns the peak memory of a process in bytes."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) * 1024


def test_a_gibibyte_goes_through_in_little_memory(pool: Nights, service: Service) -> None:
    browse(service, base(pool))
    before = rss(service.process.pid)
    with service.agent().stream("download", host="web1", backup="latest", path=f"{base(pool)}/sparse") as stream:
        assert stream.length == GIB
        assert sum(len(piece) for piece in stream) == GIB
    assert rss(service.process.pid) - before < 8 << 20


def test_work_ends_when_the_client_disconnects(pool: Nights, service: Service) -> None:
    with service.agent("leaver").stream("download", host="web1", backup="latest", path=f"{base(pool)}/sparse") as stream:
        next(iter(stream))
    line = eventually(lambda: re.search(r"for leaver.*the client disconnected after \S+ s and (\d+) bytes", service.log_text))
    assert int(line[1]) < GIB // 4


def eventually(look: Callable) -> Any:
    end = time.monotonic() + 60
    while not (answer := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return answer


def test_a_file_that_is_none_is_not_given_out(pool: Nights, service: Service) -> None:
    for name, kind in (("folder", "usage"), ("outside", "usage"), ("outside/passwd", "missing"), ("loop/file01", "missing")):
        with pytest.raises(RequestRefused) as refused:
            service.agent().stream("download", host="web1", backup="latest", path=f"{base(pool)}/{name}")
        assert refused.value.kind == kind, name


# --- who may ask, and how many


ASK = """
import sys
from pathlib import Path
from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient
try:
    print(RootServiceClient(Path(sys.argv[1]), "x", 10).ask("jobs"))
except OperatorError as error:
    print(getattr(error, "kind", "absent"))
"""


def asked_by(user: str, path: Path) -> str:
    words = readable().run_as(int(user), "-c", ASK, path)
    return work(*words, env=readable().environment, cwd=Path("/")).stdout.strip()


def test_other_users_are_kept_out_by_the_kernel_and_by_the_service(service: Service) -> None:
    assert service.socket.stat().st_mode & 0o777 == 0o660
    assert asked_by("65534", service.socket) == "absent"
    service.socket.chmod(0o666)
    try:
        assert asked_by("65534", service.socket) == "refused"
    finally:
        service.socket.chmod(0o660)


def test_more_than_it_can_do_at_once_is_answered_busy_and_it_recovers(pool: Nights, service: Service) -> None:
    held = []
    for _ in range(16):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].connect(str(service.socket))
    assert eventually(lambda: outcome(service, pool) == "busy")  # the last of them may not be accepted yet
    for connection in held:
        connection.close()
    assert eventually(lambda: outcome(service, pool) == "answered")


def outcome(service: Service, pool: Nights) -> str:
    try:
        return "answered" if browse(service, base(pool))["total"] else "empty"
    except RequestRefused as refused:
        return refused.kind


def test_slow_downloads_leave_room_for_others(pool: Nights, service: Service) -> None:
    words, held = {"host": "web1", "backup": "latest", "path": f"{base(pool)}/sparse"}, []
    for who, count, waiting in (("alice", 5, "alice"), ("bob", 4, "bob"), ("carol", 1, "dave")):  # last slot: a new user
        held += [service.agent(who).stream("download", **words) for _ in range(count)]
        with pytest.raises(RequestRefused) as refused:
            service.agent(waiting).stream("download", **words)
        assert refused.value.kind == "busy"
    assert browse(service, base(pool))["total"]
    for stream in held:
        stream.close()


# --- its own life


def test_between_requests_nothing_of_the_pool_is_open(pool: Nights, service: Service) -> None:
    browse(service, base(pool))
    service.agent().ask("retention", host="web1")
    folder = Path(f"/proc/{service.process.pid}")
    opened = lambda: (str(path.resolve()) for path in (*(folder / "fd").iterdir(), folder / "cwd"))  # noqa: E731
    wait_for(
        lambda: not any(path.startswith((str(pool.pool), str(pool.state))) for path in opened())
    )  # it closes them just after its answer
    assert str(pool.top) not in (folder / "maps").read_text()


def test_it_ends_when_nothing_is_asked_and_takes_its_socket_along(pool: Nights) -> None:
    with serving(pool.config, "--idle", "1") as result:
        assert browse(result, base(pool))["total"]
        assert result.process.wait(60) == 0
    assert not result.socket.exists()


def test_the_filesystem_can_be_unmounted_while_it_is_there(make_btrfs: Callable) -> None:
    nights = Nights(make_btrfs())
    nights.host("web1", "/etc/ssl")
    nights.run("web1")
    with serving(nights.config) as result:
        assert result.agent().ask("browse", host="web1", backup="latest", path="/etc")["total"]
        work("umount", nights.top)
        with pytest.raises(RequestRefused) as refused:
            result.agent().ask("browse", host="web1", backup="latest", path="/etc")
        assert refused.value.kind == "unusable"


def test_a_socket_with_a_listener_is_not_replaced(pool: Nights, service: Service, tmp_path: Path) -> None:
    process = pool.backupd("serve", "--socket", service.socket, check=False)
    assert (process.returncode, "another process listens" in process.stderr) == (2, True)
    (tmp_path / "file").write_text("mine")
    assert pool.backupd("serve", "--socket", tmp_path / "file", check=False).returncode == 2
    assert (tmp_path / "file").read_text() == "mine"
    assert service.agent().ask("jobs") is not None


def test_a_socket_that_a_killed_service_left_is_taken_over(pool: Nights) -> None:
    with serving(pool.config) as result:
        result.process.kill()
        result.process.wait()
        assert result.socket.exists()
        with serving(pool.config, socket=result.socket) as second:
            assert second.agent().ask("jobs") is not None
        result.process.returncode = 0


# --- restores


def test_a_restore_is_previewed_done_and_its_result_told(pool: Nights, tmp_path: Path) -> None:
    words = {"host": "web1", "backup": "latest", "paths": [f"{base(pool)}/folder", f"{base(pool)}/file05"], "to": "folder"}
    with serving(pool.config, "--restore-to", str(tmp_path)) as result:
        seen = result.agent().ask("preview", **words)
        assert (seen["new"]["count"], seen["possible"]) == (len(STRANGE) + 2 + base(pool).count("/"), True), seen
        assert list(tmp_path.iterdir()) == []
        done = finished(result, result.agent("bob").ask("restore", **words)["job"])
        assert (done["state"], done["verb"], done["who"], done["result"]["good"]) == ("done", "restore", "bob", True), done
        assert next(row["verb"] for row in result.agent().ask("jobs")) == "restore"
    folder = tmp_path / f"web1-{pool.names('web1')[-1]}"
    assert (folder / base(pool)[1:] / "file05").read_bytes() == (pool.source / "web1/file05").read_bytes()
    inside = folder / base(pool)[1:] / "folder"
    assert {os.fsencode(path.name) for path in inside.iterdir()} == set(STRANGE)


def test_a_restore_goes_to_its_own_host_or_where_the_administrator_says(pool: Nights, service: Service) -> None:
    before = service.agent().ask("jobs")
    for to, kind in (
        ("folder", "refused"),
        ("host:/etc", "refused"),
        ("host:/", "refused"),
        ("/etc", "usage"),
        ("folder:/etc", "usage"),
        ("root@elsewhere:/", "usage"),
        ("web2:/srv", "usage"),
        ("host:/../etc", "usage"),
        ("host:etc", "usage"),
        (["host"], "usage"),
    ):
        with pytest.raises(RequestRefused) as refused:
            service.agent().ask("restore", host="web1", backup="latest", paths=[base(pool)], to=to)
        assert refused.value.kind == kind, to
    assert service.agent().ask("jobs") == before


def test_a_restore_to_the_host_itself_puts_files_back_where_they_were(shared_btrfs: Path, sshd: Sshd) -> None:
    nights = Nights(shared_btrfs)
    folder = nights.source / "srv"
    folder.mkdir()
    (folder / "letter").write_text("dear")
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", folder, address=sshd.address, port=sshd.port)
    nights.run("web1")
    (folder / "letter").unlink()
    words = {"host": "web1", "backup": "latest", "paths": [str(folder / "letter")]}
    with serving(nights.config, "--restore-elsewhere") as result:
        seen = result.agent().ask("preview", **words)
        assert (seen["new"]["count"], seen["possible"]) == (1, True), seen
        done = finished(result, result.agent().ask("restore", **words)["job"])
        assert done["state"] == "done", done
        assert (folder / "letter").read_text() == "dear"
        elsewhere = finished(result, result.agent().ask("restore", **words, to=f"host:{nights.top / 'new'}")["job"])
        assert elsewhere["state"] == "done", elsewhere
    assert (nights.top / "new/letter").read_text() == "dear"
