"""Files that a host's backups fetch twice, according to its mounts; and where they would include the pool."""

import pytest

from backupd.doctor.mounted_twice import hidden_mounts, is_excluded, mounted_twice, places_of
from backupd.rsync.host_answers import parse_answer
from btrkeep.config import HostConfig
from btrkeep.errors import OperatorError
from btrkeep.procfs import parse_mounts

PLAIN = ("8:1 / / ext4", "0:5 / /proc proc", "0:6 / /dev devtmpfs")
BTRFS = ("0:30 /@ / btrfs subvolid=256,subvol=/@", "0:30 /@home /home btrfs subvolid=257,subvol=/@home")


def text(*lines: str) -> bytes:
    """Returns a mountinfo, from "DEVICE ROOT TARGET TYPE OPTIONS"."""
    words = [(*line.split(), "rw")[:5] for line in lines]
    return "\n".join(
        f"{number} 1 {device} {root} {target} rw shared:1 - {kind} /dev/x {options}"
        for number, (device, root, target, kind, options) in enumerate(words)
    ).encode()


def twice(*lines: str, paths: tuple[str, ...] = ("/",), **keys: object) -> list[tuple[str, str]]:
    host = HostConfig("h", address="h", paths=paths, **keys)  # type: ignore[arg-type]
    return [(pair.folder, pair.again) for pair in mounted_twice(parse_mounts(text(*lines)), host)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (PLAIN, []),
        ((*PLAIN, "8:1 /srv/data /mnt/bind ext4"), [("/srv/data", "/mnt/bind")]),
        ((*PLAIN, "8:2 / /data ext4", "8:2 / /mnt/data ext4"), [("/data", "/mnt/data")]),
        ((*PLAIN, "8:1 / /mnt/root ext4"), [("/", "/mnt/root")]),
        ((*PLAIN, "0:5 / /srv/chroot/proc proc", "0:6 / /srv/chroot/dev devtmpfs"), []),
        ((*PLAIN, "8:1 /var/lib/docker /var/lib/docker ext4"), []),  # onto itself
        ((*PLAIN, "8:1 /srv /mnt/b ext4", "8:3 / /srv ext4"), []),  # the original is hidden since
        (BTRFS, []),
        ((*BTRFS, "0:30 /@/srv /mnt/bind btrfs subvolid=256,subvol=/@"), [("/srv", "/mnt/bind")]),
        ((*BTRFS, "0:30 / /mnt/top btrfs subvolid=5"), [("/", "/mnt/top/@"), ("/home", "/mnt/top/@home")]),
    ],
)
def test_mounts_that_show_the_same_files(lines: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    assert twice(*lines) == expected


@pytest.mark.parametrize("pattern", ["/mnt/bind", "/mnt/*", "/mnt/bind/**", "bind", "/m?t"])
def test_what_is_excluded_is_fetched_once(pattern: str) -> None:
    assert twice(*PLAIN, "8:1 /srv/data /mnt/bind ext4", exclude=(pattern,)) == []


def test_with_one_file_system_only_mounts_of_the_same_device_number_count() -> None:
    assert twice(*PLAIN, "8:1 /srv/data /mnt/bind ext4", one_file_system=True) == [("/srv/data", "/mnt/bind")]
    assert twice(*BTRFS, "0:30 / /mnt/top btrfs subvolid=5", one_file_system=True) == []


def test_only_source_paths_count_and_a_source_is_not_the_second_place() -> None:
    bind = "8:1 /srv/data /export/data ext4"
    assert twice(*PLAIN, bind, paths=("/srv",)) == []
    assert twice(*PLAIN, bind, paths=("/export/data", "/srv")) == [("/export/data", "/srv/data")]


def test_a_pattern_is_not_taken_for_more_than_it_is() -> None:
    assert not is_excluded("/mnt/bind", "/", ("/mnt/other", "*.tmp", "/bind", "mnt/x"))
    assert not is_excluded("/dev/shm/tree/mnt", "/dev/shm/tree", ("/dev/*", "tree"))


def test_the_pool_is_found_at_each_of_its_places() -> None:
    own = parse_mounts(text("0:40 /pool /srv/backup btrfs subvolid=300"))[0]
    lines = (*PLAIN, "0:40 /pool /srv/backup btrfs", "0:40 / /mnt/disk btrfs", "0:40 /other /mnt/other btrfs")
    host = HostConfig("h", address="h", paths=("/",))
    assert places_of("/srv/backup", own, parse_mounts(text(*lines)), host) == ["/srv/backup", "/mnt/disk/pool"]
    host = HostConfig("h", address="h", paths=("/",), exclude=("/srv/backup", "/mnt/disk/*"))
    assert places_of("/srv/backup", own, parse_mounts(text(*lines)), host) == []


def test_an_answer_may_have_lines_of_a_login_shell_before_it() -> None:
    boot = "0f6e8d3c-0000-4000-8000-0123456789ab"
    answer = parse_answer(b"welcome\n" + boot.encode() + b"\n" + text(*PLAIN), ("/",))
    assert (answer.boot_id, len(answer.mounts)) == (boot, 1)  # those of the kernel are left out


@pytest.mark.parametrize("answer", [b"", b"rrsync: only rsync", b"0f6e8d3c-0000-4000-8000-0123456789ab\n36 35 98:0\n"])
def test_an_answer_that_is_none_is_unknown(answer: bytes) -> None:
    with pytest.raises(OperatorError):
        parse_answer(answer, ("/",))


def test_a_host_with_very_many_mounts_is_unknown_and_not_compared_for_hours() -> None:
    lines = [f"8:1 /a /{number} ext4" for number in range(1200)]
    with pytest.raises(OperatorError, match="more than 1,000 mounts"):
        parse_answer(b"0f6e8d3c-0000-4000-8000-0123456789ab\n" + text(*lines), ("/",))


@pytest.mark.slow
def test_mounts_that_a_hostile_host_made_up_are_not_compared_for_hours() -> None:
    """200,000 pairs of mounts 180 folders deep, of which the second place is always excluded."""
    deep = "/d" * 180
    places = [f"8:2 /a/p{number} /f{number}{deep} ext4" for number in range(450)]
    others = [f"8:2 /a /x/{number}{deep} ext4" for number in range(450)]
    with pytest.raises(OperatorError, match="too many of its mounts"):
        twice(*PLAIN, *places, *others, exclude=("/x/*", "*.tmp", *(f"/p{number}/*" for number in range(20))))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["9 1 /dev/a / ext4", "20 9 /dev/b /srv/db ext4"], []),
        (["9 1 /dev/a / ext4", "20 9 /dev/b /srv/db ext4", "21 9 /dev/c /srv xfs"], [("/srv/db", "/srv")]),
        (["9 1 /dev/a / ext4", "21 9 /dev/c /srv xfs", "22 21 /dev/b /srv/db ext4"], []),  # the other order: it is mounted on that
        (["9 1 /dev/a / ext4", "20 9 /dev/b /srv ext4", "21 20 /dev/c /srv xfs"], [("/srv", "/srv")]),
        (["9 1 /dev/a / ext4", "20 9 /dev/b /srv ext4", "21 20 /dev/b /srv ext4"], []),  # mounted twice at one place
        (["9 1 /dev/a / ext4", "20 9 /dev/b /srv/db ext4", "21 9 /dev/c /srv xfs", "22 21 /dev/b /srv/db ext4"], []),
        (["9 1 /dev/a / ext4", "20 9 auto /net autofs", "21 20 /dev/c /net nfs"], []),
        (["8 1 /dev/a / ext4", "9 8 /dev/b / overlay"], []),  # as on a live system
        (["9 1 /dev/a / ext4", "20 9 /dev/b /home/db ext4", "21 9 /dev/c /home xfs"], []),  # not in the source paths
    ],
)
def test_mounts_that_a_later_one_hides(lines: list[str], expected: list[tuple[str, str]]) -> None:
    """Each line is "ID PARENT DEVICE TARGET TYPE"."""
    rows = [line.split() for line in lines]
    content = "\n".join(f"{own} {parent} {device} / {target} rw - {kind} {device} rw" for own, parent, device, target, kind in rows)
    host = HostConfig("h", address="h", paths=("/etc", "/srv", "/net"))
    assert [(each.place, each.above) for each in hidden_mounts(parse_mounts(content.encode()), host)] == expected
