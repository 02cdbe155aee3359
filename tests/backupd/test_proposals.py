"""Proposed changes of the configuration, decided without a pool.

Without them, a stolen session of the dashboard could run commands as root through a key or a text that it smuggles into the
configuration, fill the disk with proposals, or overwrite what an administrator has changed by hand meanwhile.
"""

import errno
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.hosts.config_files import Files
from backupd.proposals.effect import HostExpiry, effect_of
from backupd.proposals.planned_change import CHANGEABLE, OF_NEW_HOST, key_diff, plan_change, require_allowed, write_change
from backupd.proposals.proposal_store import (
    IN_ALL,
    LARGEST,
    OF_ONE,
    ChangeEffect,
    ChangePreview,
    ConfigProposal,
    ProposalStore,
    require_size,
    require_slot,
)
from backupd.serve import request_checks
from backupd.serve.service_context import in_words
from backupd.serve.verbs import VERBS
from btrkeep.config import load, load_usable
from btrkeep.config.keys import LEGAL
from btrkeep.decisions.safety_limits import DeletedShare
from btrkeep.errors import ConfigError, OperatorError, StateConflict, UsageError
from btrkeep.serving.protocol import Request, RequestRefused

PREVIEW = ChangePreview("2026-11-30T00:00:00Z", "/etc/x", ("[host.web1]",), ChangeEffect(), (), "0" * 32)
PROPOSAL = ConfigProposal("abc123", "olga", "2026-11-30T00:00:00Z", "web1", False, {"window": "22:00-06:00"}, "why", PREVIEW)
MAIN = """# the pool
[pool]
path = "/srv/backup"   # a comment with a password: tr0ub4dor
state = "{state}"
[retention]
daily = 14
[group.debian]
before = ["/usr/local/bin/dump", "s3cret"]
"""
WEB1 = """# web1 is Carol's
[host.web1]
address = "root@web1.example.org"   # its old password was hunter2
paths = ["/etc", "/srv"]            # both
exclude = [
    "/srv/cache/*",  # large
]
before = ["/usr/local/bin/freeze", "p4ssw0rd"]
"""
HERE = """[host.here]
paths = ["/srv"]
exclude = ["/srv/secret"]
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    main = tmp_path / "main.toml"
    main.write_text(MAIN.format(state=tmp_path / "state"))
    (tmp_path / "main.d").mkdir()
    (tmp_path / "main.d" / "web1.toml").write_text(WEB1)
    (tmp_path / "main.d" / "here.toml").write_text(HERE)
    return Files.of("main", str(main))


def allow(files: Files, host: str, keys: dict[str, Any], *, is_new: bool = False) -> None:
    require_allowed(files.load(), host, keys, is_new=is_new)


EVERY_KEY = {*LEGAL["host"], *LEGAL["backup"], *LEGAL["notify"], *LEGAL["web"], *LEGAL["ssh"], *LEGAL["pool"], *LEGAL["serve"]}


@pytest.mark.parametrize("is_new", [False, True])
def test_only_the_keys_of_the_closed_list_can_be_proposed(files: Files, is_new: bool) -> None:
    allowed = {"address", "group", "paths", "exclude", "window"} if is_new else {"paths", "window"}
    given = {"address": "root@web9"} if is_new else {}
    for key in sorted(EVERY_KEY | {f"retention.{name}" for name in ("x", "", "daily.x")} | {"", "host", "[web]", "a\nb"}):
        if key in allowed:
            allow(files, "web1", {**given, key: "x"}, is_new=is_new)
            continue
        with pytest.raises(UsageError, match="cannot be proposed"):
            allow(files, "web1", {**given, key: "x"}, is_new=is_new)


def test_no_allowed_key_runs_a_command_or_names_another_machine_or_a_key() -> None:
    """A key that is added to the configuration has to be considered before it may be proposed."""
    assert set(CHANGEABLE) | set(OF_NEW_HOST) == {
        *("address", "group", "paths", "exclude", "exclude+", "exclude-", "window"),
        *(f"retention.{name}" for name in ("daily", "weekly", "monthly", "yearly", "min_keep", "grace")),
    }


def test_what_this_server_shows_of_itself_is_not_proposed(files: Files) -> None:
    """With another path or without an exclusion, users could read the passwords of this server in its own backup."""
    for keys in ({"paths": ["/"]}, {"exclude-": ["/srv/secret"]}):
        with pytest.raises(StateConflict, match="here is this server"):
            allow(files, "here", keys)
        allow(files, "web1", keys)
    allow(files, "here", {"exclude+": ["/srv/more"], "window": "22:00-06:00", "retention.daily": 3})
    for address in (None, ""):
        with pytest.raises(UsageError, match="needs an address"):
            allow(files, "web9", {"address": address, "paths": ["/etc"]}, is_new=True)


def test_a_mistake_in_the_configuration_of_this_server_does_not_open_its_paths(files: Files) -> None:
    (files.main.with_suffix(".d") / "here.toml").write_text(HERE + 'window = "22:00-6"\n')
    config = load_usable("main", files.main)
    assert "here" in config.excluded
    for keys in ({"paths": ["/root"]}, {"exclude-": ["/srv/secret"]}):
        with pytest.raises(StateConflict, match="here is this server"):
            require_allowed(config, "here", {"window": "22:00-06:00", **keys}, is_new=False)


@pytest.mark.parametrize("value", [5, "/srv/*"])
def test_patterns_are_a_list(files: Files, value: Any) -> None:
    with pytest.raises(UsageError, match="not a list"):
        plan_change(files, "web1", {"exclude+": value}, is_new=False)


def test_comments_order_and_other_keys_stay_and_the_old_file_is_kept(files: Files) -> None:
    planned = plan_change(files, "web1", {"exclude+": ["/srv/tmp/*"], "window": "22:00-06:00", "retention.daily": 30}, is_new=False)
    with files.alone():
        write_change(files, planned)
    path = files.own_file("web1")
    text = path.read_text()
    for line in WEB1.splitlines():
        assert line in text
    assert (path.with_name(".web1.toml.old")).read_text() == WEB1
    assert path.stat().st_mode == path.with_name(".web1.toml.old").stat().st_mode
    expected = tomllib.loads(WEB1)["host"]["web1"]
    expected |= {"exclude": ["/srv/cache/*", "/srv/tmp/*"], "window": "22:00-06:00", "retention": {"daily": 30}}
    assert tomllib.loads(text)["host"]["web1"] == expected
    assert sorted(load("main", files.main).hosts) == ["here", "web1"]  # the old file is no drop-in


def test_a_file_of_the_same_owner_is_replaced_without_a_call_that_the_unit_may_not_make(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SystemCallFilter= of btrkeep-serve@ refuses fchown, which is one of @privileged."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "refused by the filter")

    monkeypatch.setattr(os, "fchown", refuse)
    with files.alone():
        write_change(files, plan_change(files, "web1", {"window": "22:00-06:00"}, is_new=False))
    assert 'window = "22:00-06:00"' in files.own_file("web1").read_text()


def test_the_diff_has_the_changed_keys_and_nothing_else_of_the_file(files: Files) -> None:
    keys = {"exclude+": ["/srv/tmp/*"], "paths": ["/etc"], "retention.daily": 30}
    planned = plan_change(files, "web1", keys, is_new=False)
    diff = key_diff(planned)
    assert diff[0] == "[host.web1]"
    assert {'+    "/srv/tmp/*",', '-    "/srv",', "+retention.daily = 30", '     "/srv/cache/*",'} <= set(diff)
    for secret in ("tr0ub4dor", "hunter2", "p4ssw0rd", "s3cret", "before", "large"):
        assert secret not in "\n".join((*diff, planned.digest, *planned.notices))
    one_line = 'host.web1 = { address = "root@w", paths = ["/etc"], before = ["p4ssw0rd"] }\n'
    files.own_file("web1").write_text(one_line)
    assert "p4ssw0rd" not in "\n".join(key_diff(plan_change(files, "web1", {"paths": ["/srv"]}, is_new=False)))


@given(st.text(max_size=40), st.sampled_from(["paths", "exclude+", "window", "retention.grace", "retention.daily"]))
def test_no_text_changes_anything_but_its_key(tmp_path_factory: pytest.TempPathFactory, text: str, key: str) -> None:
    """Neither quotes nor newlines nor a section's head in a value become TOML: it is refused, or it is that value."""
    folder = tmp_path_factory.mktemp("conf")
    main = folder / "main.toml"
    main.write_text(MAIN.format(state=folder / "state") + WEB1)
    before = tomllib.loads(main.read_text())
    value: Any = [f'/x"]\n[web]\napply = true\n{text}', text] if key in ("paths", "exclude+") else text
    files = Files.of("main", str(main))
    try:
        planned = plan_change(files, "web1", {key: value}, is_new=False)
    except OperatorError:
        return
    after = tomllib.loads(planned.text_after)
    changed = after["host"].pop("web1"), before["host"].pop("web1")
    assert after == before
    section, _, name = key.rstrip("+").rpartition(".")
    for table in changed:
        (table.get(section, {}) if section else table).pop(name, None)
    assert {k: v for k, v in changed[0].items() if v != {}} == changed[1]


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-o", "", "web9\n[web]", "web9.toml/..", "web1"])
def test_a_new_host_gets_a_file_of_its_own_and_no_other(files: Files, name: str) -> None:
    keys = {"address": "root@web9", "paths": ["/etc"]}
    with pytest.raises(UsageError):
        plan_change(files, name, keys, is_new=True)
    planned = plan_change(files, "web9.example.org", {**keys, "group": "debian", "retention.daily": 3}, is_new=True)
    assert planned.path == files.folder / "web9.example.org.toml"
    assert tomllib.loads(planned.text_after) == {
        "host": {"web9.example.org": {"address": "root@web9", "paths": ["/etc"], "group": "debian", "retention": {"daily": 3}}}
    }
    assert key_diff(planned)[0] == '+[host."web9.example.org"]'
    assert any(
        "runs commands on this server" in sentence for sentence in effect_of(planned, HostExpiry(), HostExpiry(), {}).sentences
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"paths": ["relative"]},
        {"paths": []},
        {"window": "25:00-06:00"},
        {"retention.daily": -1},
        {"retention.daily": "14"},
        {"retention.grace": "soon"},
        {"exclude+": ["+ /etc"]},
    ],
)
def test_the_checker_refuses_what_it_would_refuse_in_a_file(files: Files, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        plan_change(files, "web1", keys, is_new=False)
    assert files.own_file("web1").read_text() == WEB1


def test_an_inherited_exclusion_is_not_removed_for_one_host(files: Files) -> None:
    with pytest.raises(UsageError, match="is not in the host's own list"):
        plan_change(files, "web1", {"exclude-": ["/proc/*"]}, is_new=False)
    planned = plan_change(files, "web1", {"exclude-": ["/srv/cache/*"]}, is_new=False)
    assert tomllib.loads(planned.text_after)["host"]["web1"]["exclude"] == []


def test_another_value_by_hand_makes_another_digest_and_another_host_does_not(files: Files) -> None:
    def digest() -> str:
        return plan_change(files, "web1", {"retention.daily": 30}, is_new=False).digest

    first = digest()
    (files.folder / "web2.toml").write_text('[host.web2]\naddress = "root@web2"\npaths = ["/etc"]\n')
    files.own_file("web1").write_text(WEB1 + "# another comment\n")
    assert digest() == first
    for change in (WEB1 + "retention.daily = 7\n", WEB1 + "retention.weekly = 7\n", WEB1.replace('["/etc", "/srv"]', '["/etc"]')):
        files.own_file("web1").write_text(change)
        assert digest() != first
    files.own_file("web1").write_text(WEB1)
    files.main.write_text(files.main.read_text().replace("daily = 14", "daily = 14\nmonthly = 2"))
    assert digest() != first  # inherited rules decide what expires, too


def test_proposals_are_for_root_alone_and_bounded(tmp_path: Path) -> None:
    store = ProposalStore(tmp_path)
    with store.alone():
        store.put(PROPOSAL)
    folder = tmp_path / "proposals"
    assert (folder.stat().st_mode & 0o777, (folder / "abc123.json").stat().st_mode & 0o777) == (0o700, 0o600)
    assert (store.get("abc123"), store.all(), store.count()) == (PROPOSAL, [PROPOSAL], 1)
    many = [replace(PROPOSAL, who=f"user{number // OF_ONE}") for number in range(IN_ALL)]
    require_slot(many[: OF_ONE - 1], "user0")
    require_slot(many[:OF_ONE], "user1")
    for proposals, who in ((many[:OF_ONE], "user0"), (many, "another")):
        with pytest.raises(RequestRefused, match="wait already"):
            require_slot(proposals, who)
    require_size(PROPOSAL)
    with pytest.raises(UsageError, match="more text"):
        require_size(replace(PROPOSAL, why="x" * LARGEST))


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"id": 1}', "\0" * 100])
def test_a_damaged_proposal_is_none_and_hides_no_other(tmp_path: Path, content: str) -> None:
    store = ProposalStore(tmp_path)
    with store.alone():
        store.put(PROPOSAL)
    (tmp_path / "proposals" / "ffffff.json").write_text(content)
    (tmp_path / "proposals" / "eeeeee.json").symlink_to(tmp_path / "proposals" / "abc123.json")
    assert store.all() == [PROPOSAL]
    for wrong in ("ffffff", "eeeeee", "abc124", "../x", ""):
        with pytest.raises(RequestRefused, match="there is no proposed change"):
            store.get(wrong)


def test_the_effect_is_the_difference_between_two_expiries(files: Files) -> None:
    planned = plan_change(files, "web1", {"retention.daily": 3}, is_new=False)
    before, after = HostExpiry(9, frozenset("ab")), HostExpiry(9, frozenset("bcd"), DeletedShare(20, 40))
    effect = effect_of(planned, before, after, {"c": 5, "d": 7, "a": 100})
    assert (effect.total, effect.expires, effect.written_bytes, effect.kept_again) == (9, 2, 12, 1)
    assert any("skip web1" in sentence and "--force" in sentence for sentence in effect.sentences)
    assert effect_of(planned, before, after, {"c": 5}).written_bytes is None
    assert any("No backup would expire" in sentence for sentence in effect_of(planned, before, before, {}).sentences)


@pytest.mark.parametrize(
    "keys",
    [
        *(None, [], {"a" * 41: "x"}, {str(n): 1 for n in range(21)}, {"paths": ["x"] * 501}, {"paths": [1]}, {"paths": [["x"]]}),
        *({"window": value} for value in ("a\nb", {"a": 1}, True, 1.5, 1 << 60, "x" * 4097)),
    ],
)
def test_the_types_and_sizes_of_a_request_are_limited(keys: object) -> None:
    with pytest.raises(RequestRefused):
        request_checks.checked({"host": "web1", "keys": keys}, VERBS["propose"].arguments)


def test_a_password_is_in_no_log_line() -> None:
    line = in_words(Request("apply", "x", {"id": "abc123", "password": "p4ssw0rd"}))
    assert "abc123" in line
    assert "p4ssw0rd" not in line
