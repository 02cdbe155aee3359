"""Suggestions of `setup`: a usable place for a pool, the machine's time zone, a valid name for a host."""

import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from btrkeep.config.sources import name_fault
from btrkeep.errors import OperatorError, PoolUnusable, UsageError
from btrkeep.pool.marker import filesystem_uuid, open_pool, require_place_for_pool
from btrkeep.procfs import mounts

HERE = "here"
_NAMES = ("backup", "btrkeep")
_LOCALTIME, _ZONES = Path("/etc/localtime"), "/zoneinfo/"


def place_for_pool(text: str) -> Path:
    """A pool, or a place for one. Raises UsageError or PoolUnusable."""
    if not text:
        raise UsageError("it is not said where", "a folder on a mounted btrfs, such as /srv/backup")
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
    found = {mount.target for mount in mounts() if mount.filesystem == "btrfs" and mount.target.is_dir()}
    root = _filesystem(Path("/"))
    return sorted(found, key=lambda place: (root is not None and _filesystem(place) == root, place))


def _filesystem(place: Path) -> str | None:
    try:
        return filesystem_uuid(place)
    except OSError:  # no btrfs, or one that does not answer
        return None


def suggested_place(configured: str | None, places: Iterable[Path]) -> str:
    """Returns the first place that `place_for_pool` accepts: the configured one, then new folders below `places`; "" if there
    is none.
    """
    offered = [configured] if configured else []
    for text in (*offered, *(str(place / name) for place in places for name in _NAMES)):
        with suppress(OperatorError, OSError):
            return str(place_for_pool(text))
    return ""


def machine_zone() -> str:
    """The name of this machine's time zone, as /etc/localtime leads to it; UTC when it does not."""
    try:
        _, found, name = str(_LOCALTIME.readlink()).partition(_ZONES)
    except OSError:
        return "UTC"
    return name if found and name != "Etc/UTC" else "UTC"


def suggested_name(address: str | None) -> str:
    """A name for the host at that address: the first of its names, an IP address, or this machine's name for its own addresses."""
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
    """Without what a host's name may not have in it."""
    name = re.sub(r"[^\w.-]+", "-", text).strip(".-")
    return HERE if name_fault(name) else name
