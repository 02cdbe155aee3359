"""`backupd init`, and the first step of `backupd setup`: the pool and its configuration, with suggestions for both."""

import os
import re
import socket
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from backupd.doctor.rules.mount import POWERLESS, powerless
from backupd.hosts.cli.questions import Prompter, ask_until_valid
from backupd.hosts.config_files import Files
from backupd.hosts.edit import with_keys
from backupd.repo.pool_files import note_new_pool
from btrkeep.catalogue import Catalogue
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import GivenPath
from btrkeep.config import Config, Retention, example, is_example
from btrkeep.config import value_types as kinds
from btrkeep.config.config_model import PERIOD_NAMES
from btrkeep.config.problems import InvalidValue
from btrkeep.config.sources import name_fault
from btrkeep.decisions.retention import parse_policy
from btrkeep.decisions.retention_words import policy_words
from btrkeep.errors import OperatorError, PoolUnusable, UsageError
from btrkeep.pool.marker import create_pool, filesystem_uuid, open_pool, require_place_for_pool
from btrkeep.pool.mounts import mount_of, mount_pool_words
from btrkeep.pool.reserve import ensure_reserve
from btrkeep.procfs import mounts
from btrkeep.units import printable


@click.command("init")
@click.argument("path", type=GivenPath())
@click.option("--rehearsal", is_flag=True, help="A pool for trials: commands on it accept --now.")
@json_option
@click.pass_context
def command(ctx: click.Context, path: str, rehearsal: bool, as_json: bool) -> None:
    """Create a pool at PATH: a new subvolume of a mounted btrfs, or an empty folder on one.

    Writes an example configuration too, unless there is one already: /etc/btrkeep/main.toml, or the file of --pool or --config. An
    unchanged example is replaced by one with this PATH. `backupd setup` does this and all following steps.
    """
    chosen = ctx.find_root().obj
    config = Path(chosen["config"] or f"/etc/btrkeep/{chosen['pool']}.toml")
    place = Path(path)
    if not place.is_absolute():
        place = Path.cwd() / place
    text = example(place, config.stem)
    pool = create_pool(place, rehearsal=rehearsal, now=datetime.now(UTC))
    ensure_reserve(pool.path)
    note_new_pool(pool)
    written = _write_example(config, text)
    answer = {"path": str(pool.path), "id": pool.id, "filesystem": pool.filesystem, "rehearsal": rehearsal}
    answer |= {"config": str(config), "config_written": written}
    print_answer(answer, _created_lines(pool.path, config, written), as_json=as_json)


def _created_lines(pool: Path, config: Path, written: bool) -> Iterator[str]:
    yield f"{pool} is now a pool"
    if hint := powerless_hint(pool):
        yield hint
    if written:
        yield f"{config} is an example: add your hosts to it, then run `backupd check`"
    else:
        yield f"{config} existed already and is unchanged"


def _write_example(config: Path, text: str) -> bool:
    try:
        if config.exists():
            if not is_example(config.read_text(encoding="utf-8", errors="replace"), config.stem):
                return False
            config.unlink()
        config.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # It may later contain passwords, for alarms.
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{config} cannot be written: {error.strerror}", "the pool is created; write its configuration yourself"
        ) from None
    return True


RULES = "daily=14,weekly=13,monthly=12"
ALWAYS = "none"


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The options about the pool; None if not given."""

    path: str | None = None
    """The pool's folder."""
    retention: str | None = None
    """The retention rules, such as "daily=14,weekly=13", or "all"."""
    zone: str | None = None
    """The time zone."""
    window: str | None = None
    """When backups may run."""


def pool_is_set_up(files: Files) -> Config | None:
    """Returns the configuration if it names an existing pool. Raises ConfigError if it is invalid."""
    if _configured(files, "pool", "path") is None:
        return None
    config = files.load()
    try:
        open_pool(config.pool.path)
    except PoolUnusable as error:
        if _was_in_use(config):  # most likely it is not mounted
            hint = f"{mount_pool_words(config.pool.path)}; for a new pool, set another `path` in {files.main}"
            raise PoolUnusable(error.message, hint) from None
        return None
    return config


def _was_in_use(config: Config) -> bool:
    """Returns True if the catalogue belongs to a pool. A catalogue that `check` created belongs to none."""
    if not (config.pool.state / "catalogue.sqlite").exists():
        return False
    with Catalogue.open(config.pool.state) as catalogue:
        return catalogue.pool_id() is not None


def _configured(files: Files, section: str, key: str) -> str | None:
    """Returns a value of the main file; None if there is no such file or key. `load` reports invalid TOML."""
    try:
        value = tomllib.loads(_text(files)).get(section, {}).get(key)
    except (tomllib.TOMLDecodeError, AttributeError):
        files.load()
        raise
    return value if isinstance(value, str) else None


def _text(files: Files) -> str:
    try:
        return files.main.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{files.main} cannot be read: {error}", "check that it is UTF-8 and readable") from None


def set_up_pool(prompter: Prompter, files: Files, given: PoolOptions) -> Config:
    """Creates the pool and its configuration if they are missing. Returns the resulting configuration."""
    config = pool_is_set_up(files)
    if config is None:
        config = _made(prompter, files, given)
        prompter.say(f"the pool's configuration is {files.main}")
    elif given.path is not None and Path(given.path).resolve() != config.pool.path.resolve():
        raise UsageError(f"{files.main} names another pool, {config.pool.path}", "leave --pool-path out, or choose another --pool")
    elif given.retention is not None or given.zone is not None or given.window is not None:
        retention = None if given.retention is None else _keys(given.retention)
        zone = None if given.zone is None else _zone(given.zone)
        window = None if given.window is None else _window(given.window)
        with files.alone():
            config = files.change({files.main: _written(_text(files), {}, retention, zone, window)})
    prompter.say(f"{config.pool.path} is the pool; {policy_words(config.retention)}")
    return config


def _made(prompter: Prompter, files: Files, given: PoolOptions) -> Config:
    """Checks the configuration before the pool is created and writes it afterwards: after an interruption in between, the pool is
    found again here.

    Zone and window have usable defaults, so they are not required without a terminal.
    """
    places = btrfs_mounts()
    if given.path is None:
        _show_places(prompter, places)
    suggestion = suggested_place(_configured(files, "pool", "path"), places)
    place = ask_until_valid(prompter, given.path, "Where should the pool be?", suggestion, place_for_pool)
    retention = ask_until_valid(prompter, given.retention, "How long are backups kept? (all: for ever)", RULES, _keys)
    zone = window = None
    if prompter.asks or given.zone is not None:
        default = _configured(files, "pool", "zone") or machine_zone()
        zone = ask_until_valid(prompter, given.zone, "In which time zone do days and nights begin?", default, _zone)
    if prompter.asks or given.window is not None:
        default = _configured(files, "backup", "window") or ALWAYS
        question = f"When may backups run, such as 22:00-06:00? ({ALWAYS}: at any time)"
        window = ask_until_valid(prompter, given.window, question, default, _window)
    text = _written(_text(files) or example(place, files.name), {"path": str(place)}, retention, zone, window)
    files.load({files.main: text})
    if not is_pool(place):
        new = not place.exists()
        pool = create_pool(place, rehearsal=False, now=datetime.now(UTC))
        ensure_reserve(place)
        note_new_pool(pool)
        prompter.say(f"{place} is now a pool{', in a new subvolume' if new else ''}")
        if hint := powerless_hint(place):
            prompter.say(hint)
    return files.change({files.main: text})


def _written(text: str, pool: Mapping[str, Any], retention: Mapping[str, Any] | None, zone: str | None, window: str | None) -> str:
    """Returns `text` with the given values; other lines stay unchanged."""
    pool = {**pool, "zone": zone} if zone else pool
    if pool:
        text = with_keys(text, "pool", pool)
    if window:
        text = with_keys(text, "backup", {"window": None if window == ALWAYS else window})
    return text if retention is None else with_keys(text, "retention", retention)


def powerless_hint(pool: Path) -> str:
    """Returns the command that disables setuid programs and device nodes of hosts in the pool; "" if not needed."""
    mount = mount_of(pool)
    if not (step := powerless(mount.target, mount.mount_options)):
        return ""
    words = ",".join(POWERLESS)
    return (
        f"setuid programs and device nodes of hosts would work in it; to prevent this, run `{printable(step.line)}` "
        f"and add {words} to its options in /etc/fstab"
    )


def _zone(text: str) -> str:
    return _taken(kinds.ZONE, text, "give a name such as Europe/Berlin")


def _window(text: str) -> str:
    return _taken(kinds.WINDOW, text, f"give two times such as 22:00-06:00, or {ALWAYS}")


def _taken(kind: kinds.ValueKind, text: str, hint: str) -> str:
    """Returns the text if the key accepts it. Raises UsageError."""
    try:
        kind(text)
    except InvalidValue as refused:
        raise UsageError(f"{text!r}: {refused.reason}", hint) from None
    return text


def _keys(rules: str) -> dict[str, Any]:
    """Returns the keys of [retention] for these rules; a counter that they do not name becomes 0. Raises UsageError."""
    none: dict[str, Any] = dict.fromkeys(PERIOD_NAMES)
    if rules == "all":
        return none
    try:
        parse_policy(rules, Retention())
    except ValueError as error:
        raise UsageError(
            f"{rules!r} is not a retention policy: {error}", f"write it like {RULES}; all keeps every backup"
        ) from None
    pairs = (part.split("=") for part in rules.split(","))
    return none | {name.strip(): int(value) if value.strip().isdecimal() else value.strip() for name, value in pairs}


def _show_places(prompter: Prompter, places: Sequence[Path]) -> None:
    if not places:
        prompter.say(
            "No btrfs is mounted here, and a pool needs a btrfs. Create a btrfs with mkfs.btrfs, mount it, then run this again."
        )
        return
    prompter.say(f"A folder that does not exist yet becomes a subvolume. A btrfs is mounted at {', '.join(map(str, places[:5]))}.")


HERE = "here"
_NAMES = ("backup", "btrkeep")
_LOCALTIME, _ZONES = Path("/etc/localtime"), "/zoneinfo/"


def place_for_pool(text: str) -> Path:
    """Returns a pool, or a place for one. Raises UsageError or PoolUnusable."""
    if not text:
        raise UsageError("no path was given", "give a folder on a mounted btrfs, such as /srv/backup")
    place = Path(text).absolute()
    if not is_pool(place):
        require_place_for_pool(place)
    return place


def is_pool(path: Path) -> bool:
    """Returns True if a pool can be opened there."""
    try:
        open_pool(path)
    except PoolUnusable:
        return False
    return True


def btrfs_mounts() -> list[Path]:
    """Returns where a btrfs is mounted, the root filesystem last; hidden mounts are left out."""
    paths = {mount.target for mount in mounts() if mount.filesystem == "btrfs" and mount.target.is_dir()}
    root = _filesystem(Path("/"))
    return sorted(paths, key=lambda place: (root is not None and _filesystem(place) == root, place))


def _filesystem(place: Path) -> str | None:
    try:
        return filesystem_uuid(place)
    except OSError:  # not btrfs, or it does not answer
        return None


def suggested_place(configured: str | None, places: Iterable[Path]) -> str:
    """Returns the first place that `place_for_pool` accepts: the configured one, then new folders below `places`; "" for none."""
    offered = [configured] if configured else []
    for text in (*offered, *(str(place / name) for place in places for name in _NAMES)):
        with suppress(OperatorError, OSError):
            return str(place_for_pool(text))
    return ""


def machine_zone() -> str:
    """The name of this machine's time zone, from the target of /etc/localtime; UTC if it has none."""
    try:
        _, separator, name = str(_LOCALTIME.readlink()).partition(_ZONES)
    except OSError:
        return "UTC"
    return name if separator and name != "Etc/UTC" else "UTC"


def suggested_name(address: str | None) -> str:
    """Returns a name for the host at that address: the first of its names, an IP address, or this machine's name for its own
    addresses.
    """
    if not address:
        return HERE
    host = address.rpartition("@")[2].strip("[]")
    if host == "localhost":
        return _as_name(socket.gethostname().split(".")[0])
    try:
        ip = ip_address(host)
    except ValueError:
        return _as_name(host.split(".")[0])
    return _as_name(socket.gethostname().split(".")[0] if ip.is_loopback else host)


def _as_name(text: str) -> str:
    """Returns the text without characters that a host's name must not have."""
    name = re.sub(r"[^\w.-]+", "-", text).strip(".-")
    return HERE if name_fault(name) else name
