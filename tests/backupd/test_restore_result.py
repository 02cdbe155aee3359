"""The result of a restore in one sentence, for the page of its job and the record of actions. Without it an administrator cannot
prove later what was restored and whether it was compared.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from backupd.files.backup_selector import Restorable
from backupd.files.conflict_policy import KEPT, NEW, OVERWRITTEN, SAME
from backupd.files.restore_request import result_object, result_words
from backupd.files.restore_types import RestorePreview, RestoreResult
from backupd.serve.jobs import ServeJob
from backupd.serve.verbs.tasks import _summary

if TYPE_CHECKING:
    from backupd.repo.backup_json import Record


def words(**counts: int) -> str:
    done = RestoreResult(compared=counts.pop("compared", 0), reflinked=counts.pop("shared", 0))
    for name, count in counts.items():
        {**done.counts, "problems": done.problems, "differences": done.differences, "setuid": done.withheld.setuid}[
            name
        ].number = count
    return result_words(result_object(_BACKUP, RestorePreview("web1"), done))


_BACKUP = Restorable("web1", "2026-11-20T220003Z", Path("/x"), "complete", datetime(2026, 11, 20, tzinfo=UTC), cast("Record", None))


def test_the_sentence_has_what_was_written_and_what_was_compared() -> None:
    assert words(**{OVERWRITTEN: 1, SAME: 2}, compared=64) == (
        "1 file replaced, 2 already the same; 64 B read again and compared, no difference"
    )
    assert words(**{NEW: 1200, KEPT: 3}, shared=5 << 20) == (
        "1,200 files restored, 3 kept; 0 B read again and compared, 5.00 MiB shared with the backup, no difference"
    )
    assert words() == "no file restored; 0 B read again and compared, no difference"
    assert words(**{NEW: 2}, problems=1, differences=2, setuid=1) == (
        "2 files restored; 0 B read again and compared, 2 differences; 1 file could not be restored; "
        "1 file without privileges or left out"
    )


def test_a_result_of_another_version_has_no_sentence() -> None:
    job = ServeJob("20261120T220000Z-00000000", "restore", "web1", "carol", "2026-11-20T22:00:00Z", {})
    results: tuple[Any, ...] = (None, [], {}, {"new": 7}, {"new": {"count": "x"}})
    for result in results:
        assert _summary(ServeJob(job.id, job.verb, job.host, job.who, job.asked, {}, result=result)) is None
