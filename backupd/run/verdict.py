"""Judges a source path, and the whole backup. Pure: takes numbers and messages, returns a judgement with its reason.

The worst path decides: a fault of the pool ends the run and leaves it unfinished; an unfinished path leaves `.working` for the next
run; a broken path makes the backup `failed`; a path that lost or missed too much makes it `suspect`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.rsync.messages import MessageClass, Messages, named_path
from btrkeep.backup_states import Cause, CauseCode, ConditionKey, ConditionKind
from btrkeep.decisions.cause_words import cause_words
from btrkeep.decisions.rsync_meaning import ExitCause, ExitKind, Meaning, meaning
from btrkeep.units import counted


@dataclass(frozen=True, slots=True)
class SuspectLimits:
    """The shares of a path above which it is suspect, 0 to 1."""

    shrink: float
    """The share of missing files or bytes."""
    unreadable: float
    """The share of unreadable files."""


@dataclass(frozen=True, slots=True)
class PathEvidence:
    """The facts about one source path whose rsync has ended."""

    path: str
    """The source path."""
    exit_code: int
    """Exit status of rsync; negative for a signal."""
    messages: Messages
    """rsync's messages."""
    numbers: Mapping[str, int]
    """rsync's statistics, in bytes and counts."""
    base: Mapping[str, int] | None
    """The numbers of the same path in the base; None: the base does not have the path."""
    limits: SuspectLimits
    """The configured limits."""
    seconds: float
    """How long it took."""
    uncompared_files: int = 0
    """Number of files of the base that were not compared because a folder above them could not be read."""
    stored: tuple[int, int] | None = None
    """Bytes on the disk of the same path in the base and now, without holes; None: only `shrank_by_size` needs them."""


def has_shrunk(result: PathResult) -> bool:
    """Returns True if the path is suspect only because it has fewer files or bytes than in the base."""
    return result.cause is not None and result.cause.code in (CauseCode.FEWER_FILES, CauseCode.FEWER_BYTES)


def shrank_by_size(result: PathResult, base: Mapping[str, int] | None) -> bool:
    """Returns True if the path is suspect only because rsync's sizes shrank: holes count in these, so the bytes on the disk are
    needed.

    They prove nothing if names of the base were neither listed nor deleted, because these files are still on the disk.
    """
    if base is None or result.cause is None or result.cause.code is not CauseCode.FEWER_BYTES:
        return False
    new = result.numbers
    if result.deletions_skipped or not {"files", "created", "deleted"} <= new.keys() or "files" not in base:
        return False
    return base["files"] + new["created"] - new["deleted"] <= new["files"]


def judge_path(evidence: PathEvidence) -> PathResult:
    """Returns the result of one source path."""
    messages, means = evidence.messages, meaning(evidence.exit_code, evidence.messages.last)
    without_path = _cause(evidence, means)
    cause = replace(without_path, path=evidence.path) if without_path else None
    return PathResult(
        path=evidence.path,
        outcome=_OUTCOMES.get(cause.code, PathOutcome.SUSPECT) if cause else PathOutcome.COMPLETE,
        reason=cause_words(cause) if cause else "",
        cause=cause,
        exit_code=evidence.exit_code,
        meaning=means.words,
        exit_cause=means.cause,
        numbers=dict(evidence.numbers),
        seconds=round(evidence.seconds, 3),
        unreadable=messages.count(MessageClass.UNREADABLE) + _unknown(evidence) + evidence.uncompared_files,
        vanished=messages.count(MessageClass.VANISHED),
        not_kept=messages.count(MessageClass.NOT_KEPT),
        deletions_skipped=bool(messages.count(MessageClass.DELETIONS_SKIPPED)),
        warnings=tuple(_warnings(evidence)),
        samples=tuple(
            line
            for kind in (MessageClass.UNREADABLE, MessageClass.NOT_KEPT, MessageClass.VANISHED, *_kinds_unknown(evidence))
            for line in messages.samples.get(kind, [])
        ),
    )


_CONDITIONS = {
    MessageClass.UNREADABLE: ConditionKind.UNREADABLE,
    MessageClass.PATH_BROKEN: ConditionKind.UNREADABLE,
    MessageClass.NOT_KEPT: ConditionKind.NOT_KEPT,
    MessageClass.VANISHED: ConditionKind.VANISHED,
}


def conditions_in(path: str, exit_code: int, messages: Messages) -> list[ConditionKey]:
    """Returns what could not be fetched or deleted of one source path, with the names in the samples of rsync's messages."""
    keys = []
    if messages.count(MessageClass.DELETIONS_SKIPPED):
        keys.append(ConditionKey(ConditionKind.DELETIONS_SKIPPED, path))
    for message_class, kind in _CONDITIONS.items():
        names = [named_path(line) for line in messages.samples.get(message_class, [])]
        keys += [ConditionKey(kind, path, name) for name in names if name]
    if exit_code == 23 and not any(messages.count(message_class) for message_class in _CONDITIONS):
        keys.append(ConditionKey(ConditionKind.NOT_TRANSFERRED, path))
    return keys


_NAMED = (MessageClass.UNREADABLE, MessageClass.NOT_KEPT, MessageClass.PATH_BROKEN)


def _unknown(evidence: PathEvidence) -> int:
    """Returns how many unrecognised messages are about files that were not transferred: all of them, if the exit status means that
    something was not transferred and no other message names it.
    """
    if evidence.exit_code != 23 or any(map(evidence.messages.count, _NAMED)):
        return 0
    return evidence.messages.count(MessageClass.UNKNOWN)


def _kinds_unknown(evidence: PathEvidence) -> tuple[MessageClass, ...]:
    return (MessageClass.UNKNOWN,) if _unknown(evidence) else ()


def count_that_exceeds_limit(messages: Messages, numbers: Mapping[str, int], limits: SuspectLimits) -> int:
    """Returns a number of files below unreadable folders that certainly exceeds the limit, so that counting more is useless."""
    allowed = limits.unreadable * numbers.get("files", 0) - _missed(messages)
    return max(0, int(allowed / (1 - limits.unreadable))) + 2 if limits.unreadable < 1 else _ENOUGH


_ENOUGH = 1_000_000  # stands for no limit


def _missed(messages: Messages) -> int:
    return messages.count(MessageClass.UNREADABLE) + messages.count(MessageClass.NOT_KEPT)


_OUTCOMES = {
    CauseCode.SERVER_FAULT: PathOutcome.FAULT,
    CauseCode.STOPPED: PathOutcome.UNFINISHED,
    CauseCode.RSYNC_UNFINISHED: PathOutcome.UNFINISHED,
    CauseCode.RSYNC_FAILED: PathOutcome.BROKEN,
    CauseCode.NO_STATISTICS: PathOutcome.BROKEN,
    CauseCode.SOURCE_MISSING: PathOutcome.BROKEN,
}
"""The outcome of a path by cause; all other causes make it suspect."""


_SILENT = (ExitCause.SILENT, ExitCause.NO_ANSWER, ExitCause.NO_ANSWER_CONNECTING)


def is_timeout(cause: Cause | None) -> bool:
    """Returns True if the cause is a time limit during which the host did nothing: it may hold a slot as long the next time."""
    if cause is None:
        return False
    return cause.code is CauseCode.STALLED or cause.facts.get("exit_cause") in _SILENT


def _cause(evidence: PathEvidence, means: Meaning) -> Cause | None:
    """Returns why the path is not complete, the worst cause first."""
    messages, numbers, exit_code = evidence.messages, evidence.numbers, evidence.exit_code
    ended = {"exit_cause": means.cause.value, "exit_code": exit_code, "line": means.line}
    if line := messages.first(MessageClass.SERVER_FAULT) or messages.first(MessageClass.OVER_QUOTA):
        return Cause(CauseCode.SERVER_FAULT, facts={"line": line})
    if means.kind is ExitKind.STOPPED:
        return Cause(CauseCode.STOPPED)
    if means.kind in (ExitKind.RETRY, ExitKind.HOST):
        return Cause(CauseCode.RSYNC_UNFINISHED, facts=ended)
    if means.kind is ExitKind.BROKEN:
        return Cause(CauseCode.RSYNC_FAILED, facts=ended)
    if not numbers:
        return Cause(CauseCode.NO_STATISTICS, facts={"exit_code": exit_code})
    if line := _broken_source(evidence.path, messages, numbers):
        return Cause(CauseCode.SOURCE_MISSING, facts={"line": line})
    if cause := _missed_too_much(evidence):
        return cause
    if exit_code == 25 or messages.count(MessageClass.DELETE_LIMIT):
        return Cause(CauseCode.DELETIONS_LIMITED)
    if evidence.base and (cause := _shrunk(numbers, evidence.base, evidence.limits.shrink, evidence.stored)):
        return cause
    if exit_code == 23 and not any(map(messages.count, (*_NAMED, MessageClass.UNKNOWN))):
        return Cause(CauseCode.NOT_NAMED)
    return None


def _broken_source(path: str, messages: Messages, numbers: Mapping[str, int]) -> str:
    """Returns the line about the source itself, printed before anything is listed; later lines are about single files.

    A folder that can be seen but not opened is listed with its parents, and nothing else is.
    """
    first = messages.first(MessageClass.PATH_BROKEN)
    if first and (
        numbers.get("regular", 0) == 0 or any("change_dir" in line for line in messages.samples[MessageClass.PATH_BROKEN])
    ):
        return first
    unread = messages.first(MessageClass.UNREADABLE)
    return unread if "opendir" in unread and numbers.get("files", 0) <= max(1, path.rstrip("/").count("/")) else ""


def _missed_too_much(evidence: PathEvidence) -> Cause | None:
    messages, numbers, below, limit = evidence.messages, evidence.numbers, evidence.uncompared_files, evidence.limits.unreadable
    missed = _missed(messages) + _unknown(evidence)
    if missed and missed >= numbers.get("regular", 0):
        line = messages.first(MessageClass.UNREADABLE) or messages.first(MessageClass.NOT_KEPT)
        line = line or messages.first(MessageClass.UNKNOWN)
        return Cause(CauseCode.NOTHING_READ, facts={"line": line})
    if evidence.base and (unknown := messages.unlisted_beyond):
        return Cause(CauseCode.NOT_LISTED, facts={"paths": unknown})
    files = numbers.get("files", 0)  # files below unreadable folders are not in rsync's list
    if (missed + below) / max(1, files + below) > limit:  # as a quotient, a number exactly at the limit compares equal
        facts = {"missed": missed, "below": below, "files": files, "limit": limit}
        return Cause(CauseCode.UNREADABLE, facts=facts)
    return None


def _shrunk(numbers: Mapping[str, int], base: Mapping[str, int], limit: float, stored: tuple[int, int] | None) -> Cause | None:
    if base.get("regular", 0) and not numbers.get("regular", 0) and limit < 1:
        return Cause(CauseCode.NO_FILE_LEFT, facts={"before": base["regular"]})
    for key, code in (("files", CauseCode.FEWER_FILES), ("bytes", CauseCode.FEWER_BYTES)):
        before, after = stored if stored and key == "bytes" else (base.get(key, 0), numbers.get(key, 0))
        if before and (before - after) / before > limit:
            return Cause(code, facts={"before": before, "after": after, "limit": limit})
    return None


class EmptiedWhy(Enum):
    """Why folders that are empty now are doubted."""

    NOT_MOUNTED = CauseCode.NOT_MOUNTED
    UNDATED = CauseCode.EMPTIED_UNDATED  # the base has a time in the future, so it is unknown whether files were deleted
    EXCLUDED = CauseCode.EMPTIED_SETTINGS  # emptied by an exclusion that the base did not have: never more than a warning


@dataclass(frozen=True, slots=True)
class EmptiedFolders:
    """Folders of a source path that are empty now although nothing was deleted in them."""

    folder: str
    """One of them."""
    others: int = 0
    """Number of the others."""
    files: int = 0
    """Number of names below them in the base, as far as that was counted."""
    bytes: int = 0
    """The total size of these files."""
    why: EmptiedWhy = EmptiedWhy.NOT_MOUNTED
    """Why they are empty."""

    def is_too_much(self, base: Mapping[str, int], limit: float) -> bool:
        """Returns True if more than `limit` of the base's content is missing with them, by files or by bytes."""
        return self.files > limit * base.get("files", 0) or self.bytes > limit * base.get("bytes", 0)


def judge_emptied(result: PathResult, base: Mapping[str, int], emptied: EmptiedFolders, limit: float) -> PathResult:
    """Returns the result of a complete path with emptied folders: suspect if too much is missing, else with a warning."""
    facts = {"folder": emptied.folder, "others": emptied.others, "files": emptied.files, "bytes": emptied.bytes}
    cause = Cause(emptied.why.value, result.path, facts)
    if emptied.why is not EmptiedWhy.EXCLUDED and emptied.is_too_much(base, limit):
        return replace(result, outcome=PathOutcome.SUSPECT, reason=cause_words(cause), cause=cause)
    return replace(result, warnings=(*result.warnings, cause_words(cause)))


_MISSED = {
    MessageClass.UNREADABLE: "could not be read",
    MessageClass.NOT_KEPT: "could not be stored as on the host",
    MessageClass.VANISHED: "vanished while they were read",
    MessageClass.PATH_BROKEN: "could not be checked",
}
_NAMES = 3
_QUOTED = re.compile(r'"(.+)"|^filename overflows max-path len by \d+: (.+)')
_LONGEST_NAME = 200


def _shown(name: str) -> str:
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]} ... {name[-half:]}"


def _warnings(evidence: PathEvidence) -> list[str]:
    """Returns the warnings of the path: one sentence about missed files, short enough for a table with one line per host, and one
    if the path is empty.
    """
    path, messages = evidence.path, evidence.messages
    unread = {MessageClass.UNREADABLE: evidence.uncompared_files}
    parts = [f"{count} {words}" for kind, words in _MISSED.items() if (count := messages.count(kind) + unread.get(kind, 0))]
    if messages.count(MessageClass.DELETIONS_SKIPPED):
        parts.append("deletions were skipped because of that, so the backup may still contain files that the host deleted")
    lines = [line for kind in _MISSED for line in messages.samples.get(kind, [])]
    names = [_shown(match[1] or match[2]) for line in lines if (match := _QUOTED.search(line))][:_NAMES]
    warnings = [f"{path}: {', '.join(parts)}" + (f" (such as {', '.join(names)})" if names else "")] if parts else []
    if unknown := _unknown(evidence):
        line = _shown(messages.first(MessageClass.UNKNOWN))
        warnings.append(
            f"{path}: rsync did not transfer everything (exit status 23) and printed {counted(unknown, 'message')}: {line}"
        )
    if evidence.base is None and evidence.numbers and not evidence.numbers.get("regular", 0):
        warnings.append(f"{path}: contains no file")
    return warnings


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The decision for a run."""

    state: str | None
    """The final state of the backup; None: `.working` stays unfinished."""
    outcome: str
    """One of RUN_OUTCOMES."""
    error: str | None
    """Why it is not complete; None if it is."""
    cause: Cause | None = None
    """`error` as data."""


_FINAL = {PathOutcome.COMPLETE: "complete", PathOutcome.SUSPECT: "suspect", PathOutcome.BROKEN: "failed"}


def decide_run(results: Sequence[PathResult]) -> RunVerdict:
    """Decides from all source paths of a run, at least one. The error is that of the worst path."""
    worst = max(results, key=lambda result: result.outcome.rank)
    if worst.outcome is PathOutcome.BROKEN and not any("files" in result.numbers for result in results):
        return RunVerdict(None, "failed", worst.reason, worst.cause)  # no rsync listed any file: nothing can be restored
    if worst.outcome in _FINAL:
        state = _FINAL[worst.outcome]
        return RunVerdict(state, state, worst.reason or None, worst.cause)
    outcome = "failed" if worst.outcome is PathOutcome.FAULT else "partial"
    return RunVerdict(None, outcome, worst.reason, worst.cause)
