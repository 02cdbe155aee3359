"""The part of the configuration that the dashboard may know: everything that pages need, and no secret."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from btrkeep.config import Config, HostConfig, Published, load, load_usable, publish, published, renew_state_link, state_of
from btrkeep.config.published import _SHOWN, FACT
from btrkeep.config.settings import ServeSettings, WebSettings
from btrkeep.errors import OperatorError

TEXT = """
[pool]
path = "/srv/backup"
zone = "Europe/Berlin"
[backup]
bandwidth = "16MB"
window = "22:00-06:00"
exclude = ["/proc/*"]
[retention]
daily = 14
[notify]
urls = ["mailto://user:secret-of-mail@mail.example.org"]
ping = "https://hc-ping.com/secret-of-ping"
silent = "2d"
[web]
listen = "[::1]:9000"
names = ["Backup.example.org"]
behind_proxy = ["127.0.0.1", "0:0:0:0:0:0:0:1"]
idle = "30m"
[ssh]
key = "/etc/btrkeep/secret-of-ssh"
[group.debian]
paths = ["/etc", "/srv"]
before = ["/usr/local/bin/dump", "secret-of-hook"]
[host.web1]
group = "debian"
address = "root@web1.example.org"
ssh_options = ["ProxyCommand=secret-of-option"]
rsync_path = "secret-of-rsync"
[host.web1.retention]
weekly = 4
[host.laptop]
address = "laptop"
paths = ["/home"]
optional = true
window = "none"
every = "12h"
"""


class Facts(dict[str, str | None]):
    """A catalogue's facts."""

    writes = 0

    def get_fact(self, name: str) -> str | None:
        return self.get(name)

    def set_fact(self, name: str, value: str | None) -> None:
        self[name] = value
        self.writes += 1


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "main.toml").write_text(TEXT)
    return load(folder=tmp_path)


def test_a_mistake_beside_a_secret_does_not_publish_it(tmp_path: Path) -> None:
    """The text of a mistake appears in messages, in the catalogue as an alarm, and in the published data as the host's fault."""
    file = tmp_path / "main.toml"
    file.write_text("""
[pool]
path = "/srv/backup"
[host.web1]
address = "root@web1"
paths = ["/etc"]
before = "PGPASSWORD=hunter2 pg_dump"
before_backup = ["dump", "--password=hunter2"]
befor = "PGPASSWORD=hunter2 pg_dump"
after = ["thaw", 2, "hunter2"]
[offsite.cloud]
repository = "s3:https://user:hunter2@s3.example.org/b"
password = "hunter2"
environment = ["AWS_SECRET_ACCESS_KEY=hunter2"]
enviroment_file = {AWS_SECRET_ACCESS_KEY = "hunter2"}
""")
    config = load_usable(file=file)
    catalogue = Facts()
    publish(config, catalogue)
    assert len(config.faults) >= 7
    assert config.excluded["web1"].fault
    assert "offsite.cloud.password: unknown key" in str(config.faults)
    assert "hunter2" not in f"{config.faults}{catalogue.get_fact(FACT)}"


def test_no_secret_and_no_command_is_published(config: Config) -> None:
    facts = Facts()
    publish(config, facts)
    text = (facts[FACT] or "").replace(str(config.file), "")  # the folder has the name of this test
    assert "secret" not in text
    assert "dump" not in text


def test_hosts_come_back_as_they_were_but_for_commands_and_options(config: Config) -> None:
    facts = Facts()
    publish(config, facts, rehearsal=True, filesystem="uuid")
    site = published(facts)
    left_out = {"before", "after", "ssh_options", "rsync_path", "port", "self_excluded"}
    assert set(site.hosts) == {"web1", "laptop"}
    for name, host in config.hosts.items():
        for field in fields(HostConfig):
            expected = getattr(HostConfig(name) if field.name in left_out else host, field.name)
            assert getattr(site.hosts[name], field.name) == expected, field.name
    assert (site.zone.key, site.rehearsal, site.filesystem, site.silent) == ("Europe/Berlin", True, "uuid", 2 * 86400)
    assert (site.name, site.path, site.state) == ("main", Path("/srv/backup"), Path("/var/lib/btrkeep/main"))
    assert site.web == config.web
    assert (site.web.listen.host, site.web.listen.port, site.web.names) == ("::1", 9000, ("backup.example.org",))
    assert site.web.behind_proxy == ("127.0.0.1", "::1")


def test_it_is_written_only_when_it_has_changed(config: Config) -> None:
    facts = Facts()
    assert publish(config, facts, filesystem="uuid")
    assert not publish(config, facts, filesystem="uuid")
    assert not publish(config, facts)  # without the pool's marker the recorded facts stay
    assert published(facts).filesystem == "uuid"
    assert publish(config, facts, filesystem="uuid", rehearsal=True)
    assert facts.writes == 2


def test_while_it_is_unknown_who_may_do_what_that_stays_as_it_was_published(config: Config) -> None:
    wrong = replace(config, serve=ServeSettings(), web=WebSettings(), faulty_sections=frozenset({"serve"}), faults=("x",))
    strict = replace(config, serve=ServeSettings(no_downloads=True))
    for first in (strict, None):
        facts = Facts()
        if first:
            publish(first, facts)
        publish(wrong, facts)
        site = published(facts)
        assert (site.no_downloads, site.no_restores, site.are_rights_known) == (True, first is None, False)
        assert site.web == (config.web if first else WebSettings())
        publish(config, facts)
        assert (published(facts).no_downloads, published(facts).are_rights_known) == (False, True)


def test_with_nothing_published_there_is_a_pool_without_hosts() -> None:
    assert published(Facts(), "demo") == Published("demo")


def test_what_another_version_published_is_read_as_far_as_it_is_known(config: Config) -> None:
    facts = Facts()
    publish(config, facts)
    given = json.loads(facts[FACT] or "")
    given["new_in_a_later_version"] = given["hosts"]["web1"]["new"] = 1
    given["web"]["new"] = given["hosts"]["web1"]["retention"]["new"] = given["expiry"]["new"] = 1
    for gone in ("web", "expiry", "silent"):
        older = {key: value for key, value in given.items() if key != gone}
        assert set(published(Facts({FACT: json.dumps(older)})).hosts) == {"web1", "laptop"}


def test_no_command_and_no_option_of_ssh_is_declared_as_shown() -> None:
    assert not {"before", "after", "ssh_options", "rsync_path", "port", "self_excluded"} & {*_SHOWN}
    assert {"paths", "window", "exclude", "fault"} < {*_SHOWN} < {field.name for field in fields(HostConfig)}


def config_at(folder: Path, name: str, text: str) -> Config:
    (folder / f"{name}.toml").write_text(f'[pool]\npath = "/srv/backup"\n{text}')
    return load(name, folder=folder)


def test_a_state_folder_elsewhere_is_found_without_the_configuration_until_it_is_where_it_usually_is(tmp_path: Path) -> None:
    etc, usual = tmp_path / "etc", tmp_path / "lib"
    etc.mkdir()
    config = config_at(etc, "main", 'state = "/srv/one"\n')
    renew_state_link(config, usual, etc)
    assert not usual.exists()  # not installed here
    usual.mkdir()
    for words, name in (("/srv/one", "/srv/one"), ("/srv/two", "/srv/two"), (f"{usual}/main", f"{usual}/main")):
        renew_state_link(config_at(etc, "main", f'state = "{words}"\n'), usual, etc)
        assert state_of("main", usual) == Path(name)
        assert state_of("other", usual) == usual / "other"
    assert list(usual.iterdir()) == []


def test_only_a_pool_of_this_machine_is_pointed_to(tmp_path: Path) -> None:
    usual, etc = tmp_path / "lib", tmp_path / "etc"
    usual.mkdir()
    (tmp_path / "main.toml").write_text('[pool]\npath = "/srv/backup"\nstate = "/srv/one"\n')
    renew_state_link(load(file=tmp_path / "main.toml"), usual, etc)
    assert list(usual.iterdir()) == []


def test_a_link_that_is_right_is_left_as_it_is(tmp_path: Path) -> None:
    usual, etc = tmp_path / "lib", tmp_path / "etc"
    for folder in (usual, etc):
        folder.mkdir()
    config = config_at(etc, "main", 'state = "/srv/one"\n')
    renew_state_link(config, usual, etc)
    before = (usual / ".main").lstat().st_ino
    renew_state_link(config, usual, etc)
    assert [(path.name, path.lstat().st_ino) for path in usual.iterdir()] == [(".main", before)]


@pytest.mark.parametrize("damaged", ['{"name": "main" "', "[]", "5", '{"name": "main"}'])
def test_what_is_damaged_is_named_and_published_anew(config: Config, damaged: str) -> None:
    facts = Facts({FACT: damaged})
    with pytest.raises(OperatorError, match="is damaged"):
        published(facts)
    assert publish(config, facts)
    assert published(facts).name == config.name
