"""Files excluded since the base are not a loss; only the base's count of them is subtracted, so another loss is noticed."""

from pathlib import Path

import pytest

from tests.beds.nights import Nights

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups rsync"

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


def fill(folder: Path, count: int, prefix: str = "f") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{prefix}{number}").write_bytes(bytes([number % 256]) * 100)
    return folder


def lose(folder: Path, left: int) -> None:
    for path in sorted(folder.iterdir())[left:]:
        path.unlink()


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_excluded_by_name_is_no_loss_and_a_loss_beside_it_is_one(nights: Nights, tree: Path, lost: bool) -> None:
    fill(tree / "kept", 50)
    fill(tree / "large", 200)
    nights.host("web", tree)
    nights.run("web")
    nights.host("web", tree, exclude=[f"{tree}/large"])
    if lost:
        lose(tree / "kept", 10)
    assert nights.run("web", status=int(lost))["web"]["outcome"] == ("suspect" if lost else "complete")


def test_what_the_base_has_from_before_and_did_not_count_is_not_subtracted(nights: Nights, public_folder: Path) -> None:
    """Because of an unreadable folder, the base still has deleted files, which rsync's numbers do not include."""
    kept, spool, locked = fill(public_folder / "kept", 100), fill(public_folder / "spool", 90), public_folder / "locked"
    locked.mkdir()
    nights.host("web", public_folder, rsync_path=NOBODY)
    nights.run("web")
    lose(spool, 0)
    fill(spool, 90, "new")
    locked.chmod(0)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert len(list(nights.data("web", spool).iterdir())) == 180
    locked.chmod(0o755)
    lose(kept, 40)
    nights.host("web", public_folder, rsync_path=NOBODY, exclude=[str(spool)])
    result = nights.run("web", status=1)["web"]
    assert (result["outcome"], "files went from" in (result["error"] or "")) == ("suspect", True)
