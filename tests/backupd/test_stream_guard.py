"""What of a stream of `btrfs send` may go on to `btrfs receive`."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.replicate.stream_guard import BadStream, StreamGuard

HEADER = b"btrfs-stream\0" + struct.pack("<I", 1)
OURS, PARENT, OTHER = (str(UUID(int=number)) for number in (1, 2, 3))


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("<HH", kind, len(value)) + value


def command(number: int, content: bytes = b"") -> bytes:
    return struct.pack("<IHI", len(content), number, 0) + content


def subvolume(uuid: str = OURS, parent: str | None = None, path: bytes = b"2026-03-01T220000Z") -> bytes:
    content = attribute(15, path) + attribute(1, UUID(uuid).bytes) + attribute(2, bytes(8))
    return command(2, content + attribute(20, UUID(parent).bytes)) if parent else command(1, content)


def passed(stream: bytes, parent: str | None = None, cuts: list[int] | None = None) -> bytes:
    guard, out, at = StreamGuard(OURS, parent, b".receiving", 1), b"", 0
    for cut in [*sorted(cuts or []), len(stream)]:
        out += b"".join(guard.pass_on(stream[at:cut])) if cut > at else b""
        at = max(at, cut)
    assert guard.whole
    return out


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
        [list(guard.pass_on(piece)) for piece in pieces]


def test_a_stream_without_its_end_is_not_whole() -> None:
    guard = StreamGuard(OURS, None, b".receiving", 1)
    list(guard.pass_on(HEADER + subvolume() + FILES))
    assert not guard.whole
