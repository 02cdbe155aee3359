"""`backupd init`: creates the pool, and an example configuration if there is none."""

import os
from datetime import UTC, datetime
from pathlib import Path

import click

from backupd.hosts.cli.setup_pool import powerless_hint
from backupd.repo.boot_json import note_new_pool
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.given_path import GivenPath
from btrkeep.cli.progress import prose
from btrkeep.config import example, is_example
from btrkeep.errors import UsageError
from btrkeep.pool.marker import create_pool
from btrkeep.pool.reserve import ensure_reserve


@click.command("init")
@click.argument("path", type=GivenPath())
@click.option("--rehearsal", is_flag=True, help="A pool for trying things out: commands on it accept --now.")
@json_option
@click.pass_context
def command(ctx: click.Context, path: str, rehearsal: bool, as_json: bool) -> None:
    """Create a pool at PATH: a new subvolume of a mounted btrfs, or an empty folder on one.

    Writes an example configuration too, unless there is one already: /etc/btrkeep/main.toml, or what --pool or --config name. An
    unchanged example is replaced by one with this PATH. `backupd setup` does this and all that comes after it.
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
    if as_json:
        echo_json(
            {
                "path": str(pool.path),
                "id": pool.id,
                "filesystem": pool.filesystem,
                "rehearsal": rehearsal,
                "config": str(config),
                "config_written": written,
            }
        )
        return
    prose(f"{pool.path} is a pool now")
    if hint := powerless_hint(pool.path):
        prose(hint)
    if written:
        prose(f"{config} is an example: add your hosts to it, then run `backupd check`")
    else:
        prose(f"{config} was there already and is left as it is")


def _write_example(config: Path, text: str) -> bool:
    try:
        if config.exists():
            if not is_example(config.read_text(encoding="utf-8", errors="replace"), config.stem):
                return False
            config.unlink()
        config.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # It may come to hold passwords, for alarms.
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{config} cannot be written: {error.strerror}", "the pool is made; write its configuration yourself"
        ) from None
    return True
