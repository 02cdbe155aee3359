"""Which folders a backup has several times, decided from a sample of its files."""

from collections.abc import Iterator

from backupd.run.fetched_twice import Names, SampledFile, excluded_folder, is_much, repeated_folders


def names(path: str) -> Names:
    return tuple(part.encode() for part in path.strip("/").split("/") if part)


def tree(top: str, count: int = 40, *, is_new: bool = True, first: int = 0) -> list[SampledFile]:
    """Files in two folders below `top`, each with a size and a time of its own."""
    return [
        SampledFile((*names(top), *names(f"d{number % 2}")), b"f%d" % number, 1000 + number, 10**18 + number, is_new)
        for number in range(first, first + count)
    ]


def again(files: list[SampledFile]) -> Iterator[tuple[Names, Names]]:
    return ((repeat.folder, repeat.again) for repeat in repeated_folders(files))


def test_a_folder_that_is_mounted_at_a_second_place_is_found_at_its_top() -> None:
    files = [*tree("/srv/data"), *tree("/mnt/long/data"), *tree("/etc", first=1000)]
    assert list(again(files)) == [(names("/srv/data"), names("/mnt/long/data"))]
    assert is_much(files, repeated_folders(files))


def test_snapshots_of_a_root_are_left_out_with_one_pattern() -> None:
    files = [*tree("/"), *tree("/.snapshots/1/snapshot"), *tree("/.snapshots/2/snapshot")]
    results = repeated_folders(files)
    assert [repeat.again for repeat in results] == [names("/.snapshots/1/snapshot"), names("/.snapshots/2/snapshot")]
    assert {repeat.folder for repeat in results} == {()}
    assert {excluded_folder(repeat) for repeat in results} == {names("/.snapshots")}


def test_a_new_snapshot_is_found_by_the_files_of_an_earlier_night() -> None:
    files = [*tree("/", is_new=False), *tree("/.snapshots/7/snapshot")]
    (repeated_folder,) = repeated_folders(files)
    assert (repeated_folder.folder, repeated_folder.again) == ((), names("/.snapshots/7/snapshot"))
    assert is_much(files, [repeated_folder])


def test_folders_that_have_a_part_in_common_are_no_copies() -> None:
    files = [*tree("/srv/a", 40), *tree("/srv/a", 40, first=100), *tree("/srv/b", 40), *tree("/srv/b", 40, first=300)]
    assert repeated_folders(files) == []


def test_a_small_copy_is_found_and_is_not_much() -> None:
    files = [*tree("/srv/a", 20), *tree("/srv/b", 20), *tree("/home", 400, first=1000)]
    results = repeated_folders(files)
    assert [repeat.again for repeat in results] == [names("/srv/b")]
    assert not is_much(files, results)


def test_other_times_are_other_files() -> None:
    other = [SampledFile(file.folder, file.name, file.size, file.mtime + 1, True) for file in tree("/srv/b")]
    assert repeated_folders([*tree("/srv/a"), *other]) == []
