"""The key `snapshots`: which hosts may have it, and what each takes from its group."""

from pathlib import Path

import pytest

from btrkeep.config import Config, load
from btrkeep.errors import ConfigError

POOL = '[pool]\npath = "/srv/backup"\n'
WEB1 = '[host.web1]\naddress = "root@web1"\npaths = ["/etc"]\n'


def loaded(folder: Path, text: str) -> Config:
    (folder / "main.toml").write_text(f"{POOL}{text}")
    return load(folder=folder)


def test_it_is_off_unless_the_host_or_its_group_sets_it(tmp_path: Path) -> None:
    assert loaded(tmp_path, WEB1).hosts["web1"].snapshots == "off"
    assert loaded(tmp_path, f'{WEB1}snapshots = "required"\n').hosts["web1"].snapshots == "required"
    group = '[group.a]\nsnapshots = "auto"\n'
    assert loaded(tmp_path, f'{group}{WEB1}group = "a"\n').hosts["web1"].snapshots == "auto"
    assert loaded(tmp_path, f'{group}{WEB1}group = "a"\nsnapshots = "off"\n').hosts["web1"].snapshots == "off"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f'{WEB1}snapshots = "always"\n', 'snapshots = "always": expected one of "off", "auto", "required"'),
        ('[host.web1]\npaths = ["/etc"]\nsnapshots = "auto"\n', 'snapshots = "auto": the host has no address'),
        (f'{WEB1}snapshots = "required"\nrsync_path = "sudo rsync"\n', 'snapshots = "required": rsync_path is set, but'),
        (f'[group.a]\nrsync_path = "sudo rsync"\nsnapshots = "auto"\n{WEB1}group = "a"\n', 'snapshots = "auto": rsync_path is set'),
    ],
)
def test_a_host_that_cannot_be_asked_for_snapshots_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert f"host.web1.{problem}" in caught.value.problems[0]


def test_this_machine_in_a_group_with_snapshots_can_switch_them_off(tmp_path: Path) -> None:
    text = '[group.a]\nsnapshots = "auto"\n[host.here]\ngroup = "a"\npaths = ["/etc"]\nsnapshots = "off"\n'
    assert loaded(tmp_path, text).hosts["here"].snapshots == "off"
