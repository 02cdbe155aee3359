"""Which module may import what: the rules of the project's structure, checked in the syntax tree of one module at a time.

A module's uses are dotted names, whichever way they came in: `from os import execv as run; run()` uses os.execv.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BOTTOM = (
    "btrkeep.backup_states",
    "btrkeep.checkpoints",
    "btrkeep.choices",
    "btrkeep.clock",
    "btrkeep.consistency",
    "btrkeep.descriptors",
    "btrkeep.errors",
    "btrkeep.hung_storage",
    "btrkeep.metrics",
    "btrkeep.procfs",
    "btrkeep.trusted_path",
    "btrkeep.units",
)
SCAN = ("btrkeep.treescan",)  # reads trees; nothing below it depends on pools
GROUND = ("btrkeep.config", "btrkeep.process", "btrkeep.pool", "btrkeep.fs", "btrkeep.catalogue", "btrkeep.serving")
DECISIONS = ("btrkeep.decisions",)  # pure: plain data and an explicit `now` in, typed answers out
CHARTS = ("btrkeep.charts",)  # pure: what decisions answer, as SVG
EDGE = ("btrkeep.cli",)  # shared by the programs' command lines
PROGRAMS = ("backupd", "heatmap", "balancer", "web")
AREAS = (*BOTTOM, *SCAN, *GROUND, *DECISIONS, *CHARTS, *EDGE, *PROGRAMS)
# Whom each may import besides itself. Programs meet in the catalogue, not in each other.
BELOW = {
    **dict.fromkeys(BOTTOM, BOTTOM),
    **dict.fromkeys(SCAN, BOTTOM),
    **dict.fromkeys(GROUND, (*BOTTOM, *SCAN)),
    **dict.fromkeys(DECISIONS, (*BOTTOM, *GROUND)),
    **dict.fromkeys(CHARTS, (*BOTTOM, *DECISIONS)),
    **dict.fromkeys(EDGE, (*BOTTOM, *SCAN, *GROUND)),
    **dict.fromkeys(PROGRAMS, (*BOTTOM, *SCAN, *GROUND, *DECISIONS, *CHARTS, *EDGE)),
}
# A door leads to pure code (docs/decisions/0015-dashboard-imports-decisions.rst); its target is given without the code behind it.
DOORS = {
    ("heatmap", "balancer.score", ()),  # to colour by fragmentation
    ("web", "heatmap", ("heatmap.cli", "heatmap.state_reader")),  # to draw a recorded state
    ("btrkeep.pool", "btrkeep.process.proc", ()),  # a lock names its holder beyond doubt, also one that left no text
}

STARTERS = (
    "subprocess",
    "multiprocessing",
    "pty",
    "os.system",
    "os.popen",
    "os.fork",
    "os.forkpty",
    *(f"os.exec{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    *(f"os.spawn{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    "os.posix_spawn",
    "os.posix_spawnp",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "asyncio.subprocess.create_subprocess_exec",
    "asyncio.subprocess.create_subprocess_shell",
)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Names that only some modules may use: those listed with their submodules, and those with one of `parts` in their name."""

    names: tuple[str, ...]
    modules: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


_ON_HOSTS = "backupd.source.btrkeep_source"
RESERVED = (
    Reserved(("btrfs",), modules=("btrkeep.pool", "btrkeep.treescan")),
    # The throttle is a small program that rsync starts; it then executes the real program. A call starts itself again with
    # another environment.
    # Whether a disk answers has to be known before anything else is, by the pool and the catalogue too.
    # Only this one file of btrkeep is on a host, so it cannot import other modules.
    Reserved(
        STARTERS, modules=("btrkeep.process", "backupd.rsync.throttle", "backupd.run.cli.called", "btrkeep.hung_storage", _ON_HOSTS)
    ),
    # Users and sessions are the login service's own; a table of hard links too large for memory lasts as long as one archive.
    Reserved(("sqlite3",), modules=("btrkeep.catalogue", "web.auth.store", "backupd.files.spool")),
    # Checks a path on its own, and waits for ever on a dead mount.
    Reserved(("click.Path",), modules=("btrkeep.cli.arguments",)),
    Reserved(("print",), modules=(_ON_HOSTS,), parts=("cli", "__main__")),
    Reserved(("click", "rich"), parts=("cli", "display", "__main__")),
)


def violations(module: str, source: str) -> list[str]:
    """Returns the forbidden uses of `module`, each as a line; `module` is a dotted name, a package's is its __init__'s."""
    return broken(module, uses(module, source))


def broken(module: str, used_names: Iterable[str]) -> list[str]:
    """Returns the same for the given uses."""
    result = []
    for used in sorted(set(used_names)):
        if not may_import(module, used):
            result.append(f"{module} may not import {used}")
        result += [
            f"{module} may not use {used}" for rule in RESERVED if _within(used, rule.names) and not _has_leave(module, rule)
        ]
    return result


def may_import(module: str, used: str) -> bool:
    """Returns True if the direction is right: down, within one area, or through a door. Only for our own names."""
    here, present = area(module), area(used)
    if here is None or present is None or here == present:
        return here is not None or present is None
    return present in BELOW[here] or any(
        here == of and _within(used, (door,)) and not _within(used, closed) for of, door, closed in DOORS
    )


def area(dotted: str) -> str | None:
    """Returns the part of the project that a dotted name belongs to; None: not ours, or btrkeep/__init__.py, which has only a
    version.
    """
    return next((name for name in AREAS if _within(dotted, (name,))), None)


def _has_leave(module: str, rule: Reserved) -> bool:
    return _within(module, rule.modules) or not set(module.split(".")).isdisjoint(rule.parts)


def _within(dotted: str, names: tuple[str, ...]) -> bool:
    return any(dotted == name or dotted.startswith(f"{name}.") for name in names)


def uses(module: str, source: str, is_package: bool = False) -> Iterator[str]:
    """Returns the dotted names that a module imports or reaches through its imports, and the builtin functions that it calls."""
    return used_in(ast.parse(source), module, is_package)


def used_in(tree: ast.Module, module: str, is_package: bool = False) -> Iterator[str]:
    """Yields the same for its syntax tree."""
    nodes = list(ast.walk(tree))
    meanings: dict[str, str] = {}
    for node in nodes:
        for bound, dotted in _imported(node, module, is_package):
            meanings[bound] = dotted
            yield dotted
    for node in nodes:
        if isinstance(node, ast.Attribute) and (reached := _dotted(node, meanings)):
            yield reached
        elif isinstance(node, ast.Name) and node.id == "print" and isinstance(node.ctx, ast.Load):
            yield "print"


def _imported(node: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, str]]:
    """Yields the bound name and the dotted name that it means, for each name of an import statement."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname is None and "." in alias.name:  # `import os.path` binds os
                yield alias.name, alias.name
            top = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or top, top
    elif isinstance(node, ast.ImportFrom):
        origin = _origin(node, module, is_package)
        for alias in node.names:
            yield alias.asname or alias.name, f"{origin}.{alias.name}"


def _origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    above = node.level - 1 if is_package else node.level
    package = module.rsplit(".", above)[0] if above else module
    return f"{package}.{node.module}" if node.module else package


def _dotted(node: ast.expr, by_name: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return by_name.get(node.id)
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value, by_name)):
        return f"{before}.{node.attr}"
    return None
