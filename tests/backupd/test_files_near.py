"""A missing path: the message, and the existing paths that it suggests."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backupd.files.backup_selector import Restorable
from backupd.files.entry_words import shown
from backupd.files.suggestions import entry_at, missing, nearest_paths, path_given, path_in, resolved
from backupd.files.tree import Tree
from backupd.files.versions import versions
from backupd.repo.backup_json import Record
from btrkeep.errors import OperatorError, UsageError
from tests.beds import work


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "backup" / "data"
    for name in ("etc/ssh", "etc/alternatives", "srv/www/shop", "usr/bin", "empty"):
        (folder / name).mkdir(parents=True)
    for name in ("etc/passwd", "etc/ssh/sshd_config", "etc/ssh/ssh_config", "srv/www/shop/index.html", "usr/bin/vim.basic"):
        (folder / name).write_text(name)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "etc/alternatives/vi").symlink_to("/usr/bin/vim.basic")
    (folder / "www").symlink_to("/srv/www")
    (folder / "loop").symlink_to("/loop")
    (folder / "gone").symlink_to("/var/lib/none")
    (folder / "out").symlink_to("../../../../../../../../etc")
    return folder


def error_and_hint(data: Path, path: str) -> tuple[str, str]:
    with Tree(data.parent) as tree, pytest.raises(UsageError) as raised:
        entry_at(tree, path.encode(), "web1@x")
    return raised.value.message, raised.value.hint


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        (b"/etc/paswd", [b"/etc/passwd"]),
        (b"/ETC/passwd", [b"/etc/passwd"]),
        (b"/etc/Passwd", [b"/etc/passwd"]),
        (b"/ect/ssh/ssh_config", [b"/etc/ssh/ssh_config"]),
        (b"/ect/ssh/none", [b"/etc"]),
        (b"/etc/ssh/sshdconfig", [b"/etc/ssh/sshd_config", b"/etc/ssh/ssh_config"]),
        (b"/srv/www/shop/zzz", [b"/srv/www/shop"]),
        (b"/srv/zzz/yyy", [b"/srv"]),
        (b"/etc/passwd/x", [b"/etc/passwd"]),
        (b"/bin/vi", [b"/bin"]),
        (b"/etc/passwd", []),
        (b"/", []),
        (b"/\xff\xfe", [b"/"]),
        (b"/etc/passwd" + b"x" * 300, [b"/etc"]),
    ],
)
def test_the_nearest_paths_are_ones_that_are_there(data: Path, path: bytes, nearest: list[bytes]) -> None:
    with Tree(data.parent) as tree:
        assert nearest_paths(tree, path) == nearest
    for name in nearest:
        assert os.path.lexists(os.fsencode(data) + name)


def test_what_is_said_of_a_path_that_is_not_there(data: Path) -> None:
    assert error_and_hint(data, "/etc/paswd") == ("web1@x has no /etc/paswd", "did you mean /etc/passwd?")
    assert error_and_hint(data, "/srv/www/shop/zzz") == ("web1@x has no /srv/www/shop/zzz", "/srv/www/shop has index.html")
    assert error_and_hint(data, "/empty/x") == ("web1@x has no /empty/x", "/empty is empty")
    assert error_and_hint(data, "/qqqqqqqqqq")[1] == "/ has bin, empty, etc, gone, loop, ..."
    assert error_and_hint(data, "/etc/passwd/x") == (
        "/etc/passwd of web1@x is a file, not a folder",
        "use /etc/passwd",
    )
    assert "\n" not in error_and_hint(data, "/etc/pass\nwd\x1b[31m")[0]


@pytest.mark.parametrize(
    ("path", "link", "target", "hint"),
    [
        ("/bin/vim.basic", "/bin", "usr/bin", "its target is /usr/bin/vim.basic"),
        ("/www/shop/index.html", "/www", "/srv/www", "its target is /srv/www/shop/index.html"),
        ("/etc/alternatives/vi/x", "/etc/alternatives/vi", "/usr/bin/vim.basic", "its target is not in this backup"),
        ("/gone/x", "/gone", "/var/lib/none", "its target is not in this backup"),
        ("/loop/x", "/loop", "/loop", "its target is not in this backup"),
        ("/out/passwd", "/out", "../../../../../../../../etc", "its target is /etc/passwd"),
    ],
)
def test_a_symlink_on_the_way_is_named_and_not_followed(data: Path, path: str, link: str, target: str, hint: str) -> None:
    assert error_and_hint(data, path) == (f"{link} is a symlink to {target}, and links are not followed in a backup", hint)


@pytest.mark.root
@pytest.mark.parametrize("path", ["/bin/vim.basic", "/www/shop", "/out/passwd", "/loop", "/gone", "/etc/alternatives/vi"])
def test_where_a_symlink_leads_is_what_it_is_where_the_backup_is_the_whole_machine(data: Path, path: str) -> None:
    program = "import os, sys; os.chroot(sys.argv[1]); print(os.path.realpath(sys.argv[2], strict=True))"
    truth = work("python3", "-c", f"import encodings.idna\n{program}", data, path, check=False)
    with Tree(data.parent) as tree:
        content = resolved(tree, path.encode())
    assert (content or b"").decode() == truth.stdout.strip()


def test_a_symlink_made_to_cost_time_costs_none(data: Path) -> None:
    """Looking up forty hops of two thousand names each would take long."""
    deep = "a/" * 150
    (data / deep).mkdir(parents=True)
    (data / "l").symlink_to(deep + "../" * 150 + "l")
    with Tree(data.parent) as tree:
        assert resolved(tree, b"/l/x") is None


def test_among_very_many_names_the_nearest_is_found_by_its_beginning_or_its_end(data: Path) -> None:
    for number in range(1500):
        (data / "empty" / f"file{number}").touch()
    (data / "empty" / "report-2026.pdf").touch()
    with Tree(data.parent) as tree:
        assert nearest_paths(tree, b"/empty/report-2025.pdf") == [b"/empty/report-2026.pdf"]
        assert nearest_paths(tree, b"/empty/erport-2026.pdf") == [b"/empty/report-2026.pdf"]
        assert nearest_paths(tree, b"/empty/qqqqqqqq") == [b"/empty"]


@pytest.mark.parametrize(
    ("text", "path"), [("/etc/", b"/etc"), ("/", b"/"), ("//a//b", b"/a/b"), ("/\udcff", b"/\xff"), ("/a b", b"/a b")]
)
def test_a_path_as_it_was_typed(text: str, path: bytes) -> None:
    assert path_given(text) == path


@pytest.mark.parametrize(
    ("text", "hint"),
    [("etc/passwd", "did you mean /etc/passwd?"), ("/a/../b", ""), ("", ""), ("/a\0", ""), ("./x", "did you mean /x?")],
)
def test_a_path_that_no_backup_can_have_is_wrong_usage(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        path_given(text)
    assert raised.value.hint == hint


def test_what_cannot_be_read_is_not_called_missing(data: Path) -> None:
    class Broken(Tree):
        def stat(self, path: bytes) -> "object":  # type: ignore[override]
            raise OSError(5, "Input/output error")

    with Broken(data.parent) as tree, pytest.raises(OperatorError, match="cannot be read: Input/output error"):
        entry_at(tree, b"/etc", "web1@x")


_counting: list[int] = []


def _count(event: str, _arguments: object) -> None:
    if event == "open" and _counting:
        _counting[0] += 1


sys.addaudithook(_count)  # there for good, and silent


@pytest.mark.parametrize("missing", ["/zz/y", "/zz"])
def test_what_is_missing_below_very_many_folders_is_found_in_so_many_steps(data: Path, missing: str) -> None:
    """The number of steps must not be quadratic: a host may make folders as deep as the longest path, and every user who may see
    the host can request them.
    """
    depth, folder = 600, os.open(data, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=folder)
        inner = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    path = b"/a" * depth + missing.encode()
    now = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
    backup = Restorable("web1", "x", data.parent, "complete", now, Record("web1", "", "complete", now))
    _counting.append(0)
    try:
        with Tree(data.parent) as tree, pytest.raises(UsageError, match="has no /a/a"):
            entry_at(tree, path, "web1@x")
        assert _counting[0] < 20 * depth
        _counting[0] = 0
        assert versions([backup], path).versions == ()
        assert _counting[0] < 20 * depth
    finally:
        _counting.clear()


ODD = [
    b"latin1-\xe4.txt",
    b"new\nline",
    b"bidi\xe2\x80\xaename",
    b"tab\there",
    b"plain\\name",
    b"c:\\new",
    b"both\\xe4",
    b"two\\\\",
    b"\xe4",
]


def test_each_name_can_be_typed_as_it_is_shown(tmp_path: Path) -> None:
    inner = tmp_path / "backup" / "data" / os.fsdecode(b"in\xe4ner")
    inner.mkdir(parents=True)
    for name in ODD:
        (inner / os.fsdecode(name)).touch()
    with Tree(tmp_path / "backup") as tree:
        for name in ODD:
            path = b"/in\xe4ner/" + name
            assert path_in(tree, path_given(shown(path))) == path
            assert path_in(tree, path_given(os.fsdecode(path))) == path  # and as it is, as scripts have it
        assert path_in(tree, b"/none\\xe4") == b"/none\\xe4"
        assert path_in(tree, b"/in\\xe4ner/plain\\name/x\\y") == b"/in\xe4ner/plain\\name/x\\y"
    assert len({shown(name) for name in ODD}) == len(ODD)


def test_each_suggested_path_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    """Also a path with blanks, quotes, wildcards, a leading dash, or bytes that are not UTF-8."""
    names = [*ODD, b"with space", b"quo'te", b'dou"ble', b"$HOME `id`", b"*star", b"-dash", b"new\nline", b"~tilde", b" lead "]
    for number, name in enumerate(names):
        folder = tmp_path / str(number) / "data" / "in here"
        folder.mkdir(parents=True)
        (folder / os.fsdecode(name)).touch()
        with Tree(folder.parent.parent) as tree:
            hint = missing(tree, b"/in here/" + name + b"-", "web1@x").hint
            typed = hint.removeprefix("did you mean ").removesuffix("?").removeprefix("'/in here' has ")
            [word] = bytes.fromhex("".join(work("bash", "-c", f"printf '%s\\0' {typed} | od -An -tx1 -v").stdout.split())).split(
                b"\0"
            )[:-1]
            path = word if word.startswith(b"/") else b"/in here/" + word
            assert path_in(tree, path_given(os.fsdecode(path))) == b"/in here/" + name, hint


def test_a_name_that_is_shown_as_another_is_written_is_refused_with_how_to_write_both(tmp_path: Path) -> None:
    data = tmp_path / "backup" / "data"
    data.mkdir(parents=True)
    for name in (b"back\\xe4", b"back\xe4"):
        (data / os.fsdecode(name)).touch()
    with Tree(tmp_path / "backup") as tree:
        with pytest.raises(UsageError) as error:
            path_in(tree, path_given("/back\\xe4"))
        assert error.value.message == "back\\xe4 matches 2 names in /"
        written = error.value.hint.removeprefix("write ").split(" or ")
        typed = [work("bash", "-c", f"printf %s {word} | od -An -tx1 -v").stdout for word in written]
        names = {path_in(tree, path_given("/" + os.fsdecode(bytes.fromhex("".join(text.split()))))) for text in typed}
        assert names == {b"/back\\xe4", b"/back\xe4"}
