"""What a picture is called when nobody says."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from heatmap.curves import HILBERT


def name_parts(
    fsid: str,
    curve: str,
    *,
    virtual: bool = False,
    block_group: int | None = None,
    extents: bool = False,
    devices: Sequence[int] = (),
    colour: str = "usage",
) -> list[str]:
    """What is said of the picture, in the words of knorrie's btrfs-heatmap and as they follow there; then what that has not."""
    parts = ["fsid", fsid]
    if curve != HILBERT:
        parts.append(curve)
    if virtual:
        parts.append("chunks")
    if block_group is not None:
        parts += ["blockgroup", str(block_group)]
    if extents:
        parts.append("extents")
    for devid in devices:
        parts += ["device", str(devid)]
    if colour != "usage":
        parts.append(colour)
    return parts


def output_name(wish: str | None, parts: Sequence[str], taken: datetime, form: str) -> str:
    """`wish` where it names a file or "-". Else a name made of `parts` and the time, in the folder that it names or in this one."""
    if wish is not None and not Path(wish).is_dir():
        return wish
    name = "_".join([*parts, "at", str(int(taken.timestamp()))]) + f".{form}"
    return str(Path(wish, name)) if wish else name
