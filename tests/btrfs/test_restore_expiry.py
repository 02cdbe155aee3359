"""A backup is not deleted by an expiry while it is being restored, and is read to its end when it is deleted manually."""

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.files.archive import write_archive
from backupd.files.tree import Tree
from backupd.repo.read_lock import lock_for_deletion, lock_for_reading
from btrkeep.errors import OperatorError
from tests.beds import work
from tests.beds.expiries import LATER, NOW, Expiries
from tests.beds.lineage import read_only, writable

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


@pytest.fixture
def pool(shared_btrfs: Path) -> Expiries:
    return Expiries(shared_btrfs)


def test_what_is_restored_from_is_deleted_by_the_expiry_after(
    pool: Expiries, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """The restore hangs in the middle: its tar has no reader."""
    pool.history("web")
    pool.expire(NOW)
    doomed, other = pool.marked("web")
    content = os.urandom(4_000_000)
    writable(pool.backup("web", doomed))
    (pool.backup("web", doomed) / "data" / "large").write_bytes(content)
    read_only(pool.backup("web", doomed))

    process = backupd_running("--config", pool.config, "restore", f"web@{doomed}", "/", "--tar", "-")
    assert process.stdout
    begun = os.read(process.stdout.fileno(), 1000)
    done = pool.expire(LATER)
    assert (done["deleted"], done["rest"], done["problems"]) == (1, 1, [])
    assert doomed in pool.left("web")
    assert other not in pool.left("web")
    assert pool.consistent() == []

    with open(process.stdout.fileno(), "rb", closefd=False) as rest, tarfile.open(fileobj=io.BytesIO(begun + rest.read())) as tar:
        large = tar.extractfile("large")
        assert large
        assert large.read() == content
    assert process.wait() == 0
    assert pool.expire(LATER)["deleted"] == 1
    assert doomed not in pool.left("web")


def test_two_programs_may_read_a_backup_and_none_deletes_it_then(pool: Expiries) -> None:
    (name,) = pool.history("web", 1)
    backup = pool.backup("web", name)
    with lock_for_reading(backup), lock_for_reading(backup), lock_for_deletion(backup) as free:
        assert not free
    with lock_for_deletion(backup) as free:
        assert free
        with pytest.raises(OperatorError, match="is being deleted"), lock_for_reading(backup):
            pass


def test_a_backup_that_is_deleted_in_the_middle_is_read_to_its_end(pool: Expiries) -> None:
    """Deleted manually: btrfs keeps the files for as long as they are open, but their device gets another number."""
    (name,) = pool.history("web", 1)
    backup = pool.backup("web", name)
    writable(backup)
    for number in range(3):
        folder = backup / "data" / f"folder{number}" / "below"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(os.urandom(10_000))
    read_only(backup)
    wanted = sorted(str(path.relative_to(backup / "data")) for path in (backup / "data").rglob("*"))
    out = DeletesFirst(backup)
    with Tree(backup) as tree:
        write_archive(tree, [b"/"], "tar", out)
    assert not backup.exists()
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        assert sorted(member.name for member in tar if member.name not in (".", "")) == wanted


class DeletesFirst(io.BytesIO):
    """Deletes a subvolume before the first byte."""

    def __init__(self, backup: Path) -> None:
        super().__init__()
        self.backup = backup

    def write(self, data: Any, /) -> int:
        if self.backup.exists():
            work("btrfs", "subvolume", "delete", "-c", self.backup)
            work("sh", "-c", "sync; echo 2 >/proc/sys/vm/drop_caches")
        return super().write(data)
