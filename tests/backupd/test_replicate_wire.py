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
    """Yields the reading end of a pipe that gets `content` byte by byte."""
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


@contextmanager
def held_open(first: int) -> Iterator[int]:
    """A pipe with the content of the first one, which is not closed at its end."""
    reading, writing = os.pipe()
    os.write(writing, os.read(first, 1 << 16))
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def test_who_never_stops_but_sends_next_to_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SPAN", 0.2)
    with trickling(frame(PIECE, b"x" * 60), 0.02) as fd, pytest.raises(ConnectionBroken, match="less than"):
        list(AnswerReader(fd).answer())


def test_who_sends_enough_in_each_span_may_take_many_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SPAN", 0.4)
    monkeypatch.setattr(wire, "_LEAST", 4)
    with trickling(frame(PIECE, b"x" * 60) + object_frame({}, END), 0.01) as fd:
        assert list(AnswerReader(fd).answer()) == [(PIECE, b"x" * 60)]


def test_a_line_on_which_nothing_comes_is_dead_after_a_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_LOOK", 20)
    with trickling(frame(PIECE, b"x"), 0) as fd, held_open(fd) as kept:
        reader = AnswerReader(kept, patience=60.0)
        answer = reader.answer()
        reader.pulse = 0.3
        begun = time.monotonic()
        with pytest.raises(ConnectionBroken, match="nothing for"):
            list(answer)
        assert time.monotonic() - begun < 30


@pytest.mark.slow
def test_pieces_of_no_bytes_show_that_the_line_lives_and_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_LOOK", 20)
    beats = frame(PIECE, b"") * 40
    with trickling(beats + frame(PIECE, b"x") + object_frame({}, END), 0.01) as fd:  # two seconds of beats
        reader = AnswerReader(fd, patience=60.0)
        answer = reader.answer()
        reader.pulse = 1.0
        assert b"".join(content for _, content in answer) == b"x"
    with trickling(beats * 100, 0.01) as fd, pytest.raises(ConnectionBroken, match="nothing for"):
        list(AnswerReader(fd, patience=0.5).answer())
