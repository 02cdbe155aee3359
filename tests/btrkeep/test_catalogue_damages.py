"""Damages in the catalogue, compared with sqlite3."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from btrkeep.catalogue import Backup, Catalogue, Damage

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
DAMAGE = Damage("web1", "n1", "/caf\udce9\nx", 4096, 512, "verify", NOW)
BACKUP = Backup("web1", "n1", "hosts/web1/n1", "complete", NOW, NOW, 1.0, 1, 1, 1, None)


def ask(state: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(state / "catalogue.sqlite")) as connection:
        return connection.execute(statement).fetchall()


def test_a_damage_comes_back_as_it_went_in_and_is_replaced_by_its_place(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        other = replace(DAMAGE, start=0, found_by="scrub")
        catalogue.put_damages([DAMAGE, other, replace(DAMAGE, name="n2", fate="repaired")])
        assert catalogue.damages("web1", "n1") == [other, DAMAGE]
        assert catalogue.damaged_files() == {("web1", "n1"): 1}
        catalogue.change_damages([DAMAGE], [replace(DAMAGE, start=0)])
        assert catalogue.damages("web1", "n1") == [replace(DAMAGE, start=0)]
    assert ask(tmp_path, "SELECT host, name, start, length, found_by, found_at, fate FROM damage ORDER BY name") == [
        ("web1", "n1", 0, 512, "verify", "2026-11-20T22:00:00.000000Z", None),
        ("web1", "n2", 4096, 512, "verify", "2026-11-20T22:00:00.000000Z", "repaired"),
    ]


def test_what_is_gone_goes_unless_another_look_has_found_it_since(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        old = [replace(DAMAGE, name=name, found_by="scrub", start=0) for name in ("n1", "n2")]
        catalogue.put_damages([DAMAGE, *old])
        catalogue.put_damages([replace(old[1], found_by="verify")])
        catalogue.change_damages(old, [replace(old[0], name="n3")])
    assert ask(tmp_path, "SELECT name, found_by FROM damage ORDER BY name") == [("n1", "verify"), ("n2", "verify"), ("n3", "scrub")]


def test_damages_stay_when_the_row_of_their_backup_is_replaced_and_go_with_the_backup(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        backups = [replace(BACKUP, name=name) for name in ("n1", "n2", "n3")]
        for backup in backups:
            catalogue.put_backup(backup)
        catalogue.put_damages(replace(DAMAGE, name=backup.name or "") for backup in backups)
        catalogue.put_backup(replace(BACKUP, held_why="the audit"))
        catalogue.replace_backups("p", backups[:2])
        assert [damage.name for damage in catalogue.damages()] == ["n1", "n2"]
        catalogue.rename_host("web1", "web2")
        assert [(damage.host, damage.name) for damage in catalogue.damages()] == [("web2", "n1"), ("web2", "n2")]
        catalogue.drop_backups([("web2", "n1")])
        assert [damage.name for damage in catalogue.damages()] == ["n2"]
        catalogue.drop_backup("web2", "n2")
    assert ask(tmp_path, "SELECT * FROM damage") == []


def test_an_expired_backup_that_a_repaired_copy_replaces_is_damaged_and_not_to_be_repaired(tmp_path: Path) -> None:
    bad = replace(BACKUP, uuid="u1", state="expired", outcome="complete", expired=NOW)
    copy = replace(BACKUP, name="n2", base="n1", uuid="u2", detail={"repaired": {"of": "n1", "of_uuid": "u1"}})
    counts: dict[str, list[tuple[str, str]]] = {}
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.put_damages([DAMAGE, replace(DAMAGE, name="n3")])
        for situation, rows in {
            "repaired": (bad, copy),
            "kept again": (replace(bad, expired=None), copy),
            "expired by a rule": (bad, replace(copy, detail={})),
            "the copy of another": (bad, replace(copy, detail={"repaired": {"of_uuid": "u9"}})),
            "the copy is due for deletion too": (bad, replace(copy, expired=NOW)),
        }.items():
            catalogue.drop_backups([("web1", "n2")])
            for row in rows:
                catalogue.put_backup(row)
            assert set(catalogue.damaged_files()) == {("web1", "n1"), ("web1", "n3")}
            counts[situation] = sorted(catalogue.unrepaired_files())
    assert counts.pop("repaired") == [("web1", "n3")]
    assert set(map(tuple, counts.values())) == {(("web1", "n1"), ("web1", "n3"))}
