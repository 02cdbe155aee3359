"""What a restore drill makes of rsync's comparison: no difference is lost, and nothing that is equal is reported."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from backupd.drill.comparison import comparison_command, difference_of, write_exclusions
from backupd.drill.restore_drill import choose_names
from backupd.files.tree import Tree
from btrkeep.config.values import FileSample


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A backup and its restored copy."""
    backup, copy = tmp_path / "backup", tmp_path / "copy"
    (backup / "deep").mkdir(parents=True)
    for name in ("a file", "deep/other", "deep/third"):
        (backup / name).write_text(f"content of {name}\n")
    (backup / "link").symlink_to("a file")
    (backup / "name => other").write_text("x")
    (backup / "hard").hardlink_to(backup / "a file")
    subprocess.run(["cp", "-a", backup, copy], check=True)
    return backup, copy


def differences(trees: tuple[Path, Path], *words: Path | None) -> dict[str, str]:
    done = subprocess.run(comparison_command(*trees, *(words or (None,))), capture_output=True, check=True)
    lines = done.stdout.decode("utf-8", "surrogateescape").splitlines()
    return dict(filter(None, map(difference_of, lines)))


def test_a_true_copy_has_no_difference(trees: tuple[Path, Path]) -> None:
    assert differences(trees) == {}


def break_link(copy: Path) -> None:
    (copy / "hard").unlink()
    subprocess.run(["cp", "-a", copy / "a file", copy / "hard"], check=True)


def other_target(copy: Path) -> None:
    (copy / "link").unlink()
    (copy / "link").symlink_to("elsewhere")


def other_content(copy: Path) -> None:
    status = (copy / "deep/other").stat()
    (copy / "deep/other").write_text("content of deep/othes\n")
    os.utime(copy / "deep/other", ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("harm", "name", "kind"),
    [
        (lambda copy: (copy / "deep/other").unlink(), "deep/other", "it was not restored"),
        (lambda copy: (copy / "more").touch(), "more", "it is not in the backup"),
        (lambda copy: (copy / "deep/other").chmod(0o600), "deep/other", "mode"),
        (lambda copy: (copy / "name => other").write_text("y"), "name => other", "content"),
        (other_content, "deep/other", "content"),
        (other_target, "link", "content"),
        (break_link, "hard", "hard link"),
    ],
    ids=["missing", "too much", "mode", "a name like a link", "content of the same size and time", "target", "broken link"],
)
def test_each_kind_of_difference_is_found_and_named(
    trees: tuple[Path, Path], harm: Callable[[Path], object], name: str, kind: str
) -> None:
    harm(trees[1])
    ((path, reported),) = ((path, kind) for path, kind in differences(trees).items() if not path.endswith("/"))
    assert path.startswith(name)
    assert kind in reported


def test_folders_that_cannot_be_compared_are_left_out_with_all_in_them_and_nothing_else(
    trees: tuple[Path, Path], tmp_path: Path
) -> None:
    odd = "de*p [x]"
    for tree in trees:
        (tree / odd).mkdir()
        (tree / odd / "file").write_text("x")
    (trees[1] / odd / "file").write_text("other")
    (trees[1] / "deep/other").unlink()
    exclusions = tmp_path / "left-out"
    write_exclusions(exclusions, [odd.encode()])
    assert differences(trees, None, exclusions).keys() - {"deep/", "./"} == {"deep/other"}


# Which files a drill restores


def names(folder: Path, sample: FileSample, room: int = 1 << 30, seed: int = 1) -> list[bytes]:
    with Tree.of_folder(folder) as tree:
        return list(choose_names(tree, sample, room, Random(seed), lambda _: None).paths)


def test_every_file_has_the_same_chance_and_none_is_chosen_twice(tmp_path: Path) -> None:
    """A drill that always took the first names would never prove the others."""
    for number in range(20):
        (tmp_path / f"{number:02}").touch()
    chosen = [names(tmp_path, FileSample("5", number=5), seed=seed) for seed in range(200)]
    assert {len(set(each)) for each in chosen} == {5}
    count = [sum(f"/{number:02}".encode() in each for each in chosen) for number in range(20)]
    assert min(count) > 20, count  # 50 each on average; with a seed, always the same
    assert max(count) < 90, count


def test_a_share_is_about_that_many_of_all_files(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}").touch()
    assert 100 < len(names(tmp_path, FileSample("50%", share=0.5))) < 200
    assert len(names(tmp_path, FileSample("all"))) == 300


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    """A drill must not fill the pool."""
    (tmp_path / "large").write_bytes(b"x" * 300_000)
    (tmp_path / "small").write_bytes(b"x" * 3_000)
    with Tree.of_folder(tmp_path) as tree:
        chosen = choose_names(tree, FileSample("all"), 100_000, Random(1), lambda _: None)
    assert (chosen.paths, chosen.of, chosen.left_out) == ((b"/small",), 2, 1)
    assert 0 < chosen.allocated <= 100_000


def test_a_drill_that_is_stopped_while_it_counts_ends(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number}").touch()

    def stop(seen: int) -> None:
        raise RuntimeError(str(seen))

    with Tree.of_folder(tmp_path) as tree, pytest.raises(RuntimeError, match="100"):
        choose_names(tree, FileSample("all"), 1 << 30, Random(1), stop)
