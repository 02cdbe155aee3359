"""Every configuration key, collected from the settings classes.

Reading, docs/configuration.rst and man/btrkeep.toml.5 are made from this table.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

from btrkeep.config import config_model, settings
from btrkeep.config import value_types as kinds
from btrkeep.config.config_key import KEY, NAMED, POOL, SECTIONS, WITHIN, ConfigKey


def declared_keys() -> Iterator[ConfigKey]:
    """Yields the key of each field of the settings classes. A key for fields of several classes comes several times."""
    classes = [value for module in (settings, config_model) for value in vars(module).values() if is_dataclass(value)]
    for of in classes:
        for name in of.__annotations__:
            declared = of.__dataclass_fields__[name].metadata.get(KEY)
            while declared:
                yield replace(declared, name=declared.name or name)
                declared = declared.beside


TABLE = tuple({key.name: key for key in declared_keys()}.values())

WRITTEN = {
    section: (
        f"[{section}.NAME]" if section in NAMED else f"[{section}]",
        *(f"[{outer}.NAME.{section}]" for outer, inner in WITHIN.items() if section in inner),
    )
    for section in SECTIONS
}
"""How each section's header is written, in all its possible places."""

SECRET = frozenset(key.name for key in TABLE if key.secret)

LEGAL = {section: {key.name: key for key in TABLE if section in key.sections} for section in SECTIONS}


# Parsed, by name: names are unique in the table. The zone is not parsed, because a machine may lack time zones.
DEFAULTS: dict[str, Any] = {key.name: key.value for key in TABLE if key.kind is not kinds.ZONE}


def default_zone() -> ZoneInfo:
    """Raises InvalidValue on a machine without time zones."""
    zone: ZoneInfo = kinds.ZONE(LEGAL[POOL]["zone"].default)
    return zone
