"""The first step of `setup`: the pool, and the configuration that names it and says how long backups are kept."""

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backupd.cli.questions import Talk, asked
from backupd.doctor.rules.mount import POWERLESS, powerless
from backupd.explain import policy_words
from backupd.hosts.edit import with_keys
from backupd.hosts.files import Files
from backupd.retention import parse_policy
from btrkeep.catalogue import Catalogue
from btrkeep.config import Config, Retention, example
from btrkeep.errors import OperatorError, PoolUnusable, UsageError
from btrkeep.pool.marker import create_pool, open_pool, refuse_unfit
from btrkeep.pool.mounts import mount_of, mounts
from btrkeep.pool.reserve import see_reserve
from btrkeep.units import printable

RULES = "daily=14,weekly=13,monthly=12"
_COUNTERS = ("daily", "weekly", "monthly", "yearly")


def pool_is_set_up(files: Files) -> Config | None:
    """The configuration, when it names a pool that is there. Raises ConfigError when something is wrong with it."""
    if _configured_path(files) is None:
        return None
    config = files.load()
    try:
        open_pool(config.pool.path)
    except PoolUnusable as error:
        if _was_in_use(config):  # most likely it is not mounted
            raise PoolUnusable(error.message, f"mount it; a new pool would need another `path` in {files.main}") from None
        return None
    return config


def _was_in_use(config: Config) -> bool:
    """Whether the catalogue belongs to a pool. One that `check` has made belongs to none."""
    if not (config.pool.state / "catalogue.sqlite").exists():
        return False
    with Catalogue.open(config.pool.state) as catalogue:
        return catalogue.pool_id() is not None


def _configured_path(files: Files) -> str | None:
    """What [pool] path says in the main file; None when there is no such file or key. What is no TOML, `load` complains about."""
    try:
        path = tomllib.loads(_text(files)).get("pool", {}).get("path")
    except (tomllib.TOMLDecodeError, AttributeError):
        files.load()
        raise
    return path if isinstance(path, str) else None


def _text(files: Files) -> str:
    try:
        return files.main.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{files.main} cannot be read: {error}", "run this as root, and see that it is UTF-8") from None


def set_up_pool(talk: Talk, files: Files, path: str | None, rules: str | None) -> Config:
    """Makes the pool and its configuration where they are missing; the configuration as it is then."""
    config = pool_is_set_up(files)
    if config is None:
        config = _made(talk, files, path, rules)
        talk.say(f"its configuration is {files.main}")
    elif path is not None and Path(path).resolve() != config.pool.path.resolve():
        raise UsageError(f"{files.main} names another pool, {config.pool.path}", "leave --pool-path out, or choose another --pool")
    elif rules is not None:
        config = files.change({files.main: with_keys(_text(files), "retention", _keys(rules))})
    talk.say(f"{config.pool.path} is the pool; {policy_words(config.retention)}")
    return config


def _made(talk: Talk, files: Files, path: str | None, rules: str | None) -> Config:
    """The configuration is judged before the pool is made, and written after it: interrupted between, the pool is found here."""
    if path is None:
        _show_places(talk)
    place = asked(talk, path, "Where is the pool to be?", _configured_path(files) or _suggestion(), _place)
    retention = asked(talk, rules, "How long are backups kept? (all: for ever)", RULES, _keys)
    text = with_keys(_text(files) or example(place, files.name), "pool", {"path": str(place)})
    text = with_keys(text, "retention", retention)
    files.load({files.main: text})
    if not _is_pool(place):
        new = not place.exists()
        create_pool(place, rehearsal=False, now=datetime.now(UTC))
        see_reserve(place)
        talk.say(f"{place} is {'a new subvolume, and ' if new else ''}a pool now")
        if hint := powerless_hint(place):
            talk.say(hint)
    return files.change({files.main: text})


def powerless_hint(pool: Path) -> str:
    """What to type so that setuid programs and device nodes of hosts do nothing in the pool; "" when there is nothing to do."""
    mount = mount_of(pool)
    if not (step := powerless(mount.target, mount.mount_options)):
        return ""
    words = ",".join(POWERLESS)
    return (
        f"setuid programs and device nodes of hosts would work in it: `{printable(step.line)}`, "
        f"and {words} among the options in /etc/fstab, keep them from that"
    )


def _place(text: str) -> Path:
    """A pool, or a place for one. Raises UsageError or PoolUnusable."""
    place = Path(text).absolute()
    if not _is_pool(place):
        refuse_unfit(place)
    return place


def _is_pool(path: Path) -> bool:
    try:
        open_pool(path)
    except PoolUnusable:
        return False
    return True


def _keys(rules: str) -> dict[str, Any]:
    """The keys of [retention] that the rules come to; a counter that they do not name is none any more. Raises UsageError."""
    none: dict[str, Any] = dict.fromkeys(_COUNTERS)
    if rules == "all":
        return none
    try:
        parse_policy(rules, Retention())
    except ValueError as error:
        raise UsageError(f"{rules!r} is no retention: {error}", f"write it like {RULES}; all keeps every backup") from None
    pairs = (part.split("=") for part in rules.split(","))
    return none | {name.strip(): int(value) if value.strip().isdecimal() else value.strip() for name, value in pairs}


def _places() -> list[Path]:
    """Where a btrfs is mounted, a place that is mounted over left out."""
    return sorted({mount.target for mount in mounts() if mount.filesystem == "btrfs" and mount.target.is_dir()})


def _suggestion() -> str:
    return next((str(place / "backup") for place in _places()), "/srv/backup")


def _show_places(talk: Talk) -> None:
    places = _places()
    if not places:
        talk.say("No btrfs is mounted here. A pool needs one: mkfs.btrfs, mount, then this again.")
        return
    talk.say(f"A folder that is not there yet becomes a subvolume. A btrfs is mounted at {', '.join(map(str, places[:5]))}.")
