"""The figures of the benchmarks of expiry, compared with the reports of the kernel and btrfs-progs.

If they are wrong, docs/benchmarks.rst has times and writes of deletions that did not take place, or of too many.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import churned, deletion
from bench.churned import Shape
from bench.holes import holes
from bench.images import Images, Mounted
from bench.seeks import traced
from tests.beds import btrfs, session, work

SMALL = Shape(hosts=3, nights=9, keep=2, files=30, changed=10, smallest=300, largest=9000)
needs_btrfs = pytest.mark.btrfs


@pytest.fixture
def place() -> Path:
    """A folder of this session: files that a killed bench leaves in it are removed with the session."""
    return session.folder(1 << 30)


@pytest.fixture
def images(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = place / f"images-{tmp_path_factory.mktemp('own').name}"
    folder.mkdir()
    try:
        yield Images(folder)
    finally:
        session.remove(folder)


def listed(mounted: Mounted, *words: str) -> set[str]:
    lines = work("btrfs", "subvolume", "list", *words, mounted.point).stdout.splitlines()
    return {line.split(" path ", 1)[1] for line in lines} - {"pool"}


@needs_btrfs
def test_every_copy_is_as_the_original_was_and_one_deletion_is_told_from_none_and_from_too_many(images: Images) -> None:
    with images.made("small", 1 << 30, "noatime") as mounted:
        pool = churned.build(mounted.point, images.folder, SMALL)
    original = deletion.Original(images, pool, SMALL)
    for _ in range(2):
        with images.copy("small", "noatime,nossd") as mounted:
            assert listed(mounted) == {*pool.doomed, *pool.kept}
            with pytest.raises(AssertionError, match="left, or gone, by mistake"):
                deletion.see_what_is_left(mounted.point, pool.kept)
            done = deletion.delete_all(mounted, original.by_btrfs(), pool.doomed, pool.kept, watched=True)
            assert listed(mounted) == set(pool.kept)
            assert done.seconds <= done.settled
            assert done.writes.bytes > 0
            assert done.seen.p50 <= done.seen.p99 <= done.seen.worst < 60_000
            one_too_many = (*pool.kept, next(iter(pool.doomed)))
            with pytest.raises(AssertionError, match="left, or gone, by mistake"):
                deletion.see_what_is_left(mounted.point, one_too_many)


@needs_btrfs
def test_traced_writes_are_those_that_were_made(images: Images) -> None:
    with images.made("raw", 1 << 30, "noatime") as mounted:
        btrfs.unmount(mounted.point)  # now only dd writes to the device
        with traced(mounted.device, images.folder) as result:
            for block in (5, 50, 500):
                words = ("bs=64k", f"seek={block}", "count=2", "oflag=direct", "conv=notrunc")
                work("dd", "if=/dev/urandom", f"of={mounted.device}", *words)
        if result.places is None:
            pytest.skip("no tracefs on this machine")
        assert result.places == 3
        work("mount", mounted.device, mounted.point)


@needs_btrfs
def test_holes_agree_with_what_the_btrfs_program_says_is_used(images: Images) -> None:
    with images.made("small", 1 << 30, "noatime") as mounted:
        churned.build(mounted.point, images.folder, SMALL)
        mounted.sync()
        room = work("btrfs", "filesystem", "df", "--raw", mounted.point).stdout
    (line,) = (line for line in room.splitlines() if line.startswith("Metadata"))
    total, used = (int(word.partition("=")[2].strip(",")) for word in line.split()[-2:])
    actual_holes = holes(images.original("small"))
    assert actual_holes.length == total
    assert actual_holes.used == pytest.approx(used, abs=64 * 16384)  # unmounting writes once more
    assert actual_holes.count > 1
