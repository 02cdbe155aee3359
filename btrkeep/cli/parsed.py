"""Options and arguments whose words a function of ours reads."""

from collections.abc import Callable
from typing import TypeVar

import click

Value = TypeVar("Value")


class Parsed(click.ParamType[Value]):
    """A click type made from a function, which raises ValueError with a message for the operator."""

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
    """Bytes, decimal or with 0x. Raises ValueError."""
    try:
        found = int(text, 0)
    except ValueError:
        found = -1
    if not 0 <= found < 1 << 64:
        raise ValueError(f"{text!r} is no virtual address: write bytes, such as 13631488 or 0xd00000")
    return found


VADDR = Parsed("vaddr", virtual_address)
