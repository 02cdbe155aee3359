"""The way in which files were read, in records: written values are read back, and invalid ones are ignored."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from btrkeep.consistency import (
    LIVE,
    SNAPSHOT,
    HostDump,
    PathConsistency,
    consistency_of,
    consistency_words,
    do_overlap,
    dumps_of,
)

TAKEN = datetime(2026, 11, 30, 9, 24, tzinfo=UTC)
READ = (
    PathConsistency(SNAPSHOT, ("btrfs", "lvm-thin"), TAKEN),
    PathConsistency(SNAPSHOT, ("zfs",)),
    PathConsistency(LIVE, reason="ext4 on a plain partition"),
)
DUMP = HostDump("shop", "/var/lib/btrkeep-source/dumps/shop", 0, True, 1.25, 4096)


@pytest.mark.parametrize("consistency", READ, ids=str)
def test_how_a_path_was_read_survives_a_record(consistency: PathConsistency) -> None:
    assert consistency_of(json.loads(json.dumps(consistency.as_json()))) == consistency


def test_dumps_survive_a_record() -> None:
    failed = HostDump("mail", "/srv/mail.dump", 2, False, 0.5, 0, "no such user")
    assert dumps_of(json.loads(json.dumps([DUMP.as_json(), failed.as_json()]))) == (DUMP, failed)
    assert (DUMP.failed, failed.failed) == (False, True)


@pytest.mark.parametrize("stored", [None, {}, [], "live", {"kind": "newer"}, {"kind": "live"}, {"kind": "snapshot", "methods": 1}])
def test_an_unknown_consistency_is_ignored(stored: Any) -> None:
    assert consistency_of(stored) is None


@pytest.mark.parametrize("stored", [None, {}, "dumps", [None], [{}], [{**DUMP.as_json(), "bytes": "many"}]])
def test_invalid_dumps_are_ignored(stored: Any) -> None:
    assert dumps_of(stored) == ()


def test_a_dump_is_bounded() -> None:
    (dump,) = dumps_of([{**DUMP.as_json(), "bytes": -(10**30), "seconds": -5, "error": "x" * 10_000}])
    assert (dump.bytes, dump.seconds) == (0, 0.0)
    assert len(dump.error) < 400


def test_the_words_name_the_moment_or_the_reason() -> None:
    words = [consistency_words("/srv", consistency) for consistency in READ]
    assert words == [
        "/srv: read from a snapshot (btrfs, lvm-thin) of 2026-11-30T09:24:00Z",
        "/srv: read from a snapshot (zfs)",
        "/srv: not read from a snapshot: ext4 on a plain partition",
    ]


def test_folders_overlap_if_one_is_in_the_other() -> None:
    assert do_overlap("/", "/srv")
    assert do_overlap("/srv", "/srv/www/")
    assert not do_overlap("/srv", "/srv2")
