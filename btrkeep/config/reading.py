"""The way in: the configuration of a pool by its name or its file."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from btrkeep.config.build import STATE, build
from btrkeep.config.config_key import POOL
from btrkeep.config.exclusion import excluding
from btrkeep.config.files import documents
from btrkeep.config.last_valid import last_valid
from btrkeep.config.merge import merged
from btrkeep.config.model import Config
from btrkeep.config.problems import Problems, quoted
from btrkeep.config.sources import name_fault
from btrkeep.errors import ConfigError

FOLDER = Path("/etc/btrkeep")


def other_pools(config: Config) -> tuple[Path, ...]:
    """Returns the pools and state folders of all other configurations, beside this one and in /etc/btrkeep. Invalid configurations
    are skipped, because their own commands report them.
    """
    files = {file for place in (config.file.parent, FOLDER) for file in place.glob("*.toml")} - {config.file}
    found: list[Path] = []
    for file in sorted(files):
        with suppress(ConfigError):
            other = load_usable(file=file)
            found += [other.pool.path, other.pool.state]
    return tuple(path for path in found if path not in (config.pool.path, config.pool.state))


def backupd_command(name: str, file: Path) -> str:
    """Returns how `backupd` is called for the pool of that name, which need not be `main`; `file` is its configuration."""
    if file == FOLDER / f"{name}.toml":
        return "backupd" if name == "main" else f"backupd --pool {shlex.quote(name)}"
    return f"backupd --config {shlex.quote(str(file.absolute()))}"


def load(
    pool: str = "main", file: Path | None = None, folder: Path = FOLDER, instead: Mapping[Path, str | None] | None = None
) -> Config:
    """The configuration FOLDER/POOL.toml, or `file`, with its drop-ins. Raises ConfigError with all problems at once.

    `instead`: texts that take the place of what files hold, None for a file that is to be gone.
    """
    main, name = main_and_name(pool, file, folder)
    problems = Problems()
    return build(main, name, merged(documents(main, problems, instead), problems), problems)


def load_usable(
    pool: str = "main", file: Path | None = None, folder: Path = FOLDER, instead: Mapping[Path, str | None] | None = None
) -> Config:
    """Returns the same, without the hosts and copies whose own configuration is wrong: `excluded` and `faults` have them.

    Raises ConfigError for a mistake that could change what is deleted, or where something is written.
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
    """Returns the main file and the pool's name. Raises ConfigError for a name that no pool can have."""
    main = folder / f"{pool}.toml" if file is None else file
    name = pool if file is None else file.stem
    if fault := name_fault(name):
        raise ConfigError([f"pool {quoted(name)}: {fault}"], "a pool is named by its file: /etc/btrkeep/main.toml is the pool main")
    return main, name
