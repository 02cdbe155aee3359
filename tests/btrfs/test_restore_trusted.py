"""`backupd restore` writes nowhere that another user of the machine could redirect or read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backupd.files.destination import Destination
from btrkeep.errors import UsageError
from tests.beds import btrfs, work
from tests.beds.nights import Nights
from tests.beds.within import Within, restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]

USER = 65534
SECRET = "only a folder of mode 0700 protects this"


@pytest.fixture(scope="module")
def backed_up(_shared_mount: Path) -> Iterator[Nights]:
    top = _shared_mount / f"trusted-{os.getpid()}"
    work("btrfs", "-q", "subvolume", "create", top)
    nights = Within(top)
    (nights.source / "private").mkdir(mode=0o700)
    (nights.source / "private" / "key").write_text(SECRET)
    nights.host("web1", nights.source)
    nights.run("web1")
    yield nights
    btrfs.delete_subvolume(top, _shared_mount)


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A folder of another user."""
    folder = tmp_path / "bob"
    folder.mkdir()
    os.chown(folder, USER, USER)
    return folder


def refused(nights: Nights, to: Path, *words: str) -> str:
    error = restore(nights, "web1", nights.source / "private" / "key", "--to", to, *words, status=2)["stderr"]
    assert "--anyway" in error
    return error


def test_a_folder_that_another_user_made_first_is_refused(backed_up: Nights, tmp_path: Path, user: Path) -> None:
    for words in ((), ("--dry-run",)):
        assert f"{user} belongs to the user nobody" in refused(backed_up, user, *words)
    assert f"{user} belongs to" in refused(backed_up, user / "new")
    assert list(user.iterdir()) == []


def test_a_link_of_another_user_leads_nowhere(backed_up: Nights, tmp_path: Path, user: Path) -> None:
    victim = tmp_path / "cron.d"
    victim.mkdir()
    sticky = tmp_path / "tmp"
    sticky.mkdir()
    sticky.chmod(0o1777)
    link = sticky / "restored"
    link.symlink_to(victim)
    os.chown(link, USER, USER, follow_symlinks=False)
    assert f"{link} belongs to" in refused(backed_up, link)
    assert f"{link} belongs to" in refused(backed_up, link / "below")
    assert list(victim.iterdir()) == []


def test_a_folder_that_another_user_makes_after_it_was_looked_at_is_not_written_to(tmp_path: Path) -> None:
    """Check and write are minutes apart if there is a preview in between, and `ps` shows the command."""
    folder = tmp_path / "new"
    with Destination(folder, make=False):
        folder.mkdir()
        os.chown(folder, USER, USER)
    for make in (True, False):
        with pytest.raises(UsageError, match="belongs to the user nobody"), Destination(folder, make=make, trusted=True):
            pass
    folder.rmdir()
    victim = tmp_path / "cron.d"
    victim.mkdir()
    folder.symlink_to(victim)
    os.chown(folder, USER, USER, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to the user nobody"), Destination(folder, make=True, trusted=True):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_folder_that_others_may_write_to_is_refused(backed_up: Nights, tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    assert "can be written by users other than root" in refused(backed_up, folder)


def test_what_root_owns_is_fine_also_by_a_link_and_below_a_sticky_folder(backed_up: Nights, tmp_path: Path) -> None:
    sticky = tmp_path / "tmp"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "mine").mkdir()
    (sticky / "link").symlink_to("mine")
    for to in (sticky / "new", sticky / "link" / ".." / "mine" / "deep", sticky / "link"):
        assert restore(backed_up, "web1", backed_up.source / "private" / "key", "--to", to)["good"]
        assert (to / "key").read_text() == SECRET


def test_anyway_writes_there(backed_up: Nights, user: Path) -> None:
    assert restore(backed_up, "web1", backed_up.source / "private" / "key", "--to", user, "--anyway")["good"]
    assert (user / "key").read_text() == SECRET


def test_a_tar_is_not_written_through_a_folder_of_another_user(backed_up: Nights, tmp_path: Path, user: Path) -> None:
    path = backed_up.source / "private"
    link = user / "out"
    link.symlink_to(tmp_path)
    assert "--anyway" in restore(backed_up, "web1", path, "--tar", link / "a.tar", status=2)["stderr"]
    assert not (tmp_path / "a.tar").exists()
    sticky = tmp_path / "tmp"
    sticky.mkdir()
    sticky.chmod(0o1777)
    for file, words in ((sticky / "a.tar", ()), (user / "a.tar", ("--anyway",))):
        assert restore(backed_up, "web1", path, "--tar", file, *words)["entries"] == 2
        assert file.stat().st_mode & 0o777 == 0o600
