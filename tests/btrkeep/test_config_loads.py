"""The key `load` of [drill]: dumps by name or path, each with a command."""

from pathlib import Path

import pytest

from btrkeep.config import Config, load
from btrkeep.errors import ConfigError


def loaded(folder: Path, value: str) -> Config:
    (folder / "main.toml").write_text(f'[pool]\npath = "/srv/backup"\n[drill]\nload = {value}\n')
    return load(folder=folder)


def test_each_dump_has_a_command_with_all_that_follows(tmp_path: Path) -> None:
    value = """['postgresql /usr/local/sbin/load-postgresql', '/srv/dumps/a.sql  test -s "$DUMP" && echo "it is there"']"""
    assert loaded(tmp_path, value).drill.load == {
        "postgresql": "/usr/local/sbin/load-postgresql",
        "/srv/dumps/a.sql": 'test -s "$DUMP" && echo "it is there"',
    }


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('"shop true"', "expected a list of dumps"),
        ('["shop"]', "expected a command on one line after shop"),
        ('["shop  "]', "expected a command on one line after shop"),
        ('["shop a\\nb"]', "expected a command on one line after shop"),
        ('[".. true"]', "expected the name of a dump, or a path"),
        ('["/srv/ true"]', "expected the name of a dump, or a path"),
        ('["shop true", "shop false"]', "there is another command for shop"),
    ],
)
def test_an_entry_without_a_dump_or_a_command_is_refused(tmp_path: Path, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, value)
    assert problem in caught.value.problems[0]
