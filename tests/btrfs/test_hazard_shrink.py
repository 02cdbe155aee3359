"""A source path that lost too many files or bytes is suspect: never a base, never counted, until it is accepted."""

import shutil
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights


def fill(tree: Path, count: int = 10, size: int = 1000) -> Path:
    tree.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (tree / f"file{number}").write_bytes(bytes([65 + number % 26]) * size)
    return tree


def empty(tree: Path) -> None:
    for path in tree.iterdir():
        path.unlink()


def see_suspect(nights: Nights, host: str, good: str) -> None:
    """Requires that the newest backup is suspect everywhere, and the good one is unchanged."""
    assert nights.listed(host)[0]["state"] == nights.record(host)["state"] == "suspect"
    assert nights.status(host)["state"] == "suspect"
    assert next(each for each in nights.listed(host) if each["name"] == good)["state"] == "complete"


def test_an_emptied_source_path_is_suspect_and_never_a_base_until_it_is_accepted(nights: Nights) -> None:
    tree = fill(nights.source / "srv")
    nights.host("web", tree)
    nights.run("web")
    good = nights.names("web")[0]
    empty(tree)
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "suspect"
    assert "none of 10" in result["error"]
    see_suspect(nights, "web", good)
    assert nights.data("web", tree, good).joinpath("file3").read_bytes() == b"D" * 1000
    suspect = nights.names("web")[1]

    nights.run("web", status=1)  # it is still empty: measured against the good one again, not against the suspect one
    assert nights.record("web")["state"] == "suspect"
    assert nights.record("web")["base"] == nights.grew_from("web") == good

    nights.backupd("accept", "web", suspect, "--why", "the service has moved")
    assert [each["state"] for each in nights.listed("web") if each["name"] == suspect] == ["complete"]
    assert nights.status("web")["last_complete"] is not None
    nights.run("web")
    assert nights.record("web")["base"] == nights.grew_from("web") == suspect
    assert nights.listed("web")[0]["state"] == "complete"
    assert nights.status("web")["state"] == "ok"


@pytest.mark.parametrize("address", ["web", None], ids=["over the network", "on this machine"])
def test_a_source_path_that_is_not_mounted_is_suspect_also_when_it_is_one_of_several(nights: Nights, address: str | None) -> None:
    mounted, other = nights.source / "mounted", fill(nights.source / "other")
    mounted.mkdir()
    work("mount", "-t", "tmpfs", "none", mounted)
    try:
        fill(mounted)
        nights.host("web", mounted, other, address=address)
        nights.run("web")
    finally:
        work("umount", mounted)
    good = nights.names("web")[0]
    (other / "new").write_text("new")
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "suspect"
    assert str(mounted) in result["error"]
    assert str(other) not in result["error"]
    see_suspect(nights, "web", good)
    assert nights.differences("web", mounted) == []  # the backup has the listed files, not a mixture
    assert nights.differences("web", other) == []
    assert len(list(nights.data("web", mounted, good).iterdir())) == 10


def total(nights: Nights, key: str) -> int:
    (path,) = nights.record("web")["paths"]
    return int(path["numbers"][key])


@pytest.mark.parametrize(("left", "outcome"), [(5, "complete"), (4, "suspect")], ids=["at the limit", "beyond it"])
def test_shrinking_by_bytes_alone_is_seen_beyond_the_limit_and_not_at_it(nights: Nights, left: int, outcome: str) -> None:
    tree = fill(nights.source / "srv", 10)
    nights.host("web", tree)
    nights.run("web")
    for number in range(left, 10):
        (tree / f"file{number}").write_bytes(b"")
    result = nights.run("web", status=int(outcome != "complete"))["web"]
    assert result["outcome"] == outcome
    assert int(work("find", nights.data("web", tree), "-type", "f", "-printf", "x").stdout.count("x")) == 10
    if outcome == "suspect":
        assert "bytes went from" in result["error"]
        assert "60%" in result["error"]


@pytest.mark.parametrize("lost", [False, True], ids=["a hole alone", "content too"])
def test_the_bytes_that_shrank_are_those_on_the_disk_and_not_those_of_a_hole(nights: Nights, lost: bool) -> None:
    """/var/log/lastlog with large user ids, when it is rotated."""
    tree = fill(nights.source / "log", 10, size=100_000)
    with (tree / "lastlog").open("wb") as file:
        file.truncate(200 << 20)
        file.seek(100 << 20)
        file.write(b"user")
    nights.host("web", tree)
    nights.night("web")
    (tree / "lastlog").write_bytes(b"user" * 75_000)
    for number in range(10 if lost else 0):
        (tree / f"file{number}").write_bytes(b"")
    result = nights.run("web", status=int(lost))["web"]
    assert result["outcome"] == ("suspect" if lost else "complete")
    assert lost == ("bytes went from 981 KiB to 293 KiB" in (result["error"] or "")), result["error"]


@pytest.mark.parametrize("beyond", [False, True], ids=["at the limit", "beyond it"])
def test_shrinking_by_files_alone_is_seen_beyond_the_limit_and_not_at_it(nights: Nights, beyond: bool) -> None:
    tree = fill(nights.source / "srv", 380, size=0)
    (tree / "heavy").write_bytes(b"x" * 1_000_000)
    nights.host("web", tree, shrink_limit="29%")  # as floats, 0.29 * 400 is less than 116
    nights.night("web")
    for number in range(total(nights, "files"), 400):
        (tree / f"more{number}").touch()
    nights.night("web")
    assert total(nights, "files") == 400
    for number in range(116 + beyond):
        (tree / f"file{number}").unlink()
    result = nights.run("web", status=int(beyond))["web"]
    assert result["outcome"] == ("suspect" if beyond else "complete")
    assert beyond == ("files went from" in (result["error"] or ""))


def test_each_host_has_its_own_limit(nights: Nights) -> None:
    trees = {name: fill(nights.source / name) for name in ("strict", "usual", "careless")}
    nights.host("strict", trees["strict"], shrink_limit="1%")
    nights.host("usual", trees["usual"])
    nights.host("careless", trees["careless"], shrink_limit="100%")
    nights.run()
    for tree in trees.values():
        (tree / "file1").unlink()
    empty(trees["careless"])
    results = nights.run(status=1)
    assert {name: result["outcome"] for name, result in results.items()} == {
        "strict": "suspect",
        "usual": "complete",
        "careless": "complete",
    }


def test_what_one_path_gained_does_not_hide_what_another_lost(nights: Nights) -> None:
    path, two = fill(nights.source / "one"), fill(nights.source / "two")
    nights.host("web", path, two)
    nights.run("web")
    empty(path)
    fill(two, 100)
    assert nights.run("web", status=1)["web"]["outcome"] == "suspect"


def test_after_a_suspect_night_the_next_good_one_is_complete_and_grows_from_the_last_good_one(nights: Nights) -> None:
    tree = fill(nights.source / "srv")
    nights.host("web", tree)
    nights.run("web")
    good = nights.names("web")[0]
    aside = tree.rename(nights.source / "aside")
    tree.mkdir()
    nights.run("web", status=1)
    shutil.rmtree(tree)
    aside.rename(tree)
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    assert result["new_bytes"] == 0
    assert nights.record("web")["base"] == nights.grew_from("web") == good
    assert nights.status("web")["state"] == "ok"
    assert nights.differences("web", tree) == []


def test_a_first_backup_of_an_empty_path_is_complete_and_says_that_it_holds_no_file(nights: Nights) -> None:
    tree = nights.source / "srv"
    tree.mkdir()
    nights.host("web", tree)
    result = nights.run("web")["web"]
    assert result["outcome"] == "complete"
    assert f"{tree}: contains no file" in result["warnings"]
    assert "contains no file" in nights.backupd("status").stdout
    assert "contains no file" in nights.backupd("list").stdout
