"""The root service's answers are bounded, whatever files a host has: the kernel's figures of memory and time."""

import os
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.serve.request_checks import checked
from backupd.serve.service_context import Call, ServiceContext
from backupd.serve.verbs import VERBS, files
from btrkeep.clock import Clock
from btrkeep.serving.protocol import RequestRefused, encoded
from btrkeep.serving.server import Peer, Wire
from btrkeep.serving.viewer import Viewer
from tests.beds import work
from tests.beds.history import every, moment
from tests.beds.lineage import make_lineage
from tests.beds.nights import Nights
from tests.beds.opens import watched
from tests.beds.serving import Service, serving

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

LAST = moment("2026-11-20 22:00")
MANY, LINKED, HOLES = 60_000, 20_000, 40_000
LONG = "x" * 180
MIB = 1 << 20
BACKUPS = 16
NO_TEXT = b"\xff" * 240
DEPTH, DEEP = 50, 1000
LINKS = b"/links" + (b"/" + b"\xff" * 254) * 6
SYMLINKS = 3000
LONGEST = 4 * MIB + MIB // 2


def life(number: int, data: Path) -> None:
    if number in (0, BACKUPS - 1):
        (data / "poem").write_text(poem(number))
    if number == BACKUPS - 1:
        (data / "many" / f"{1:06}{LONG}").unlink()
        (data / "linked" / "first" / f"{1:06}{LONG}").unlink()
        deep(data)
        links(data)
    target(data, number)
    if number:
        return
    (data / "many").mkdir()
    (data / "many" / f"{0:06}{LONG}").symlink_to("nowhere")
    for value in range(1, MANY):
        os.close(os.open(f"{data}/many/{value:06}{LONG}", os.O_CREAT | os.O_WRONLY))
    for folder in ("linked", "linked/first", "linked/second"):
        (data / folder).mkdir()
    for value in range(LINKED):
        os.close(os.open(f"{data}/linked/first/{value:06}{LONG}", os.O_CREAT | os.O_WRONLY))
        os.link(f"{data}/linked/first/{value:06}{LONG}", f"{data}/linked/second/{value:06}{LONG}")
    with (data / "holes").open("wb") as file:
        for value in range(HOLES):
            file.seek(value << 13)
            file.write(b"%4096d" % value)


def poem(number: int) -> str:
    """Makes 5,000 lines, of which every second one occurs in both versions some 25 times: the worst case for a
    comparison by lines.
    """
    chance = Random(2)
    return "".join(f"line {chance.randrange(100)}\n{number} {value}\n" for value in range(2499))


def deep(data: Path) -> None:
    """Makes files with paths of twelve kilobytes, without any UTF-8."""
    fd = os.open(data, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir(NO_TEXT, dir_fd=fd)
        inner = os.open(NO_TEXT, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    for number in range(DEEP):
        os.close(os.open(b"%d\n<b>" % number, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def links(data: Path) -> None:
    """Makes a folder of symlinks like a hostile host: with 5,000 of them, 182 MB of JSON."""
    fd = os.open(data, os.O_RDONLY)
    for name in LINKS.split(b"/")[1:]:
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    for number in range(SYMLINKS):
        os.symlink(b"\xfe" * 4000, link_name(number), dir_fd=fd)
    os.close(fd)


def link_name(number: int) -> bytes:
    return b"%05d" % number + b"\xff" * 250


def target(data: Path, number: int) -> None:
    """A symlink with another target in each backup."""
    (data / "target").unlink(missing_ok=True)
    (data / "target").symlink_to(f"{number:04}".encode() + b"\xfe" * 4000)


@pytest.fixture(scope="module")
def crowd(module_btrfs: Path) -> Nights:
    nights = Nights(module_btrfs)
    make_lineage(nights, "crowd", every(1, BACKUPS, LAST), life)
    return nights


@pytest.fixture
def service(crowd: Nights) -> Iterator[Service]:
    """A new one for each test: one that has had memory keeps it, and would hide what it takes again."""
    with serving(crowd.config) as result:
        result.agent().ask("browse", host="crowd", backup="latest", path="/")  # loads everything that any request needs
        yield result


def taken(service: Service, act: Callable[[], object]) -> int:
    """Returns how much more memory the service needed during the block, in bytes."""
    proc = Path(f"/proc/{service.process.pid}")
    (proc / "clear_refs").write_text("5")  # the peak is that of now, see proc(5)
    before = _status(proc, "VmRSS")
    act()
    return _status(proc, "VmHWM") - before


def _status(proc: Path, name: str) -> int:
    (line,) = (line for line in (proc / "status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def download(service: Service, path: str, kind: str, to: Path) -> None:
    asked = {"host": "crowd", "backup": "2026-11-05", "path": path, "as": kind}
    with service.agent(patience=120).stream("download", **asked) as stream, to.open("wb") as file:
        for piece in stream:
            file.write(piece)


def test_a_zip_of_many_names_takes_no_memory_for_each_of_them(service: Service, tmp_path: Path) -> None:
    # An idle service has 29 MiB, and nothing to reuse; with all names in memory it took some 85 MiB more.
    assert taken(service, lambda: download(service, "/many", "zip", tmp_path / "zip")) < 44 * MIB
    with zipfile.ZipFile(tmp_path / "zip") as zip_file:  # Python's own reader, and Info-ZIP's
        assert len(zip_file.namelist()) == MANY + 1
        assert zip_file.read(f"many/{0:06}{LONG}") == b"nowhere"
    assert work("unzip", "-tq", tmp_path / "zip").returncode == 0


def test_a_tar_of_many_hard_links_takes_no_memory_for_each_of_them(service: Service, tmp_path: Path) -> None:
    assert taken(service, lambda: download(service, "/linked", "tar", tmp_path / "tar")) < 18 * MIB
    listed = work("tar", "-tvf", tmp_path / "tar").stdout.splitlines()
    assert len(listed) == 2 * LINKED + 3
    assert (
        sum(
            f" linked/second/{number:06}{LONG} link to linked/first/{number:06}{LONG}" in line
            for number, line in enumerate(line for line in listed if " link to " in line)
        )
        == LINKED
    )


def test_a_tar_of_a_file_with_many_holes_takes_no_memory_for_each_of_them(service: Service, crowd: Nights, tmp_path: Path) -> None:
    download(service, f"/many/{0:06}{LONG}", "tar", tmp_path / "tar")  # loads everything that any download needs
    # With all of them in memory it took 11 MiB.
    assert taken(service, lambda: download(service, "/holes", "tar", tmp_path / "tar")) < 4 * MIB
    work("tar", "-xf", tmp_path / "tar", "-C", tmp_path)
    assert work("cmp", tmp_path / "holes", crowd.data("crowd", "/holes", crowd.names("crowd")[0])).returncode == 0
    assert (tmp_path / "holes").stat().st_blocks < (HOLES << 13) // 512


def test_a_page_of_a_crowded_folder_takes_memory_for_the_page(crowd: Nights, service: Service) -> None:
    def browse_crowd() -> None:
        answer = service.agent().ask("browse", host="crowd", backup="2026-11-05", path="/many", offset=MANY - 10, limit=100)
        truth = sorted(path.name for path in crowd.data("crowd", "/many", crowd.names("crowd")[0]).iterdir())[-10:]
        assert (answer["total"], [entry["name"] for entry in answer["entries"]]) == (MANY, truth)

    assert taken(service, browse_crowd) < 12 * MIB


# --- questions that take as long as there is to read


def test_versions_by_content_are_told_as_far_as_there_was_time_and_go_on_from_there(crowd: Nights, service: Service) -> None:
    names, since, answers, seconds = crowd.names("crowd"), None, list[dict[str, Any]](), 1
    while not answers or since:
        asked = {
            "host": "crowd",
            "path": "/linked/first",
            "content": True,
            "seconds": seconds,
            **({"since": since} if since else {}),
        }
        try:
            answers.append(service.agent(patience=90).ask("versions", **asked))
            since = answers[-1]["next"]
        except RequestRefused:  # a backup with that many names takes longer here
            seconds *= 2
    assert answers[0]["of"] == BACKUPS
    assert answers[0]["backups"][-1]["name"] == answers[0]["next"] != names[-1]
    assert {backup["name"] for answer in answers for backup in answer["backups"]} == set(names)
    changes = [(version["first"], version["last"]) for version in answers[-1]["versions"]]
    assert changes[-1] == (names[-1], names[-1])  # and the one before ends with the backup before
    assert changes[-2][1] == names[-2]


def test_what_takes_too_long_in_one_backup_is_refused_with_another_way(service: Service) -> None:
    with pytest.raises(RequestRefused, match="takes longer than the limit of 0 s") as refused:
        service.agent().ask("versions", host="crowd", path="/many", content=True, seconds=0)
    assert "backupd versions" in refused.value.hint


def test_a_comparison_says_when_it_had_not_the_time_for_all(crowd: Nights, service: Service) -> None:
    asked = {"host": "crowd", "path": "/", "before": crowd.names("crowd")[0], "after": "latest", "limit": 5000}
    answer = service.agent().ask("compare", **asked, seconds=0)
    assert (answer["more"], answer["over"], len(answer["differences"])) == (True, True, 0)
    whole = service.agent(patience=60).ask("compare", **{**asked, "path": "/many"}, seconds=60)
    assert (whole["more"], whole["over"], [difference["what"] for difference in whole["differences"]]) == (
        False,
        False,
        ["removed"],
    )


def test_lines_that_are_made_to_take_long_are_compared_for_no_longer_than_there_was_time(crowd: Nights, service: Service) -> None:
    asked = {"host": "crowd", "path": "/poem", "before": crowd.names("crowd")[0], "seconds": 1}
    begun = time.monotonic()
    answer = service.agent(patience=60).ask("compare", **asked)
    assert time.monotonic() - begun < 10  # it took 16 s before
    assert (answer["text"], "takes longer" in answer["note"], len(answer["differences"])) == (None, True, 1)


def test_an_answer_with_names_of_many_kilobytes_stays_small(crowd: Nights, service: Service) -> None:
    asked = {"host": "crowd", "path": os.fsdecode(b"/" + NO_TEXT), "before": crowd.names("crowd")[0], "limit": 5000, "seconds": 60}
    answer: dict[str, Any] = {}
    assert taken(service, lambda: answer.update(service.agent(patience=60).ask("compare", **asked))) < 160 * MIB
    assert (answer["more"], answer["over"]) == (True, False)
    assert 0 < len(answer["differences"]) < DEPTH + DEEP
    assert len(encoded(answer)) < LONGEST
    assert [difference[side]["name"] for difference in answer["differences"] for side in ("before", "after") if difference[side]]
    path = os.fsdecode((b"/" + NO_TEXT) * (DEPTH - 10))
    page = service.agent().ask("browse", host="crowd", backup="latest", path=path, limit=5000)
    assert (len(page["entries"]), page["next"], "path" in page["entries"][0]) == (1, None, False)


def test_a_folder_of_long_symlinks_comes_in_answers_of_4_mib_one_after_the_other(crowd: Nights, service: Service) -> None:
    asked = {"host": "crowd", "backup": "latest", "path": os.fsdecode(LINKS), "limit": 5000}
    answer: dict[str, Any] = {}
    # 5,000 of them made an answer of 182 MB, and four such answers ended the service.
    assert taken(service, lambda: answer.update(service.agent().ask("browse", **asked))) < 40 * MIB
    names, answers = [os.fsencode(entry["name"]) for entry in answer["entries"]], 1
    while answer["next"] is not None:
        assert (len(encoded(answer)) < LONGEST, answer["next"]) == (True, len(names))
        answer = service.agent().ask("browse", **asked, offset=answer["next"])
        names += [os.fsencode(entry["name"]) for entry in answer["entries"]]
        answers += 1
    assert names == [link_name(number) for number in range(SYMLINKS)]
    assert 10 < answers < 40
    assert os.fsencode(answer["entries"][-1]["target"]) == b"\xfe" * 4000


def test_differences_of_long_symlinks_are_bounded_by_bytes(crowd: Nights, service: Service) -> None:
    asked = {"host": "crowd", "before": crowd.names("crowd")[0], "path": os.fsdecode(LINKS), "limit": 5000, "seconds": 60}
    answer: dict[str, Any] = {}
    assert taken(service, lambda: answer.update(service.agent().ask("compare", **asked))) < 40 * MIB
    assert (answer["more"], len(encoded(answer)) < LONGEST, len(answer["differences"]) > 50) == (True, True, True)
    paths = [difference["path"] for difference in answer["differences"]]
    while answer["next"] is not None:
        assert answer["next"] == paths[-1]
        answer = service.agent().ask("compare", **asked, since=answer["next"])
        paths += [difference["path"] for difference in answer["differences"]]
    assert [os.fsencode(path) for path in paths[-SYMLINKS:]] == [LINKS + b"/" + link_name(number) for number in range(SYMLINKS)]
    assert (len(paths) - SYMLINKS, answer["more"]) == (1, False)


def test_versions_with_another_target_in_each_backup_go_on_in_the_next_answer(
    crowd: Nights, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LIST_BYTES", 200_000)  # sixteen versions have 600,000 bytes
    with serving_here(crowd.config) as ask:
        seen, since = dict[str, bytes](), None
        answers = 0
        while answers == 0 or since:
            answer = ask("versions", host="crowd", path="/target", since=since)
            assert len(encoded(answer)) < 200_000
            seen |= {version["first"]: os.fsencode(version["entry"]["target"]) for version in answer["versions"]}
            since, answers = answer["next"], answers + 1
    assert answers > 2
    assert seen == {name: f"{number:04}".encode() + b"\xfe" * 4000 for number, name in enumerate(crowd.names("crowd"))}


def test_a_history_that_is_too_long_when_its_time_is_over_goes_on_as_well(
    crowd: Nights, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused: the second reading, of fewer backups, had no time left."""
    monkeypatch.setattr(files, "LIST_BYTES", 200_000)
    seconds = VERBS["versions"].arguments["seconds"].default
    clock = count(step=seconds / 10)  # so its time is up after ten backups
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with serving_here(crowd.config) as ask:
        answer = ask("versions", host="crowd", path="/target")
    assert answer["next"] == crowd.names("crowd")[len(answer["versions"]) - 1]
    assert 2 <= len(answer["versions"]) < 10


def test_who_reads_no_answer_gets_no_more_of_them_and_others_do(crowd: Nights, service: Service) -> None:
    def ask(who: str, verb: str, **more: object) -> socket.socket:
        result = socket.socket(socket.AF_UNIX)
        result.connect(str(service.socket))
        result.sendall(encoded({"verb": verb, "who": who, "arguments": {"host": "crowd", **more}}))
        return result

    browse = {"backup": "latest", "path": os.fsdecode(LINKS), "limit": 5000}
    held = [ask("eve", "browse", **browse) for _ in range(3)]
    for connection in held:
        assert connection.recv(20).startswith(b'{"ok":true')
    refused = ask("eve", "browse", **browse)
    try:
        refused.settimeout(60)
        assert read_all(refused).startswith(b'{"ok":false,"error":"too many bytes of your answers are unread"')
        assert service.agent("bob").ask("browse", **{"host": "crowd", **browse})["entries"]
        assert service.agent("eve").ask("browse", host="crowd", backup="latest", path="/linked")["total"] == 2
    finally:
        for connection in (*held, refused):
            connection.close()


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@contextmanager
def serving_here(config: Path) -> Iterator[Callable[..., Any]]:
    """Runs the verbs alone in this process, whose limits a test can set."""
    service = ServiceContext("x", config, Clock(), systemd=False)
    here, present = socket.socketpair()

    def ask(verb: str, **given: object) -> Any:
        arguments = checked(given, VERBS[verb].arguments)
        return VERBS[verb].function(verb)(Call(service, Wire(here), Peer(0, 0), Viewer("root", "admin"), arguments, lambda: None))

    with here, present:
        yield ask


def test_one_who_asks_much_leaves_places_for_others(service: Service) -> None:
    def ask(who: str) -> None:
        service.agent(who, patience=60).ask("versions", host="crowd", path="/many", content=True, seconds=5)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(ask, "alice") for _ in range(3)]
        done, going = wait(running, return_when=FIRST_COMPLETED)
        refused = [future.exception() for future in done]
        assert [getattr(error, "kind", None) for error in refused] == ["busy"]
        assert service.agent("bob").ask("versions", host="crowd", path="/linked")["versions"]
        assert len(going) == 2


def test_nothing_of_the_pool_is_opened_once_the_answer_is_there(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    marker = nights.pool / ".btrkeep" / "pool.json"
    with serving(nights.config) as result, watched(marker) as opens:
        result.agent().ask("hello")  # the service has read its configuration, and has to publish it
        assert opens.count()
        time.sleep(0.3)
        assert not opens.count()
