"""When a filesystem was last scrubbed, from the file that btrfs-progs keeps: /var/lib/btrfs/scrub.status.UUID.

A line for each device: UUID:DEVID|name:number|... (scrub_read_file in cmds/scrub.c). Scrubs that another machine did are not there.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from backupd.doctor.facts import Scrub

FOLDER = Path("/var/lib/btrfs")
_CORRECTED, _UNCORRECTABLE = "corrected_errors", "uncorrectable_errors"


def read_scrub(uuid: str, devids: frozenset[int], *, running: bool, folder: Path = FOLDER) -> Scrub:
    """Reads the scrubs of these devices. Without a file, none was ever done on this machine."""
    try:
        text = (folder / f"scrub.status.{uuid}").read_text(errors="replace")
    except FileNotFoundError:
        return Scrub(running=running)
    except OSError:
        return Scrub(running=running, known=False)
    return of_devices({devid: fields for devid, fields in parse(text, uuid).items() if devid in devids}, devids, running=running)


def parse(text: str, uuid: str) -> Mapping[int, Mapping[str, int]]:
    """The numbers by devid; lines of other filesystems, other formats and other files are passed over."""
    found = {}
    for line in text.splitlines():
        head, *fields = line.split("|")
        name, _, devid = head.partition(":")
        if name == uuid and devid.isdigit():
            pairs = (field.partition(":") for field in fields)
            found[int(devid)] = {key: int(value) for key, _, value in pairs if value.isdigit()}
    return found


def of_devices(found: Mapping[int, Mapping[str, int]], devids: frozenset[int], *, running: bool) -> Scrub:
    """All together: as old as the one that is the longest ago."""
    complete = {devid: fields for devid, fields in found.items() if fields.get("finished") and not fields.get("canceled")}
    all_complete = bool(devids) and devids <= set(complete)
    return Scrub(
        finished=datetime.fromtimestamp(min(fields.get("t_start", 0) for fields in complete.values()), UTC)
        if all_complete
        else None,
        unfinished=not running and bool(set(found) - set(complete)),
        running=running,
        corrected=sum(fields.get(_CORRECTED, 0) for fields in found.values()),
        uncorrectable=sum(fields.get(_UNCORRECTABLE, 0) for fields in found.values()),
    )
