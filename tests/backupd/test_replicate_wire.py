"""Answers of another pool, read from a real pipe."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backupd.replicate import wire
from backupd.replicate.wire import END, PIECE, AnswerReader, ConnectionBroken, frame, object_frame


@contextmanager
def trickling(content: bytes, pause: float) -> Iterator[int]:
    """The reading end of a pipe into which `content` comes byte by byte."""
    reading, writing = os.pipe()

    def write() -> None:
        try:
            for at in range(len(content)):
                os.write(writing, content[at : at + 1])
                time.sleep(pause)
        except BrokenPipeError:
            pass
        finally:
            os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield reading
    finally:
        os.close(reading)
        writer.join()


def test_who_never_stops_but_sends_next_to_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SPAN", 0.2)
    with trickling(frame(PIECE, b"x" * 60), 0.02) as fd, pytest.raises(ConnectionBroken, match="less than"):
        list(AnswerReader(fd).answer())


def test_who_sends_enough_in_each_span_may_take_many_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SPAN", 0.4)
    monkeypatch.setattr(wire, "_LEAST", 4)
    with trickling(frame(PIECE, b"x" * 60) + object_frame({}, END), 0.01) as fd:
        assert list(AnswerReader(fd).answer()) == [(PIECE, b"x" * 60)]
