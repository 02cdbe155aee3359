"""An expiry that is killed at any of its steps, and the next one: all due backups are deleted, the others exist, nothing is half
done.

One pool for all: each step has a host of its own, which is the only one that is configured while its turn lasts, so that
everything of the others is kept. Turns follow each other in time, since no clock may go back, in whatever order the tests run.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from tests.beds import differences, manifest
from tests.beds.expiries import LAST, NOW, Expiries, at
from tests.beds.history import every, make_histories
from tests.beds.watch import killed, rows, subvolumes

pytestmark = [pytest.mark.btrfs, pytest.mark.filterwarnings("ignore")]


@dataclass(frozen=True)
class Step:
    when: str
    checkpoint: str
    count: int = 1

    @property
    def host(self) -> str:
        return f"{self.when}-{self.checkpoint}-{self.count}".replace(" ", "-").replace(".", "-")


STEPS = tuple(
    Step(when, checkpoint, count)
    for checkpoint, count in (
        ("expiry begun in the catalogue", 1),
        ("fact written", 2),  # of the clocks
        ("catalogue reconciled with the pool", 1),
        ("host lock taken", 2),
        ("notes.json staged", 1),
        ("filesystem synced", 1),
        ("notes.json replaced", 1),
        ("filesystem synced", 2),
        ("states of backups written", 1),
        ("backups marked as deleting", 1),
        ("subvolume deleted", 1),
        ("subvolume deleted", 2),
        ("subvolume deleted", 3),
        ("filesystem committed", 1),
        ("rows of deleted backups dropped", 1),
        ("notes.json staged", 2),
        ("filesystem synced", 3),
        ("expiry ended in the catalogue", 1),
    )
    for when in ("before", "after")
)
GIVEN_UP = tuple(
    Step(when, checkpoint, count)
    for checkpoint, count in (
        ("filesystem committed", 2),
        ("folder of the forgotten host moved away", 1),
        ("rows of the host dropped", 1),
        ("folder of the forgotten host removed", 1),
    )
    for when in ("before", "after")
)
TURNS = count()
"""In the order in which this process runs them: a step of another worker may follow one that is listed below it."""


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Expiries:
    pool = Expiries(module_btrfs)
    make_histories(pool, [step.host for step in (*STEPS, *GIVEN_UP)], every(1, 6, LAST))
    return pool


def its_turn(pool: Expiries, step: Step, **keys: object) -> tuple[list[str], datetime, datetime]:
    """Makes this host the only one with a policy, by which the three oldest of its six backups expire; returns its backups, when
    they expire, and when they are deleted.
    """
    pool.tables["host"] = {}
    pool.settings("retention", daily=3)
    pool.host(step.host, pool.source, **keys)
    turn = NOW + timedelta(days=10 * next(TURNS))
    return pool.left(step.host), turn, turn + timedelta(days=2)


def untouched(pool: Expiries, before: dict[str, dict]) -> list[str]:
    return [name for name, was in before.items() if differences(was, manifest(pool.top / name))]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.host)
def test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began(
    pool: Expiries, step: Step
) -> None:
    host = step.host
    names, now, later = its_turn(pool, step)
    pool.expire(now)
    assert pool.marked(host) == names[:3]
    others = {path: number for path, number in subvolumes(pool).items() if f"/{host}/" not in path}
    before = {f"pool/hosts/{host}/{name}": manifest(pool.backup(host, name)) for name in names[3:]}
    pool.settings("retention", daily=2)

    killed(pool, step.when, step.checkpoint, "expire", *at(later), count=step.count)

    assert set(names[3:]) <= set(pool.left(host))
    assert untouched(pool, before) == []
    assert set(pool.states(host)) >= set(pool.left(host))
    done = pool.expire(later)
    assert pool.left(host) == names[3:]
    assert untouched(pool, before) == []
    assert pool.marked(host) == names[3:4]
    assert set(pool.notes(host)["backups"]) == set(names[3:4])
    assert pool.states(host) == {names[3]: "expired", names[4]: "complete", names[5]: "complete"}
    assert pool.consistent() == []
    assert done["problems"] == []
    assert {path: number for path, number in subvolumes(pool).items() if f"/{host}/" not in path} == others
    outcomes = [outcome for (outcome,) in rows(pool, "select outcome from expiry order by id desc limit 2")]
    assert outcomes[0] == "complete"
    assert None not in outcomes


@pytest.mark.parametrize("step", GIVEN_UP, ids=lambda step: step.host)
def test_the_removal_of_a_host_that_was_given_up_may_be_killed_too(pool: Expiries, step: Step) -> None:
    host = step.host
    _, now, later = its_turn(pool, step, enabled=False)
    pool.backupd("forget", host, "--yes", *at(now))
    pool.expire(now)
    assert len(pool.marked(host)) == 6
    killed(pool, step.when, step.checkpoint, "expire", *at(later), count=step.count)
    pool.expire(later)
    assert not (pool.pool / "hosts" / host).exists()
    assert list((pool.pool / ".btrkeep" / "gone").iterdir()) == []
    assert pool.left(host) == []
    assert pool.states(host) == {}
    assert pool.consistent() == []
