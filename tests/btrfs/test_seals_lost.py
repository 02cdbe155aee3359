"""A seals.json that is damaged or missing: it is made again, and hides no change of a backup."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.repo import reconcile
from btrkeep.catalogue import Catalogue
from btrkeep.pool.marker import open_pool
from btrkeep.pool.subvolume import Subvolume, describe
from tests.beds import work
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs]
LOSSES = pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(b'{"format": 1, "backups": {"20')])
Lose = Callable[[Path], object]


@pytest.fixture
def first(nights: Nights) -> str:
    """Returns the name of the first of two backups."""
    (nights.source / "changed").write_text("a")
    nights.host("web1", nights.source)
    for content in "ab":
        (nights.source / "changed").write_text(content)
        nights.run("web1")
    return nights.names("web1")[0]


def seals(nights: Nights) -> Path:
    return nights.pool / "hosts/web1/seals.json"


def sealed(nights: Nights) -> list[str]:
    return sorted(json.loads(seals(nights).read_text())["backups"])


def change_by_hand(nights: Nights, name: str) -> str:
    """Changes a file of that backup and returns its path."""
    backup = nights.backup("web1", name)
    work("btrfs", "property", "set", "-f", "-ts", backup, "ro", "false")
    file = next(backup.rglob("changed"))
    file.write_text("by hand")
    work("btrfs", "property", "set", "-ts", backup, "ro", "true")
    work("btrfs", "filesystem", "sync", nights.top)
    return "/" + str(file.relative_to(backup / "data"))


def states(nights: Nights) -> list[str]:
    return [backup["state"] for backup in nights.json("list", "web1")]


@LOSSES
@pytest.mark.parametrize("words", [("run", "web1"), ("verify",), ("rebuild",)])
def test_the_next_command_makes_it_again_and_a_later_change_is_noticed(
    nights: Nights, first: str, lose: Lose, words: tuple[str, ...]
) -> None:
    lose(seals(nights))
    done = nights.backupd(*words)
    assert sealed(nights) == nights.names("web1")
    if words[0] == "verify":
        assert "2 backups sealed again, because seals.json was damaged or missing" in " ".join((done.stdout + done.stderr).split())
    change_by_hand(nights, first)
    nights.backupd("verify", check=False)
    assert states(nights)[:2] == ["altered", "complete"]


@LOSSES
@pytest.mark.parametrize("words", [("verify",), ("rebuild",)])
def test_a_change_before_the_loss_was_noticed_is_found_by_the_catalogue(
    nights: Nights, first: str, lose: Lose, words: tuple[str, ...]
) -> None:
    path = change_by_hand(nights, first)
    lose(seals(nights))
    nights.backupd(*words, check=False)
    assert states(nights) == ["altered", "complete"]
    (altered,) = json.loads(nights.backupd("verify", "--json", check=False).stdout)["altered"]
    assert (altered["name"], path in json.dumps(altered)) == (first, True), altered


@LOSSES
def test_an_altered_backup_stays_altered_and_its_files_are_still_named(nights: Nights, first: str, lose: Lose) -> None:
    path = change_by_hand(nights, first)
    nights.backupd("verify", check=False)
    lose(seals(nights))
    nights.backupd("run", "web1")
    assert states(nights) == ["altered", "complete", "complete"]
    (altered,) = json.loads(nights.backupd("verify", "--json", check=False).stdout)["altered"]
    assert path in json.dumps(altered), altered
    nights.backupd("accept", f"web1@{first}")
    nights.backupd("verify")
    assert states(nights) == ["complete", "complete", "complete"]


def test_only_backups_that_differ_from_their_seal_are_opened_and_each_is_counted_once(
    nights: Nights, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.run("web1")
    second, third = nights.names("web1")[1:]
    change_by_hand(nights, first)
    seals(nights).write_text(json.dumps({"format": 1, "backups": {first: json.loads(seals(nights).read_text())["backups"][first]}}))
    looked: list[str] = []

    def describe_and_note(path: Path) -> Subvolume | None:
        looked.append(path.name)
        return describe(path)

    monkeypatch.setattr(reconcile, "describe", describe_and_note)
    with Catalogue.open(nights.state) as catalogue:
        for row in list(catalogue.backups("web1", with_detail=True)):
            if row.name == second:  # neither its seal nor that of its row is left
                catalogue.put_backup(replace(row, sealed=None))
        pool = open_pool(nights.pool)
        assert reconcile.check_seals(pool, catalogue, "now").counts == {"altered": 1, "sealed": 1, "resealed": 1}
        assert sealed(nights) == [first, second, third]
        assert {row.name: row.outcome for row in catalogue.backups("web1")} == {
            first: "altered",
            second: "complete",
            third: "complete",
        }
        looked.clear()
        assert not +reconcile.check_seals(pool, catalogue, "now").counts
        assert set(looked) <= {first}
    nights.backupd("accept", f"web1@{first}")
    seals(nights).unlink()
    with Catalogue.open(nights.state) as catalogue:
        reconcile.check_seals(pool, catalogue, "now")
    assert json.loads((nights.pool / "hosts/web1/notes.json").read_text())["backups"][first]["altered"]["accepted"]
