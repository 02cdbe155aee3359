"""Which backups are suspect after a crash, by the times of writes and the last signs of life."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.decisions.verification import (
    BackupsInDoubt,
    VerificationState,
    WrittenBackup,
    in_doubt_words,
    note_in_doubt,
    read_in_doubt,
    verified,
    verified_words,
    written_last,
)

NOW = datetime(2026, 3, 20, 22, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MARGIN = 10 * MINUTE
BEGUN = NOW - 20 * MINUTE


def of(*minutes: float) -> list[WrittenBackup]:
    """Returns backups of web that were written that many minutes ago; their names are these numbers."""
    return [WrittenBackup("web", f"{ago:g}", NOW - ago * MINUTE) for ago in minutes]


def names(backups: Sequence[WrittenBackup], signs: Sequence[datetime] = (), stopped: datetime | None = None) -> set[str]:
    return {name for _, name in written_last(backups, signs, stopped, MARGIN, BEGUN, NOW)}


@pytest.mark.parametrize(
    ("written", "signs", "stopped", "in_doubt"),
    [
        ((), (), None, set()),
        ((60, 65, 71), (), None, {"60", "65"}),  # nothing else is known of that boot
        ((60, 65, 71), (58,), None, {"60", "65"}),
        ((60, 65, 71), (53,), None, {"60"}),
        ((60, 65, 71), (50,), None, set()),
        ((60, 65), (), 59, set()),
        ((60, 65), (30,), 62, set()),  # there was another boot since, which lived long enough
        ((60, 65), (58,), 62, {"60"}),
        ((60, 65), (), -60, {"60", "65"}),  # stopped in an hour: the clock was wrong
        ((60, -600), (), None, {"60", "-600"}),  # stamped in the future: nothing is known of it
        ((60, 65), (-600,), None, {"60", "65"}),
        ((-600, -595, -580), (), None, {"-600", "-595"}),  # the clock of now is wrong
        ((60, 65, 71), (10, 1), None, {"60", "65"}),  # events of this boot prove nothing about the boot before
        ((60, 65, 10), (), None, {"60", "65"}),  # nor do backups written in it, which are not suspect
    ],
)
def test_what_was_written_last_before_the_last_sign_of_life_is_in_doubt(
    written: tuple[float, ...], signs: tuple[float, ...], stopped: float | None, in_doubt: set[str]
) -> None:
    end = NOW - stopped * MINUTE if stopped is not None else None
    assert names(of(*written), [NOW - ago * MINUTE for ago in signs], end) == in_doubt


@given(written=st.lists(st.floats(21, 1000), unique=True), crash=st.floats(21, 1000), signs=st.lists(st.floats(0, 1000)))
def test_whatever_is_known_of_its_end_nothing_of_its_last_minutes_is_left_out(
    written: list[float], crash: float, signs: list[float]
) -> None:
    """The recorded events were before the crash or after the restart; data written in the ten minutes before the crash
    is suspect.
    """
    before = of(*(ago for ago in written if ago >= crash))
    lines = written_last(before, [NOW - ago * MINUTE for ago in signs if ago >= crash or ago < 20], None, MARGIN, BEGUN, NOW)
    last = {
        (written_backup.host, written_backup.name)
        for written_backup in before
        if written_backup.written > NOW - crash * MINUTE - MARGIN
    }
    assert last <= lines


class Facts(dict[str, str | None]):
    """A catalogue's."""

    def get_fact(self, name: str) -> str | None:
        return self.get(name)

    def set_fact(self, name: str, value: str | None) -> None:
        self[name] = value


def test_what_is_in_doubt_is_kept_for_those_who_cannot_look_into_the_pool() -> None:
    facts, backups_in_doubt = Facts(), BackupsInDoubt(NOW, frozenset({("web", "n1"), ("db", "n2")}))
    note_in_doubt(facts, backups_in_doubt)
    assert read_in_doubt(facts) == backups_in_doubt
    assert in_doubt_words(backups_in_doubt).startswith("2 backups written just before")
    note_in_doubt(facts, None)
    assert read_in_doubt(facts) is None
    for text in ("[]", '{"since": 1, "backups": []}', "none of ours"):
        facts["in_doubt"] = text
        assert read_in_doubt(facts) is None


def test_a_backup_in_doubt_says_so_unless_it_is_known_to_be_damaged() -> None:
    recorded = verified(None, None, 0, NOW, in_doubt=NOW - MINUTE)
    assert (recorded.state, recorded.at) == (VerificationState.IN_DOUBT, NOW - MINUTE)
    assert (
        verified_words(recorded, str) == f"written just before a crash of this server, noticed {NOW - MINUTE}, and not read since"
    )
    assert verified(None, None, 1, NOW, in_doubt=NOW).state == VerificationState.DAMAGED
