"""The program that applies a host's stream to a folder, with streams that no `btrfs send` makes: they change nothing outside."""

import io
import os
import stat
import struct
import zlib
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backupd.streams.applier import Applier, apply_stream
from backupd.streams.stream_format import BAD_STREAM, CUT, DOES_NOT_FIT, NOT_ENCODED, OVER_LIMIT, StreamError
from tests.beds import send_stream as made
from tests.beds.gate import examples
from tests.beds.send_stream import number

OWN, PARENT, OTHER = (str(UUID(int=each)) for each in (1, 2, 3))
END = made.command(21)


def header(version: int = 1) -> bytes:
    return b"btrfs-stream\0" + struct.pack("<I", version)


def difference(to: str = PARENT) -> bytes:
    """Returns the first command of a stream that is a difference."""
    return made.command(2, (15, b"x"), (1, UUID(OWN).bytes), (2, number(5)), (20, UUID(to).bytes), (21, number(5)))


def complete(*commands: bytes, version: int = 1) -> bytes:
    return header(version) + made.subvolume(b"x", OWN) + b"".join(commands) + END


def folder(path: bytes) -> bytes:
    return made.command(4, (15, path), (3, number(300)))


def rename(path: bytes, to: bytes) -> bytes:
    return made.command(9, (15, path), (16, to))


def link(path: bytes, to: bytes) -> bytes:
    return made.command(10, (15, path), (17, to))


class Place:
    """A folder for a stream, with the parent's folder and a file of another owner beside it."""

    def __init__(self, top: Path) -> None:
        self.top, self.folder, self.base = top, top / "into", top / "base"
        self.folder.mkdir()
        self.base.mkdir()
        (top / "secret").write_text("of others")
        (top / "within").mkdir()
        (self.base / "old").write_bytes(b"o" * 8192)

    def apply(self, stream: bytes, parent: str | None = None, names: int | None = None, size: int | None = None) -> Applier:
        descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (self.folder, self.base)]
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        applier = Applier(descriptors[0], descriptors[1], parent and f"{parent}:5", names, size)
        try:
            apply_stream(io.BytesIO(stream), applier, lambda _: None)
            return applier
        finally:
            applier.here.forget()
            os.fchdir(here)
            for fd in (*descriptors, here):
                os.close(fd)

    def fails(self, stream: bytes, parent: str | None = None) -> StreamError:
        """Returns why the stream is refused, after checking that nothing outside of its folder has changed."""
        before = self.outside()
        with pytest.raises(StreamError) as refused:
            self.apply(stream, parent)
        assert self.outside() == before
        return refused.value

    def outside(self) -> dict[str, tuple[int, int, bytes]]:
        contents = {}
        for path in self.top.rglob("*"):
            if not path.is_relative_to(self.folder):
                status = path.lstat()
                content = path.read_bytes() if path.is_file() else b""
                contents[str(path)] = (status.st_mode, status.st_mtime_ns, content)
        return contents


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_files_folders_and_links_of_a_complete_stream_arrive_and_are_counted(place: Place) -> None:
    applier = place.apply(
        complete(
            folder(b"a"),
            made.file(b"o300-1-0", b"words"),
            rename(b"o300-1-0", b"a/file"),
            link(b"a/second", b"a/file"),
            made.symlink(b"a/way", b"/etc/passwd"),
            made.node(b"a/pipe", 0o010644),
            made.truncate(b"a/file", 3),
            made.command(18, (15, b"a/file"), (5, number(0o640))),
            made.command(20, (15, b"a/file"), (11, struct.pack("<qI", 5, 6)), (10, struct.pack("<qI", -7, 8))),
        )
    )
    file = place.folder / "a/file"
    assert file.read_text() == (place.folder / "a/second").read_text() == "wor"
    assert (file.stat().st_nlink, file.stat().st_mode & 0o7777, file.stat().st_mtime_ns) == (2, 0o640, -7 * 10**9 + 8)
    assert str((place.folder / "a/way").readlink()) == "/etc/passwd"
    expected = {"files": 5, "regular": 2, "bytes": 6, "created": 5, "deleted": 0, "literal": 5}
    assert {name: applier.numbers[name] for name in expected} == expected
    assert applier.own == f"{OWN}:5"


def test_what_goes_is_subtracted(place: Place) -> None:
    place.apply(complete(folder(b"a"), made.file(b"a/file", b"12345"), link(b"b", b"a/file"), made.file(b"c", b"123")))
    applier = place.apply(
        header()
        + difference()
        + made.write(b"b", b"1234567890")
        + made.command(11, (15, b"a/file"))
        + rename(b"c", b"b")
        + made.command(12, (15, b"a"))
        + END,
        PARENT,
    )
    assert sorted(path.name for path in place.folder.iterdir()) == ["b"]
    assert (place.folder / "b").read_text() == "123"
    # a/file and b were 10 bytes, c is 3: before the rename b had 10 more each, and a/file and b are gone.
    assert (applier.numbers["files"], applier.numbers["regular"], applier.numbers["bytes"]) == (-3, -2, -10)


def test_attributes_come_and_go_and_one_that_could_not_be_kept_may_go_too(place: Place) -> None:
    def attribute(name: bytes) -> bytes:
        return made.command(13, (15, b"file"), (13, name), (14, b"value"))

    def no_attribute(name: bytes) -> bytes:
        return made.command(14, (15, b"file"), (13, name))

    place.apply(complete(made.file(b"file", b""), attribute(b"user.stays"), attribute(b"user.goes")))
    place.apply(header() + difference() + no_attribute(b"user.goes") + no_attribute(b"user.not-kept") + END, PARENT)
    assert os.listxattr(place.folder / "file") == ["user.stays"]
    assert os.getxattr(place.folder / "file", "user.stays") == b"value"


def test_a_socket_and_a_pipe_are_made_as_such(place: Place) -> None:
    place.apply(complete(made.command(7, (15, b"socket"), (3, number(301))), made.command(6, (15, b"pipe"), (3, number(302)))))
    kinds = [stat.filemode((place.folder / name).lstat().st_mode) for name in ("socket", "pipe")]
    assert kinds == ["srw-------", "prw-------"]


BAD_PATHS = (
    b"../secret",
    b"..",
    b".",
    b"",
    b"/etc/x",
    b"/x",
    b"a/../../secret",
    b"a/..",
    b"./x",
    b"a//b",
    b"a/",
    b"a\0b",
    b"x" * 256,
    b"a/" * 2048 + b"x",
)


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_leads_out_or_is_no_name_is_refused_by_each_command(place: Place, path: bytes) -> None:
    good = (folder(b"a"), made.file(b"file", b"1"))
    for bad in (
        made.file(path, b"1"),
        folder(path),
        made.symlink(path, b"x"),
        made.node(path, 0o010644),
        rename(b"file", path),
        rename(path, b"x"),
        link(path, b"file"),
        link(b"x", path),
        made.command(11, (15, path)),
        made.command(12, (15, path)),
        made.write(path, b"1"),
        made.truncate(path, 0),
        made.clone(b"file", OWN, path),
        made.clone(path, OWN, b"file"),
        *(
            (
                made.attribute(path, b"user.x", b"1"),
                made.command(18, (15, path), (5, number(0o777))),
                made.command(20, (15, path), (11, bytes(12)), (10, bytes(12))),
            )
            if path
            else ()
        ),
    ):
        assert place.fails(complete(*good, bad)).status == BAD_STREAM
        for left in (place.folder / "file", place.folder / "x"):
            left.unlink(missing_ok=True)
        (place.folder / "a").rmdir()


@pytest.mark.parametrize("target", ["../within", "../secret", "/etc"])
def test_a_symlink_is_never_followed(place: Place, target: str) -> None:
    way = made.symlink(b"way", target.encode())
    for bad in (
        made.file(b"way/x", b"1"),
        folder(b"way/x"),
        made.write(b"way", b"1"),
        made.truncate(b"way", 0),
        made.file(b"way", b"1"),
        made.command(18, (15, b"way"), (5, number(0o777))),
        made.file(b"file", b"1" * 4096) + made.clone(b"file", OWN, b"way"),
        made.file(b"file", b"1") + rename(b"file", b"way/file"),
        made.file(b"file", b"1") + link(b"way/file", b"file"),
        made.command(11, (15, b"way/x")),
    ):
        assert place.fails(complete(way, bad)).status in (BAD_STREAM, DOES_NOT_FIT)
        for path in place.folder.iterdir():
            path.unlink()


def test_a_link_to_a_symlink_is_a_second_name_of_the_symlink(place: Place) -> None:
    place.apply(complete(made.symlink(b"way", b"../secret"), link(b"second", b"way")))
    assert str((place.folder / "second").readlink()) == "../secret"


def test_a_folder_that_becomes_a_symlink_is_no_longer_entered(place: Place) -> None:
    """The open folder of an earlier command must not be used for a path that now means another folder."""
    stream = complete(
        folder(b"a"), made.file(b"a/one", b"1"), rename(b"a", b"b"), made.symlink(b"a", b"../within"), made.file(b"a/two", b"2")
    )
    assert place.fails(stream).status == DOES_NOT_FIT
    assert sorted(path.name for path in (place.folder / "b").iterdir()) == ["one"]


def test_data_beyond_the_end_of_a_file_is_not_cloned_as_a_hole(place: Place) -> None:
    made_file = made.file(b"file", b"1" * 4096)
    stream = header() + difference() + made_file + made.clone(b"file", PARENT, b"old", 12_288) + END
    assert place.fails(stream, PARENT).status == DOES_NOT_FIT


def test_the_hosts_folder_of_snapshots_is_in_no_backup(place: Place) -> None:
    """Each stream has it: the folder is created, gets times, or is created again. A folder with files in it belongs to a user."""
    own, times = b".btrkeep-source", ((11, struct.pack("<qI", 5, 6)), (10, struct.pack("<qI", 7, 8)))
    touched = made.command(20, (15, own), *times)
    first = place.apply(complete(folder(b"o257-7-0"), rename(b"o257-7-0", own), touched, made.command(20, (15, b""), *times)))
    assert (list(place.folder.iterdir()), first.numbers["files"], first.numbers["created"]) == ([], 0, 0)
    for commands in (touched, made.command(12, (15, own)) + folder(own) + touched, made.command(12, (15, own))):
        applier = place.apply(header() + difference() + commands + END, PARENT)
        assert list(place.folder.iterdir()) == []
        assert place.folder.stat().st_mtime_ns == 7 * 10**9 + 8
    assert applier.numbers["files"] == 0
    place.apply(complete(folder(own), made.file(own + b"/file", b"1")))
    assert (place.folder / ".btrkeep-source/file").read_text() == "1"


def test_only_regular_files_are_written_and_cloned(place: Place) -> None:
    """An open pipe would wait for ever."""
    for bad in (made.write(b"pipe", b"1"), made.file(b"file", b"1") + made.clone(b"file", OWN, b"pipe"), made.write(b"a", b"1")):
        assert place.fails(complete(folder(b"a"), made.node(b"pipe", 0o010644), bad)).status == BAD_STREAM
        (place.folder / "pipe").unlink()
        (place.folder / "file").unlink(missing_ok=True)
        (place.folder / "a").rmdir()


FRAME = bytes.fromhex("28b52ffd20052900006669727374")
"""A frame of zstd: the word "first" in a raw block."""


def encoded(data: bytes, kind: int, length: int, start: int, whole: int = 5) -> bytes:
    """Of an extent whose uncompressed data has `whole` bytes."""
    numbers = ((name, number(value)) for name, value in ((18, 0), (27, length), (28, whole), (29, start)))
    return made.command(25, (15, b"file"), *numbers, (30, struct.pack("<I", kind)), (19, data))


@pytest.mark.parametrize(
    ("data", "kind", "length", "start", "content"),
    [
        (zlib.compress(b"first"), 1, 5, 0, b"first"),
        (FRAME, 2, 5, 0, b"first"),
        (FRAME + bytes(4082), 2, 3, 1, b"irs"),
        (zlib.compress(b"f"), 1, 5, 0, b"f\0\0\0\0"),
        (b"no frame", 2, 5, 0, NOT_ENCODED),
        (b"no frame", 1, 5, 0, NOT_ENCODED),
        (b"of lzo, which", 3, 5, 0, NOT_ENCODED),
        (FRAME, 2, 5, 1, NOT_ENCODED),
        (FRAME[:-1], 2, 5, 0, NOT_ENCODED),
        (zlib.compress(b"longer than said"), 1, 5, 0, b"longe"),
    ],
)
def test_compressed_data_longer_than_the_file_is_written_uncompressed(
    place: Place, data: bytes, kind: int, length: int, start: int, content: bytes | int
) -> None:
    """No kernel accepts such data as it is."""
    stream = complete(made.command(3, (15, b"file"), (3, number(300))), encoded(data, kind, length, start))
    if isinstance(content, int):
        assert place.fails(stream).status == content
    else:
        assert place.apply(stream).numbers["literal"] == length
        assert (place.folder / "file").read_bytes() == content


def test_data_come_only_from_this_subvolume_and_its_parent(place: Place) -> None:
    made_file = made.file(b"file", b"1" * 4096)
    for uuid in (OTHER, PARENT):  # a complete stream has no parent
        assert place.fails(complete(made_file, made.clone(b"file", uuid, b"old"))).status == BAD_STREAM
        (place.folder / "file").unlink()
    for source in (b"../secret", b"../base/old", b"/etc/passwd"):
        stream = header() + difference() + made_file + made.clone(b"file", PARENT, source) + END
        assert place.fails(stream, PARENT).status == BAD_STREAM
        (place.folder / "file").unlink()
    place.apply(header() + difference() + made_file + made.clone(b"file", PARENT, b"old", 8192) + END, PARENT)
    assert (place.folder / "file").read_bytes() == b"o" * 8192


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        (b"", CUT),
        (b"btrfs-stream", CUT),
        (b"not a stream, but a login shell's words", BAD_STREAM),
        (header(3) + made.subvolume(b"x", OWN) + END, BAD_STREAM),
        (header(0) + made.subvolume(b"x", OWN) + END, BAD_STREAM),
        (header() + END, BAD_STREAM),
        (header() + folder(b"a") + END, DOES_NOT_FIT),
        (header() + difference() + END, DOES_NOT_FIT),
        (complete(made.subvolume(b"y", OTHER)), BAD_STREAM),
        (complete() + b"x", BAD_STREAM),
        (complete() + complete(), BAD_STREAM),
        (complete(made.command(0)), BAD_STREAM),
        (complete(made.command(22, (15, b"a"))), BAD_STREAM),
        (complete(made.reserve(b"a", 1 << 40)), BAD_STREAM),
        (complete(made.command(99, (15, b"a"))), BAD_STREAM),
        (complete(struct.pack("<IHI", 1 << 31, 15, 0)), BAD_STREAM),
        (complete(made.command(4)), BAD_STREAM),
        (complete(made.command(4, (15, b"a"), (15, b"b"))), BAD_STREAM),
        (complete(made.command(4, (99, b"a"))), BAD_STREAM),
        (complete(struct.pack("<IHI", 3, 4, 0) + b"\x0f\0\5"), BAD_STREAM),
        (complete(struct.pack("<IHI", 5, 4, 0) + b"\x0f\0\5\0a"), BAD_STREAM),
        (complete(made.file(b"a", b""), made.truncate(b"a", 1 << 63)), BAD_STREAM),
        (complete(made.file(b"a", b""), made.command(17, (15, b"a"), (4, b"123"))), BAD_STREAM),
        (complete(made.file(b"a", b""), made.command(20, (15, b"a"), (10, bytes(12)), (11, b"\xff" * 12))), BAD_STREAM),
        (complete(made.file(b"a", b""), made.command(19, (15, b"a"), (6, b"\xff" * 8), (7, number(0)))), BAD_STREAM),
        (complete(made.file(b"a", b""), made.clone(b"a", OWN, b"a", 0)), BAD_STREAM),
        (complete(made.node(b"a", 0o100644)), BAD_STREAM),
        (complete(made.symlink(b"a", b"")), BAD_STREAM),
        (complete(made.file(b"a", b""), made.attribute(b"a", b"", b"1")), BAD_STREAM),
        (complete(made.file(b"a", b"1"), made.file(b"a", b"2")), DOES_NOT_FIT),
        (complete(made.write(b"a", b"1")), DOES_NOT_FIT),
        (complete(folder(b"a"), made.file(b"a/b", b"1"), made.command(12, (15, b"a"))), DOES_NOT_FIT),
        (complete(made.encoded(b"a", b"1", length=4096, whole=4096, encryption=1), version=2), BAD_STREAM),
    ],
)
def test_a_stream_of_another_form_is_refused(place: Place, stream: bytes, status: int) -> None:
    assert place.fails(stream).status == status


def test_a_difference_to_another_snapshot_does_not_fit(place: Place) -> None:
    assert place.fails(header() + difference(OTHER) + END, PARENT).status == DOES_NOT_FIT
    assert place.fails(complete(), PARENT).status == DOES_NOT_FIT


GOOD = complete(
    folder(b"a"),
    made.file(b"a/b", b"12345"),
    made.symlink(b"s", b"../secret"),
    rename(b"a/b", b"c"),
    link(b"a/d", b"c"),
    made.truncate(b"c", 2),
    made.command(18, (15, b""), (5, number(0o700))),
)


def test_a_stream_that_is_cut_anywhere_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    for length in range(len(GOOD)):
        top = tmp_path / str(length)
        top.mkdir()
        assert Place(top).fails(GOOD[:length]).status == CUT


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, len(GOOD) - 1), piece=st.binary(max_size=12), drop=st.integers(0, 12))
@example(at=20, piece=b"\xff\xff\xff\x7f", drop=4)
def test_a_changed_stream_fails_in_a_known_way_or_stays_within(
    tmp_path_factory: pytest.TempPathFactory, at: int, piece: bytes, drop: int
) -> None:
    place = Place(tmp_path_factory.mktemp("changed"))
    before = place.outside()
    status = 0
    try:
        place.apply(GOOD[:at] + piece + GOOD[at + drop :])
    except StreamError as error:
        status = error.status
    assert status in (0, BAD_STREAM, CUT, DOES_NOT_FIT)
    assert place.outside() == before


def test_limits_end_a_stream_at_once(place: Place) -> None:
    with pytest.raises(StreamError) as ended:
        place.apply(complete(*(folder(b"%d" % each) for each in range(10))), names=5)
    assert (ended.value.status, str(ended.value)) == (OVER_LIMIT, "files 6")
    assert len(list(place.folder.iterdir())) == 6
    with pytest.raises(StreamError) as ended:
        place.apply(complete(made.file(b"big", b"1" * 1000), *[made.write(b"big", b"2" * 1000)] * 10), size=2500)
    assert ended.value.status == OVER_LIMIT


def test_compressed_data_of_no_bytes_takes_no_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backupd.streams.file_writer.decoded", lambda *_: pytest.fail("it was decompressed, without any limit"))
    stream = complete(made.command(3, (15, b"file"), (3, number(300))), encoded(zlib.compress(bytes(1 << 20)), 1, 0, 0, 0))
    assert place.fails(stream).status == NOT_ENCODED
