"""Singular and plural in messages."""

from collections import Counter

import pytest

from backupd.expire.report import DeletedBackup, held_words
from backupd.repo.reconcile import ReconcileResult
from btrkeep.process.proc import FolderUser


@pytest.mark.parametrize(
    ("subject", "output", "several"),
    [
        ("killed", "1 killed run found", "2 killed runs found"),
        ("added", "1 backup added", "2,000 backups added"),
        ("dropped", "1 row without a backup dropped", "2 rows without a backup dropped"),
        ("amended", "1 row updated from notes.json", "2 rows updated from notes.json"),
        ("staged", "1 unfinished subvolume of a killed run removed", "2 unfinished subvolumes of a killed run removed"),
    ],
)
def test_each_change_of_a_reconciling_is_counted_in_singular_and_plural(subject: str, output: str, several: str) -> None:
    assert str(ReconcileResult(Counter({subject: 1}))) == output
    assert str(ReconcileResult(Counter({subject: 2000 if "," in several else 2}))) == several


def test_deleted_backups_held_by_an_open_file_are_counted_in_singular_and_plural() -> None:
    deleted = {number: DeletedBackup("web", f"n{number}", f"/p/n{number}") for number in (1, 2)}
    assert held_words(deleted, {1: None}).startswith("1 deleted backup cannot be freed while files in it are open")
    assert held_words(deleted, {1: None, 2: None}).startswith("2 deleted backups cannot be freed while files in them are open")


def test_holders_of_deleted_backups_are_named_in_the_order_of_their_deletion() -> None:
    deleted = {number: DeletedBackup("web", f"n{number}", f"/p/n{number}") for number in (4, 2, 3)}
    text = held_words(deleted, {4: None, 2: FolderUser(7, "vim"), 3: None})
    unknown = "by an unknown process (or a mount)"
    assert text.endswith(f": web n2 by process 7 (vim), web n3 {unknown}, web n4 {unknown}")
