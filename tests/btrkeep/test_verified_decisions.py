"""The verification state of a backup, hosts that were not checked for a long time, and the rows in the catalogue."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from btrkeep.catalogue import Backup, Catalogue, ComparedBackup, Damage, VerifiedBackup
from btrkeep.decisions.due import latest
from btrkeep.decisions.verification import (
    BackupsInDoubt,
    FinishedScrub,
    Verification,
    VerificationState,
    Verified,
    VerifiedBackups,
    VerifiedBy,
    last_reads,
    late_reads,
    note_in_doubt,
    note_scrub,
    read_scrub,
    verification_counts,
    verification_sentence,
    verified,
    verified_briefly,
    verified_words,
)

NOW = datetime(2026, 3, 20, 22, 0, tzinfo=UTC)
DAY = timedelta(days=1)
SCRUB = FinishedScrub(NOW - 2 * DAY, NOW - DAY, is_whole=True, newest=300)
READ = Verification(NOW - 5 * DAY, NOW - 4 * DAY, 10, 4, whole=NOW - 4 * DAY)
BACKUP = Backup("web1", "n1", "hosts/web1/n1", "complete", NOW - 9 * DAY, NOW - 9 * DAY, 1.0, 1, 1, 1, None)


def state(
    finished: datetime | None, verification: Verification | None, scrub: FinishedScrub | None, damages: int = 0
) -> tuple[object, ...]:
    has_read = scrub is not None and scrub.has_read(finished, 300, latest(NOW))
    recorded = verified(verification, scrub if has_read else None, damages, NOW)
    return recorded.state, recorded.by, recorded.at


@pytest.mark.parametrize(
    ("finished", "verification", "scrub", "output"),
    [
        (NOW - 3 * DAY, None, None, (VerificationState.NEVER, None, None)),
        (NOW - 3 * DAY, None, SCRUB, (VerificationState.WHOLE, VerifiedBy.SCRUB, SCRUB.finished)),
        (SCRUB.begun, None, SCRUB, (VerificationState.NEVER, None, None)),
        (NOW - 1.5 * DAY, None, SCRUB, (VerificationState.NEVER, None, None)),
        (None, None, SCRUB, (VerificationState.NEVER, None, None)),
        (NOW - 3 * DAY, None, replace(SCRUB, is_whole=False), (VerificationState.NEVER, None, None)),
        (NOW - 3 * DAY, None, replace(SCRUB, finished=NOW + DAY), (VerificationState.NEVER, None, None)),
        (NOW - 9 * DAY, READ, None, (VerificationState.WHOLE, VerifiedBy.VERIFY, READ.whole)),
        (NOW - 9 * DAY, READ, SCRUB, (VerificationState.WHOLE, VerifiedBy.SCRUB, SCRUB.finished)),
        (NOW - 9 * DAY, replace(READ, whole=NOW), SCRUB, (VerificationState.WHOLE, VerifiedBy.VERIFY, NOW)),
        (NOW - 9 * DAY, replace(READ, whole=None), None, (VerificationState.IN_PART, VerifiedBy.VERIFY, READ.at)),
        (NOW - 9 * DAY, replace(READ, whole=None, at=NOW), SCRUB, (VerificationState.WHOLE, VerifiedBy.SCRUB, SCRUB.finished)),
        (NOW - 9 * DAY, replace(READ, at=NOW + DAY), None, (VerificationState.NEVER, None, None)),
        (NOW - 9 * DAY, replace(READ, whole=NOW + DAY), None, (VerificationState.IN_PART, VerifiedBy.VERIFY, READ.at)),
    ],
)
def test_the_newest_look_that_read_all_of_it_counts(
    finished: datetime | None, verification: Verification | None, scrub: FinishedScrub | None, output: tuple[object, ...]
) -> None:
    assert state(finished, verification, scrub) == output


def test_damage_counts_before_every_look_and_however_new_that_is() -> None:
    assert state(NOW - 9 * DAY, READ, SCRUB, damages=2) == (VerificationState.DAMAGED, None, READ.at)
    assert state(NOW - 9 * DAY, None, SCRUB, damages=2) == (VerificationState.DAMAGED, None, None)


COMPARED = ComparedBackup("web1", "n1", NOW - 3 * DAY, 200, 198, 2, 0)


@pytest.mark.parametrize(
    ("verification", "scrub", "source", "output"),
    [
        (None, None, COMPARED, (VerificationState.IN_PART, VerifiedBy.SOURCE, COMPARED.at)),
        (None, None, replace(COMPARED, alike=0, changed=200), (VerificationState.NEVER, None, None)),
        (None, None, replace(COMPARED, differing=1), (VerificationState.NEVER, None, None)),
        (None, None, replace(COMPARED, at=NOW + DAY), (VerificationState.NEVER, None, None)),
        (None, SCRUB, replace(COMPARED, at=NOW), (VerificationState.WHOLE, VerifiedBy.SCRUB, SCRUB.finished)),
        (READ, None, replace(COMPARED, at=NOW), (VerificationState.WHOLE, VerifiedBy.VERIFY, READ.whole)),
        (replace(READ, whole=None), None, COMPARED, (VerificationState.IN_PART, VerifiedBy.SOURCE, COMPARED.at)),
        (replace(READ, whole=None, at=NOW), None, COMPARED, (VerificationState.IN_PART, VerifiedBy.VERIFY, NOW)),
        (replace(READ, whole=None, read=0, at=NOW), None, COMPARED, (VerificationState.IN_PART, VerifiedBy.SOURCE, COMPARED.at)),
    ],
)
def test_what_the_host_says_makes_no_backup_whole_and_counts_where_nothing_more_is_known(
    verification: Verification | None, scrub: FinishedScrub | None, source: ComparedBackup, output: tuple[object, ...]
) -> None:
    recorded = verified(verification, scrub, 0, NOW, source)
    assert (recorded.state, recorded.by, recorded.at) == output
    assert verified(verification, scrub, 1, NOW, source).state == VerificationState.DAMAGED


@pytest.mark.parametrize(
    ("looks", "damaged", "output"),
    [
        ({"a": None}, 0, ""),
        ({}, 0, ""),
        ({"a": NOW - 3 * DAY, "b": NOW - DAY}, 0, "data of every host was read within the last 3d"),
        ({"a": NOW - DAY, "b": None}, 1, "data of 1 of 2 hosts was read within the last 1d, of 1 host never; 1 backup damaged"),
        ({"a": None}, 1200, "1,200 backups damaged"),
    ],
)  # fmt: skip
def test_all_hosts_are_told_of_in_one_sentence(looks: dict[str, datetime | None], damaged: int, output: str) -> None:
    assert verification_sentence(looks, damaged, NOW) == output


def test_a_look_is_told_in_a_table_and_in_a_sentence() -> None:
    def day(moment: datetime) -> str:
        return f"{moment:%d.%m.}"

    by_name = {}
    for verification in (
        Verified(VerificationState.NEVER),
        Verified(VerificationState.DAMAGED, at=NOW, damages=2),
        Verified(VerificationState.DAMAGED, at=NOW, damages=3, damaged="/srv/a\nb"),
        Verified(VerificationState.DAMAGED, at=NOW, damages=1, damaged="/srv/c"),
        Verified(VerificationState.WHOLE, VerifiedBy.SCRUB, NOW),
        Verified(VerificationState.WHOLE, VerifiedBy.VERIFY, NOW, 1200, 1000),
        Verified(VerificationState.IN_PART, VerifiedBy.VERIFY, NOW, 1),
        Verified(VerificationState.IN_PART, VerifiedBy.SOURCE, NOW, source=replace(COMPARED, at=NOW, changed=0, files=198)),
        Verified(VerificationState.DAMAGED, damages=1, source=replace(COMPARED, files=198, alike=197, changed=0, differing=1)),
    ):
        by_name[verified_words(verification, day)] = verified_briefly(verification, day)
    assert by_name == {
        "never verified": "never",
        "damaged: 2 files": "damaged 20.03.",
        "damaged: /srv/a\\nb, 3 files": "damaged 20.03.",
        "damaged: /srv/c": "damaged 20.03.",
        "all data read without errors by the scrub on 20.03.": "scrub 20.03.",
        "all files read on 20.03., 1,000 compared with their checksums": "whole 20.03.",
        "1 file read on 20.03., 0 compared with their checksums": "in part 20.03.",
        "198 files equal when compared with the host on 20.03.": "source 20.03.",
        "damaged: 1 file; 197 of 198 files equal when compared with the host on 17.03., 1 with other content there": "damaged",
    }


def test_a_scrub_has_read_what_was_there_when_it_began_and_no_copy_that_came_later() -> None:
    assert SCRUB.has_read(NOW - 9 * DAY, 300, NOW)
    assert not SCRUB.has_read(NOW - 9 * DAY, 301, NOW)  # fetched from another pool, or imported
    assert not SCRUB.has_read(NOW - 9 * DAY, None, NOW)


def test_a_host_is_late_when_none_of_its_data_was_read_for_long_and_it_is_there_for_as_long(tmp_path: Path) -> None:
    ages = {"old": 90, "read": 90, "scrubbed": 89, "new": 3}
    with Catalogue.open(tmp_path) as catalogue:
        for number, (host, age) in enumerate(ages.items()):
            moment = NOW - age * DAY
            catalogue.put_backup(replace(BACKUP, host=host, finished=moment, subvolume_id=300 + number))
            catalogue.put_backup(replace(BACKUP, host=host, name="n9", finished=NOW - DAY, subvolume_id=400 + number))
        oldest = catalogue.oldest_backups()
        assert oldest == {host: NOW - age * DAY for host, age in ages.items()}
        for host, age in (("old", 70), ("read", 5)):
            catalogue.put_verifications([VerifiedBackup(host, "n1", NOW - age * DAY, NOW - age * DAY, 1, 0, None)])
        note_scrub(catalogue, FinishedScrub(NOW - 88 * DAY, NOW - 87 * DAY, is_whole=True, newest=302))
        looks = last_reads(catalogue, oldest, NOW)
        assert looks == {"old": NOW - 70 * DAY, "read": NOW - 5 * DAY, "scrubbed": NOW - 87 * DAY, "new": None}
        note_scrub(catalogue, FinishedScrub(NOW - 88 * DAY, NOW - 87 * DAY, is_whole=True, newest=299))
        assert last_reads(catalogue, oldest, NOW)["scrubbed"] is None
    late: Callable[..., tuple[str, ...]] = late_reads
    assert late(oldest, looks, (60 * DAY).total_seconds(), NOW, is_asked=False) == ("old", "scrubbed")
    assert late(oldest, looks, (80 * DAY).total_seconds(), NOW, is_asked=False) == ("scrubbed",)
    assert late(oldest, looks, DAY.total_seconds(), NOW, is_asked=False) == ("new", "old", "read", "scrubbed")
    never = dict.fromkeys(oldest)
    assert late(oldest, never, DAY.total_seconds(), NOW, is_asked=False) == ()
    assert late(oldest, never, DAY.total_seconds(), NOW, is_asked=True) == tuple(sorted(oldest))


def test_rows_of_looks_come_back_stay_with_their_backup_and_go_with_it(tmp_path: Path) -> None:
    row = VerifiedBackup("web1", "n1", READ.begun, READ.at, 10, 4, READ.whole)
    with Catalogue.open(tmp_path) as catalogue:
        backups = [replace(BACKUP, name=name) for name in ("n1", "n2", "n3")]
        for backup in backups:
            catalogue.put_backup(backup)
        catalogue.put_verifications(replace(row, name=backup.name or "", at=NOW + DAY) for backup in backups)
        catalogue.put_verifications([row])
        assert catalogue.verifications("web1")["n1"] == row
        assert catalogue.newest_verifications(NOW) == {"web1": READ.at}
        assert catalogue.oldest_backups() == {"web1": BACKUP.finished}
        note_scrub(catalogue, SCRUB)
        assert read_scrub(catalogue) == SCRUB
        assert VerifiedBackups(catalogue, NOW).of(replace(BACKUP, subvolume_id=300)).by == VerifiedBy.SCRUB
        assert VerifiedBackups(catalogue, NOW).of(replace(BACKUP, subvolume_id=301)).by == VerifiedBy.VERIFY
        catalogue.put_backup(replace(BACKUP, held_why="the audit"))
        catalogue.replace_backups("p", backups[:2])
        assert [*catalogue.verifications("web1")] == ["n1", "n2"]
        catalogue.rename_host("web1", "web2")
        assert [*catalogue.verifications("web2")] == ["n1", "n2"]
        catalogue.drop_backups([("web2", "n1")])
        catalogue.drop_backup("web2", "n2")
        assert catalogue.verifications("web2") == {}


MOMENTS = st.sampled_from([NOW - 9 * DAY, NOW - 3 * DAY, NOW - DAY, NOW + DAY])
COUNTS = st.integers(0, 2)


@dataclass(frozen=True)
class Case:
    """The verification of one backup."""

    outcome: str | None
    files: int | None
    finished: datetime | None
    subvolume_id: int | None
    read: tuple[datetime, int, datetime | None] | None
    compared: tuple[datetime, int, int] | None
    damages: int
    in_doubt: bool


CASES = st.lists(
    st.builds(
        Case,
        st.sampled_from(["complete", "complete", "failed", "suspect", None]),
        st.sampled_from([None, 0, 3]),
        st.none() | MOMENTS,
        st.sampled_from([None, 300, 301]),
        st.none() | st.tuples(MOMENTS, COUNTS, st.none() | MOMENTS),
        st.none() | st.tuples(MOMENTS, COUNTS, COUNTS),
        COUNTS,
        st.booleans(),
    ),
    min_size=20,
    max_size=40,
)


def truth(case: Case, scrub: FinishedScrub | None) -> str:
    """Returns the sentences of docs/verification.rst, the strongest first."""
    came = case.finished is not None and case.subvolume_id == 300
    scrubbed = came and scrub is not None and scrub.is_whole and scrub.finished < NOW and case.finished < scrub.begun  # type: ignore[operator]
    at, read, whole = case.read if case.read and case.read[0] < NOW else (None, 0, None)
    all_read = at is not None and whole is not None and whole < NOW
    _, alike, differing = case.compared if case.compared and case.compared[0] < NOW else (None, 0, 0)
    sentences = {
        "damaged": case.damages > 0,
        "in doubt": case.in_doubt,
        "never": case.outcome == "failed" and case.files in (None, 0),
        "whole": scrubbed or all_read,
        "in part": read > 0 or (alike > 0 and differing == 0),
    }
    return next((state for state, holds in sentences.items() if holds), "never")


SCRUBS = st.sampled_from([SCRUB, None, replace(SCRUB, is_whole=False), replace(SCRUB, finished=NOW + DAY)])


@pytest.mark.slow
@given(scrub=SCRUBS, some_in_doubt=st.booleans(), cases=CASES)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_catalogue_counts_states_as_they_are_decided_one_by_one(
    tmp_path: Path, scrub: FinishedScrub | None, some_in_doubt: bool, cases: list[Case]
) -> None:
    cases = [replace(case, in_doubt=case.in_doubt and some_in_doubt) for case in cases]
    names = [f"n{number}" for number in range(len(cases))]
    with TemporaryDirectory(dir=tmp_path) as folder, Catalogue.open(Path(folder)) as catalogue:
        every = [
            replace(
                BACKUP, name=name, outcome=case.outcome, files=case.files, finished=case.finished, subvolume_id=case.subvolume_id
            )
            for name, case in zip(names, cases, strict=True)
        ]
        catalogue.replace_backups("p", [*every, replace(BACKUP, name=None, state="running")])
        catalogue.put_verifications(
            VerifiedBackup("web1", name, case.read[0], case.read[0], case.read[1], 0, case.read[2])
            for name, case in zip(names, cases, strict=True)
            if case.read
        )
        catalogue.put_comparisons(
            ComparedBackup("web1", name, case.compared[0], sum(case.compared[1:]), case.compared[1], 0, case.compared[2])
            for name, case in zip(names, cases, strict=True)
            if case.compared
        )
        catalogue.put_damages(
            Damage("web1", name, f"/{number}", 0, 0, "verify", NOW)
            for name, case in zip(names, cases, strict=True)
            for number in range(case.damages)
        )
        if scrub:
            note_scrub(catalogue, scrub)
        doubtful = frozenset(("web1", name) for name, case in zip(names, cases, strict=True) if case.in_doubt)
        note_in_doubt(catalogue, BackupsInDoubt(NOW, doubtful) if doubtful else None)
        one_by_one = VerifiedBackups(catalogue, NOW)
        assert [str(one_by_one.of(backup).state) for backup in every] == [truth(case, scrub) for case in cases]
        assert verification_counts(catalogue, NOW) == Counter(truth(case, scrub) for case in cases)
        assert [one_by_one.of(backup).damaged for backup in every] == ["/0" if case.damages else "" for case in cases]


def test_a_failed_backup_with_nothing_in_it_puts_off_no_look(tmp_path: Path) -> None:
    """Each night a backup fails, and its few files are read at once; they do not count as reading the older backups."""
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.put_backup(replace(BACKUP, outcome="complete", subvolume_id=300, finished=NOW - 90 * DAY))
        catalogue.put_backup(replace(BACKUP, name="n2", state="failed", outcome="failed", files=0, subvolume_id=301))
        catalogue.put_verifications([VerifiedBackup("web1", "n2", NOW - DAY, NOW - DAY, 0, 0, NOW - DAY)])
        assert last_reads(catalogue, ["web1"], NOW) == {"web1": None}
        catalogue.drop_backup("web1", "n1")
        note_scrub(catalogue, replace(SCRUB, newest=301))
        assert last_reads(catalogue, ["web1"], NOW) == {"web1": None}


@pytest.mark.parametrize("text", [None, "", "[]", '"x"', '{"begun": 1}', '{"begun": "now", "finished": "then"}', "{"])
def test_a_scrub_that_cannot_be_understood_was_never_there(tmp_path: Path, text: str | None) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.set_fact("scrub", text)
        assert read_scrub(catalogue) is None
