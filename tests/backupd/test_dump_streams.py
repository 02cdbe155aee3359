"""Dumps as streams without a host: data of the base that the disk cannot read, and an error without a text."""

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.run import dump_writer
from backupd.run.dump_streams import DumpEnd, DumpStreams


@pytest.mark.parametrize("damaged", [0, 5000, 1 << 18, (1 << 18) + 5000])
def test_data_of_the_base_that_cannot_be_read_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    content = os.urandom((1 << 19) + 100)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(file, content + b"longer")
    plain = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        """As btrfs: it reads up to the damaged page."""
        end = min(offset + size, os.fstat(fd).st_size)
        start = damaged // 4096 * 4096
        if fd != file or not offset <= start < end:
            return plain(fd, size, offset)
        if start == offset:
            raise OSError(errno.EIO, "damaged")
        return plain(fd, start - offset, offset)

    monkeypatch.setattr("backupd.run.dump_writer.os.pread", pread)
    (tmp_path / "stream").write_bytes(content)
    stream = os.open(tmp_path / "stream", os.O_RDONLY)
    assert dump_writer.write_stream(stream, file)[0] == len(content)
    assert (tmp_path / "file").read_bytes() == content


def test_a_file_that_failed_without_a_text_is_not_forgotten() -> None:
    noted, ends = list[Any](), [DumpEnd(5, 5, 1, ""), DumpEnd(7, 7, 0, "")]

    async def next_end(*_: str) -> DumpEnd:
        return ends.pop(0)

    streams = DumpStreams.__new__(DumpStreams)
    streams._file = next_end  # type: ignore[method-assign, assignment]
    files = {"db": ("/srv/a.sql", "/srv/b.sql")}
    streams.snapshots = SimpleNamespace(streams=files, note_stream=lambda *words: noted.append(words))  # type: ignore[assignment]
    asyncio.run(streams.fetch({"/srv": PathResult("/srv", PathOutcome.COMPLETE, "")}))
    assert noted[0][3] == 1
