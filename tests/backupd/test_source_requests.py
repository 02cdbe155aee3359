"""The requests that btrkeep-source allows: the words of rsync, paths, names of sessions, and the host's configuration.

All words come from the owner of the server's key. One that passes by mistake reads, writes or runs something else.
"""

import ast
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.source import btrkeep_source as program
from tests.beds import work
from tests.beds.source_program import PROGRAM

READ = ["--server", "--sender", "-vlogDtprRe.iLsfxCIvu", "--timeout=60", "--numeric-ids"]
WRITE = ["--server", "-vlHogDtpAXXrRSe.iLsfxCIvu", "--log-format=%i", "--ignore-existing", "--no-implied-dirs", "--numeric-ids"]


def test_the_words_of_a_backup_and_of_a_restore_are_let_through() -> None:
    assert program.rsync_words([*READ, ".", "/./srv/www/"], is_sender=True) == (READ[2:], ["/./srv/www/"])
    assert program.rsync_words([*WRITE, ".", "/srv/www/"], is_sender=False) == (WRITE[1:], ["/srv/www/"])


def test_names_of_files_come_only_over_the_connection_and_only_to_read() -> None:
    """`verify --against-source` sends them."""
    names = ["--files-from=-", "--from0"]
    assert program.rsync_words([*READ, *names, ".", "/srv/"], is_sender=True) == ([*READ[2:], *names], ["/srv/"])
    with pytest.raises(program.RefusedRequest):
        program.rsync_words([*WRITE, *names, ".", "/srv/"], is_sender=False)


@pytest.mark.parametrize(
    "option",
    [
        "--log-file=/etc/cron.d/x",
        "--files-from=/etc/shadow",
        "--files-from=:/etc/shadow",
        "--files-from=--",
        "--files-from",
        "--from0=-",
        "--write-batch=/etc/x",
        "--only-write-batch=/etc/x",
        "--read-batch=/etc/x",
        "--temp-dir=/etc",
        "--partial-dir=/etc",
        "--backup-dir=/etc",
        "--link-dest=/etc",
        "--rsync-path=sh",
        "--rsh=sh",
        "--remove-source-files",
        "--remove-sent-files",
        "--delete",
        "--delete-excluded",
        "--daemon",
        "--config=/tmp/x",
        "--copy-links",
        "--copy-unsafe-links",
        "--copy-dirlinks",
        "--keep-dirlinks",
        "--copy-devices",
        "--write-devices",
        "--fake-super",
        "--secluded-args",
        "--protect-args",
        "--early-input=/etc/shadow",
        "--password-file=/etc/shadow",
        "--debug=all",
        "--exclude-from=/etc/shadow",
        "--server",
        "--sender",
        "--time",  # popt itself takes no abbreviations; this program neither
        "--timeout",  # its value would be the next word
        "--timeout=1;id",
        "--numeric-ids=1",
        "--iconv=a b",
        "--log-format=%f\n",
        "--info=progress2 --daemon",
        "--",
        "-",
        "-s",
        "-L",
        "-k",
        "-K",
        "-b",
        "-e",
        "-esh",
        "-e.x;id",
        "-vs",
        "-re.LsfxC -s",
        "-M--daemon",
        "-T/etc",
        "-f",
        "-@",
        "-B1x",
        "",
        "x",
        "/etc",
        "-v\n",
        "-\u00e9",
    ],
)
def test_an_option_that_follows_writes_deletes_or_is_unknown_is_refused(option: str) -> None:
    for words, is_sender in ((READ, True), (WRITE, False)):
        with pytest.raises(program.RefusedRequest):
            program.rsync_words([*words, option, ".", "/srv"], is_sender=is_sender)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--server"],
        ["--sender", "--server", ".", "/srv"],
        ["--server", "-v", "--sender", ".", "/srv"],
        ["--server", "-v", ".", "/srv"],  # it would write
        ["--server", "--sender", "--sender", ".", "/srv"],
        ["--server", "--sender", "-v", "/srv"],
        ["--server", "--sender", "-v", "."],
        ["--server", "--sender", "-v", ".", "srv"],
        ["--server", "--sender", "-v", ".", "/srv/../etc"],
        ["--server", "--sender", "-v", ".", "/srv/.."],
        ["--server", "--sender", "-v", ".", "/srv", "--log-file=/etc/x"],
        ["--server", "--sender", "-v", ".", "/srv", "--daemon"],
        ["--server", "--sender", "-v", ".", "/srv", ""],
        ["--server", "--sender", "-v", ".", "."],
    ],
)
def test_an_rsync_that_does_not_just_send_absolute_paths_is_refused(words: list[str]) -> None:
    with pytest.raises(program.RefusedRequest):
        program.rsync_words(words, is_sender=True)


@pytest.mark.parametrize("words", [["--server", "--sender", "-r", ".", "/srv"], ["--server", "-r", ".", "/srv", "/etc"]])
def test_a_restore_does_not_read_and_has_one_target(words: list[str]) -> None:
    with pytest.raises(program.RefusedRequest):
        program.rsync_words(words, is_sender=False)


@pytest.mark.parametrize(
    "name",
    [
        "office-2-20261130T092400Z-1a2b3c",
        "home-20261130T092400Z-1a2b3c",
        "office-20261130T092400Z-1a2b3c/../x",
        "office-20261130T092400Z-1a2b3",
        "office-20261130T092400Z-1A2B3C",
        "office-20261130T092400Z-1a2b3c\n",
        "../office-20261130T092400Z-1a2b3c",
        "-office-20261130T092400Z-1a2b3c",
        "",
    ],
)
def test_a_session_of_another_server_or_with_a_path_in_its_name_is_refused(name: str, tmp_path: Path) -> None:
    host = program.Host("office", str(tmp_path / "none"), str(tmp_path))
    for words in (["end", name], ["rsync", name, *READ, ".", "/"]):
        with pytest.raises(program.RefusedRequest, match="session"):
            program.answer_request(host, ["btrkeep-source", *words])


@pytest.mark.parametrize(
    "request_line",
    ["", "id", "sh -c id", "btrkeep-source", "btrkeep-source clean", "btrkeep-source restore", "btrkeep-source begin", "'",
     "btrkeep-source begin relative", "btrkeep-source begin /srv/../etc", "cat /proc/self/mountinfo", "rsync", "rsync -e sh . /",
     "btrkeep-source rsync", "btrkeep-source --config /tmp/x check", "btrkeep-source --server home begin /"],
)  # fmt: skip
def test_any_other_request_is_refused(request_line: str, tmp_path: Path) -> None:
    host = program.Host("office", str(tmp_path / "none"), str(tmp_path))
    with pytest.raises(program.RefusedRequest):
        program.answer_request(host, program.request_words(request_line))


def config(tmp_path: Path, text: str) -> program.SourceConfig:
    path = tmp_path / "source.conf"
    path.write_text(text)
    path.chmod(0o644)
    return program.read_config(str(path))


def test_the_configuration_is_read(tmp_path: Path) -> None:
    read = config(
        tmp_path,
        "# of web1\n[paths]\nallow = /etc/\n  /srv//www\n[snapshots]\nmethods = btrfs\nmost = 3\noldest = 12h\n"
        "[dump db]\ncommand = mydump --all = x\noutput = /srv/db.sql\nrequired = no\n[restore]\nallow = /srv/www\ndevices = yes\n",
    )
    assert (read.allow, read.methods, read.most, read.oldest) == (["/etc", "/srv/www"], ["btrfs"], 3, 43200)
    assert read.dumps == [program.Dump("db", "mydump --all = x", "/srv/db.sql", False, 3600)]
    assert (read.restore_allow, read.restore_devices, read.restore_setuid) == (["/srv/www"], True, False)


def test_without_a_configuration_all_may_be_read_and_nothing_restored(tmp_path: Path) -> None:
    read = program.read_config(str(tmp_path / "none"))
    assert (read.allow, read.restore_allow, read.dumps) == (["/"], [], [])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[paths]\nalow = /etc\n", "alow"),
        ("[path]\nallow = /etc\n", "path"),
        ("[paths]\nallow = etc\n", "etc"),
        ("[paths]\nallow = /srv/../etc\n", "/srv/../etc"),
        ("[snapshots]\nmethods = lvm2\n", "methods"),
        ("[snapshots]\nmost = two\n", "two"),
        ("[snapshots]\noldest = 1 day\n", "1 day"),
        ("[snapshots]\nhistory = all\n", "history"),
        ("[snapshots]\nlvm_size = --help\n", "lvm_size"),
        ("[dump ../x]\ncommand = x\n", "../x"),
        ("[dump x]\n", "command"),
        ("[dump x]\ncommand = x\nrequired = maybe\n", "maybe"),
        ("allow = /etc\n", "section"),
    ],
)
def test_a_mistake_in_the_configuration_is_refused_and_named(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(program.RefusedRequest, match=r"source\.conf") as refused:
        config(tmp_path, text)
    assert names in str(refused.value)


def test_a_configuration_that_others_can_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "source.conf"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(program.RefusedRequest, match="can be changed by other users"):
        program.read_config(str(path))


def test_a_text_for_the_server_is_one_line_without_control_characters() -> None:
    assert program.one_line("a\nb\x1b[2J\udcff\x9b" + "c" * 1000) == "a?b?[2J??" + "c" * 491


def uses(*names: str) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, ast.Attribute) and ast.unparse(node) in names


TOO_NEW: dict[str, Callable[[ast.AST], bool]] = {
    "capture_output, text (3.7)": lambda node: isinstance(node, ast.keyword) and node.arg in ("capture_output", "text"),
    "future annotations (3.7)": lambda node: isinstance(node, ast.ImportFrom) and node.module == "__future__",
    "dataclasses (3.7)": lambda node: isinstance(node, ast.Import) and node.names[0].name == "dataclasses",
    "removeprefix, removesuffix (3.9)": lambda node: (
        isinstance(node, ast.Attribute) and node.attr in ("removeprefix", "removesuffix")
    ),
    "shlex.join (3.8), os.unshare (3.12)": uses("shlex.join", "os.unshare", "os.setns", "time.time_ns"),
}


def test_the_program_is_python_3_6_and_imports_only_its_library() -> None:
    source = PROGRAM.read_text(encoding="utf-8")
    assert source.startswith("#!/usr/bin/python3 -I\n")
    tree = ast.parse(source, feature_version=(3, 6))
    nodes = list(ast.walk(tree))
    assert [name for name, is_too_new in TOO_NEW.items() if any(map(is_too_new, nodes))] == []
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert imported <= set(sys.stdlib_module_names)
    assert PROGRAM.stat().st_mode & 0o100  # a checkout has the other two bits if the umask allows them


def test_a_path_of_other_bytes_than_ascii_is_allowed_in_any_locale(tmp_path: Path) -> None:
    """Python 3.6 reads arguments as ASCII in the locale C, which is what sshd gives a command."""
    folder = tmp_path / "büro"
    folder.mkdir()
    config = tmp_path / "conf"
    config.write_text(f"[paths]\nallow = {folder}\n", encoding="utf-8")
    for options, locale in ((["-X", "utf8=0"], "C"), (["-X", "utf8=1"], "C.UTF-8")):
        environment = {"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PATH": os.environ["PATH"]}
        words = [sys.executable, *options, str(PROGRAM), "--config", str(config), "check", str(folder)]
        done = subprocess.run(words, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["paths"][0]["path"] == str(folder)


def test_bash_completes_the_commands_and_options_of_the_program() -> None:
    file = PROGRAM.with_name("completion.bash")
    done = work("bash", "-c", f"source {shlex.quote(str(file))}; complete -p btrkeep-source")
    offered = set(shlex.split(done.stdout)[shlex.split(done.stdout).index("-W") + 1].split())
    shown = work(PROGRAM, "--help").stdout
    commands = re.findall(r"\{([\w,]+)\}", shown)[0].split(",")
    assert offered == {*commands, *re.findall(r"--\w+", shown)}


def checked(folder: Path, *words: str, config: str = "", on_terminal: bool = True) -> tuple[int, str]:
    """The exit status of `check` and its output, on a terminal or in a pipe."""
    file = folder / "check.conf"
    file.write_text(config)
    command = [str(PROGRAM), "--config", str(file), "--state", str(folder / "state"), "check", *words]
    if on_terminal:
        command = ["script", "--quiet", "--return", "--command", shlex.join(command), "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.replace("\r\n", "\n")


def test_check_prints_a_table_on_a_terminal_and_its_status_is_1_if_a_path_is_live(tmp_path: Path) -> None:
    status, table = checked(tmp_path, "/nowhere-at-all", config="[dump app]\ncommand = true\n")
    assert status == 1
    assert re.search(r"^/nowhere-at-all +live +it does not exist$", table, re.MULTILINE), table
    assert "dump app: /var/lib/btrkeep-source/dumps/app; not in these paths" in table
    assert "What to do:" in table
    for words in (("--json", "/nowhere-at-all"), ("/nowhere-at-all", "--json")):
        status, answer = checked(tmp_path, *words)
        assert (status, json.loads(answer)["paths"][0]["consistency"]) == (1, "live")
    status, answer = checked(tmp_path, "/nowhere-at-all", on_terminal=False)  # the request of a server whose key may run anything
    assert (status, json.loads(answer)["paths"][0]["consistency"]) == (0, "live")


def test_where_no_snapshots_are_wanted_a_live_path_is_no_error(tmp_path: Path) -> None:
    status, table = checked(tmp_path, "/etc", config="[snapshots]\nmethods =\n")
    assert status == 0, table
    assert re.search(r"^/etc +live", table, re.MULTILINE), table
    assert "What to do:" not in table


def test_without_a_request_the_program_names_its_help(tmp_path: Path) -> None:
    done = work(PROGRAM, "--config", tmp_path / "none", check=False)
    assert done.returncode == 1
    assert "`btrkeep-source --help`" in done.stderr


def test_old_snapshots_of_others_are_searched_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with real ones: the search reads all subvolumes of this machine, those of other tests too."""
    searched = list[str]()
    monkeypatch.setattr(program, "remove_old_kept", lambda _mounts, server, *_: searched.append(server))
    host, yesterday = program.Host("office", str(tmp_path / "none"), str(tmp_path)), time.time() - 90_000
    for expected in (1, 1):
        host._remove_old_kept([], [])
        assert searched == ["office"] * expected
    os.utime(tmp_path / "kept-office.read", (yesterday, yesterday))
    for expected in (2, 2):
        host._remove_old_kept([], [])
        assert searched == ["office"] * expected


def test_a_server_that_does_not_read_a_dump_keeps_no_other_server_from_it(tmp_path: Path) -> None:
    config, state = tmp_path / "source.conf", tmp_path / "state"
    config.write_text(f"[dump shop]\ncommand = yes\noutput = {tmp_path}/shop.sql\nstream = yes\n")
    config.chmod(0o600)
    environment = {**os.environ, "SSH_ORIGINAL_COMMAND": f"btrkeep-source dump shop {tmp_path}/shop.sql"}
    started = [
        subprocess.Popen(
            [sys.executable, "-I", PROGRAM, "--config", config, "--state", state, "--server", server],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for server in ("thief", "office")
    ]
    try:
        assert [process.stdout.read(2) for process in started if process.stdout] == [b"y\n", b"y\n"]
    finally:
        for process in started:
            process.communicate() if process.stdout is None else process.stdout.close()
            process.wait()


def test_the_newest_of_a_history_stay_also_after_a_host_was_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a snapshot begins with its keeper, not with its time."""
    old = [f"office=ffffffff=2026110{day}T010000Z-aaaaaa" for day in (1, 2)]
    new = [f"office=00000000=2026112{day}T010000Z-aaaaaa" for day in (0, 1)]
    left = dict.fromkeys([*old, *new])
    monkeypatch.setattr(program, "opened", lambda _: contextlib.nullcontext(0))
    monkeypatch.setattr(program, "nested_subvolumes", lambda _: [])
    monkeypatch.setattr(program, "folders_above", lambda _: [])
    monkeypatch.setattr(program, "kept_snapshots", lambda *_: {name: program.SubvolumeInfo(1, name, "", name) for name in left})
    monkeypatch.setattr(program, "remove_btrfs", lambda piece: left.pop(piece["name"]))
    monkeypatch.setattr(program, "take_btrfs", lambda piece: left.update({piece["name"]: None}))
    program.keep_snapshot("/srv", "office", program.StreamWords([], ["ffffffff", "00000000"], "daily=9", set(), []), 2)
    assert [name for name in left if name in (*old, *new)] == new


def test_a_dump_ends_at_its_limit_also_if_a_process_of_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "PATIENCE", 0.2)
    begun = time.monotonic()
    with pytest.raises(subprocess.CalledProcessError) as raised:
        program._run_dump(["/bin/sh", "-c", "setsid sleep 3 & sleep 3"], begun + 0.2, subprocess.PIPE)
    seconds = time.monotonic() - begun
    time.sleep(max(0.0, 3.3 - seconds))  # until the process has ended
    assert (raised.value.output, seconds < 2) == ("it took longer than its timeout", True)
