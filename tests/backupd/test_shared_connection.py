"""Whether the transfers of a host may share one connection of ours: not if the administrator's own options name another."""

import pytest

from backupd.rsync.shared_connection import can_share
from btrkeep.config import HostConfig, SshSettings

HOST = HostConfig("web1", address="web1", paths=("/a", "/b"))


@pytest.mark.parametrize(
    ("command", "is_shared"),
    [
        ("ssh", True),
        ("ssh -F none -p 22", True),
        ("ssh -o ControlPath=/run/mine", False),  # the first one counts, so ours would never be there
        ("ssh -oControlMaster=auto", False),
        ("ssh -S /run/mine", False),
        ("ssh -S/run/mine", False),
        ("ssh -M", False),
    ],
)
def test_options_of_the_administrator_for_a_master_leave_the_connection_to_him(command: str, is_shared: bool) -> None:
    assert can_share(HOST, SshSettings(command=command)) == is_shared
