"""The program reads the settings that the page about btrkeep-source tells a host's administrator to write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.source import btrkeep_source as program
from tests.beds import work
from tests.docs.pages import Page

Read = Callable[[str], Page]


def read(text: str, tmp_path: Path) -> program.SourceConfig:
    path = tmp_path / "btrkeep-source.conf"
    path.write_text(text)
    path.chmod(0o644)
    return program.read_config(str(path))


def test_the_configuration_of_the_page_is_valid_and_its_values_are_the_defaults(page: Read, tmp_path: Path) -> None:
    config = read(page("sources").section("Configure it").block("ini"), tmp_path)
    defaults = program.SourceConfig()
    for name in ("methods", "most", "oldest", "history", "lvm_size", "may_be_live"):
        assert getattr(config, name) == getattr(defaults, name), name
    assert config.allow == ["/etc", "/srv", program.DUMPS]
    assert [(dump.name, dump.command, dump.output, dump.required) for dump in config.dumps] == [
        ("postgresql", "postgresql", f"{program.DUMPS}/postgresql", True),
        ("app", "sqlite /var/lib/app/app.db", f"{program.DUMPS}/app", False),
    ]
    restore = page("restricted-keys").section("btrkeep-source instead of rrsync").block("ini")
    assert read(restore, tmp_path).restore_allow == config.restore_allow == ["/srv/www"]


@pytest.mark.parametrize(
    ("name", "section"), [("sources", "Install it on a host"), ("restricted-keys", "btrkeep-source instead of rrsync")]
)
def test_the_key_lines_of_both_pages_are_one(page: Read, name: str, section: str) -> None:
    line = page(name).section(section).blocks("none")[0]
    assert line == 'restrict,command="/usr/local/bin/btrkeep-source --server office",from="192.0.2.10" ssh-ed25519 AAAA... backup'


def test_sudo_allows_just_what_the_line_runs(page: Read) -> None:
    section = page("sources").section("Without root")
    rules = section.block("none").splitlines()
    assert rules == [
        'Defaults!/usr/local/bin/btrkeep-source env_keep += "SSH_ORIGINAL_COMMAND"',
        "btrkeep ALL = (root) NOPASSWD: /usr/local/bin/btrkeep-source --server office",
        "btrkeep ALL = (root) NOPASSWD: /usr/local/bin/btrkeep-source restore",
    ]


def test_the_recipes_are_valid_sections(page: Read, tmp_path: Path) -> None:
    blocks = page("sources").section("Recipes").blocks("ini")
    dumps = [dump for block in blocks for dump in read(block, tmp_path).dumps]
    assert [dump.name for dump in dumps] == ["ldap-config", "ldap", "mongodb", "shop-database", "shop-volume", "guest-web"]
    for dump in dumps:
        assert Path(dump.output).parent == Path(program.DUMPS), "only this folder is made"
        work("sh", "-n", "-c", dump.command)
