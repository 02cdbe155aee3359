"""`share_with`: the hosts with which a host may share its data."""

from pathlib import Path

import pytest

from btrkeep.config import Config, load
from btrkeep.errors import ConfigError

HEAD = """
[pool]
path = "/srv/backup"
[retention]
daily = 7
[group.a]
paths = ["/etc"]
share_with = "web1"
[group.b]
paths = ["/etc"]
[host.web1]
group = "a"
address = "web1"
"""


def loaded(folder: Path, text: str) -> Config:
    (folder / "main.toml").write_text(HEAD + text)
    return load(folder=folder)


def test_all_hosts_of_a_group_share_with_one_of_them_and_that_one_with_no_host(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[host.web2]\ngroup = "a"\naddress = "web2"\n')
    assert (config.hosts["web1"].share_with, config.hosts["web2"].share_with) == (None, "web1")
    assert config.notices == ()


@pytest.mark.parametrize("group", ['group = "b"', ""], ids=["another group", "no group"])
def test_a_host_of_another_group_is_refused_unless_that_is_said(tmp_path: Path, group: str) -> None:
    text = f'[host.web2]\n{group}\npaths = ["/etc"]\naddress = "web2"\nshare_with = "web1"\n'
    with pytest.raises(ConfigError, match="share_across_groups"):
        loaded(tmp_path, text)
    assert loaded(tmp_path, text + "share_across_groups = true\n").hosts["web2"].share_with == "web1"


def test_two_hosts_without_a_group_are_not_of_the_same_one(tmp_path: Path) -> None:
    hosts = (
        '[host.web2]\npaths = ["/etc"]\naddress = "web2"\n',
        '[host.web3]\npaths = ["/etc"]\naddress = "web3"\nshare_with = "web2"\n',
    )
    with pytest.raises(ConfigError, match=r'host\.web3\.share_with = "web2"'):
        loaded(tmp_path, "".join(hosts))


def test_a_sibling_that_is_gone_costs_no_backup(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[host.web2]\ngroup = "a"\naddress = "web2"\nshare_with = "wbe1"\n')
    assert config.hosts["web2"].share_with is None
    assert any('did you mean "web1"?' in notice for notice in config.notices)
