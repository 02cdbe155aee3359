"""Hosts are not trusted: whatever a sender answers, btrkeep writes only to the host's own `.working/data`, and no other host is
affected.
"""

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.beds import Entry, manifest, ssh, work
from tests.beds.nights import Nights

LIAR = Path(__file__).resolve().parents[1] / "beds" / "liar.py"


@pytest.fixture
def outside(nights: Nights) -> Path:
    """A folder beside the pool that must not be written to."""
    outside = nights.top / "outside"
    (outside / "www").mkdir(parents=True)
    (outside / "precious").write_text("precious")
    (outside / "www" / "precious").write_text("precious")
    return outside


def lie(nights: Nights, *trees: Path | str) -> str:
    """rsync_path of a host that answers its first transfer out of the first of `trees`, the next out of the next one, and so on.

    Each is the root that the host pretends to have; see tests/beds/liar.py.
    """
    return shlex.join([sys.executable, str(LIAR), str(nights.top / "lies"), *map(str, trees), "--", "rsync"])


def pretended(root: Path, source: Path) -> Path:
    """The place of `source` in a pretended root, its parent folder made."""
    path = root / str(source).strip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def everything_but(nights: Nights, *own: Path) -> dict[bytes, Entry]:
    """Returns the state of the test's whole filesystem, except for the folders that this host may write to."""
    kept = manifest(nights.top)
    skipped = [os.fsencode(path.relative_to(nights.top)) for path in (*own, nights.top / "lies")]
    return {name: entry for name, entry in kept.items() if not any(name.startswith(each) for each in skipped)}


def timeless(names: dict[bytes, Entry]) -> dict[bytes, Entry]:
    """Returns the state without the times of the folders above those that a run writes to."""
    return {name: entry for name, entry in names.items() if entry.kind != "d"}


def test_no_link_stands_where_a_folder_must_be_when_an_rsync_starts(
    nights: Nights, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest rsync would not follow the link; older versions follow it when the host lists a file below it but no folder."""
    www, mail = nights.source / "srv" / "www", nights.source / "srv" / "mail"
    first, second = nights.top / "first", nights.top / "second"
    pretended(first, www).symlink_to(outside)
    pretended(second, www).mkdir(parents=True)
    pretended(second, mail).mkdir()
    (pretended(second, www) / "file").write_text("no evil")
    nights.host("web", www, mail, attempts=2, rsync_path=lie(nights, first, f"{first}:break", second))
    links, data = nights.top / "links", nights.working("web", nights.source)
    look = f"find {data} -type l >> {links}; echo started >> {links}"
    env = nights.rsync(f'case " $* " in *" --server "*);; *) {look};; esac\nexec $REAL "$@"')
    monkeypatch.setenv("PATH", env["PATH"])
    nights.night("web")
    nights.night("web")
    assert set(links.read_text().splitlines()) == {"started"}
    assert links.read_text().count("started") >= 4
    assert sorted(path.name for path in outside.iterdir()) == ["precious", "www"]


def test_a_link_planted_while_the_whole_host_was_a_source_is_not_followed_when_only_a_path_below_it_is(
    nights: Nights, outside: Path
) -> None:
    root = nights.top / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "file").write_text("of the host")
    (root / "srv").symlink_to(outside)
    nights.host("web", "/", rsync_path=lie(nights, root))
    nights.run("web")
    assert nights.data("web", "/srv").is_symlink()
    assert nights.data("web", "/etc/file").read_text() == "of the host"
    before = timeless(everything_but(nights, nights.pool, root, nights.config))

    (root / "srv").unlink()
    (root / "srv" / "www").mkdir(parents=True)
    (root / "srv" / "www" / "precious").write_text("evil")
    nights.host("web", "/srv/www", rsync_path=lie(nights, root))
    nights.run("web")
    assert timeless(everything_but(nights, nights.pool, root, nights.config)) == before
    assert nights.data("web", "/srv/www/precious").read_text() == "evil"
    assert [path.name for path in nights.data("web", "/").iterdir()] == ["srv"]


def test_a_link_that_the_host_lists_for_a_folder_is_kept_as_a_link_and_never_followed(nights: Nights, outside: Path) -> None:
    """Each night the host turns folders into links or back, and lists files below names that were links before."""
    www = nights.source / "srv" / "www"
    first, second = nights.top / "first", nights.top / "second"
    (pretended(first, www)).mkdir()
    (pretended(first, www) / "sub").symlink_to(outside)
    (pretended(second, www) / "sub").mkdir(parents=True)
    (pretended(second, www) / "sub" / "precious").write_text("evil")
    nights.host("web", www, shrink_limit="100%", rsync_path=lie(nights, first, second, first, f"{second}:only=sub/precious"))
    before = timeless(everything_but(nights, nights.pool))
    for _ in range(4):
        nights.night("web")
    assert timeless(everything_but(nights, nights.pool)) == before
    assert (outside / "precious").read_text() == "precious"


def test_a_name_that_was_not_asked_for_is_refused(nights: Nights, outside: Path) -> None:
    asked, other = nights.source / "asked", nights.source / "other"
    asked.mkdir()
    other.mkdir()
    (other / "evil").write_text("evil")
    swap = nights.top / "swap"
    swap.write_text('#!/bin/sh\nset -- $(echo "$@" | sed "s,/asked/$,/other/,")\nexec "$@"\n')
    swap.chmod(0o755)
    nights.host("web", asked, rsync_path=f"{swap} rsync")
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] in ("failed", "partial")
    assert any("unrequested" in line for line in nights.json("log", "web")[0]["last_lines"])
    assert work("find", nights.pool, "-name", "evil").stdout == ""


SAYS = (
    *(
        b"Number of files: 99 (reg: 99)",
        b"Number of files: 5 (reg: 5, dir: 0)",
        b"Total file size: 12345 bytes",
        b"Literal data: 7 bytes",
    ),
    *(b"*deleting   |0|everything", b">f+++++++++|77|faked", b"      1,234 100%    9.99MB/s    0:00:00 (xfr#1, to-chk=0/1)"),
    *(b'rsync: [receiver] write failed on "/x": No space left on device (28)', b"rsync error: faked (code 11) at main.c(1)"),
    *(
        b"\x1b]0;title\x07\x1b[2J\x1b[31mred",
        b"line\nfeed",
        b"carriage\rreturn",
        b"\x9b31m",
        b"\xff\xfe",
        b"\xe2\x80\xaeright to left",
    ),
    *(
        b"a\nNumber of files: 1 (reg: 1)\nb",
        b"x\n*deleting   |0|y",
        b"[red]markup[/red]",
        b"<script>alert(1)</script>",
        b"%s %d {0}",
    ),
)


def odd_tree(top: Path) -> None:
    top.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(SAYS):
        safe = name.replace(b"/", b"_")
        with open(os.fsencode(top) + b"/" + safe, "wb") as file:  # noqa: PTH123 - names that are not text
            file.write(b"x" * (number + 1))
        os.mkdir(os.fsencode(top) + b"/d" + safe)  # noqa: PTH102


def numbers_of(tree: Path) -> tuple[int, int]:
    """Regular files and their bytes, as find counts them."""
    sizes = work("find", tree, "-type", "f", "-printf", "%s\\n").stdout.split()
    return len(sizes), sum(map(int, sizes))


def test_names_that_look_like_what_rsync_prints_do_not_confuse_what_is_read_from_it(nights: Nights) -> None:
    tree = nights.source / "srv"
    odd_tree(tree)
    nights.host("web", tree)
    for literal in (numbers_of(tree)[1], 0):
        assert nights.run("web")["web"]["outcome"] == "complete"
        (path,) = nights.record("web")["paths"]
        assert (path["numbers"]["regular"], path["numbers"]["bytes"]) == numbers_of(tree)
        assert (path["numbers"]["literal"], path["numbers"]["deleted"]) == (literal, 0)
        assert nights.differences("web", tree) == []
    work("find", tree, "-mindepth", "1", "-depth", "-name", "d*", "-delete")
    nights.run("web")
    (path,) = nights.record("web")["paths"]
    assert path["numbers"]["deleted"] == len(SAYS)


def printable_only(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("way", ["a pipe", "a terminal"])
def test_what_a_host_says_and_calls_its_files_is_escaped_wherever_it_is_shown(
    nights: Nights, public_folder: Path, way: str
) -> None:
    """Unreadable files are listed in warnings; the host's own lines are shown by `log`."""
    odd_tree(public_folder)
    for name in os.listdir(os.fsencode(public_folder)):  # noqa: PTH208 - bytes
        os.chmod(os.fsencode(public_folder) + b"/" + name, 0)  # noqa: PTH101
    path = nights.top / "said"
    path.write_bytes(b"".join(name + b"\n" for name in SAYS if b"(28)" not in name) + b"no newline \x1b[5m")
    host = nights.top / "host"
    host.write_text(f'#!/bin/sh\nsetpriv --reuid=65534 --regid=65534 --clear-groups "$@"\ncode=$?\ncat {path} >&2\nexit $code\n')
    host.chmod(0o755)
    nights.host("web", public_folder, rsync_path=f"{host} rsync")
    nights.run("web", status=1)
    assert nights.record("web")["state"] == "suspect"
    assert "\\x1b" in nights.backupd("log", "web").stdout  # it is there, and as text
    assert any("\\#0" in sample for sample in nights.record("web")["paths"][0]["samples"])
    for command in (["run", "web"], ["status"], ["status", "web"], ["list"], ["list", "web"], ["log"], ["log", "web"]):
        if way == "a pipe":
            shown = nights.backupd(*command, check=False)
            assert printable_only(shown.stdout), command
            assert printable_only(shown.stderr), command
            if command[0] != "run":
                nights.json(*command)
        else:
            see_a_quiet_terminal(nights, command)


def see_a_quiet_terminal(nights: Nights, command: list[str]) -> None:
    """Checks that a terminal gets only the colours and the live view of btrkeep, and no control sequence from the host."""
    words = shlex.join([sys.executable, "-m", "backupd", "--config", str(nights.config), *command])
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "TERM": "xterm", "COLUMNS": "200"}
    shown = work("script", "-qec", words, "/dev/null", check=False, env=env).stdout
    assert shown
    for forbidden in ("\x1b]0;title", "\x07", "\x1b[2J\x1b[31mred", "\x9b", "\u202e", "carriage\r", "\x1b[5m"):
        assert forbidden not in shown, (command, forbidden)


def test_a_host_that_says_that_this_server_is_full_harms_itself_alone(nights: Nights) -> None:
    tree = nights.source / "srv"
    odd_tree(tree)
    nights.settings("backup", concurrency=1)
    liar = nights.top / "host"
    liar.write_text('#!/bin/sh\necho "rsync: [receiver] write failed: No space left on device (28)" >&2\nexec "$@"\n')
    liar.chmod(0o755)
    for name in ("a", "c"):
        nights.host(name, tree)
    nights.host("b", tree, rsync_path=f"{liar} rsync")
    results = nights.run(status=1)  # and not 4: the pool works
    assert {name: result["outcome"] for name, result in results.items()} == {"a": "complete", "b": "failed", "c": "complete"}


# --- the restricted key


def test_a_key_restricted_to_rrsync_is_enough_and_only_connect_tries_two_other_commands(nights: Nights, sshd: ssh.Sshd) -> None:
    tree = nights.source / "srv"
    odd_tree(tree)
    log = nights.top / "commands"
    forced = nights.top / "forced"
    forced.write_text(f'#!/bin/sh\necho "$SSH_ORIGINAL_COMMAND" >> {log}\nexec rrsync -ro /\n')
    forced.chmod(0o755)
    key = sshd.authorize(f'command="{forced}",restrict')
    nights.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
    nights.host("web", tree, address=sshd.address, port=sshd.port)
    nights.run("web")
    (tree / "more").write_text("more")
    nights.run("web")
    assert nights.differences("web", tree) == []
    of_runs = log.read_text().splitlines()
    nights.backupd("check", "--connect", check=False)
    of_connect = log.read_text().splitlines()[len(of_runs) :]
    assert len(of_runs) >= 2
    others = [line for line in (*of_runs, *of_connect) if not line.startswith("rsync --server --sender ")]
    assert others == ["rsync --version", "cat /proc/sys/kernel/random/boot_id /proc/self/mountinfo"]
    assert others[0] in of_connect
    assert nights.status("web")["state"] == "ok"


def test_the_documented_key_line_works_as_it_stands(nights: Nights, sshd: ssh.Sshd) -> None:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_text("content")
    key = sshd.authorize('command="rrsync -ro /",restrict')
    nights.settings("ssh", command="ssh -F none", key=str(key), known_hosts=str(sshd.known_hosts))
    nights.host("web", tree, address=sshd.address, port=sshd.port)
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert work(*sshd.ssh(key), sshd.address, "touch", nights.top / "evil", check=False).returncode != 0
    assert not (nights.top / "evil").exists()
