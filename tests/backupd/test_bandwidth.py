"""The bucket files and the words of rsync's -e; test_throttle.py tests real transfers."""

import json
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backupd.rsync import throttle
from backupd.rsync.bandwidth import Bucket, brought_to, prepare, relay_command, shell_words
from tests.beds.gate import examples

SECOND = throttle.SECOND
BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16
NOW = 500 * SECOND


def record(rate: int, arrival: int, boot: bytes = BOOT) -> bytes:
    return throttle.RECORD.pack(throttle.MAGIC, boot, rate, arrival)


def fields(data: bytes, boot: bytes | None = BOOT) -> tuple[int, int]:
    magic, its_boot, rate, arrival = throttle.RECORD.unpack(data)
    assert magic == throttle.MAGIC
    assert boot in (its_boot, None)
    return rate, arrival


def test_drawing_takes_as_long_as_the_bytes_at_the_rate() -> None:
    assert throttle.next_arrival(NOW, NOW, 4_000_000, 16_000_000) == NOW + SECOND // 4


def test_an_unused_budget_is_made_up_for_by_a_tenth_of_a_second_and_no_more() -> None:
    assert throttle.next_arrival(0, NOW, 1000, 1000) == NOW + SECOND - SECOND // 10


def test_a_queue_of_more_than_a_minute_is_taken_for_another_boots() -> None:
    assert throttle.next_arrival(NOW + 61 * SECOND, NOW, 0, 1000) == NOW


@given(
    rate=st.integers(1000, 10**9),
    draws=st.lists(st.tuples(st.integers(0, SECOND // 5), st.integers(0, throttle.LONGEST_CHUNK)), min_size=1, max_size=60),
)
def test_no_sequence_of_draws_lets_through_more_than_the_rate_and_the_burst(rate: int, draws: list[tuple[int, int]]) -> None:
    """A relay that sleeps as instructed, and is idle by itself in between: counted in bytes and seconds, not in arrival times."""
    clock, arrival, passed = NOW, 0, 0
    for idle, size in draws:
        clock += idle
        size = min(size, throttle.chunk_size(rate))
        passed += size
        arrival = throttle.next_arrival(arrival, clock, size, rate)
        clock = max(clock, arrival)
        assert passed <= rate * ((clock - NOW) / SECOND + 0.1) + len(draws)  # a nanosecond's rounding per draw


@given(rate=st.integers(1, 10**11))
def test_one_chunk_is_never_more_than_a_twentieth_of_a_second(rate: int) -> None:
    assert 1 <= throttle.chunk_size(rate) <= max(1, rate / 20)


def test_a_live_bucket_of_the_same_rate_is_left_as_it_is() -> None:
    live = record(4_000_000, NOW + SECOND)
    assert brought_to(live, 4_000_000, boot=BOOT, now=NOW) == live


def test_what_was_drawn_stays_drawn_in_bytes_when_the_rate_changes() -> None:
    assert fields(brought_to(record(4_000_000, NOW + SECOND), 16_000_000, boot=BOOT, now=NOW)) == (16_000_000, NOW + SECOND // 4)


@pytest.mark.parametrize(
    "old",
    [b"", b"x", b"x" * throttle.RECORD.size, record(1, NOW + SECOND, OTHER_BOOT), record(1, NOW + 3600 * SECOND)],
    ids=["empty", "torn", "foreign", "from another boot", "absurd"],
)
def test_what_is_no_live_bucket_begins_anew(old: bytes) -> None:
    assert fields(brought_to(old, 5000, boot=BOOT, now=NOW)) == (5000, 0)


def test_a_bucket_is_a_private_file_and_keeps_its_inode_for_ever(tmp_path: Path) -> None:
    bucket = prepare(tmp_path / "bandwidth", "pool", 4_000_000)
    first = bucket.path.stat()
    assert bucket == Bucket(tmp_path / "bandwidth" / "pool", 4_000_000)
    assert stat.filemode(first.st_mode) == "-rw-------"
    assert stat.filemode(bucket.path.parent.stat().st_mode) == "drwx------"
    prepare(tmp_path / "bandwidth", "pool", 9_000_000)
    assert bucket.path.stat().st_ino == first.st_ino


def test_the_boot_id_in_the_file_is_the_kernels(tmp_path: Path) -> None:
    data = prepare(tmp_path, "pool", 1000).path.read_bytes()
    assert data[8:24].hex() == Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


@pytest.mark.parametrize("rate", [0, -1])
def test_no_rate_is_no_bucket(tmp_path: Path, rate: int) -> None:
    with pytest.raises(ValueError):
        prepare(tmp_path / "bandwidth", "pool", rate)
    assert not (tmp_path / "bandwidth").exists()


def test_a_bucket_is_never_written_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "pool").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        prepare(tmp_path, "pool", 1000)
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_without_buckets_there_is_no_relay() -> None:
    assert relay_command([], ["ssh", "-p", "22"]) == ("ssh", "-p", "22")
    assert relay_command([], []) == ()


def test_the_relay_gets_the_buckets_before_and_the_remote_shell_after_the_mark(tmp_path: Path) -> None:
    buckets = [Bucket(tmp_path / "pool", 5), Bucket(tmp_path / "host", 2)]
    command = relay_command(buckets, ["ssh", "-p", "22"])
    assert command[1:3] == ("-I", "-S")
    assert Path(command[3]).samefile(throttle.__file__)
    assert command[4:] == (str(tmp_path / "pool"), str(tmp_path / "host"), "--", "ssh", "-p", "22")
    assert relay_command(buckets, [])[-2:] == ("--", "--local")


def as_rsync_reads(tmp_path: Path, words: list[str]) -> list[str]:
    """Returns the words that a real rsync passes to its remote shell when its -e is shell_words(words)."""
    witness = tmp_path / "witness.py"
    witness.write_text(f"import json, sys\njson.dump(sys.argv, open({str(tmp_path / 'seen')!r}, 'w'))\n")
    command = shell_words([sys.executable, "-I", "-S", str(witness), *words])
    subprocess.run(["rsync", "-e", command, "peer:/", str(tmp_path)], stderr=subprocess.DEVNULL, check=False)
    seen = json.loads((tmp_path / "seen").read_text())[1:]
    (tmp_path / "seen").unlink()
    return list(seen[: seen.index("peer", len(words))])


NASTY = [
    "",
    " ",
    "'",
    '"',
    "''",
    "'\"'",
    "a b",
    "it's",
    "'x",
    "x'",
    '"x" y',
    "\\",
    "\\'",
    "a\tb",
    "a\nb",
    "$HOME",
    "`id`",
    "*",
    "é",
]


@pytest.mark.parametrize("word", NASTY, ids=repr)
def test_rsync_reads_back_every_word(tmp_path: Path, word: str) -> None:
    assert as_rsync_reads(tmp_path, ["first", word, "last"]) == ["first", word, "last"]


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(words=st.lists(st.text(alphabet=" '\"\\ab\t\n$é-", max_size=8), max_size=5))
def test_rsync_reads_back_any_words(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    assert as_rsync_reads(tmp_path_factory.mktemp("words"), words) == words


def test_what_rsync_cannot_be_told_is_refused() -> None:
    for command in ([], ["ssh", "a\0b"]):
        with pytest.raises(ValueError):
            shell_words(command)


def test_two_processes_that_prepare_a_bucket_at_once_end_with_one_whole_record(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from backupd.rsync.bandwidth import prepare\n"
        "for rate in range(1000, 1300): prepare(Path(sys.argv[1]), 'pool', rate)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parents[2]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]
    assert fields((tmp_path / "pool").read_bytes(), boot=None) == (1299, 0)


@pytest.mark.alone  # on a busy machine one may wait for the lock longer than it has patience, and draws without it
def test_processes_that_draw_at_once_lose_nothing_of_the_account(tmp_path: Path) -> None:
    bucket, draws = prepare(tmp_path, "pool", 1_000_000), 4000
    draw = f"b = OpenBucket(sys.argv[1])\nfor _ in range({draws}): b.draw(1000)"
    code = f"import sys; from backupd.rsync.throttle import OpenBucket; {draw}"
    begin = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-c", code, bucket.path], cwd=Path(__file__).parents[2]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    drawn_until = fields(bucket.path.read_bytes(), boot=None)[1] / SECOND
    assert drawn_until - begin == pytest.approx(3 * draws * 1000 / 1_000_000, abs=0.5)
