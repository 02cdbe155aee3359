"""The output of a real rsync while it works, compared with find, stat and cmp; no output of a sender can do harm."""

import os
import pickle
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.rsync.messages import Output, unescape
from backupd.rsync.restore_command import parse_item
from tests.backupd.pulls import arrived, pull
from tests.beds import work

# Names that look like rsync's own output, and names that it has to escape.
AWKWARD = (
    b"plain", b"new\nline", b"return\r", b"no utf-8 \xff\x80", b"\\#012", b"\\#999", b"\\#134#012", b"back\\slash", b"a|b|c",
    b"*deleting  |0|x", b">f+++++++++|5|y", b"Number of files: 7", b" blanks ", b"\x1b[2J",
    b"Total file size: 1 bytes", b"IO error encountered -- skipping file deletion", "Umlaut ä €".encode(),
)  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of awkward names and growing sizes, in two folders, with a symlink, a hard link and a fifo."""
    folder = tmp_path / "source"
    (folder / "inner").mkdir(parents=True)
    for size, name in enumerate(AWKWARD, 1):
        (folder / "inner" / os.fsdecode(name)).write_bytes(b"x" * size)
    (folder / "empty").touch()
    (folder / "big").write_bytes(os.urandom(700_000))
    (folder / "link").symlink_to("inner/plain")
    (folder / "big too").hardlink_to(folder / "big")
    os.mkfifo(folder / "fifo")
    return folder


def find_output(folder: Path, *tests: str, show: str = "x") -> list[str]:
    """Returns the count by find: one `show` for each name of `folder` (including itself) that passes `tests`."""
    return work("find", folder, *tests, "-printf", f"{show}\\n").stdout.split()


def pieces(whole: bytes, size: int) -> Output:
    output = Output()
    for start in range(0, len(whole), size):
        output.feed(whole[start : start + size])
    return output


def test_the_statistics_of_a_first_backup_are_what_find_counts(source: Path, tmp_path: Path) -> None:
    pulled = pull(source, tmp_path / "backup")
    parents = len(source.parts) - 2  # the folders above the source come along
    sizes = [int(size) for size in find_output(source, "-type", "f", "-links", "1", show="%s")]
    assert pulled.output.numbers == {
        **pulled.output.numbers,
        "files": len(find_output(source)) + parents,
        "regular": len(find_output(source, "-type", "f")),
        "created": len(find_output(source)) + parents,
        "deleted": 0,
        "transferred": len(sizes) + 1,  # of hard links the first name only
        "bytes": sum(int(size) for size in find_output(source, "-type", "f,l", show="%s")),
        "transferred_bytes": sum(sizes) + 700_000,
        "literal": sum(sizes) + 700_000,
        "matched": 0,
    }
    assert pulled.output.numbers["received"] > 700_000 > pulled.output.numbers["sent"] > 0


def test_rsync_is_made_to_print_no_name_of_the_hosts(source: Path, tmp_path: Path) -> None:
    pulled = pull(source, tmp_path / "backup")
    assert len(arrived(tmp_path / "backup")) == len(AWKWARD) + 3
    assert not [name for name in (b"plain", b"back", b"Umlaut", b"blanks") if name in pulled.stdout]
    assert not pulled.output.complaints


def test_a_second_backup_tells_matched_from_literal_and_what_was_deleted_from_what_stayed(source: Path, tmp_path: Path) -> None:
    pull(source, tmp_path / "backup")
    before = arrived(tmp_path / "backup")
    with (source / "big").open("r+b") as file:
        file.seek(300_000)
        file.write(b"changed here")
    (source / "inner" / "plain").chmod(0o600)
    for name in (b"new\nline", b"\\#012", b"*deleting  |0|x"):
        (source / "inner" / os.fsdecode(name)).unlink()
    pulled = pull(source, tmp_path / "backup", based=True)
    assert len(before - arrived(tmp_path / "backup")) == 3
    assert pulled.output.numbers["deleted"] == 3
    assert pulled.output.numbers["literal"] + pulled.output.numbers["matched"] == 700_000
    assert 12 <= pulled.output.numbers["literal"] < 5_000
    assert pulled.output.numbers["transferred"] == 1


@pytest.mark.slow
def test_progress_ends_at_the_whole_list_and_never_goes_back(source: Path, tmp_path: Path) -> None:
    for number in range(1500):
        (source / f"folder{number:04}").mkdir()
    pulled = pull(source, tmp_path / "backup")
    progress, output, shares = pulled.output.progress, Output(), []
    for line in re.split(rb"(?<=[\r\n])", pulled.stdout):
        output.feed(line)
        shares.append((output.progress.bytes, output.progress.checked))
    assert shares == sorted(shares)
    assert progress.whole
    assert progress.listed == pulled.output.numbers["files"] == len(find_output(source)) + len(source.parts) - 2
    assert progress.checked == progress.listed
    assert progress.bytes == pulled.output.numbers["transferred_bytes"]


def test_the_output_may_come_in_any_pieces(source: Path, tmp_path: Path) -> None:
    pulled = pull(source, tmp_path / "backup")
    assert pulled.output.numbers["transferred"] == len(AWKWARD) + 2
    for size in (1, 3, 64, 1000):
        assert pieces(pulled.stdout, size) == pulled.output


def test_the_protocol_is_the_one_that_both_sides_agreed_on(source: Path, tmp_path: Path) -> None:
    own = re.search(r"protocol version (\d+)", work("rsync", "--version").stdout)
    assert own
    assert pull(source, tmp_path / "backup").output.protocol == int(own[1])
    assert pull(source, tmp_path / "backup", extra=("--protocol=30",)).output.protocol == 30


def test_a_transfer_that_died_has_no_statistics(source: Path, tmp_path: Path, badssh: Callable[..., Path]) -> None:
    pulled = pull(source, tmp_path / "backup", shell=badssh("dies", 500_000))
    assert pulled.exit_code
    assert pulled.output.numbers == {}
    assert pulled.output.protocol


@given(st.binary())
def test_nothing_that_is_printed_can_raise(data: bytes) -> None:
    output = Output()
    output.feed(data + b"\n")
    for start in (b">f+++++++++|5|", b"Number of files: ", b"Total file size: ", b"\r 12  3%  1.00kB/s  0:00:00 (xfr#1, to-chk="):
        output.feed(start + data + b"\n")
    assert unescape(data) is not None


@pytest.mark.parametrize(
    "line",
    [
        b">f+++++++++|5|\\#999",
        b">f+++++++++|" + b"9" * 5000 + b"|x",
        b"Total file size: " + b"9" * 5000 + b" bytes",
        b"Number of files: 5 (reg, dir)",
        b"Number of files: 5 (reg: 5, )",
        b"Number of files: 5 (reg: " + b"9" * 5000 + b")",
        b"   " + b"9" * 5000 + b"  3%    1.00kB/s    0:00:00 (xfr#1, to-chk=1/2)",
    ],
    ids=lambda line: line[:20],
)
def test_a_sender_that_prints_lines_of_ours_cannot_stop_the_reading(line: bytes) -> None:
    output = Output()
    output.feed(line + b"\nLiteral data: 12 bytes\n")
    assert output.numbers["literal"] == 12
    assert all(number < 1 << 63 for number in output.numbers.values())


@pytest.mark.slow
def test_a_million_lines_cost_no_memory() -> None:
    """rsync's own lines for each file that it writes, and lines that a sender makes it print."""
    for line in (
        b"\r      %9d   1%%  175.84kB/s    0:00:00 (xfr#1, to-chk=8/3001)",
        b">f+++++++++|77|name %d\n",
        b"\r",
        b"\n",
        b"%d",
    ):
        output = Output()
        for number in range(0, 1_000_000, 1000):
            output.feed(b"".join(line % each if b"%" in line else line for each in range(number, number + 1000)))
        assert len(pickle.dumps(output)) < 100_000, line


def test_a_sender_that_never_ends_its_line_costs_no_memory() -> None:
    output = Output()
    for _ in range(200):
        output.feed(b"x" * 100_000)
    assert len(pickle.dumps(output)) < 200_000
    output.feed(b"\nLiteral data: 12 bytes\n")
    assert output.numbers == {"literal": 12}


@given(st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name and b"/" not in name))
def test_a_name_comes_back_from_the_escapes_that_rsync_documents(name: bytes) -> None:
    """rsync(1), on output: control and other bytes as \\#ooo, and a backslash itself where \\#ooo stands in the name."""
    shown = re.sub(rb"\\(?=#\d{3})|[^\x20-\x7e]", lambda match: b"\\#%03o" % match[0][0], name)
    assert unescape(shown) == name


def test_rsync_itself_shows_names_in_the_way_that_they_are_read(tmp_path: Path) -> None:
    """Every byte that a name may have, alone and before text that looks like an escape."""
    (tmp_path / "source").mkdir()
    names = {bytes([byte]) + tail for byte in range(1, 256) if byte not in b"/." for tail in (b"", b"#012", b"\\#134")}
    for name in names:
        os.close(os.open(os.fsencode(tmp_path / "source") + b"/" + name, os.O_CREAT | os.O_WRONLY))
    command = ["rsync", "-r", "--out-format=%i|%l|%n", f"{tmp_path}/source/", f"{tmp_path}/backup/"]
    output = subprocess.run(command, env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, capture_output=True, check=True).stdout
    assert {item.name for line in output.splitlines() if (item := parse_item(line)) and item.kind == "file"} == names
