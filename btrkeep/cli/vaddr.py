"""Virtual addresses of btrfs, as an operator writes them."""

import click


class _Vaddr(click.ParamType[int]):
    name = "vaddr"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            found = int(str(value), 0)
        except ValueError:
            found = -1
        if not 0 <= found < 1 << 64:
            self.fail(f"{value!r} is no virtual address: write bytes, such as 13631488 or 0xd00000", param, ctx)
        return found


VADDR = _Vaddr()
"""Bytes, decimal or with 0x."""
