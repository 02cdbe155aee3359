"""Arguments and options that all programs share: words that a function parses, paths, and the filesystem to use.

A path is first tested by another process, because click, or the command, would wait for ever if a filesystem does not answer. A
filesystem is named by a mount point, or by a pool. A command with many options takes them as `**options`, and makes a dataclass
from them: each option is the field with its name.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import click
from click.shell_completion import CompletionItem

from btrkeep.errors import OperatorError, UsageError
from btrkeep.hung_storage import require_lookup
from btrkeep.units import printable, show_times_in

Value = TypeVar("Value")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Options = TypeVar("Options", bound=_Dataclass)


def from_options(kind: type[Options], options: dict[str, Any]) -> Options:
    """Makes a dataclass from the options with the names of its fields, and removes these from `options`."""
    return kind(**{name: options.pop(name) for name in kind.__dataclass_fields__ if name in options})


class ParsedType(click.ParamType[Value]):
    """A click type made from a function that raises ValueError with a message for the user."""

    def __init__(self, name: str, parse: Callable[[str], Value]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        if not isinstance(value, str):
            return value  # type: ignore[return-value]  # click hands a value that is converted already through again
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def virtual_address(text: str) -> int:
    """Parses bytes, decimal or with 0x. Raises ValueError."""
    try:
        address = int(text, 0)
    except ValueError:
        address = -1
    if not 0 <= address < 1 << 64:
        raise ValueError(f"{text!r} is not a virtual address: write bytes, such as 13631488 or 0xd00000")
    return address


VADDR = ParsedType("vaddr", virtual_address)


_SHOWN = 60  # characters of a path that is too long


class GivenPath(click.Path):
    """Like click.Path, which accesses the path for `exists` or `resolve_path`. Raises OperatorError if the filesystem does not
    answer, and for a path that cannot exist.
    """

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if os.fspath(value) not in ("", "-"):
            path = Path(value).absolute()
            require_lookup(path)
            _require_possible(path)
        return super().convert(value, param, ctx)


def _require_possible(path: Path) -> None:
    """Raises UsageError if the path, or a name in it, is longer than the kernel or its filesystem accepts."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"{printable(str(path)[:_SHOWN])}...: the path is too long", "a name has at most 255 bytes, and a path 4,095"
            ) from None


_FOLDER = Path("/etc/btrkeep")


def complete_mount(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes mount points of btrfs filesystems; folders if none matches."""
    from btrkeep.procfs import mounts

    targets = {str(mount.target) for mount in mounts() if mount.filesystem == "btrfs"}
    fitting = [CompletionItem(path) for path in sorted(targets) if path.startswith(incomplete)]
    return fitting or [CompletionItem(incomplete, type="dir")]


def show_times_of_pool_on(filesystem: str) -> None:
    """Makes times be shown in the zone of the pool on the btrfs with that UUID; in UTC if no pool or several are configured."""
    files = sorted(_FOLDER.glob("[!.]*.toml"))
    if not files:
        return
    from btrkeep.config import load_usable  # importing it takes longer than drawing most pictures
    from btrkeep.pool.marker import open_pool

    zones = set()
    for file in files:
        with suppress(OperatorError, OSError):
            config = load_usable(file=file)
            if open_pool(config.pool.path).filesystem == filesystem:
                zones.add(config.pool.zone)
    if len(zones) == 1:
        show_times_in(zones.pop())


def pool_options(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `pool` (str | None) and `config` (Path | None), which `require_one_pool` checks. `default`: the pool if none
    is given.
    """
    pool = click.option("--pool", metavar="NAME", help=f"The pool, configured in /etc/btrkeep/NAME.toml.  [default: {default}]")
    file = GivenPath(path_type=Path)
    config = click.option("--config", type=file, metavar="FILE", help="The configuration file, instead of a pool's name.")
    return lambda command: pool(config(command))


def pool_words(pool: str | None, config: Path | None) -> list[str]:
    """Returns the options again for a printed command; valid in any folder."""
    if config is not None:
        return ["--config", str(config.absolute())]
    return ["--pool", pool] if pool is not None else []


def require_one_pool(pool: str | None, config: Path | None, default: str = "that is on the filesystem") -> None:
    """Raises UsageError if both are given, or an empty one, such as an empty variable of a script."""
    if pool is not None and config is not None:
        raise UsageError("--pool and --config exclude each other", "give only one: a configuration file has the name of its pool")
    if pool == "" or (config is not None and str(config) in ("", ".")):
        raise UsageError(f"--{'pool' if config is None else 'config'} is empty", f"leave it out for the pool {default}")
