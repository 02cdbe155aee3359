"""The configuration for programs that only report: status, metrics, notifications, pings. It works even if the present one is
invalid: then it is the last valid one, with as much of the present [notify] as can be read.

The dashboard finds the state folder without the configuration, which only root may read: in /var/lib/btrkeep, or where a link there
points to. Programs that run as root make this link: /var/lib/btrkeep/.main -> /srv/state/main. (No pool's name starts with a dot.)
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from btrkeep.config.build import STATE
from btrkeep.config.config_key import NOTIFY, POOL
from btrkeep.config.config_model import Config
from btrkeep.config.documents import Document, documents
from btrkeep.config.keys import default_zone
from btrkeep.config.merge import Sections, merged
from btrkeep.config.problems import InvalidValue, Problems
from btrkeep.config.reading import FOLDER, LastValid, keep_valid, last_valid, load_usable, main_and_name
from btrkeep.config.settings import NotifySettings, PoolSettings
from btrkeep.config.sources import parse_path
from btrkeep.errors import ConfigError
from btrkeep.hung_storage import answers

_HEADER = re.compile(r"^\s*\[", re.MULTILINE)
_SECTION = r"^\s*\[\s*{}\s*\]\s*(?:#.*)?$"
_STATE_KEY = re.compile(r"""^\s*state\s*=\s*(["'][^"'\n]*["'])""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReportingConfig:
    """`config`: only for reports. `error`: why the present configuration cannot be used; None: it can.

    `kept`: since when `config` is the last valid one, if it is not the present one. `is_bare`: there is none, so only [notify] is
    configured.
    """

    config: Config
    error: ConfigError | None = None
    kept: datetime | None = None
    is_bare: bool = False

    def keep(self, now: datetime) -> None:
        """Keeps the present configuration as the last valid one, if it is valid."""
        if self.error is None:
            keep_valid(self.config, now)

    @property
    def faults(self) -> tuple[str, ...]:
        """Returns all mistakes of the present configuration, FILE:LINE and why."""
        return self.error.located if self.error else self.config.faults


def load_for_reports(pool: str = "main", file: Path | None = None, folder: Path = FOLDER, usual: Path = STATE) -> ReportingConfig:
    """Returns the present configuration or its replacement. Raises ConfigError if neither can be read, nor a [notify]."""
    try:
        config = load_usable(pool, file, folder)
    except ConfigError as error:
        return _instead(pool, file, folder, usual, error)
    if config.faults and (valid := last_valid(config.pool.state, config.file, config.name)):
        notify = _over(valid.config.notify, _readable_notify(config.file, Problems())[0])
        config = replace(config, notify=notify)
    return ReportingConfig(config)


def _instead(pool: str, file: Path | None, folder: Path, usual: Path, error: ConfigError) -> ReportingConfig:
    main, name = main_and_name(pool, file, folder)
    notify, sections, texts = _readable(main)
    valid = _valid_in(_states(main, name, sections, texts, usual), main, name)
    if valid:
        return ReportingConfig(replace(valid.config, notify=_over(valid.config.notify, notify)), error, valid.kept)
    settings = _over(NotifySettings(), notify)
    if not settings.urls and not settings.ping:
        raise error
    given = sections.single[POOL]
    try:
        zone = given.get("zone") or default_zone()
    except InvalidValue:
        raise error from None
    state = given.get("state") or next(_states(main, name, sections, texts, usual))
    bare = Config(main, name, PoolSettings(given.get("path") or Path("/nonexistent"), state, zone), notify=settings)
    return ReportingConfig(bare, error, is_bare=True)


def _valid_in(states: Iterator[Path], main: Path, name: str) -> LastValid | None:
    last_valids = (last_valid(state, main, name) for state in states)
    return next((valid for valid in last_valids if valid), None)


def _states(main: Path, name: str, sections: Sections, texts: Mapping[Path, str], usual: Path) -> Iterator[Path]:
    """Yields the possible state folders of the pool, the most probable first."""
    if "state" in sections.single[POOL]:
        yield sections.single[POOL]["state"]
    for match in _STATE_KEY.finditer(texts.get(main, "")):
        with suppress(ValueError):
            yield parse_path(match[1][1:-1])
    yield state_of(name, usual)
    yield usual / name


def _readable(main: Path) -> tuple[dict[str, Any], Sections, Mapping[Path, str]]:
    """Returns what can be read of [notify], all other readable sections, and the texts."""
    problems = Problems()
    notify, sections = _readable_notify(main, problems)
    return notify, sections, problems.texts


def _readable_notify(main: Path, problems: Problems) -> tuple[dict[str, Any], Sections]:
    try:
        read = documents(main, problems)
    except ConfigError:
        read = []
    parsed = {document.file for document in read}
    pieces = [Document(file, piece) for file, text in problems.texts.items() if file not in parsed and (piece := _piece(text))]
    sections = merged([*read, *pieces], problems)
    return sections.single[NOTIFY], sections


def _piece(text: str) -> dict[str, Any]:
    """Parses only the section [notify] of a text that is not valid TOML in other places."""
    header = re.search(_SECTION.format(NOTIFY), text, re.MULTILINE)
    if not header:
        return {}
    rest = text[header.end() :]
    following = _HEADER.search(rest)
    with suppress(ValueError, RecursionError):
        return {NOTIFY: tomllib.loads(rest[: following.start()] if following else rest)}
    return {}


def _over(settings: NotifySettings, readable: Mapping[str, Any]) -> NotifySettings:
    names = {field.name for field in fields(NotifySettings)}
    return replace(settings, **{key: value for key, value in readable.items() if key in names})


def state_of(pool: str, usual: Path = STATE) -> Path:
    """Returns the state folder, if it can be found without the configuration."""
    try:
        return _link(pool, usual).readlink()
    except OSError:
        return usual / pool


def renew_state_link(config: Config, usual: Path = STATE, folder: Path = FOLDER) -> None:
    """Makes or renews the link, or removes it if it is not needed.

    Only for pools of this machine, which are configured in /etc/btrkeep, and where btrkeep is installed. Raises OSError.
    """
    if config.file != folder / f"{config.name}.toml" or not answers(usual) or not usual.is_dir():
        return
    link, wanted = _link(config.name, usual), config.pool.state
    if wanted == usual / config.name:
        link.unlink(missing_ok=True)
    elif not link.is_symlink() or state_of(config.name, usual) != wanted:
        beside = link.with_name(f"{link.name}.{os.getpid()}")
        beside.symlink_to(wanted)
        beside.replace(link)


def _link(pool: str, usual: Path) -> Path:
    return usual / f".{pool}"
