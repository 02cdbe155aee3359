"""The results of a source path and of the whole backup: the rules one by one."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.rsync.messages import Messages
from backupd.run.verdict import (
    EmptiedFolders,
    EmptiedWhy,
    PathEvidence,
    RunVerdict,
    SuspectLimits,
    conditions_in,
    count_that_exceeds_limit,
    decide_run,
    has_shrunk,
    is_timeout,
    judge_emptied,
    judge_path,
    shrank_by_size,
)
from btrkeep.backup_states import Cause, CauseCode, ConditionKey, ConditionKind
from btrkeep.decisions.rsync_meaning import ExitCause

LIMITS = SuspectLimits(shrink=0.5, unreadable=0.01)
HUNDRED = {"files": 110, "regular": 100, "bytes": 1_000_000}
UNREADABLE = 'rsync: [sender] send_files failed to open "/srv/{}": Permission denied (13)'
NOT_KEPT = 'rsync: [generator] chown "/srv/backup/{}" failed: Operation not permitted (1)'
MISSING = 'rsync: [sender] link_stat "/srv" failed: No such file or directory (2)'
CLOSED = 'rsync: [sender] opendir "/srv" failed: Permission denied (13)'
FULL = 'rsync: [receiver] write failed on "/srv/backup/x": No space left on device (28)'


def messages_of(*lines: str) -> Messages:
    messages = Messages()
    messages.feed("".join(f"{line}\n" for line in lines).encode())
    return messages


def judged(
    exit_code: int,
    *lines: str,
    numbers: Mapping[str, int] = HUNDRED,
    base: Mapping[str, int] | None = HUNDRED,
    limits: SuspectLimits = LIMITS,
) -> PathResult:
    return judge_path(PathEvidence("/srv", exit_code, messages_of(*lines), numbers, base, limits, 1.0))


def test_a_path_that_came_whole_is_complete_without_a_reason() -> None:
    result = judged(0)
    assert (result.outcome, result.reason, result.warnings) == (PathOutcome.COMPLETE, "", ())


@pytest.mark.parametrize("lines", [(FULL,), (FULL, MISSING), (UNREADABLE.format(1), FULL)])
@pytest.mark.parametrize("exit_code", [0, 11, 12, 20, 23, 24])
def test_a_pool_that_cannot_be_written_outweighs_every_exit_status_and_every_other_complaint(
    exit_code: int, lines: tuple[str, ...]
) -> None:
    assert judged(exit_code, *lines).outcome is PathOutcome.FAULT


@pytest.mark.parametrize("exit_code", [-9, 10, 12, 19, 20, 30, 35, 127, 255])
def test_an_interrupted_transfer_is_unfinished_whatever_rsync_printed_before(exit_code: int) -> None:
    assert judged(exit_code, UNREADABLE.format(1)).outcome is PathOutcome.UNFINISHED


@pytest.mark.parametrize("exit_code", [1, 2, 3, 4, 5, 11, 22, 77])
def test_an_exit_status_that_no_retry_helps_breaks_the_path_and_is_reported(exit_code: int) -> None:
    result = judged(exit_code)
    assert result.outcome is PathOutcome.BROKEN
    assert f"exit status {exit_code}" in result.reason


TOO_LONG = "filename overflows max-path len by 141: srv/deep/" + "d" * 4200
CODE_23 = "rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1956) [generator=3.5.0]"


def test_a_path_that_is_too_long_for_rsync_is_one_file_that_could_not_be_read() -> None:
    result = judged(23, TOO_LONG, "IO error encountered -- skipping file deletion", CODE_23)
    assert (result.outcome, result.unreadable) == (PathOutcome.COMPLETE, 1)
    assert "1 could not be read" in result.warnings[0]
    assert "srv/deep/ddd" in result.warnings[0]
    assert judged(23, *[TOO_LONG] * 2, CODE_23).outcome is PathOutcome.SUSPECT  # the limit holds for them as for any


def test_an_unknown_message_of_rsync_counts_as_one_missed_file_and_is_quoted() -> None:
    """Only with the status for files that were not transferred, only without a better message, and never the output of a host
    before it.
    """
    strange = "strange trouble with srv/x"
    messages = Messages(answered=True)
    messages.feed(f"{strange}\n{CODE_23}\n".encode())
    evidence = PathEvidence("/srv", 23, messages, HUNDRED, HUNDRED, LIMITS, 1.0)
    result = judge_path(evidence)
    assert (result.outcome, result.unreadable) == (PathOutcome.COMPLETE, 1)
    assert strange in result.warnings[0]
    assert strange in result.samples
    assert judge_path(replace(evidence, exit_code=0)).warnings == ()
    messages.feed(f"{strange} again\n".encode())
    assert judge_path(evidence).outcome is PathOutcome.SUSPECT
    assert judged(23, strange, CODE_23).reason == "/srv: rsync reports that some files were not transferred, but not which"


def test_a_finished_transfer_without_statistics_is_not_believed() -> None:
    result = judged(0, numbers={})
    assert result.outcome is PathOutcome.BROKEN
    assert "statistics" in result.reason


def test_a_source_that_cannot_be_opened_is_listed_alone_and_a_folder_in_it_with_others() -> None:
    assert judged(23, CLOSED, numbers={"files": 1, "regular": 1, "bytes": 0}).outcome is PathOutcome.BROKEN
    assert judged(23, CLOSED, numbers={"files": 2, "regular": 2, "bytes": 0}, base=None).outcome is not PathOutcome.BROKEN


@pytest.mark.parametrize("lines", [(UNREADABLE.format(1), NOT_KEPT.format(2)), (NOT_KEPT.format(2),)])
def test_where_nothing_was_read_the_first_complaint_is_quoted(lines: tuple[str, ...]) -> None:
    result = judged(23, *lines, numbers={"files": 2, "regular": 1, "bytes": 0}, base=None)
    assert result.outcome is PathOutcome.SUSPECT
    assert lines[0] in result.reason


def test_a_missing_source_is_broken_and_not_just_shrunk() -> None:
    result = judged(23, MISSING, numbers={"files": 0, "bytes": 0})
    assert result.outcome is PathOutcome.BROKEN
    assert "No such file or directory" in result.reason


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300), st.floats(0, 1))
def test_what_was_missed_is_suspect_beyond_the_limit_or_when_nothing_was_read(
    unreadable: int, not_kept: int, regular: int, limit: float
) -> None:
    lines = [UNREADABLE.format(number) for number in range(unreadable)] + [NOT_KEPT.format(number) for number in range(not_kept)]
    numbers = {"files": regular, "regular": regular, "bytes": 1}
    result = judged(23 if lines else 0, *lines, numbers=numbers, base=None, limits=SuspectLimits(1, limit))
    missed = unreadable + not_kept
    too_much = missed > 0 and (missed >= regular or missed / regular > limit)
    assert result.outcome is (PathOutcome.SUSPECT if too_much else PathOutcome.COMPLETE)
    assert (result.unreadable, result.not_kept) == (unreadable, not_kept)
    if missed and not too_much:
        assert any(str(unreadable or not_kept) in warning for warning in result.warnings)


def test_a_path_exactly_at_the_limit_of_unreadable_files_is_complete() -> None:
    hundred = {"files": 100, "regular": 100, "bytes": 100}
    assert judged(23, UNREADABLE.format(1), numbers=hundred, base=hundred).outcome is PathOutcome.COMPLETE
    assert judged(23, UNREADABLE.format(1), UNREADABLE.format(2), numbers=hundred, base=hundred).outcome is PathOutcome.SUSPECT


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**15), st.integers(0, 10**15), st.floats(0, 1))
def test_what_shrank_by_more_than_the_limit_in_files_or_bytes_is_suspect(
    files: int, left: int, size: int, size_left: int, limit: float
) -> None:
    before = {"files": files, "regular": files, "bytes": size}
    after = {"files": left, "regular": left, "bytes": size_left}
    shrunk = (files - left) / files > limit or (size - size_left) / size > limit or (left == 0 and limit < 1)
    result = judged(0, numbers=after, base=before, limits=SuspectLimits(limit, 1))
    assert result.outcome is (PathOutcome.SUSPECT if shrunk else PathOutcome.COMPLETE)
    assert bool(result.reason) is shrunk


def test_a_path_that_shrank_exactly_to_the_limit_is_complete() -> None:
    for key in ("files", "bytes"):
        half = {**HUNDRED, key: HUNDRED[key] // 2}
        assert judged(0, numbers=half).outcome is PathOutcome.COMPLETE
        result = judged(0, numbers={**half, key: half[key] - 1})
        assert result.outcome is PathOutcome.SUSPECT
        assert f"{key} went from" in result.reason


def test_a_limit_of_everything_lets_a_path_become_empty() -> None:
    empty = {"files": 1, "regular": 0, "bytes": 0}
    assert judged(0, numbers=empty, limits=SuspectLimits(1, 1)).outcome is PathOutcome.COMPLETE
    assert judged(0, numbers=empty).outcome is PathOutcome.SUSPECT


def test_a_first_backup_cannot_have_shrunk_but_an_empty_one_has_a_warning() -> None:
    result = judged(0, numbers={"files": 1, "regular": 0, "bytes": 0}, base=None)
    assert result.outcome is PathOutcome.COMPLETE
    assert "contains no file" in " ".join(result.warnings)
    assert judged(0, base=None).warnings == ()


def test_a_base_without_bytes_proves_nothing_about_them() -> None:
    result = judged(0, numbers={**HUNDRED, "bytes": 0}, base={"files": 110, "regular": 100})
    assert result.outcome is PathOutcome.COMPLETE


def test_a_name_of_200_characters_is_shown_whole_and_a_longer_one_by_its_ends() -> None:
    fits, longer = "a" * 199 + "z", "a" * 200 + "z"
    assert f"such as {fits})" in judged(23, UNREADABLE.format(fits).replace("/srv/", "")).warnings[0]
    assert f"such as {'a' * 100} ... {'a' * 99}z)" in judged(23, UNREADABLE.format(longer).replace("/srv/", "")).warnings[0]


def test_vanished_files_are_complete_with_a_warning_however_many() -> None:
    result = judged(24, *(f'file has vanished: "/srv/{number}"' for number in range(90)))
    assert (result.outcome, result.vanished) == (PathOutcome.COMPLETE, 90)
    assert "90" in " ".join(result.warnings)


@pytest.mark.parametrize("exit_code", [24, 25])
def test_deletions_that_stopped_are_suspect_even_when_vanished_files_hide_it(exit_code: int) -> None:
    line = "Deletions stopped due to --max-delete limit (5 skipped)"
    assert judged(exit_code, line, 'file has vanished: "/srv/x"').outcome is PathOutcome.SUSPECT
    assert judged(25).outcome is PathOutcome.SUSPECT  # the status alone is enough


def test_files_that_were_not_transferred_for_no_reason_given_are_suspect() -> None:
    assert judged(23).outcome is PathOutcome.SUSPECT
    assert judged(23, UNREADABLE.format(1)).outcome is PathOutcome.COMPLETE


def test_a_backup_that_keeps_deleted_files_because_of_skipped_deletions_has_a_warning() -> None:
    result = judged(23, UNREADABLE.format(1), "IO error encountered -- skipping file deletion")
    assert result.deletions_skipped
    assert "deletions were skipped" in " ".join(result.warnings)
    assert not judged(23, UNREADABLE.format(1)).deletions_skipped


@pytest.mark.parametrize(
    ("result", "shrunk"),
    [
        (judged(0), False),
        (judged(0, numbers={**HUNDRED, "files": 50}), True),
        (judged(0, numbers={**HUNDRED, "bytes": 400_000}), True),
        (judged(0, numbers={"files": 1, "regular": 0, "bytes": 0}), False),
        (judged(23), False),
    ],
)
def test_only_a_path_with_fewer_files_or_bytes_is_compared_with_new_exclusions(result: PathResult, shrunk: bool) -> None:
    assert has_shrunk(result) is shrunk


SMALLER = {"files": 110, "regular": 100, "bytes": 100, "created": 5, "deleted": 5}


@pytest.mark.parametrize(
    ("lines", "numbers", "base", "asks"),
    [
        ((), SMALLER, HUNDRED, True),
        ((), {**SMALLER, "created": 3}, HUNDRED, True),
        ((), {**SMALLER, "created": 6}, HUNDRED, False),  # a file of the base was neither listed nor deleted
        ((), {**SMALLER, "deleted": 4}, HUNDRED, False),
        (("IO error encountered -- skipping file deletion",), SMALLER, HUNDRED, False),
        ((), {"files": 110, "regular": 100, "bytes": 100}, HUNDRED, False),
        ((), SMALLER, {"bytes": 1_000_000}, False),
        ((), {**SMALLER, "bytes": 1_000_000}, HUNDRED, False),
        ((), {**SMALLER, "files": 10}, HUNDRED, False),
        ((), {**SMALLER, "files": 10, "created": 0, "deleted": 100}, HUNDRED, False),  # holes do not explain fewer files
    ],
)
def test_the_disk_is_asked_about_holes_only_where_it_holds_the_listed_files_alone(
    lines: tuple[str, ...], numbers: dict[str, int], base: dict[str, int], asks: bool
) -> None:
    result = judged(0, *lines, numbers=numbers, base=base)
    assert shrank_by_size(result, base) is asks
    assert not shrank_by_size(result, None)


def test_bytes_on_the_disk_replace_those_of_rsync_whose_sizes_count_holes() -> None:
    evidence = PathEvidence("/srv", 0, Messages(), {**HUNDRED, "bytes": 1}, HUNDRED, LIMITS, 1.0)
    assert judge_path(evidence).outcome is PathOutcome.SUSPECT
    assert judge_path(replace(evidence, stored=(100, 50))).outcome is PathOutcome.COMPLETE
    assert judge_path(replace(evidence, stored=(100, 49))).outcome is PathOutcome.SUSPECT
    assert judge_path(replace(evidence, numbers={**HUNDRED, "files": 10}, stored=(100, 100))).outcome is PathOutcome.SUSPECT


def test_files_below_an_unreadable_folder_count_as_missed_although_rsync_did_not_list_them() -> None:
    evidence = PathEvidence("/srv", 23, messages_of(UNREADABLE.format("d")), {**HUNDRED, "files": 995}, None, LIMITS, 1.0)
    assert judge_path(replace(evidence, uncompared_files=9)).outcome is PathOutcome.COMPLETE  # 10 of 1004
    result = judge_path(replace(evidence, uncompared_files=10))
    assert (result.outcome, result.unreadable) == (PathOutcome.SUSPECT, 11)
    assert "11 could not be read" in result.warnings[0]


def test_more_unreadable_folders_than_are_remembered_are_suspect_where_there_is_a_base() -> None:
    messages = messages_of(UNREADABLE.format("d"))
    messages.unlisted_beyond = 1
    evidence = PathEvidence("/srv", 23, messages, HUNDRED, HUNDRED, LIMITS, 1.0)
    result = judge_path(evidence)
    assert (result.outcome, result.cause and result.cause.code) == (PathOutcome.SUSPECT, CauseCode.NOT_LISTED)
    assert judge_path(replace(evidence, base=None)).outcome is PathOutcome.COMPLETE


@given(st.integers(0, 20), st.integers(0, 5000), st.floats(0, 0.99))
def test_as_many_files_as_are_counted_below_unreadable_folders_exceed_the_limit(unread: int, files: int, limit: float) -> None:
    limits = SuspectLimits(1, limit)
    messages = messages_of(*[UNREADABLE.format(1)] * unread, *[NOT_KEPT.format(1)] * unread)
    below = count_that_exceeds_limit(messages, {"files": files}, limits)
    assert (2 * unread + below) / max(1, files + below) > limit
    fewer = below - 3  # counting covers millions of names, so it stops as early as possible
    assert fewer < 0 or (2 * unread + fewer) / max(1, files + fewer) <= limit


def test_where_everything_may_be_unreadable_a_million_files_are_counted_at_most() -> None:
    assert count_that_exceeds_limit(Messages(), HUNDRED, SuspectLimits(1, 1)) == 1_000_000


MISSING_FOLDER = 'rsync: [sender] opendir "/srv/deep" failed: Permission denied (13)'
SKIPPED = "IO error encountered -- skipping file deletion"


@pytest.mark.parametrize(
    ("exit_code", "lines", "keys"),
    [
        (0, (), []),
        (
            23,
            (UNREADABLE.format("a"), UNREADABLE.format("b"), NOT_KEPT.format("c")),
            [(ConditionKind.UNREADABLE, "/srv/a"), (ConditionKind.UNREADABLE, "/srv/b"), (ConditionKind.NOT_KEPT, "/srv/backup/c")],
        ),
        (23, (MISSING_FOLDER, SKIPPED), [(ConditionKind.DELETIONS_SKIPPED, ""), (ConditionKind.UNREADABLE, "/srv/deep")]),
        (24, ('file has vanished: "/srv/gone"',), [(ConditionKind.VANISHED, "/srv/gone")]),
        (23, (), [(ConditionKind.NOT_TRANSFERRED, "")]),
        (23, (SKIPPED,), [(ConditionKind.DELETIONS_SKIPPED, ""), (ConditionKind.NOT_TRANSFERRED, "")]),
    ],
)
def test_each_thing_that_a_backup_lacks_is_followed_by_its_name(
    exit_code: int, lines: tuple[str, ...], keys: list[tuple[ConditionKind, str]]
) -> None:
    assert conditions_in("/srv", exit_code, messages_of(*lines)) == [ConditionKey(kind, "/srv", name) for kind, name in keys]


@pytest.mark.parametrize(
    ("cause", "waited"),
    [
        (None, False),
        (Cause(CauseCode.STALLED), True),
        (Cause(CauseCode.RSYNC_UNFINISHED, facts={"exit_cause": ExitCause.SILENT.value}), True),
        (Cause(CauseCode.RSYNC_UNFINISHED, facts={"exit_cause": ExitCause.NO_ANSWER_CONNECTING.value}), True),
        (Cause(CauseCode.STOPPED), False),
    ],
)
def test_a_host_that_let_a_time_limit_pass_waits_for_the_others_next_time(cause: Cause | None, waited: bool) -> None:
    assert is_timeout(cause) is waited


BEFORE = {"files": 100, "bytes": 1000}


@pytest.mark.parametrize(
    ("files", "size", "why", "is_suspect"),
    [
        (50, 500, EmptiedWhy.NOT_MOUNTED, False),
        (51, 0, EmptiedWhy.NOT_MOUNTED, True),
        (0, 501, EmptiedWhy.UNDATED, True),
        (100, 1000, EmptiedWhy.EXCLUDED, False),
    ],
)
def test_folders_that_are_empty_now_make_a_backup_suspect_beyond_the_limit(
    files: int, size: int, why: EmptiedWhy, is_suspect: bool
) -> None:
    before = replace(judged(0), warnings=("a warning",))
    result = judge_emptied(before, BEFORE, EmptiedFolders("data", files=files, bytes=size, why=why), 0.5)
    if is_suspect:
        assert (result.outcome, result.warnings) == (PathOutcome.SUSPECT, ("a warning",))
        assert result.cause == Cause(why.value, "/srv", {"folder": "data", "others": 0, "files": files, "bytes": size})
        assert "data" in result.reason
    else:
        assert (result.outcome, result.reason, result.cause) == (PathOutcome.COMPLETE, "", None)
        assert len(result.warnings) == 2
        assert "data" in result.warnings[1]


# The whole backup

LISTED = {"files": 1}
RESULTS = st.lists(
    st.builds(PathResult, path=st.just("/x"), outcome=st.sampled_from(PathOutcome), reason=st.just("why"), numbers=st.just(LISTED)),
    min_size=1,
)
WORST = {
    PathOutcome.COMPLETE: ("complete", "complete"),
    PathOutcome.SUSPECT: ("suspect", "suspect"),
    PathOutcome.BROKEN: ("failed", "failed"),
    PathOutcome.UNFINISHED: (None, "partial"),
    PathOutcome.FAULT: (None, "failed"),
}


@given(RESULTS)
def test_the_worst_path_decides_for_all(results: list[PathResult]) -> None:
    order = list(WORST)
    worst = max((result.outcome for result in results), key=order.index)
    verdict = decide_run(results)
    assert (verdict.state, verdict.outcome) == WORST[worst]


def test_a_host_of_which_not_even_a_list_came_leaves_no_backup() -> None:
    why = "the host does not answer in rsync's protocol"
    broken = PathResult("/x", PathOutcome.BROKEN, why, numbers={"literal": 0, "received": 0})
    assert decide_run([broken, broken]) == RunVerdict(None, "failed", why)
    assert decide_run([broken, PathResult("/y", PathOutcome.COMPLETE, numbers=LISTED)]).state == "failed"


def test_the_error_of_a_backup_is_that_of_its_worst_path() -> None:
    paths = {outcome: PathResult(f"/{outcome}", outcome, f"{outcome} because") for outcome in PathOutcome}
    for path_outcome, other in itertools.combinations(PathOutcome, 2):
        for results in ([paths[path_outcome], paths[other]], [paths[other], paths[path_outcome]]):
            assert decide_run(results).error == f"{other} because"
    assert decide_run([PathResult("/a", PathOutcome.COMPLETE)]) == RunVerdict("complete", "complete", None)
