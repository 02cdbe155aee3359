"""Causes are the same after they were written as JSON and read; invalid ones become None, so that no file breaks a list."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.backup_states import FACTS, Cause, CauseCode, cause_of
from btrkeep.catalogue import history
from btrkeep.decisions.cause_words import cause_words, error_words
from btrkeep.decisions.rsync_meaning import ExitCause, exit_words

VALUES = {str: st.text(), int: st.integers(-(2**63) + 1, 2**63 - 1), float: st.floats(0, 1e15)}
CAUSES = st.sampled_from(CauseCode).flatmap(
    lambda code: st.builds(
        Cause, st.just(code), st.text(), st.fixed_dictionaries({name: VALUES[kind] for name, kind in FACTS.get(code, {}).items()})
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(CAUSES)
def test_a_cause_comes_back_from_json_and_has_words(cause: Cause) -> None:
    assert cause_of(json.loads(json.dumps(cause.as_json()))) == cause
    assert cause_words(cause).startswith(f"{cause.path}: " if cause.path else "")


@given(
    st.sampled_from(CauseCode), st.dictionaries(st.sampled_from(["path", *{name for of in FACTS.values() for name in of}]), JSON)
)
def test_what_is_no_cause_is_none_and_what_is_one_has_words(code: CauseCode, facts: dict[str, Any]) -> None:
    if cause := cause_of({"code": code.value, **facts}):
        assert isinstance(cause_words(cause), str)


@pytest.mark.parametrize("result", [None, [], {}, "stopped", ["stopped", {}], {"code": "from-next-year"}, {"code": ["stopped"]}])
def test_what_this_version_does_not_know_is_told_by_the_words_beside_it(result: object) -> None:
    assert cause_of(result) is None
    assert error_words("the words beside it", cause_of(result)) == "the words beside it"


def test_a_copy_of_the_history_keeps_causes_and_rows_whose_cause_cannot_be_read() -> None:
    columns = history.COLUMNS["run"]
    run = {
        "id": 1,
        "host": "web1",
        "started": "2026-11-20T22:00:00+00:00",
        "attempts": 1,
        "pid": 1,
        "night": 0,
        "outcome": "partial",
    }
    for stored, cause in (
        ('{"code": "deadline", "path": "/srv"}', Cause(CauseCode.DEADLINE, "/srv")),
        ('{"code": "from-next-year"}', None),
        ('{"code": "dead', None),
        ("[" * 100_000, None),
        (7, None),
        (None, None),
    ):
        row = [{**run, "cause": stored}.get(name) for name in columns]
        assert history.values_of("run", columns, row)["cause"] == cause
    earlier = [name for name in columns if name != "cause"]
    assert history.values_of("run", earlier, [run.get(name) for name in earlier])["cause"] is None


def test_every_cause_of_rsyncs_end_has_words_and_other_words_are_given_as_they_are() -> None:
    assert all(exit_words(cause, 12) for cause in ExitCause)
    assert exit_words("rsync-signalled", -9) == "rsync was ended by signal 9"
    assert exit_words("remote-signalled", 137) == "the remote command was ended by signal 9"
    assert exit_words("other words", 12) == "other words"


@pytest.mark.parametrize("wrong", [True, 2.0, 10**400, float("nan"), "9", None])
def test_a_count_is_a_whole_number_that_the_catalogue_can_hold(wrong: object) -> None:
    facts = {"code": "fewer-files", "before": 9, "after": 1, "limit": 0.5}
    assert cause_of(facts) is not None
    assert cause_of({**facts, "after": wrong}) is None


def test_what_lies_below_folders_that_were_not_read_makes_a_count_the_least_that_it_can_be() -> None:
    facts = {"missed": 1, "below": 4, "files": 5, "limit": 0.1}
    assert cause_words(Cause(CauseCode.UNREADABLE, facts=facts)).startswith("at least 5 of 9 files ")
    assert cause_words(Cause(CauseCode.UNREADABLE, facts={**facts, "below": 0})).startswith("1 of 5 files ")
