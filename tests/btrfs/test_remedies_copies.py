"""Remedies printed while a second pool cannot fetch a host: typed unchanged, and the next fetch works."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds.faults import damage, put_right
from tests.beds.nights import Nights
from tests.beds.remedies import Typist, refused, types, typing
from tests.beds.two_pools import NOW, TwoPools

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20
AT = f"--now {NOW}"


@pytest.fixture
def typist(request: pytest.FixtureRequest) -> Iterator[Typist]:
    with typing(request.function) as made:
        yield made


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    """A host with one backup, which the second pool has fetched. Its configuration is in a folder with a blank in its name."""
    made = TwoPools(make_btrfs(), make_btrfs())
    made.night("2026-03-01T22:00:00Z", "a")
    made.fetch()
    quoted(made.second)
    return made


def quoted(nights: Nights) -> None:
    folder = nights.top / "my pools"
    folder.mkdir()
    nights.config = nights.config.rename(folder / nights.config.name)


@types("backupd rename {} {}")
def test_a_host_that_was_renamed_in_one_pool_is_fetched_again(two: TwoPools, typist: Typist) -> None:
    two.first.backupd("rename", "web1", "web2", "--yes")
    typist.follow(refused(two.second, "replicate", *AT.split()), "backupd rename {} {}", more="--yes")
    assert two.fetch()[0]["failed"] == []
    two.second.backupd("rename", "web2", "mine", "--yes")
    typist.follow(refused(two.second, "replicate", *AT.split()), "backupd rename {} {}", more="--yes")
    assert two.fetch()[0]["failed"] == []
    assert two.names(two.second.pool, "web2") == two.names(two.first.pool, "web2")


@types("backupd rename {} {}")
def test_another_host_of_the_same_name_is_fetched_too(two: TwoPools, typist: Typist) -> None:
    two.first.backupd("rename", "web1", "old", "--yes")
    two.night("2026-03-02T22:00:00Z", "b")
    typist.follow(refused(two.second, "replicate", *AT.split()), "backupd rename {} {}", more="--yes")
    assert two.fetch()[0]["failed"] == []
    for host in ("old", "web1"):
        assert two.names(two.second.pool, host) == two.names(two.first.pool, host) != []


@types("backupd demote {} {}")
def test_a_host_that_both_pools_back_up_is_demoted_in_one(two: TwoPools, typist: Typist) -> None:
    two.second.backupd("promote", "web1", "--yes")
    typist.follow(refused(two.second, "replicate", *AT.split()), "backupd demote {} {}", more="--yes")
    name = two.night("2026-03-02T22:00:00Z", "b")
    assert two.fetch()[0]["failed"] == []
    assert name in two.names(two.second.pool)


@types("backupd replicate --damaged")
def test_a_copy_that_shares_damage_with_its_parent_is_fetched_until_both_are_whole(
    make_btrfs: Callable[..., Path], typist: Typist
) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    content, late = os.urandom(MIB), os.urandom(MIB)
    (two.source / "large").write_bytes(content)
    two.night("2026-03-01T22:00:00Z", "a")
    (two.source / "late").write_bytes(late)
    two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    quoted(two.second)
    (place,) = damage(two.second.top, content[4096:8192])
    two.second.backupd("verify", *AT.split(), check=False)
    put_right(two.second.top, place, content[4096:8192])
    first, second = two.names(two.second.pool)
    two.second.backupd("verify", f"web1@{first}", *AT.split())
    damage(two.second.top, content[4096:8192])
    still = refused(two.second, "replicate", "--damaged", *AT.split())
    assert f"web1@{second} shares damaged data with {first}" in still.stderr
    typist.follow(still, "backupd replicate --damaged", more=AT)
    assert two.second.backupd("verify", *AT.split()).returncode == 0
    assert json.loads(two.second.backupd("damaged", "--json").stdout) == []
