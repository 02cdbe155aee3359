"""`browse` and `compare` as an administrator types them, on backups that are real snapshots; and attacks of a host in them.

One host is made once for all tests that only read. The truth is find, ls, stat and diff on the backups' own folders.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from tests.beds import TOP, work
from tests.beds.cli import BACKUPD
from tests.beds.history import every, make_history, moment, write_down
from tests.beds.lineage import make_lineage, read_only, writable
from tests.beds.nights import Nights
from tests.beds.opens import watched
from tests.beds.terminal import at_a_terminal
from tests.beds.within import Within
from tests.beds.work import error_and_hint

pytestmark = [pytest.mark.btrfs]
LAST = moment("2026-11-20 22:00")
HOSTILE = b"evil\n\x1b[31m\xff\xe2\x80\xae<b>"


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    nights = Within(module_btrfs, "--rehearsal")
    make_lineage(nights, "web1", [*every(1, 5, LAST), moment("2026-11-20 23:00")], life, states={4: "suspect", 5: "failed"})
    return nights


def life(number: int, data: Path) -> None:
    if number == 0:
        for name in ("etc/ssh", "srv/www", "empty"):
            (data / name).mkdir(parents=True)
        (data / "etc" / "passwd").write_text("root\nalice\n")
        (data / "etc" / "mtab").symlink_to("/proc/self/mounts")
        (data / "way").symlink_to("/etc")
        os.mkfifo(data / "srv" / "fifo")
        (data / "srv" / "run.sh").write_text("#!/bin/sh\n")
        (data / "srv" / "run.sh").chmod(0o4755)
        Path(os.fsdecode(os.fsencode(data) + b"/srv/" + HOSTILE)).write_text("x")
        os.mknod(data / "srv" / "sda1", 0o060660, os.makedev(8, 1))
        os.chown(data / "etc" / "passwd", 12345, 54321)
    if number == 1:
        (data / "etc" / "passwd").write_text("root\nbob\n")
        (data / "etc" / "ssh" / "key").write_text("k" * 100)
    if number == 2:
        shutil.rmtree(data / "etc" / "ssh")
        (data / "srv" / "www" / "site").mkdir()
        for value in range(30):
            (data / "srv" / "www" / "site" / f"{value}.html").write_text("h" * 1000)
    if number == 3:
        (data / "srv" / "www" / "site" / "0.html").chmod(0o600)


def fails(pool: Nights, *words: str, status: int = 2) -> tuple[str, str]:
    return error_and_hint(pool.backupd(*words, check=False), status)


# --- browse


def test_a_listing_has_every_name_that_find_has_folders_first(pool: Nights) -> None:
    name = pool.names("web1")[3]
    for path in ("/", "/etc", "/srv", "/srv/www/site", "/empty"):
        answer = pool.json("browse", "web1", path)
        done = subprocess.run(
            ["find", pool.data("web1", path, name), "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\0%y\\0%s\\0%i\\0%m\\0"],
            capture_output=True,
            check=True,
        ).stdout.split(b"\0")[:-1]
        truth = {(words[0], int(words[2]), int(words[3]), int(words[4], 8)) for words in zip(*[iter(done)] * 5, strict=True)}
        assert {
            (os.fsencode(entry["name"]), entry["size"], entry["inode"], int(entry["mode"], 8)) for entry in answer["entries"]
        } == truth
        kinds = [entry["kind"] == "folder" for entry in answer["entries"]]
        assert kinds == sorted(kinds, reverse=True)
        assert (answer["path"], answer["entry"]["kind"], answer["backup"]["name"]) == (path, "folder", name)


def test_json_has_all_bytes_of_names_that_are_no_utf_8_and_the_commands_take_them_back(pool: Nights, tmp_path: Path) -> None:
    def bytes_in(answer: Any, name: str = "path") -> bytes:
        return unquote_to_bytes(answer[f"{name}_encoded"])

    entries = pool.json("browse", "web1", "/srv")["entries"]
    (odd,) = [entry for entry in entries if "path_encoded" in entry]
    assert (bytes_in(odd), bytes_in(odd, "name")) == (b"/srv/" + HOSTILE, HOSTILE)
    path = os.fsdecode(bytes_in(odd))
    for words in (("browse", "web1", path), ("versions", "web1", path), ("compare", "web1", path, pool.names("web1")[0])):
        assert bytes_in(pool.json(*words)) == b"/srv/" + HOSTILE, words
    assert bytes_in(pool.json("browse", "web1", path)["entry"]) == b"/srv/" + HOSTILE
    assert bytes_in(pool.json("versions", "web1", path)["versions"][0]["entry"]) == b"/srv/" + HOSTILE
    (place,) = pool.json("restore", "web1", path, "--to", str(tmp_path), "--dry-run")["places"]
    assert (bytes_in(place), bytes_in(place, "place")) == (b"/srv/" + HOSTILE, os.fsencode(tmp_path) + b"/" + HOSTILE)
    (sample,) = pool.json("restore", "web1", path, "--to", str(tmp_path))["new"]["samples"]
    assert [bytes_in(sample, "place")] == [os.fsencode(file) for file in tmp_path.iterdir()]
    assert sample["place"].isprintable()
    (plain,) = pool.json("restore", "web1", "/etc/passwd", "--to", str(tmp_path))["new"]["samples"]
    assert plain == {"place": f"{tmp_path}/passwd", "why": ""}


def test_the_terminals_list_is_like_that_of_ls(pool: Nights) -> None:
    lines = pool.backupd("browse", "web1", "/srv").stdout.splitlines()
    name = pool.names("web1")[3]
    assert lines[0] == f"web1@{name} (complete) /srv: 5 names"
    ls = work("ls", "-lnAb", "--time-style=+%FT%TZ", pool.data("web1", "srv", name), env={"TZ": "UTC"}).stdout.splitlines()[1:]
    modes = {line.split()[0] for line in ls}
    assert {line.split()[0] for line in lines[2:]} == modes
    assert {line.split()[5] if line.split()[4] == "B" else line.split()[4] for line in lines[2:]} == {
        line.split()[-2] for line in ls
    }
    assert any(line.startswith("-rwsr-xr-x") and line.endswith(" run.sh") for line in lines)
    assert any(line.startswith("brw-r-----") and "  8:1  " in line for line in lines)
    assert lines[2].endswith(" www/")
    assert pool.backupd("browse", "web1", "/etc").stdout.splitlines()[2].endswith(" mtab -> /proc/self/mounts")


def test_a_file_is_its_own_list_and_a_symlink_is_shown_not_followed(pool: Nights) -> None:
    answer = pool.json("browse", "web1", "/etc/passwd")
    assert (answer["entry"]["uid"], answer["entry"]["gid"], answer["entries"]) == (12345, 54321, [])
    assert "12345  54321" in pool.backupd("browse", "web1", "/etc/passwd").stdout
    answer = pool.json("browse", "web1", "/way")
    assert (answer["entry"]["kind"], answer["entry"]["target"], answer["entries"]) == ("symlink", "/etc", [])


def test_the_backup_that_is_meant(pool: Nights) -> None:
    names = pool.names("web1")

    def meant(*words: str) -> str:
        return str(pool.json("browse", *words)["backup"]["name"])

    assert meant("web1") == meant("web1@latest") == meant("web1@") == names[3]  # the last two are not complete
    assert meant(f"web1@{names[0]}") == names[0]
    assert meant(f"web1@{names[5]}") == names[5]  # by its full name, in any state
    assert meant("web1@2026-11-17") == names[1]
    assert meant("web1@2026-11-20") == names[5]  # no complete one of that day: the newest
    assert meant("web1@2026-11") == names[3]
    assert meant("web1", "--at", "2026-11-18") == names[2]
    assert meant("web1", "--at", "2026-11-18T12:00:00Z") == names[1]
    assert meant("web1", "--at", "9999-12-30") == names[3]
    assert "is out of range" in fails(pool, "browse", "web1", "--at", "9999-12-31")[0]
    assert meant("web1", "--now", "2026-11-18T12:00:00Z") == names[1]
    try:
        pool.settings("pool", zone="Pacific/Auckland")  # its 18th ends at 11:00 of UTC
        assert meant("web1", "--at", "2026-11-18") == names[1]
    finally:
        pool.settings("pool", zone="UTC")


def test_what_is_not_there_is_told_with_what_is_nearest(pool: Nights) -> None:
    name = pool.names("web1")[3]
    assert fails(pool, "browse", "web2") == ("there is no host web2", "did you mean web1?")
    assert fails(pool, "browse", "web1@2025-11-16")[0] == "web1 has no backup 2025-11-16"
    assert fails(pool, "browse", "web1@2025-11-16T220000Z")[1].startswith("the nearest is 2026-11-16")
    assert fails(pool, "browse", "web1", "--at", "2026-11-01")[1] == f"the oldest is {pool.names('web1')[0]}"
    assert fails(pool, "browse", "web1", "/ect/passwd") == (f"web1@{name} has no /ect/passwd", "did you mean /etc/passwd?")
    assert fails(pool, "browse", "web1", "etc/passwd")[1] == "did you mean /etc/passwd?"
    assert fails(pool, "browse", "web1", "/way/passwd") == (
        "/way is a symlink to /etc, and links are not followed in a backup",
        "its target is /etc/passwd",
    )
    assert fails(pool, "browse", "web1@2026-11-17", "--at", "2026-11-17")[0] == "--at and @2026-11-17 exclude each other"
    for host in ("..", ".", "../hosts/web1", "web1/../web1", "", "/", "x" * 300):
        assert fails(pool, "browse", host)[0].startswith("there is no host ")


def test_an_expired_backup_is_not_the_latest_and_can_still_be_looked_into(nights: Nights) -> None:
    first, second = make_history(nights, "h1", every(1, 2, LAST), rebuild=False)
    write_down(nights, "h1", backups={second: {"expired": {"at": "2026-11-21T00:00:00Z", "why": "no rule keeps it"}}})
    assert nights.json("browse", "h1")["backup"]["name"] == first
    assert nights.json("browse", f"h1@{second}")["backup"] == {
        "name": second,
        "state": "expired",
        "started": "2026-11-20T22:00:00Z",
    }


def test_damaged_notes_do_not_prevent_reading_files(nights: Nights) -> None:
    (name,) = make_history(nights, "h1", every(1, 1, LAST), rebuild=False)
    (nights.pool / "hosts" / "h1" / "notes.json").write_text("{")
    assert nights.json("browse", "h1")["backup"]["name"] == name


def test_it_works_without_a_catalogue_and_makes_none(nights: Nights) -> None:
    make_history(nights, "h1", every(1, 1, LAST), rebuild=False)
    for words in (("browse", "h1"), ("versions", "h1", "/"), ("compare", "h1", "/", "latest")):
        nights.backupd(*words)
    assert not nights.state.exists()


def test_a_host_without_a_backup_says_so(nights: Nights) -> None:
    (nights.pool / "hosts" / "new").mkdir()
    assert fails(nights, "browse", "new")[0] == "new has no backup that can be restored from"
    assert fails(nights, "versions", "new", "/etc")[0] == "new has no backup that can be restored from"


# --- hostile ground


def test_a_hostile_name_is_harmless_on_a_terminal_and_whole_in_json(pool: Nights) -> None:
    words = [*BACKUPD, "--config", str(pool.config), "browse", "web1", "/srv"]
    with at_a_terminal(words, {"PYTHONPATH": str(TOP), "NO_COLOR": ""}) as shown:
        assert shown.ends() == 0
    colours = set(re.findall(r"\x1b\[[^m]*m", shown.text))
    assert colours == {"\x1b[0m", "\x1b[1m", "\x1b[32m", "\x1b[34m"}  # the 31 in the name is not one of them
    assert "evil\\n\\x1b[31m" in shown.text
    assert "evil\\n\\x1b[31m\\xff\\u202e<b>" in pool.backupd("browse", "web1", "/srv").stdout
    names = [os.fsencode(entry["name"]) for entry in pool.json("browse", "web1", "/srv")["entries"]]
    assert HOSTILE in names
    asked = os.fsdecode(b"/srv/" + HOSTILE)
    assert os.fsencode(pool.json("browse", "web1", asked)["entry"]["path"]) == b"/srv/" + HOSTILE
    error, hint = fails(pool, "browse", "web1", asked + "x")
    assert error.isprintable()
    assert hint == "did you mean '/srv/evil\\n\\x1b[31m\\xff\\u202e<b>'?"


@pytest.fixture
def planted(nights: Nights, tmp_path: Path) -> Nights:
    """A host whose backup was made writable, as after a bug or a mistake of an administrator; /secret is outside of it."""
    (tmp_path / "secret").write_text("secret")

    def life(number: int, data: Path) -> None:
        if number == 0:
            (data / "etc").mkdir()
            (data / "etc" / "secret").write_text("the host's own")

    make_lineage(nights, "h1", every(1, 2, LAST), life)
    path = nights.backup("h1")
    writable(path)
    shutil.rmtree(path / "data" / "etc")
    (path / "data" / "etc").symlink_to(tmp_path)
    (path / "data" / "up").symlink_to("../" * 30 + str(tmp_path).lstrip("/"))
    (path / "data" / "proc").symlink_to(f"/proc/{os.getpid()}/root{tmp_path}")
    read_only(path)
    return nights


def test_no_planted_symlink_leads_out_of_a_backup_whichever_command_is_asked(planted: Nights, tmp_path: Path) -> None:
    oldest = planted.names("h1")[0]
    with watched(tmp_path / "secret", tmp_path) as opens:
        for way in ("etc", "up", "proc"):
            error, hint = fails(planted, "browse", "h1", f"/{way}/secret")
            assert error.startswith(f"/{way} is a symlink to ")
            assert hint == "its target is not in this backup"
            assert planted.json("browse", "h1", f"/{way}")["entries"] == []
        answer = planted.json("versions", "h1", "/etc/secret", "--content")
        assert [backup["found"] for backup in answer["backups"]] == ["there", "behind a symlink"]
        answer = planted.json("compare", "--content", "h1", "/", oldest)
        assert {(difference["path"], difference["what"]) for difference in answer["differences"]} == {
            ("/etc", "kind"), ("/etc/secret", "removed"), ("/up", "added"), ("/proc", "added"),
        }  # fmt: skip
        text = planted.backupd("compare", "--text", "h1", "/etc/secret", oldest).stdout
        assert "-the host's own" in text
        assert "secret" not in text.replace("/etc/secret", "").replace("the host's own", "")
        assert opens.count() == 0


def test_a_backup_that_is_a_symlink_is_none(planted: Nights, tmp_path: Path) -> None:
    work("cp", "-a", planted.backup("h1"), tmp_path / "copy")
    (planted.pool / "hosts" / "h1" / "2026-11-21T220000Z").symlink_to(tmp_path / "copy")
    folder = planted.pool / "hosts" / "h1"
    work("btrfs", "-q", "subvolume", "snapshot", "-r", folder / "2026-11-19T220000Z", folder / "2026-11-22T220000Z")  # a user's own
    assert planted.json("browse", "h1")["backup"]["name"] == "2026-11-20T220000Z"
    assert fails(planted, "browse", "h1@2026-11-22T220000Z")[0] == "h1 has no backup 2026-11-22T220000Z that can be restored from"
    (planted.pool / "hosts" / "h2").symlink_to(planted.pool / "hosts" / "h1")
    assert fails(planted, "browse", "h2")[0] == "there is no host h2"


def test_what_can_still_be_written_is_no_backup(planted: Nights) -> None:
    older, newer = planted.names("h1")
    writable(planted.backup("h1", newer))
    assert planted.json("browse", "h1")["backup"]["name"] == older
    assert planted.json("versions", "h1", "/")["backups"][-1]["name"] == older


def test_ten_thousand_names_are_listed_at_once(nights: Nights) -> None:
    def life(_number: int, data: Path) -> None:
        for number in range(10_000):
            os.close(os.open(data / f"{number:05}", os.O_CREAT | os.O_WRONLY))

    make_lineage(nights, "h1", every(1, 1, LAST), life)
    assert len(nights.json("browse", "h1")["entries"]) == 10_000
    assert nights.backupd("browse", "h1").stdout.count("\n") == 10_002
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m backupd --config {nights.config} browse h1 | head -2",
        shell=True, cwd=TOP, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("h1@2026-11-20T220000Z (complete) /: 10,000 names\n")
    assert done.stderr == ""


# --- compare


def test_what_differs_between_two_backups_is_what_diff_says(pool: Nights) -> None:
    names = pool.names("web1")
    for before, after in ((0, 1), (0, 3), (3, 0), (1, 2)):
        answer = pool.json("compare", "--content", "web1", "/", names[before], names[after])
        folders = [pool.data("web1", "", names[number]) for number in (before, after)]
        output = work("diff", "-rq", "--no-dereference", *folders, check=False).stdout
        tops = [
            difference
            for difference in answer["differences"]
            if difference["what"] != "changed" and not _is_below(difference["path"], answer["differences"])
        ]
        data = [difference for difference in answer["differences"] if "content" in difference["fields"]]
        fifos = sum("is a fifo while" in line or "special file" in line for line in output.splitlines())
        assert len(tops) + len(data) == len(output.splitlines()) - fifos
        assert all(Path(row["path"]).name in output for row in [*tops, *data])


def _is_below(path: str, differences: list[dict[str, object]]) -> bool:
    return any(path.startswith(f"{difference['path']}/") for difference in differences if difference["what"] != "changed")


def test_a_folder_that_came_is_one_line_with_what_is_in_it(pool: Nights) -> None:
    names = pool.names("web1")
    lines = pool.backupd("compare", "web1", "/", "2026-11-17", "2026-11-19").stdout.splitlines()
    assert lines == [
        f"/ of web1: {names[1]} (complete) -> {names[3]} (complete)",
        "- /etc/ssh/  1 name in it, 100 B",
        "+ /srv/www/site/  30 names in it, 29.3 KiB",
        "31 added (29.3 KiB), 2 removed (100 B), 0 changed (0 B in them)",
    ]
    assert pool.backupd("compare", "--all", "web1", "/srv", "2026-11-17", "2026-11-19").stdout.count("\n+ /srv/www/site/") == 31
    lines = pool.backupd("compare", "web1", "/srv", "2026-11-18").stdout.splitlines()  # with the newest complete one
    assert lines[1:] == ["~ /srv/www/site/0.html  mode 0644 -> 0600", "0 added (0 B), 0 removed (0 B), 1 changed (0 B in them)"]
    assert pool.backupd("compare", "web1", "/", "latest").stdout.splitlines()[1:] == ["no difference"]


def test_on_a_narrow_terminal_no_word_of_a_comparison_is_broken(pool: Nights) -> None:
    words = ("compare", "web1", "/", "2026-11-17", "2026-11-19")
    line = [*BACKUPD, "--config", str(pool.config), *words]
    with at_a_terminal(line, {"PYTHONPATH": str(TOP), "NO_COLOR": "1"}, width=40) as shown:
        assert shown.ends() == 0
    lines = shown.text.replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 40
    assert set(pool.backupd(*words).stdout.split()) <= set(shown.text.split())


def test_the_lines_of_a_text_that_differ(pool: Nights) -> None:
    output = pool.backupd("compare", "--text", "web1", "/etc/passwd", "2026-11-16").stdout
    assert output.splitlines()[3:] == [" root", "-alice", "+bob"]
    assert pool.json("compare", "--text", "web1", "/etc/passwd", "2026-11-16")["text"][3:] == [" root", "-alice", "+bob"]
    done = pool.backupd("compare", "--text", "web1", "/srv", "2026-11-16", check=False)
    assert (done.returncode, done.stderr) == (1, "error: /srv is a folder: only files are compared line by line\n")


def test_a_path_that_neither_backup_has_names_the_nearest(pool: Nights) -> None:
    error, hint = fails(pool, "compare", "web1", "/etc/paswd", "2026-11-16")
    assert error == "web1 has no /etc/paswd"
    assert hint == "did you mean /etc/passwd?"


# --- the shell


def complete(pool: Nights, *words: str) -> list[str]:
    line = ["backupd", "--config", str(pool.config), *words]
    env = {"_BACKUPD_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
    text = "import sys; sys.argv = ['backupd']; from backupd.cli import main; main()"
    done = work(sys.executable, "-c", text, env={**env, "PYTHONPATH": "."}, check=False, cwd=TOP)
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_the_shell_completes_hosts_backups_and_paths(pool: Nights) -> None:
    names = pool.names("web1")
    assert complete(pool, "browse", "we") == ["web1"]
    assert complete(pool, "browse", "web1@2026-11-2") == [f"web1@{names[5]}", f"web1@{names[4]}"]
    assert complete(pool, "browse", "web1@l") == ["web1@latest"]
    assert complete(pool, "browse", "web1", "/e") == ["/empty/", "/etc/"]
    assert complete(pool, "browse", "web1", "/et") == ["/etc/", "/etc/mtab", "/etc/passwd"]  # and on into the only one
    assert complete(pool, "browse", "web1@2026-11-17", "/etc/s") == ["/etc/ssh/", "/etc/ssh/key"]
    assert complete(pool, "versions", "web1", "/etc/p") == ["/etc/passwd"]
    assert complete(pool, "compare", "web1", "/etc/passwd", "2026-11-17") == [names[1]]
    assert "/srv/run.sh" in complete(pool, "browse", "web1", "/srv/")
    assert not [word for word in complete(pool, "browse", "web1", "/srv/") if "evil" in word]  # a shell would have to quote it
    assert complete(pool, "browse", "web1", "/way/") == []
    assert complete(pool, "browse", "nobody", "/") == []


def test_a_real_bash_completes_the_name_of_a_backup_behind_the_at_sign(pool: Nights, tmp_path: Path) -> None:
    (tmp_path / "backupd").write_text(
        f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(TOP))}\nexec {shlex.quote(sys.executable)} -m backupd "$@"\n'
    )
    (tmp_path / "backupd").chmod(0o755)
    work(tmp_path / "backupd", "completion", "bash")
    (tmp_path / "script").write_text(pool.backupd("completion", "bash").stdout)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PS1": "ready> ", "HISTFILE": ""}
    with at_a_terminal(["bash", "--norc", "--noprofile", "-i"], env) as shown:
        shown.answer("ready> ", f"source {tmp_path}/script")
        shown.wait_for("ready> ")
        shown.type(f"backupd --config {pool.config} browse web1@2026-11-16\t")
        shown.wait_for(r"web1@2026-11-16T220000Z ")
        shown.type("/empt\t")
        shown.wait_for(r"/empty/ ")


def test_json_is_ascii_for_every_reader(pool: Nights) -> None:
    for words in (("browse", "web1", "/srv"), ("compare", "web1", "/srv", "2026-11-16"), ("versions", "web1", "/srv")):
        output = pool.backupd(*words, "--json").stdout
        assert output.isascii()
        json.loads(output)
