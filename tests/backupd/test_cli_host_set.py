"""`backupd host set`: keys of a host that is configured are changed, and nothing else in the file is."""

import difflib
import json
import stat
import subprocess
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete
from hypothesis import given, settings
from hypothesis import strategies as st

from backupd.cli import group
from backupd.hosts.assigning import KEYS, parse_assignments
from backupd.hosts.edit import with_host_keys
from btrkeep.config.keys import LEGAL
from tests.beds import backupd, work
from tests.beds.cli import backupd_start
from tests.beds.gate import examples
from tests.beds.leftout import needs_program

MAIN = """\
# our pool
[pool]
path = "/srv/backup"    # a disk
[notify]
urls = ["mailto://me:secret@mail.example.org"]
[host.old]
address = "root@old"    # the old shop
paths = [
  "/etc",   # a folder
  "/srv",
]
# what was before 2020 is gone

# it keeps less
[host.old.retention]
daily = 3

# the new shop
[host.new]
group = "debian"

# of all of them
[group.debian]
paths = ["/etc"]
"""


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "main.toml"
    path.write_text(MAIN)
    path.chmod(0o640)
    return path


def set_(main: Path, *words: str, status: int = 0) -> Any:
    done = backupd("--config", main, "host", "set", *words, check=False)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def changes(before: str, after: str) -> list[str]:
    """Returns the lines that were added and removed."""
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]


def test_keys_come_and_go_where_the_host_is_declared_and_all_else_stays(main: Path) -> None:
    output = set_(
        main, "old", "port=2222", "paths=/etc /home /srv", "retention.weekly=2", "--unset", "address", "enabled=false"
    ).stdout
    assert changes(MAIN, main.read_text()) == [
        '- address = "root@old"    # the old shop', '+   "/home",', "+ port = 2222", "+ enabled = false", "+ weekly = 2",
    ]  # fmt: skip
    behind = main.read_text().splitlines()
    assert behind[behind.index("enabled = false") + 1] == "# what was before 2020 is gone", (
        "not behind what belongs to the next head"
    )
    assert stat.S_IMODE(main.stat().st_mode) == 0o640
    assert "  port: not set -> 2222\n" in output
    assert '  address: "root@old" -> not set\n' in output
    listed = {row["host"]: row for row in json.loads(backupd("--config", main, "host", "list", "--json").stdout)}
    rows = [listed["old"][key] for key in ("address", "port", "enabled", "paths")]
    assert rows == [None, 2222, False, ["/etc", "/home", "/srv"]]


@needs_program("patch")
def test_a_dry_run_shows_the_lines_that_would_change_and_nothing_around_them(main: Path) -> None:
    output = set_(main, "old", "address=backup@old", "--dry-run").stdout
    assert main.read_text() == MAIN
    assert [line for line in output.splitlines() if line[0] in "+-"][2:] == [
        '-address = "root@old"    # the old shop', '+address = "backup@old"    # the old shop',
    ]  # fmt: skip
    assert "secret" not in output
    (main.parent / "patch").write_text(output)
    work("patch", main, main.parent / "patch")
    assert tomllib.loads(main.read_text())["host"]["old"]["address"] == "backup@old"


def test_an_item_is_added_to_a_list_and_to_inherited_patterns(main: Path) -> None:
    before = tomllib.loads(main.read_text())["host"]["old"]
    set_(main, "old", "exclude+=/srv/a", "paths+=/opt")
    set_(main, "old", "exclude+=/srv/b /srv/a")
    after = tomllib.loads(main.read_text())["host"]["old"]
    assert after == {**before, "paths": [*before["paths"], "/opt"], "exclude": [*before.get("exclude", []), "/srv/a", "/srv/b"]}


def test_what_is_so_already_is_said_and_the_file_is_not_touched(main: Path) -> None:
    before = main.stat()
    assert "already has these values" in set_(main, "old", "address=root@old", "--unset", "window").stdout
    assert json.loads(set_(main, "old", "address=root@old", "--json").stdout) == {
        "host": "old", "file": str(main), "changes": {}, "written": False,
    }  # fmt: skip
    assert (main.stat().st_ino, main.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["old", "every=1x"], 'host.old.every = "1x": expected a duration'),
        (["old", "prt=22"], 'did you mean "port"?'),
        (["old", "daily=7"], 'did you mean "retention.daily"?'),
        (["old", "port"], "is not a KEY=VALUE"),
        (["old", "port=22", "port=23"], "port is named twice"),
        (["old", "port+=22"], "port is not a list"),
        (["old", "after+=/bin/true"], "after is not set for the host old itself"),
        (["old", "port=22", "--unset", "port"], "port is named twice"),
        (["old"], "no change was given"),
        (["odl", "port=22"], "did you mean old?"),
        (["new", "--unset", "group"], "paths: missing"),
        (["new", "group=debain"], 'did you mean "debian"?'),
    ],
)
def test_what_would_be_wrong_is_refused_and_nothing_is_written(main: Path, words: list[str], why: str) -> None:
    done = set_(main, *words, status=2)
    assert why in done.stderr
    assert "hint: " in done.stderr
    assert (main.read_text(), {path.name for path in main.parent.iterdir()} - {".main.lock"}) == (MAIN, {"main.toml"})


def test_a_mistake_that_is_there_can_be_mended_by_it_and_another_one_stops_it(main: Path) -> None:
    main.write_text(MAIN.replace('address = "root@old"', 'every = "1x"\naddress = "root@old"'))
    assert "nothing was changed" in set_(main, "old", "port=22", status=2).stderr
    set_(main, "old", "every=12h")
    assert 'every = "12h"' in main.read_text()


def test_what_the_change_means_is_noted(main: Path) -> None:
    set_(main, "old", "port=22")
    assert "host.old.port: has no effect" in set_(main, "old", "--unset", "address").stderr


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("port=2222", 2222), ("enabled=false", False), ("window=22:00-06:00", "22:00-06:00"), ('window="none"', "none"),
        ("paths=/etc", ["/etc"]), ("paths='/srv/my files' /etc", ["/srv/my files", "/etc"]), ('paths=["/a b"]', ["/a b"]),
        ("exclude=", []), ("exclude=*.iso /var/cache/*", ["*.iso", "/var/cache/*"]), ("group=2026-01-01", "2026-01-01"),
        ("group=1", "1"), ("rsync_path=sudo rsync", "sudo rsync"), ("address=root@[2001:db8::1]", "root@[2001:db8::1]"),
        ("before=/bin/dump '{host} of' x", ["/bin/dump", "{host} of", "x"]), ("every=1d", "1d"), ("every=7", 7),
        ("ssh_options=ProxyJump=gate", ["ProxyJump=gate"]), ("retention.daily=30", 30),
    ],
)  # fmt: skip
def test_a_value_is_toml_or_text_or_words_whichever_the_key_takes(word: str, value: Any) -> None:
    (answer,) = parse_assignments((word,), ()).values()
    assert (answer, type(answer)) == (value, type(value))


@pytest.mark.parametrize("section", ["host", "retention"])
def test_the_example_of_every_key_in_the_reference_can_be_typed(section: str) -> None:
    prefix = "" if section == "host" else f"{section}."
    for key in LEGAL[section].values():
        wanted = tomllib.loads(f"x = {key.example}")["x"]
        typed = key.example if isinstance(wanted, list) else str(wanted).lower() if isinstance(wanted, bool) else str(wanted)
        assert parse_assignments((f"{prefix}{key.name}={typed}",), ()) == {f"{prefix}{key.name}": wanted}


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8)
values = st.one_of(st.integers(1, 99), st.booleans(), words, st.lists(words, max_size=3))
forms = ("[host.{}]\n{}\n", '# c\n  [ host . "{}" ] # d\n{}\n# e\n\n', "[x]\n[host.{}]\n\n{}\n[host.b.retention]\n")
old_keys = st.dictionaries(st.sampled_from(sorted(KEYS)), values, max_size=4)
new_keys = st.dictionaries(st.sampled_from(sorted(KEYS)), st.one_of(st.none(), values), max_size=4)


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(form=st.sampled_from(forms), old=old_keys, new=new_keys)
def test_whatever_is_set_the_text_says_just_that_and_no_comment_is_lost(
    form: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    lines = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)} # {key}" for key, value in old.items())
    text = "# top\n[host.b]\npaths = ['''\n[host.a]\n''']\n" + form.format("a", lines) + "[y]\nz = 1\n"
    meant = tomllib.loads(text)
    for key, value in new.items():
        *within, last = key.split(".")
        table = meant["host"]["a"]
        for section in within:
            table = table.setdefault(section, {})
        table.pop(last, None)
        if value is not None:
            table[last] = value
    changed = with_host_keys(text, "a", new)
    answer = tomllib.loads(changed)
    for document in (answer, meant):
        if document["host"]["a"].get("retention") == {}:
            del document["host"]["a"]["retention"]
    assert answer == meant
    kept = [key for key in old if new.get(key, 0) is not None]
    assert [key for key in kept if f"# {key}" not in changed] == []
    assert changed.startswith("# top\n")


@pytest.mark.parametrize(
    "text",
    ["[host]\na.port = 1\nb = {port = 2}  # b\n", "host.a.port = 1\nhost.b.port = 2\n", "[host.a]\nport = 1\n[host.b]\nport = 2"],
)
def test_a_host_that_is_written_in_an_unusual_way_is_changed_too(text: str) -> None:
    for name, other in ("ab", "ba"):
        changed = tomllib.loads(with_host_keys(text, name, {"port": 9, "enabled": False, "retention.daily": 1}))["host"]
        assert changed == {
            name: {"port": 9, "enabled": False, "retention": {"daily": 1}},
            other: tomllib.loads(text)["host"][other],
        }


def test_line_ends_stay_as_they_are(main: Path) -> None:
    main.write_bytes(MAIN.replace("\n", "\r\n").encode())
    set_(main, "old", "port=22", "address=a", "retention.weekly=1")
    written = main.read_bytes()
    assert (written.count(b"\n"), written.count(b"\r\n")) == (MAIN.count("\n") + 2, MAIN.count("\n") + 2)


def test_a_file_that_cannot_be_read_is_not_taken_for_one_without_the_host(main: Path) -> None:
    main.write_bytes(b"[host.old]\nx = '\xff'\n")
    output = set_(main, "old", "port=22", status=2).stderr
    assert "no host" not in output
    assert "UTF-8" in output


def completed(main: Path, *words: str) -> list[str]:
    """Returns bash's completions of the last word; bash treats = as a separate word."""
    complete = BashComplete(group, {}, "backupd", "_BACKUPD_COMPLETE")
    proposals = complete.get_completions(["--config", str(main), "host", "set", *words[:-1]], words[-1])
    return [proposal.value for proposal in proposals]


def test_keys_and_what_they_take_are_completed(main: Path) -> None:
    assert completed(main, "new", "po") == ["port="]
    assert {"window=", "retention.daily="} <= set(completed(main, "new", "port", "=", "22", ""))
    assert completed(main, "new", "enabled", "=", "f") == ["false"]
    assert completed(main, "new", "snapshots=") == ["snapshots=off", "snapshots=auto", "snapshots=required"]
    assert completed(main, "new", "group=") == ["group=debian"]
    assert completed(main, "new", "--unset", "retention.y") == ["retention.yearly"]
    assert completed(main.with_name("none.toml"), "new", "group=") == []
    script = "COMPREPLY=(); compopt() { echo $*; }; " + backupd("completion", "bash").stdout
    answers = 'env() { echo "plain,port="; }; COMP_WORDS=(backupd host set new po) COMP_CWORD=4; _backupd_completion backupd'
    assert work("bash", "-c", f"{script}\n{answers}").stdout == "-o nospace\n", "a value follows behind ="


@pytest.mark.slow
def test_of_some_at_once_each_is_written(main: Path) -> None:
    lines = ["+ enabled = false", '+ group = "debian"', "+ port = 1"]
    lock = main.with_name(".main.lock")
    with subprocess.Popen(["flock", lock, "sh", "-c", "echo; read _"], stdin=-1, stdout=-1, text=True) as somebody:
        assert somebody.stdout
        somebody.stdout.readline()  # the other process has the lock
        running = [backupd_start("--config", main, "host", "set", "old", line[2:].replace(" ", "")) for line in lines]
        while not all(_waits(process.pid, lock) for process in running):
            assert [process.poll() for process in running] == [None] * 3
            time.sleep(0.05)
        somebody.communicate("\n")
    for process in running:
        process.communicate()
        assert process.returncode == 0
    assert sorted(changes(MAIN, main.read_text())) == lines


def _waits(pid: int, lock: Path) -> bool:
    """Returns True if the process has the file of the lock open, which another process holds."""
    with suppress(OSError):
        return any(lock.samefile(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.exists())
    return False
