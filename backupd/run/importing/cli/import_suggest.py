"""The configuration that hosts of a rsnapshot.conf could have here, as TOML for `backupd import --dry-run`."""

import json
from collections.abc import Callable, Iterable, Iterator

from backupd.run.importing.rsnapshot_conf import BackupPoint, RsnapshotConf
from btrkeep.config.sources import name_fault
from btrkeep.units import printable


def suggested(conf: RsnapshotConf, name_of: Callable[[str], str | None], configured: Iterable[str]) -> str:
    """TOML for the hosts that are not configured yet; "" if there is none. `name_of` returns a host's name here; None if it is not
    meant.

    Lines of rsnapshot.conf that have no equal here are comments in it.
    """
    found: dict[str, list[BackupPoint]] = {}
    for point in conf.points:
        if (name := name_of(point.host)) and not name_fault(name) and name not in set(configured):
            found.setdefault(name, []).append(point)
    blocks = ["\n".join(_host(name, points, conf)) for name, points in found.items()]
    if not blocks:
        return ""
    rest = [f"# not translated: {printable(line)}" for line in conf.untranslated]
    return "\n\n".join([*blocks, *(["\n".join(rest)] if rest else [])]) + "\n"


def _host(name: str, points: list[BackupPoint], conf: RsnapshotConf) -> Iterator[str]:
    address = points[0].address
    mine = [one for one in points if one.address == address]
    section = f"host.{name if name.isascii() and '.' not in name else _quoted(name)}"
    yield f"[{section}]"
    if address:
        yield f"address = {_quoted(address)}"
    yield f"paths = [{', '.join(_quoted(path) for path in dict.fromkeys(one.path for one in mine))}]"
    if conf.exclude:
        yield f"exclude = [{', '.join(map(_quoted, conf.exclude))}]"
    for one in points:
        if one not in mine:
            yield f"# another machine in the same folder: {printable(one.address or 'this one')}:{printable(one.path)}"
    if conf.retain:
        yield f"\n[{section}.retention]"
        yield from (f"{rule} = {number}" for rule, number in conf.retain.items())


def _quoted(text: str) -> str:
    """Quotes the text for TOML, which wants DEL escaped too; and nothing in it does anything to a terminal."""
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in json.dumps(text, ensure_ascii=False))
