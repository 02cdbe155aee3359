"""Puts together what many hosts have for the same reason, so that it is one line. Pure."""

import re
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

MANY_ALIKE = 4
"""Hosts with the same error are one line from this number on."""
_PLACE = re.compile(r"(?<!\S)\S+:\d+: ")  # from the start of a word only: what a host prints may be long
"""FILE:LINE of a mistake in the configuration, which differs where each host has a file of its own."""
T = TypeVar("T")


def without_host(text: str, host: str) -> str:
    """Returns an error without the name of its host, and without the file and line of a mistake in the configuration."""
    text = _PLACE.sub("", text)
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", "*", text) if host in text else text


def grouped_alike(items: Iterable[T], key: Callable[[T], Hashable | None]) -> list[list[T]]:
    """Returns the items in groups: those with the same key, where there are many, at the place of the first; else each by itself.

    An item whose key is None stays by itself.
    """
    groups: dict[tuple[bool, Hashable], list[T]] = {}
    for number, item in enumerate(items):
        value = key(item)
        groups.setdefault((False, number) if value is None else (True, value), []).append(item)
    return [part for group in groups.values() for part in ([group] if len(group) >= MANY_ALIKE else [[item] for item in group])]
