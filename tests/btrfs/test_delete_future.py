"""A backup that a wrong clock stamped in the future can be deleted; a day names a backup where that is safe."""

from pathlib import Path

import pytest

from tests.beds.history import every, make_histories, moment
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs]


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    return Nights(module_btrfs)


def test_its_day_names_it_and_its_name_deletes_it(pool: Nights) -> None:
    make_histories(pool, ["web1"], [*every(1, 2, moment("2026-11-20 03:00")), moment("2036-11-20 03:00")], {})
    before = pool.names("web1")
    assert before[-1] in pool.backupd("delete", "web1@2036-11-20", check=False).stderr
    pool.backupd("delete", f"web1@{before[-1]}")
    pool.backupd("unexpire", "web1", "2036-11-20")
    pool.backupd("release", "web1@2036-11-20")
    pool.backupd("delete", f"web1@{before[-1]}", "--now-without-grace")
    assert pool.names("web1") == before[:-1]


def test_a_day_with_two_backups_is_refused_with_their_names(pool: Nights) -> None:
    make_histories(pool, ["web2"], every(0.25, 6, moment("2026-11-20 23:00")), {})
    before = pool.names("web2")
    for words in (("delete", "web2@2026-11-20"), ("release", "web2", "2026-11-20"), ("accept", "web2@2026-11-20")):
        done = pool.backupd(*words, check=False)
        assert done.returncode == 2
        assert all(name in done.stderr for name in before if name.startswith("2026-11-20"))
    assert pool.names("web2") == before
    newest = before[-1]
    assert newest in pool.backupd("hold", "web2@2026-11-20").stdout
    assert newest in pool.backupd("release", "web2", newest).stdout
