"""Which commands of a stream of `btrfs send` may reach `btrfs receive`."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.replicate.stream_guard import BadStream, StreamGuard
from tests.beds.send_stream import crc32c

HEADER = b"btrfs-stream\0" + struct.pack("<I", 1)
OURS, PARENT, OTHER = (str(UUID(int=number)) for number in (1, 2, 3))


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("<HH", kind, len(value)) + value


def command(number: int, content: bytes = b"") -> bytes:
    return struct.pack("<IHI", len(content), number, 0) + content


def subvolume(uuid: str = OURS, parent: str | None = None, path: bytes = b"2026-03-01T220000Z") -> bytes:
    content = attribute(15, path) + attribute(1, UUID(uuid).bytes) + attribute(2, bytes(8))
    return command(2, content + attribute(20, UUID(parent).bytes)) if parent else command(1, content)


def passed(stream: bytes, parent: str | None = None, cuts: list[int] | None = None, mark: str | None = None) -> bytes:
    guard, out, at = StreamGuard(OURS, parent, b".receiving", 1, mark), b"", 0
    for cut in [*sorted(cuts or []), len(stream)]:
        out += b"".join(guard.filter(stream[at:cut])) if cut > at else b""
        at = max(at, cut)
    assert guard.whole
    return out


def clone(uuid: str, checksum: int | None = None) -> bytes:
    """Returns a command that clones a part of a file of that subvolume, with its right checksum, or another one."""
    content = attribute(18, bytes(8)) + attribute(24, b"1" * 8) + attribute(15, b"o1") + attribute(20, UUID(uuid).bytes)
    content += attribute(21, bytes(8)) + attribute(22, UUID(uuid).bytes) + attribute(23, bytes(8))
    right = crc32c(struct.pack("<IHI", len(content), 16, 0) + content)
    return struct.pack("<IHI", len(content), 16, right if checksum is None else checksum) + content


FILES = command(3, attribute(15, b"o1")) + command(15, attribute(15, b"o1") + attribute(19, b"x" * 40000))
END = command(21)


def test_the_subvolume_gets_our_name_and_nothing_else_is_changed() -> None:
    out = passed(HEADER + subvolume() + FILES + END)
    assert out.startswith(HEADER)
    assert out.endswith(FILES + END)
    assert b".receiving" in out
    assert b"2026" not in out


@given(cuts=st.lists(st.integers(0, 41000), max_size=6))
def test_it_does_not_matter_in_which_pieces_a_stream_comes(cuts: list[int]) -> None:
    stream = HEADER + subvolume(parent=PARENT) + FILES + END
    assert passed(stream, PARENT, [cut for cut in cuts if cut < len(stream)]) == passed(stream, PARENT)


@given(cuts=st.lists(st.integers(0, 41000), max_size=6))
def test_a_parent_that_has_another_mark_here_is_named_by_it_wherever_the_stream_names_it(cuts: list[int]) -> None:
    """The path of the file equals the parent's UUID, too, but must not be changed."""
    head, rest = HEADER + subvolume(parent=PARENT), clone(PARENT) + FILES + clone(OURS) + clone(OTHER)
    out = passed(head + rest + END, PARENT, cuts, mark=OTHER)
    mine = clone(PARENT).replace(attribute(20, UUID(PARENT).bytes), attribute(20, UUID(OTHER).bytes))
    right = struct.pack("<I", crc32c(mine[:6] + bytes(4) + mine[10:]))
    assert out.endswith(mine[:6] + right + mine[10:] + FILES + clone(OURS) + clone(OTHER) + END)
    assert attribute(20, UUID(OTHER).bytes) in out[: len(head)]
    assert passed(head + rest + END, PARENT).endswith(rest + END)


def test_a_checksum_that_is_wrong_stays_so() -> None:
    out = passed(HEADER + subvolume(parent=PARENT) + clone(PARENT, checksum=7) + END, PARENT, mark=OTHER)
    data = out.removesuffix(END)[-len(clone(PARENT)) :]
    assert struct.unpack_from("<I", data, 6)[0] != crc32c(data[:6] + bytes(4) + data[10:])


@pytest.mark.parametrize(
    ("stream", "parent"),
    [
        (b"some other file that is long enough", None),
        (b"btrfs-stream\0" + struct.pack("<I", 9) + subvolume() + END, None),
        (HEADER + subvolume(OTHER) + END, None),
        (HEADER + subvolume(parent=PARENT) + END, None),
        (HEADER + subvolume() + END, PARENT),
        (HEADER + subvolume(parent=OTHER) + END, PARENT),
        (HEADER + FILES + END, None),
        (HEADER + subvolume() + FILES + subvolume() + END, None),
        (HEADER + subvolume() + END + FILES, None),
        (HEADER + subvolume() + END + b"x", None),
        (HEADER + subvolume() + END + HEADER + subvolume() + END, None),
        (HEADER + subvolume() + struct.pack("<IHI", 1 << 30, 15, 0), None),
        (HEADER + subvolume() + command(99) + END, None),
        (HEADER + command(1, attribute(15, b"x") + attribute(15, b"y") + attribute(1, UUID(OURS).bytes)) + END, None),
        (HEADER + command(1, b"\x0f\x00\xff\xff") + END, None),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_what_is_not_the_stream_that_was_asked_for_is_refused(stream: bytes, parent: str | None, step: int) -> None:
    guard = StreamGuard(OURS, parent, b".receiving", 1)
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    with pytest.raises(BadStream):
        [list(guard.filter(piece)) for piece in pieces]


def test_a_stream_without_its_end_is_not_whole() -> None:
    guard = StreamGuard(OURS, None, b".receiving", 1)
    list(guard.filter(HEADER + subvolume() + FILES))
    assert not guard.whole


@pytest.mark.parametrize(("first", "number"), [(b"", 2), (subvolume(parent=PARENT), 16)], ids=["the first one", "a clone"])
def test_a_command_that_is_to_be_changed_is_refused_by_its_length_before_it_is_kept(first: bytes, number: int) -> None:
    """It is stored until it is complete: if it arrived in single bytes, the work would grow with the square of its length."""
    guard = StreamGuard(OURS, PARENT, b"backup", 1, OTHER)
    with pytest.raises(BadStream):
        list(guard.filter(HEADER + first + struct.pack("<IHI", 1 << 20, number, 0)))
