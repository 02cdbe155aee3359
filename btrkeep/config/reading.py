"""Loads the configuration of a pool by its name or its file, and a copy of its last valid state.

The copy is in the pool's state folder, for programs that report a mistake of the configuration. It has the texts of all files,
including passwords, so only root may read it. It is used only for reports, never for programs that delete, write backups or fetch.
"""

import json
import os
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from btrkeep.config.build import STATE, build
from btrkeep.config.config_key import POOL
from btrkeep.config.config_model import Config
from btrkeep.config.documents import documents, documents_of_texts
from btrkeep.config.exclusion import excluding
from btrkeep.config.merge import merged
from btrkeep.config.problems import Problems, quoted
from btrkeep.config.sources import name_fault
from btrkeep.errors import ConfigError
from btrkeep.hung_storage import answers
from btrkeep.units import format_time, parse_time

FOLDER = Path("/etc/btrkeep")


def other_pools(config: Config) -> tuple[Path, ...]:
    """Returns the pools and state folders of all other configurations, beside this one and in /etc/btrkeep. Invalid configurations
    are skipped, because their own commands report them.
    """
    files = {file for place in (config.file.parent, FOLDER) for file in place.glob("*.toml")} - {config.file}
    paths: list[Path] = []
    for file in sorted(files):
        with suppress(ConfigError):
            other = load_usable(file=file)
            paths += [other.pool.path, other.pool.state]
    return tuple(path for path in paths if path not in (config.pool.path, config.pool.state))


def backupd_command(name: str, file: Path) -> str:
    """Returns the command line of `backupd` for the pool of that name, `main` or another. `file`: its configuration."""
    if file == FOLDER / f"{name}.toml":
        return "backupd" if name == "main" else f"backupd --pool {shlex.quote(name)}"
    return f"backupd --config {shlex.quote(str(file.absolute()))}"


def load(
    pool: str = "main", file: Path | None = None, folder: Path = FOLDER, instead: Mapping[Path, str | None] | None = None
) -> Config:
    """Returns the configuration FOLDER/POOL.toml, or `file`, with its drop-ins. Raises ConfigError with all problems together.

    `instead`: texts that replace the contents of files, None for a file that will be deleted.
    """
    main, name = main_and_name(pool, file, folder)
    problems = Problems()
    return build(main, name, merged(documents(main, problems, instead), problems), problems)


def load_usable(
    pool: str = "main", file: Path | None = None, folder: Path = FOLDER, instead: Mapping[Path, str | None] | None = None
) -> Config:
    """Returns the same, without the hosts and copies whose own configuration is wrong, which are in `excluded` and `faults`.

    Raises ConfigError for a mistake that could change what is deleted, or where data is written.
    """
    main, name = main_and_name(pool, file, folder)
    problems = Problems()
    sections = merged(documents(main, problems, instead), problems)
    state = sections.single[POOL].get("state", STATE / name)

    def last() -> Config | None:
        valid = last_valid(state, main, name)
        return valid.config if valid else None

    return build(main, name, sections, problems, excluding(main, last))


def main_and_name(pool: str, file: Path | None, folder: Path = FOLDER) -> tuple[Path, str]:
    """Returns the main file and the pool's name. Raises ConfigError for an invalid name of a pool."""
    main = folder / f"{pool}.toml" if file is None else file
    name = pool if file is None else file.stem
    if fault := name_fault(name):
        raise ConfigError([f"pool {quoted(name)}: {fault}"], "a pool is named by its file: /etc/btrkeep/main.toml is the pool main")
    return main, name


LAST_VALID = "configuration.json"
_FORMAT = 1
_LONGEST = 64 << 20  # bytes


@dataclass(frozen=True, slots=True)
class LastValid:
    """The last valid configuration."""

    config: Config
    """The configuration."""
    kept: datetime
    """When it was stored."""


def keep_valid(config: Config, now: datetime) -> None:
    """Stores the configuration if it differs from the stored one. Never fails: if the state folder is full or read-only, the old
    copy remains, and one that does not answer is skipped.

    For a file with a mistake that left out a host, the previous text is kept.
    """
    state = config.pool.state
    if not answers(state):  # a dead disk or server: the catalogue in it is reported as unusable
        return
    before = None
    with suppress(OSError, ValueError):
        before = _read(state / LAST_VALID, config.file)
    with suppress(OSError):
        texts = config.texts
        if config.faults:
            if before is None:
                return
            texts = {**texts, **{file: before[0][file] for file in set(config.faulty_files) & before[0].keys()}}
            if _parsed(config.file, config.name, texts) is None:
                return
        if before and before[0] == texts:
            return
        _replace(state, {"format": _FORMAT, "file": str(config.file), "at": format_time(now), "texts": _as_names(texts)})


def last_valid(state: Path, file: Path, name: str) -> LastValid | None:
    """Returns the kept configuration of this main file; None if there is none that this version understands, or if the folder does
    not answer.
    """
    if not answers(state):
        return None
    try:
        kept = _read(state / LAST_VALID, file)
    except (OSError, ValueError):
        return None
    config = _parsed(file, name, kept[0]) if kept else None
    return LastValid(config, kept[1]) if kept and config else None


def _as_names(texts: Mapping[Path, str]) -> dict[str, str]:
    return {str(file): text for file, text in texts.items()}


def _parsed(file: Path, name: str, texts: Mapping[Path, str]) -> Config | None:
    problems = Problems()
    ordered = {path: texts[path] for path in sorted(texts, key=lambda path: (path != file, path))}
    try:
        return build(file, name, merged(documents_of_texts(ordered, problems), problems), problems)
    except ConfigError:
        return None


def _read(path: Path, file: Path) -> tuple[dict[Path, str], datetime] | None:
    """Returns the texts and when they were kept; None for the configuration of another file. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_size > _LONGEST:
            return None
        kept: Any = json.load(stream)
    if not isinstance(kept, dict) or kept.get("format") != _FORMAT or kept.get("file") != str(file):
        return None
    if not isinstance(kept.get("texts"), dict) or not all(isinstance(text, str) for text in kept["texts"].values()):
        return None
    return {Path(name): text for name, text in kept["texts"].items()}, parse_time(str(kept.get("at")))


def _replace(state: Path, kept: Mapping[str, Any]) -> None:
    """Writes the file only for its owner, whatever the umask, and only if the state folder exists. Raises OSError."""
    beside = state / f".{LAST_VALID}.{os.getpid()}"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            os.fchmod(fd, 0o600)
            json.dump(kept, stream)
            stream.flush()
            os.fsync(fd)
        beside.replace(state / LAST_VALID)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
