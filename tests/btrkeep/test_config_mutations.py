"""Every file loads or raises a ConfigError, and every loaded configuration has certain properties."""

import json
import os
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from btrkeep.config import Config, HostConfig, load
from btrkeep.config.keys import TABLE
from btrkeep.errors import ConfigError
from tests.beds.gate import examples

VALID = """\
[pool]
path = "/srv/backup"
zone = "Europe/Berlin"
min_free = "5%"
[backup]
concurrency = 4
window = "22:00-06:00"
exclude = ["/proc/*", "lost+found"]
[retention]
daily = 14
grace = "2d"
[expiry]
pace = "50ms"
mount_option = "ssd"
[ssh]
command = "ssh"
[group.debian]
exclude_only = ["/var/cache/*"]
before = ["/bin/dump", "{address}"]
bandwidth = "2MB"
[host.web1]
group = "debian"
address = "root@web1.example.org"
port = 22
paths = ["/etc", "/srv"]
[host.here]
paths = ["/home"]
retention = { weekly = 3, min_keep = 4 }
[group.debian.retention]
monthly = 5
"""
LINES = VALID.splitlines(keepends=True)
LATE = datetime(2040, 1, 1, tzinfo=UTC)
PIECES = [
    "[",
    "]",
    '"',
    "'",
    "=",
    ".",
    ",",
    "\n",
    "#",
    "{",
    "}",
    "/",
    "..",
    "-",
    "0",
    "true",
    "1979-05-27",
    "\\u0000",
    "é",
    "\ufeff",
    "nan",
]
SCALARS = (
    st.text(max_size=12)
    | st.integers()
    | st.booleans()
    | st.sampled_from(
        [
            "5%",
            "50ms",
            "off",
            "1d",
            "0s",
            "16MB",
            "9" * 500,
            "22:00-22:00",
            "none",
            "/",
            "/srv",
            "/srv/backup/x",
            "..",
            "UTC",
            "Europe",
            "debian",
        ]
    )
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=6)
PATHS = st.lists(
    st.lists(st.sampled_from(["a", "b", "..c", ".", ""]), max_size=4).map(lambda parts: "/" + "/".join(parts)), max_size=4
)


def attempt(text: str) -> Config | None:
    """Returns the configuration, or None after a ConfigError with a printable message."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            return load(folder=Path(folder))
        except ConfigError as error:
            problems = error.problems
    assert problems
    assert all(line.isprintable() and line.startswith(folder) for line in problems)
    return None


def check(host: HostConfig) -> None:
    """Checks the properties that the programs rely on, without the configuration's own code."""
    assert host.paths
    assert all(path.startswith("/") and os.path.normpath(path) == path for path in host.paths)
    for path, other in permutations(map(PurePosixPath, host.paths), 2):
        assert not path.is_relative_to(other)
    assert datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=max(host.every, host.stall, host.deadline)) < LATE
    assert min(host.every, host.stall, host.deadline) > 0
    assert host.attempts >= 1
    assert 0 <= host.shrink_limit <= 1 >= host.unreadable_limit >= 0
    assert host.port is None or 1 <= host.port <= 65535
    assert host.bandwidth is None or host.bandwidth >= 1024
    assert host.address is None or not {part[0] for part in host.address.rpartition("@") if part} & {"-"}
    assert not any(pattern.startswith(("+ ", "- ", "! ")) or "\n" in pattern or not pattern for pattern in host.exclude)
    policy = host.retention
    counts = (policy.daily, policy.weekly, policy.monthly, policy.yearly)
    assert all(type(count) is int and 0 <= count <= 100_000 for count in counts)
    assert policy.missing == (counts == (0, 0, 0, 0))
    assert policy.min_keep >= 1
    assert datetime(2026, 1, 1, tzinfo=UTC) < datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=policy.grace) < LATE
    assert PurePosixPath("hosts", host.name).parts == ("hosts", host.name)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=5)), max_size=4)
)
@settings(max_examples=examples(300), deadline=None)
def test_a_valid_file_with_random_cuts_and_insertions_loads_or_is_a_config_error(edits: list[tuple[int, int, str]]) -> None:
    text = VALID
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    config = attempt(text)
    for host in config.hosts.values() if config else ():
        check(host)


@pytest.mark.slow
@given(st.lists(st.sampled_from(LINES), max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_a_valid_files_lines_in_any_order_load_or_are_a_config_error(lines: list[str]) -> None:
    attempt("".join(lines))


@pytest.mark.slow
@given(st.sampled_from([key for key in TABLE if key.sections == ("retention",)]), st.integers(0, 2), VALUES)
@settings(max_examples=examples(300), deadline=None)
def test_any_value_in_any_retention_loads_or_is_a_config_error(key: Any, place: int, value: Any) -> None:
    head = ("retention", "group.g.retention", "host.a.retention")[place]
    host = '[host.a]\ngroup = "g"\naddress = "a"\npaths = ["/etc"]\n[group.g]\n'
    config = attempt(f'[pool]\npath = "/p"\n{host}[{head}]\n{key.name} = {json.dumps(value, ensure_ascii=False)}\n')
    if config:
        check(config.hosts["a"])
        got = getattr(config.hosts["a"].retention, key.name)
        assert got == value or isinstance(value, str)


@pytest.mark.slow
@given(st.sampled_from(TABLE), st.integers(0, 2), VALUES)
@settings(max_examples=examples(600), deadline=None)
def test_any_value_in_any_place_loads_or_is_a_config_error(key: Any, place: int, value: Any) -> None:
    section = key.sections[place % len(key.sections)]
    name = ".a" if section in ("group", "host") else ""
    rest = (
        ""
        if key.name == "paths" and section == "host"
        else '\n[host.b]\npaths = ["/etc"]'
        if section != "host"
        else '\npaths = ["/etc"]'
    )
    pool = "" if key.name == "path" else '[pool]\npath = "/srv/backup"\n' if section != "pool" else 'pool.path = "/srv/backup"\n'
    head = f"{pool}[{section}{name}]\n" if section != "pool" or not pool else f"{pool}pool."
    config = attempt(f"{head}{key.name} = {json.dumps(value, ensure_ascii=False)}{rest}")
    for host in config.hosts.values() if config else ():
        check(host)


@pytest.mark.slow
@given(PATHS)
@settings(max_examples=examples(300), deadline=None)
def test_source_paths_load_exactly_when_no_two_meet(paths: list[str]) -> None:
    pure = [PurePosixPath(os.path.normpath("/" + path.lstrip("/"))) for path in paths]
    meet = any(path.is_relative_to(other) for path, other in permutations(pure, 2))
    config = attempt(f'[pool]\npath = "/p"\n[host.a]\naddress = "a"\npaths = {json.dumps(paths)}')
    assert (config is not None) == (bool(paths) and not meet)
    if config:
        assert config.hosts["a"].paths == tuple(map(str, pure))
