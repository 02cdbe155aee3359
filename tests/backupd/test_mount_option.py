"""The mount option of an expiry when the kernel refuses: the old one is restored, or reported with a remedy."""

import errno
import json
from pathlib import Path

import pytest

from backupd.expire import mount_option as module
from backupd.expire.mount_option import MountOption, record_path
from btrkeep.pool.marker import Pool
from btrkeep.procfs import boot_id


class Kernel:
    """Holds the option of a mount. `refuses`: the error of the next switches; `deaf`: it accepts them and changes nothing."""

    def __init__(self, option: str = "ssd") -> None:
        self.option = option
        self.refuses: int | None = None
        self.deaf = False
        self.calls: list[str] = []

    def set(self, path: Path, option: str) -> None:
        self.calls.append(option)
        if self.refuses:
            raise OSError(self.refuses, "refused")
        if not self.deaf:
            self.option = option


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(module, "mount_of", lambda _path: None)
    monkeypatch.setattr(module, "allocator", lambda _mount: kernel.option)
    monkeypatch.setattr(module, "set_allocator", kernel.set)
    return kernel


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    pool = Pool(tmp_path, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    record_path(pool).parent.mkdir()
    return pool


class Option(MountOption):
    """A mount option that remembers what it reports."""

    def __init__(self, pool: Pool, wanted: str = "nossd") -> None:
        self.notices: list[str] = []
        self.problems: list[str] = []
        super().__init__(pool, wanted, self.notices.append, self.problems.append)


def record(pool: Pool, was: str = "ssd", ours: str = "nossd", boot: str | None = None) -> None:
    record_path(pool).write_text(json.dumps({"was": was, "set": ours, "boot": boot or boot_id()}))


def test_what_was_there_is_written_down_before_it_is_switched_and_is_back_afterwards(
    kernel: Kernel, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between must not leave the pool with another option than the configured one."""
    option = Option(pool)
    recorded: list[str] = []
    switch = kernel.set

    def noting(path: Path, wanted: str) -> None:
        recorded.append(json.loads(record_path(pool).read_text())["was"])
        switch(path, wanted)

    monkeypatch.setattr(module, "set_allocator", noting)
    option.switch()
    assert (option.switched, kernel.option, recorded) == (True, "nossd", ["ssd"])
    assert option.put_back() == "mount_option: ssd is restored"
    assert (option.switched, kernel.option, option.problems) == (False, "ssd", [])
    assert not record_path(pool).exists()


@pytest.mark.parametrize("wanted", ["none", "ssd"])
def test_an_option_that_is_not_to_change_is_never_set(kernel: Kernel, pool: Pool, wanted: str) -> None:
    option = Option(pool, wanted)
    option.switch()
    assert (option.put_back(), kernel.calls, option.switched) == ("", [], False)
    assert not record_path(pool).exists()


def test_a_kernel_that_refuses_costs_no_expiry_and_leaves_no_record(kernel: Kernel, pool: Pool) -> None:
    kernel.refuses = errno.EPERM
    option = Option(pool)
    option.switch()
    assert option.problems == [f"mount_option: {pool.path} could not be switched to nossd: refused"]
    assert (option.switched, kernel.option) == (False, "ssd")
    assert not record_path(pool).exists()


def test_a_switch_that_changed_nothing_is_reported(kernel: Kernel, pool: Pool) -> None:
    """Otherwise an administrator measures an option that was never in force."""
    kernel.deaf = True
    option = Option(pool)
    option.switch()
    assert len(option.problems) == 1
    assert "nossd" in option.problems[0]
    assert "ssd" in option.problems[0]


def test_an_option_that_cannot_be_put_back_is_put_back_by_the_next_expiry(kernel: Kernel, pool: Pool) -> None:
    option = Option(pool)
    option.switch()
    kernel.refuses = errno.EROFS
    assert option.put_back() == ""
    assert "the next `backupd expire` tries again" in option.problems[0]
    assert record_path(pool).exists()
    kernel.refuses = None
    assert Option(pool).put_back() == "mount_option: ssd is restored"
    assert kernel.option == "ssd"
    assert not record_path(pool).exists()


def test_an_option_that_does_not_come_back_is_reported(kernel: Kernel, pool: Pool) -> None:
    option = Option(pool)
    option.switch()
    kernel.deaf = True
    option.put_back()
    assert len(option.problems) == 1
    assert kernel.option == "nossd"


def test_on_a_pool_that_became_read_only_the_option_is_back_and_the_record_is_named(
    kernel: Kernel, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = Option(pool)
    option.switch()

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", unlink)
    assert option.put_back() == "mount_option: ssd is restored"
    assert kernel.option == "ssd"
    assert option.problems == [f"mount_option: {record_path(pool)}: Read-only file system; the next `backupd expire` removes it"]


def test_the_choice_of_an_administrator_meanwhile_stays(kernel: Kernel, pool: Pool) -> None:
    record(pool)
    kernel.option = "ssd_spread"
    option = Option(pool)
    assert option.put_back() == ""
    assert (kernel.calls, kernel.option) == ([], "ssd_spread")
    assert len(option.notices) == 1
    assert not record_path(pool).exists()


def test_after_a_reboot_the_option_is_that_of_the_new_mount(kernel: Kernel, pool: Pool) -> None:
    record(pool, boot="11111111-0000-0000-0000-000000000000")
    kernel.option = "nossd"
    assert "ssd" in Option(pool).put_back()
    assert (kernel.calls, kernel.option) == ([], "nossd")
    assert not record_path(pool).exists()


def test_by_a_record_that_cannot_be_read_nothing_is_set(kernel: Kernel, pool: Pool) -> None:
    record_path(pool).write_text("{")
    option = Option(pool)
    assert option.put_back() == ""
    assert (kernel.calls, len(option.problems)) == ([], 1)
    assert str(record_path(pool)) in option.problems[0]
    assert record_path(pool).exists()
