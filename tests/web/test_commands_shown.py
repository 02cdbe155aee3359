"""The commands on pages are for the displayed pool, with any name and any place of its configuration."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from werkzeug.routing import Rule

from bench.make_site import ZONE, make
from bench.site_history import FILESYSTEM, POOL
from btrkeep.catalogue import Catalogue, StoredAlarm
from btrkeep.catalogue.model_alarm import FAILURE
from btrkeep.config import publish
from btrkeep.config.config_model import Config, HostConfig
from btrkeep.config.settings import PoolSettings
from btrkeep.decisions.alarm_advice import ANY, TABLE
from tests.beds import TOP
from tests.beds.printed import is_command
from tests.web.made import NOW, client

HOST = "web0000.example.org"
VALUES = {"host": HOST, "name": "x", "date": "2026-11-20"}
SHOWN = re.compile(r"<(code|kbd|pre)\b[^>]*>(.*?)</\1>", re.DOTALL)
PROGRAM = re.compile(r"(?:sudo )?(?:backupd|btrfs-balancer|btrfs-heatmap) ")


def commands(page: str) -> Iterator[str]:
    """Yields each btrkeep command that a page shows as a command."""
    for _, html in SHOWN.findall(page):
        for line in unescape(re.sub(r"<[^>]+>", "", html)).splitlines():
            if PROGRAM.match(line.strip()) and is_command(line.strip().removeprefix("sudo ")):
                yield line.strip()


def alarms() -> Iterator[StoredAlarm]:
    """Yields an alarm for each advice."""
    for name, kind in TABLE:
        subject = f"{kind} {HOST}" if kind != ANY else "pool"
        yield StoredAlarm(FAILURE if name == ANY else name, subject, "it failed", 0, NOW, 1, NOW, None, None)


def address(rule: Rule) -> str:
    values = {name: VALUES.get(name, "1") for name in rule.arguments}
    return re.sub(r"<(?:[^:>]+:)?(\w+)>", lambda match: values[match[1]], rule.rule)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "option"),
    [("/etc/btrkeep/vault.toml", "--pool vault"), ("/srv/elsewhere/vault.toml", "--config /srv/elsewhere/vault.toml")],
)
@pytest.mark.parametrize("is_empty", [False, True])
def test_each_command_on_each_page_names_the_pool(tmp_path: Path, file: str, option: str, is_empty: bool) -> None:
    state, hosts = tmp_path / "state", {HOST: HostConfig(HOST, address=f"root@{HOST}", paths=("/etc",))}
    if not is_empty:
        make(state, 3, 5, copies=True, pictures=1)
    with Catalogue.open(state) as catalogue:
        config = Config(Path(file), "vault", PoolSettings(POOL, state, ZONE), hosts={} if is_empty else hosts)
        publish(config, catalogue, filesystem=None if is_empty else FILESYSTEM)
        catalogue.put_alarms(alarms())
    visitor, shown, wrong = client(state, pool="vault"), set[str](), list[str]()
    for rule in visitor.application.url_map.iter_rules():
        if "GET" not in (rule.methods or ()) or rule.rule.startswith(("/api", "/static", "/metrics", "/logout")):
            continue
        answer = visitor.get(address(rule))
        for command in commands(answer.text) if answer.mimetype == "text/html" else ():
            shown.add(command)
            if f" {option} " not in f"{command} ":
                wrong.append(f"{rule.rule}: {command}")
    assert not wrong, "\n".join(wrong)
    assert len(shown) >= (4 if is_empty else 8), shown


def test_no_template_has_a_command_for_the_pool_main() -> None:
    """This covers states that the test above does not produce."""
    for path in (TOP / "web" / "templates").rglob("*.html"):
        text = re.sub(r"\{#.*?#\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for match in re.finditer(r"(?:backupd|btrfs-balancer|btrfs-heatmap) [a-z-]+(?! ?\{\{ pool_option)[^<]*", text):
            command = match[0]
            assert "pool_option()" in command or not is_command(command), f"{path.name}: {command}"
