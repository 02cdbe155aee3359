"""Valid values of [balance], its defaults, and refused values."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep.config import BalanceSettings, Config, load
from btrkeep.errors import ConfigError

Load = Callable[[str], Config]


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    def read(balance: str) -> Config:
        (tmp_path / "main.toml").write_text(f'[pool]\npath = "/srv/backup"\n[balance]\n{balance}\n', encoding="utf-8")
        return load(folder=tmp_path)

    return read


def test_without_a_word_a_run_is_limited_and_makes_way(loaded: Load) -> None:
    assert loaded("").balance == BalanceSettings(20 << 30, 7200.0, "benefit", None, False, 0.4)


def test_every_key_is_taken(loaded: Load) -> None:
    balance_settings = loaded(
        'budget = "100GiB"\ntime = "6h"\npolicy = "usage"\nmin_unallocated = "3%"\nwhile_backups = true\nmax_pressure = "25%"'
    ).balance
    assert (
        balance_settings.budget,
        balance_settings.time,
        balance_settings.policy,
        balance_settings.while_backups,
        balance_settings.max_pressure,
    ) == (
        100 << 30,
        21600.0,
        "usage",
        True,
        0.25,
    )
    assert balance_settings.min_unallocated
    assert balance_settings.min_unallocated.bytes_of(1000) == 30


def test_none_is_no_limit(loaded: Load) -> None:
    balance_settings = loaded('budget = "none"\ntime = "none"\nmax_pressure = "none"').balance
    assert (balance_settings.budget, balance_settings.time, balance_settings.max_pressure) == (None, None, None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('budget = "0"', 'budget = "0": expected a size above zero'),
        ('budget = "much"', 'budget = "much": expected a size above zero such as "20GiB", or "none"'),
        ("budget = 20", "budget = 20: expected a size"),
        ('time = "0s"', 'time = "0s": expected a duration above zero'),
        ('time = "soon"', 'time = "soon": expected a duration such as "2h", or "none"'),
        ('policy = "scores"', 'policy = "scores": expected one of "benefit", "score", "usage"'),
        ('min_unallocated = "120%"', 'min_unallocated = "120%": expected a percentage up to'),
        ("while_backups = 1", "while_backups = 1: expected true or false"),
        ('max_pressure = "140%"', 'max_pressure = "140%": expected a percentage'),
        ("max_pressure = 40", "max_pressure = 40: expected a percentage"),
    ],
)
def test_what_is_wrong_is_said_with_what_was_expected(loaded: Load, line: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        loaded(line)
