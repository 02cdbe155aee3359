"""[notify]: the accepted values, and that no output ever shows its secrets."""

from datetime import time
from pathlib import Path

import pytest

from btrkeep.config import Config, load
from btrkeep.errors import ConfigError

SECRET = "hunter2"


def configured(tmp_path: Path, notify: str, head: str = "") -> Config:
    (tmp_path / "main.toml").write_text(
        f'{head}\n[pool]\npath = "/p"\n[notify]\n{notify}\n[host.a]\naddress = "a"\npaths = ["/etc"]\n'
    )
    return load(folder=tmp_path)


def problems(tmp_path: Path, notify: str, head: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, notify, head)
    return "\n".join([*caught.value.problems, caught.value.hint, repr(caught.value)])


def test_every_key_is_read(tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        'urls = ["mailto://u:p@example.org", "ntfy://t"]\non = ["suspect", "failure"]\nsilent = "2d"\nused_limit = "80%"\n'
        'digest = "7:30"\nping = "https://hc-ping.com/a-b/"\nping_goal = "95%"',
    ).notify
    assert [url.text for url in config.urls] == ["mailto://u:p@example.org", "ntfy://t"]
    assert config.on == ("failure", "suspect")
    assert (config.silent, config.used_limit, config.digest, config.ping_goal) == (172800.0, 0.8, time(7, 30), 0.95)
    assert config.ping is not None
    assert config.ping.text == "https://hc-ping.com/a-b"


def test_without_the_section_nothing_is_sent_and_none_disables_the_digest(tmp_path: Path) -> None:
    assert (configured(tmp_path, "").notify.urls, configured(tmp_path, "").notify.ping) == ((), None)
    assert configured(tmp_path, 'digest = "none"').notify.digest is None


@pytest.mark.parametrize(
    "notify",
    [
        f'urls = ["mailto://u:{SECRET}@h", "mailto: //{SECRET}"]',
        f'urls = "mailto://u:{SECRET}@h"',
        f'urls = [["mailto://{SECRET}"]]',
        f'url = ["mailto://u:{SECRET}@h"]',
        f'token = "{SECRET}"',
        f'ping = "https://hc-ping.com/{SECRET}?x=1"',
        f'ping = "{SECRET}"',
        f'on = ["https://hc-ping.com/{SECRET}"]',
        f'digest = "ntfy://{SECRET}"',
        f'"mailto://{SECRET}" = 1',
    ],
)
def test_a_problem_shows_nothing_of_a_url(tmp_path: Path, notify: str) -> None:
    actual_problems = problems(tmp_path, notify)
    assert SECRET not in actual_problems
    assert "notify" in actual_problems


@pytest.mark.parametrize(
    "head",
    [
        f'urls = ["mailto://u:{SECRET}@h"]',
        f'ping = "{SECRET}"',
        f'[backup]\nurls = ["mailto://u:{SECRET}@h", "{SECRET}"]',
        f'[backup]\nevery = "mailto://u:{SECRET}@h"',
        f'[host.b]\naddress = "b"\npaths = ["/e"]\nping = "{SECRET}"',
        f'[host]\nurls = ["mailto://u:{SECRET}@h"]',
        f'[[backup]]\nurls = ["mailto://u:{SECRET}@h"]',
    ],
)
def test_nor_where_it_stands_in_the_wrong_section(tmp_path: Path, head: str) -> None:
    assert SECRET not in problems(tmp_path, "", head)


def test_a_url_that_is_wrong_is_named_by_its_number(tmp_path: Path) -> None:
    assert "number 2 is not a URL" in problems(tmp_path, 'urls = ["json://a", "nonsense"]')


def test_neither_text_nor_repr_of_the_whole_configuration_has_a_secret(tmp_path: Path) -> None:
    config = configured(tmp_path, f'urls = ["mailto://u:{SECRET}@h"]\nping = "https://hc-ping.com/{SECRET}"')
    assert SECRET not in repr(config) + str(config) + f"{config.notify.urls[0]}"
    assert "mailto://..." in repr(config)


def test_unknown_events_are_said_with_those_that_there_are(tmp_path: Path) -> None:
    assert '"fire": is not one of "failure", "suspect"' in problems(tmp_path, 'on = ["failure", "fire"]')
