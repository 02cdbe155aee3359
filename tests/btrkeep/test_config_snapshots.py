"""The key `snapshots`: which hosts may have it, and which values a host takes from its group."""

from pathlib import Path

import pytest

from backupd.source.btrkeep_source import RULES
from btrkeep.choices import HISTORY_PERIODS
from btrkeep.config import Config, load
from btrkeep.config.config_model import PERIOD_NAMES
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


def test_the_rules_of_a_hosts_own_history_come_from_the_closest_section_and_are_what_the_host_reads(tmp_path: Path) -> None:
    everybody, send = '[backup]\nkeep_on_host = "yearly = 2, daily=7"\n', 'engine = "send"\n'
    assert loaded(tmp_path, f"{everybody}{WEB1}{send}").hosts["web1"].keep_on_host == "daily=7,yearly=2"
    config = loaded(tmp_path, f'{everybody}[group.a]\nkeep_on_host = "none"\n{WEB1}{send}group = "a"\n')
    assert config.hosts["web1"].keep_on_host is None
    assert HISTORY_PERIODS == PERIOD_NAMES
    every = ",".join(f"{name}=100000" for name in HISTORY_PERIODS)
    assert loaded(tmp_path, f'{WEB1}{send}keep_on_host = "{every}"\n').hosts["web1"].keep_on_host == every
    assert RULES.fullmatch(every)


@pytest.mark.parametrize("rules", ["7", "hourly=3", "daily=0", "daily=7,daily=8", "daily=x", "daily=100001", ""])
def test_rules_of_a_history_that_mean_nothing_are_refused(tmp_path: Path, rules: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, f'{WEB1}engine = "send"\nkeep_on_host = "{rules}"\n')
    assert f'host.web1.keep_on_host = "{rules}"' in caught.value.problems[0]


def test_a_history_on_a_host_without_streams_has_no_effect_and_is_reported(tmp_path: Path) -> None:
    config = loaded(tmp_path, f'{WEB1}keep_on_host = "daily=7"\n')
    assert any('host.web1.keep_on_host: has no effect: only engine = "send"' in notice for notice in config.notices)
    assert not any("no effect" in notice for notice in loaded(tmp_path, f'[backup]\nkeep_on_host = "daily=7"\n{WEB1}').notices)
