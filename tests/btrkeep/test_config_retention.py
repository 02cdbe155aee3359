"""Retention is inherited key by key, and reported if missing; the pace and the mount option of expiry."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from btrkeep.config import Config, Retention, load
from btrkeep.config.values import parse_pace
from btrkeep.errors import ConfigError

POOL = '[pool]\npath = "/srv/backup"\n'
DAY = 86400.0

Load = Callable[..., Config]


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    """Writes main.toml and drop-ins (name=text) and loads them."""

    def write(text: str, **drop_ins: str) -> Config:
        (tmp_path / "main.toml").write_text(text)
        (tmp_path / "main.d").mkdir(exist_ok=True)
        for name, content in drop_ins.items():
            (tmp_path / "main.d" / f"{name}.toml").write_text(content)
        return load(folder=tmp_path)

    return write


def host(name: str, *lines: str) -> str:
    return "\n".join([f"[host.{name}]", f'address = "{name}"', 'paths = ["/etc"]', *lines, ""])


def test_a_host_takes_each_key_from_itself_its_group_or_the_pool(loaded: Load) -> None:
    hosts = [
        host("own", 'group = "g"', "[host.own.retention]", "monthly = 300", "yearly = 0"),
        host("grouped", 'group = "g"'),
        host("plain", 'group = "plain"'),
        host("alone"),
        host("zero", "retention = { daily = 0, weekly = 0, monthly = 1 }"),
    ]
    config = loaded(
        f'{POOL}[retention]\ndaily = 1\nweekly = 2\nmonthly = 3\ngrace = "2d"\n'
        "[group.g.retention]\nweekly = 20\nmonthly = 30\nyearly = 40\nmin_keep = 7\n"
        f"[group.plain]\n{''.join(hosts)}"
    )
    assert {name: host_config.retention for name, host_config in config.hosts.items()} == {
        "own": Retention(daily=1, weekly=20, monthly=300, yearly=0, min_keep=7, grace=2 * DAY),
        "grouped": Retention(daily=1, weekly=20, monthly=30, yearly=40, min_keep=7, grace=2 * DAY),
        "plain": config.retention,
        "alone": config.retention,
        "zero": Retention(daily=0, weekly=0, monthly=1, yearly=0, min_keep=3, grace=2 * DAY),
    }
    assert config.retention == Retention(daily=1, weekly=2, monthly=3, yearly=0, min_keep=3, grace=2 * DAY)
    assert (config.groups["g"].retention, config.groups["plain"].retention) == (
        config.hosts["grouped"].retention, config.retention)  # fmt: skip
    assert dict(config.groups["g"].shared) == {}


@pytest.mark.parametrize("places", [places for places in product([False, True], repeat=3) if any(places)])
@pytest.mark.parametrize(("key", "values"), [("daily", (1, 2, 3)), ("grace", ('"1h"', '"2h"', '"3h"')), ("min_keep", (4, 5, 6))])
def test_the_nearest_of_three_places_wins(loaded: Load, places: tuple[bool, ...], key: str, values: tuple[object, ...]) -> None:
    heads = ("[retention]", "[group.g.retention]", "[host.a.retention]")
    lines = [f"{head}\n{key} = {value}\n" for head, value, is_true in zip(heads, values, places, strict=True) if is_true]
    config = loaded(POOL + "[group.g]\n" + host("a", 'group = "g"') + "".join(lines))
    nearest = [value for value, is_true in zip(values, places, strict=True) if is_true][-1]
    expected = {'"1h"': 3600.0, '"2h"': 7200.0, '"3h"': 10800.0}.get(str(nearest), nearest)
    assert getattr(config.hosts["a"].retention, key) == expected


@pytest.mark.parametrize("spelling", ["retention = {{ daily = 7 }}", "retention.daily = 7", "[{0}.retention]\ndaily = 7"])
@pytest.mark.parametrize("section", ["host.a", "group.g"])
def test_every_spelling_of_a_section_within_another_means_the_same(loaded: Load, section: str, spelling: str) -> None:
    group = host("a", 'group = "g"') + "[group.g]\n" if section == "group.g" else host("a")
    config = loaded(POOL + group + spelling.format(section))
    assert config.hosts["a"].retention == Retention(daily=7)


def test_a_later_file_overrides_single_keys_of_the_pools_retention_and_expiry(loaded: Load) -> None:
    config = loaded(
        f'{POOL}[retention]\ndaily = 1\nweekly = 2\n[expiry]\npace = "50ms"\nmax_orphans = 7\n',
        a=f'[retention]\ndaily = 10\n[expiry]\npace = "off"\nmount_option = "ssd"\n{host("web1")}',
        b="[host.web2]\npaths = ['/etc']\n[host.web2.retention]\nweekly = 9\n",
    )
    assert config.hosts["web1"].retention == config.retention == Retention(daily=10, weekly=2)
    assert config.hosts["web2"].retention == Retention(daily=10, weekly=9)
    assert (config.expiry.pace, config.expiry.max_orphans, config.expiry.mount_option) == (None, 7, "ssd")


def test_a_host_or_a_group_may_be_called_retention(loaded: Load) -> None:
    config = loaded(f"{POOL}[group.retention.retention]\ndaily = 5\n" + host("retention", 'group = "retention"'))
    assert config.hosts["retention"].retention == Retention(daily=5)


def test_every_problem_of_every_retention_comes_at_once(loaded: Load, tmp_path: Path) -> None:
    main = f"{POOL}[retention]\ndaily = -1\nweekli = 3\n[group.g.retention]\nmonthly = 'x'\nmin_keep = 0\n"
    with pytest.raises(ConfigError) as caught:
        loaded(main + host("a", "retention = 3"), b=host("b", "[host.b.retention]", 'grace = "soon"', "yearly = 1"))
    assert [line.replace(f"{tmp_path}/", "").partition(": ")[::2] for line in caught.value.problems] == [
        ("main.toml", "retention.daily = -1: expected a whole number from 0, such as 14, without quotes"),
        ("main.toml", 'retention.weekli = 3: unknown key; did you mean "weekly"?'),
        ("main.toml", 'group.g.retention.monthly = "x": expected a whole number from 0, such as 14, without quotes'),
        ("main.toml", "group.g.retention.min_keep = 0: expected a whole number from 1, such as 4, without quotes"),
        ("main.toml", "host.a.retention = 3: expected a section, [host.a.retention]"),
        ("main.d/b.toml", 'host.b.retention.grace = "soon": expected a duration such as "30m", "6h", "1d" or "2w"'),
    ]


@pytest.mark.parametrize(
    ("hosts", "named"),
    [
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d"], "a, b, c and 1 other host"),
        ([f"web{number}" for number in range(3000)], "web0, web1, web2 and 2,997 other hosts"),
    ],
)
def test_hosts_that_keep_everything_are_said_once_for_all_of_them(
    loaded: Load, tmp_path: Path, hosts: list[str], named: str
) -> None:
    silent = host("kept", "retention.yearly = 1")
    config = loaded(POOL + silent + "".join(map(host, hosts)))
    assert config.notices == (f"{tmp_path}/main.toml: no retention: every backup of {named} is kept",)


@pytest.mark.parametrize("rules", ["", "[retention]\nmin_keep = 9\ngrace = '3d'\n", "[retention]\ndaily = 0\nweekly = 0\n"])
def test_a_policy_without_a_rule_is_none(loaded: Load, rules: str) -> None:
    config = loaded(POOL + rules + host("a"))
    assert config.hosts["a"].retention.missing
    assert len(config.notices) == 1
    assert loaded(POOL + rules).notices == ()  # no host, nothing is kept


@pytest.mark.parametrize("rule", ["daily", "weekly", "monthly", "yearly"])
def test_one_rule_is_a_policy(loaded: Load, rule: str) -> None:
    config = loaded(f"{POOL}[retention]\n{rule} = 1\n{host('a')}")
    assert (config.hosts["a"].retention.missing, config.notices) == (False, ())


@pytest.mark.parametrize(
    ("text", "latency", "pressure"),
    [
        ("50ms", 0.05, None),
        ("0.2s", 0.2, None),
        ("1 s", 1.0, None),
        ("60s", 60.0, None),
        ("60000ms", 60.0, None),
        ("10%", None, 0.1),
        ("2.5%", None, 0.025),
        ("100%", None, 1.0),
        (" 50 ms ", 0.05, None),
    ],
)
def test_a_pace_is_a_latency_or_a_share_of_pressure(loaded: Load, text: str, latency: float | None, pressure: float | None) -> None:
    pace = loaded(f'{POOL}[expiry]\npace = "{text}"\n').expiry.pace
    assert pace is not None
    assert pace.latency == pytest.approx(latency)
    assert pace.pressure == pytest.approx(pressure)
    assert (str(pace), pace.text) == (text.strip(), text.strip())


def test_pace_off_lifts_a_pace(loaded: Load) -> None:
    assert loaded(f'{POOL}[expiry]\npace = " off "\n').expiry.pace is None
    assert parse_pace("off") is None


NO_PACES = ["0ms", "0s", "0%", "101%", "60.1s", "61000ms", "50", "ms", "-1ms", "1h", "1m", "50MS", "1e3ms", "10 %%", "", "none",
            "on", "\N{ARABIC-INDIC DIGIT FIVE}ms", f"{'9' * 400}ms", f"{'9' * 400}%", "nan%"]  # fmt: skip


@pytest.mark.parametrize("value", NO_PACES)
def test_what_is_no_pace_is_refused_with_what_was_expected(loaded: Load, value: str) -> None:
    expected = 'expected a latency up to "60s" such as "50ms", a share of I/O pressure such as "10%", or "off"'
    with pytest.raises(ConfigError, match=rf'expiry\.pace = ".*: {re.escape(expected)}'):
        loaded(f'{POOL}[expiry]\npace = "{value}"\n')
    for other in ("50", "true", "[]", "0.1", '["50ms"]'):
        with pytest.raises(ConfigError, match=re.escape(f"expiry.pace = {other}: {expected}")):
            loaded(f"{POOL}[expiry]\npace = {other}\n")


@pytest.mark.parametrize("option", ["ssd", "nossd", "ssd_spread", "none"])
def test_the_mount_options_are_btrfs_own_or_none(loaded: Load, option: str) -> None:
    assert loaded(f'{POOL}[expiry]\nmount_option = "{option}"\n').expiry.mount_option == option


@pytest.mark.parametrize(("number", "kept"), [(0, 0), (100_000, 100_000)])
def test_the_smallest_and_the_largest_number_of_periods_are_taken(loaded: Load, number: int, kept: int) -> None:
    assert loaded(f"{POOL}[retention]\nyearly = {number}\n").retention.yearly == kept
