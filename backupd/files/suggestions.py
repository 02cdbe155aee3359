"""Explains why a path is not in a backup, and suggests similar ones. Opens only folders and follows no symlink.

If a path leads through a symlink, the place that the host itself would reach is derived from the targets of the symlinks, as if the
backup were the whole machine. It is only suggested; the user has to enter that path.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from backupd.files.entry_words import shown
from backupd.files.sameness import Pulse, steady
from backupd.files.tree import NOT_THERE, Entry, Tree, components, deepest, joined
from btrkeep.errors import OperatorError, UsageError
from btrkeep.units import printable

_MANY = 1_000  # names; comparing a name with that many takes 10 ms, or 400 ms if they were made similar on purpose
_SHOWN = 5
_HOPS = 40  # the kernel's limit
_STEPS = 400  # path components followed; a symlink may contain two thousand


def path_given(text: str) -> bytes:
    """Returns the typed path in bytes. Raises UsageError if no backup can have such a path."""
    path = os.fsencode(text)
    try:
        return joined(components(path))
    except ValueError as error:
        near = (
            ""
            if path.startswith(b"/") or b"\0" in path or not path
            else f"did you mean {shlex.quote('/' + printable(text.removeprefix('./')))}?"
        )
        raise UsageError(f"{printable(text)}: {error}", near) from None


def path_in(tree: Tree, path: bytes, pulse: Pulse = steady) -> bytes:
    """Returns the path in the backup. A name may be given as it is shown, with escapes: latin1-\\xe4.txt. It is returned unchanged
    if there is no such name. Raises UsageError if two names are shown or written like this; OperatorError if a folder cannot be
    read.
    """
    if b"\\" not in path:
        return path
    done: list[bytes] = []
    for name in components(path):
        done.append(_name_in(tree, joined(done), name, pulse) if b"\\" in name else name)
    return joined(done)


def _name_in(tree: Tree, folder: bytes, name: bytes, pulse: Pulse) -> bytes:
    text = os.fsdecode(name)

    def is_named(near_name: bytes) -> bool:
        pulse()
        return near_name == name or shown(near_name) == text

    try:
        names = list(filter(is_named, tree.each_name(folder)))
    except OSError as error:
        if error.errno in NOT_THERE:
            return name
        raise OperatorError(f"{shown(folder)} cannot be read: {os.strerror(error.errno or 0)}") from None
    if len(names) > 1:
        words = " or ".join(shlex.quote(shown(name)) if shown(name) != text else _for_bash(name) for name in names)
        raise UsageError(f"{text} matches {len(names)} names in {shown(folder)}", f"write {words}")
    return names[0] if names else name


def as_typed(path: bytes) -> str:
    """Returns a path that can be pasted into a shell: `path_in` reads the escapes in it."""
    return shlex.quote(shown(path))


def _for_bash(name: bytes) -> str:
    """Returns the name for bash, each byte that is not plain ASCII as a number."""
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\{byte:03o}" for byte in name)
    return f"$'{text}'"


def entry_at(tree: Tree, path: bytes, where: str) -> Entry:
    """Returns the entry at `path`. Raises UsageError, which names the nearest paths, if there is none; `where` names the backup.

    Raises OperatorError if it cannot be read.
    """
    try:
        return tree.stat(path)
    except OSError as error:
        if error.errno in NOT_THERE:
            raise missing(tree, path, where) from None
        raise OperatorError(f"{shown(path)} of {where} cannot be read: {os.strerror(error.errno or 0)}") from None


def nearest_paths(tree: Tree, path: bytes) -> list[bytes]:
    """Returns the nearest paths in the backup, the best first; the deepest folder on the way if no name is similar to the missing
    one; none if the path exists.
    """
    names = components(path)
    last, depth = deepest(tree, names)
    if depth == len(names):
        return []
    if last.kind != "folder":
        return [last.path]
    rest = joined(names[depth + 1 :]).rstrip(b"/")
    above = last.path.rstrip(b"/")
    alike = [above + b"/" + name for name in _alike(names[depth], tree.each_name(last.path))]
    whole = [near_path + rest for near_path in alike if rest and _is_there(tree, near_path + rest)]
    return whole or alike or [last.path]


def missing(tree: Tree, path: bytes, where: str) -> UsageError:
    """Returns the error for a missing path."""
    names = components(path)
    last, _ = deepest(tree, names)
    above = shown(last.path)
    if last.kind == "symlink":
        end = resolved(tree, path)
        hint = f"its target is {as_typed(end)}" if end else "its target is not in this backup"
        message = f"{above} is a symlink to {shown(last.target or b'')}, and links are not followed in a backup"
        return UsageError(message, hint)
    if last.kind != "folder":
        return UsageError(f"{above} of {where} is a {last.kind}, not a folder", f"use {as_typed(last.path)}")
    if not tree.owns(last.device):
        return UsageError(f"another filesystem is mounted at {above} of {where}", "unmount it: a backup must not contain mounts")
    return UsageError(f"{where} has no {shown(path)}", _hint(tree, last, nearest_paths(tree, path)))


def _hint(tree: Tree, last: Entry, paths: Sequence[bytes]) -> str:
    if paths and paths != [last.path]:
        return f"did you mean {' or '.join(as_typed(path) for path in paths)}?"
    names = list(islice(tree.each_name(last.path), _SHOWN + 1))
    if not names:
        return f"{shown(last.path)} is empty"
    listed = ", ".join(as_typed(name) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{shown(last.path)} has {listed}"


def _is_there(tree: Tree, path: bytes) -> bool:
    try:
        tree.stat(path)
    except OSError:
        return False
    return True


def _alike(name: bytes, names: Iterator[bytes]) -> list[bytes]:
    """Returns up to three names that are similar to `name`; another case counts as hardly different."""
    from difflib import get_close_matches  # rarely needed

    wanted, some_names = _plain(name), list(islice(names, _MANY + 1))
    if len(some_names) > _MANY:
        likely = (
            near_name
            for near_name in chain(some_names, names)
            if (text := _plain(near_name))[:2] == wanted[:2] or text[-3:] == wanted[-3:]
        )
        some_names = list(islice(likely, _MANY))
    by_text: dict[str, list[bytes]] = {}
    for near_name in some_names:
        by_text.setdefault(_plain(near_name), []).append(near_name)
    return [near_name for text in get_close_matches(wanted, by_text, 3, 0.6) for near_name in by_text[text]][:3]


def _plain(name: bytes) -> str:
    return os.fsdecode(name).casefold()


def resolved(tree: Tree, path: bytes) -> bytes | None:
    """Resolves `path` as the host would, following symlinks as if the backup's root were its root; None if that leads nowhere.

    Each component is looked up from the backup's root, and never through a symlink.
    """
    todo, done, hops = components(path)[::-1], list[bytes](), 0
    for _ in range(_STEPS):
        if not todo:
            return joined(done)
        name = todo.pop()
        if name == b"..":
            done = done[:-1]
            continue
        try:
            entry = tree.stat(joined([*done, name]))
        except OSError:
            return None
        if entry.kind != "symlink":
            done.append(name)
            continue
        hops += 1
        target = entry.target or b""
        if hops > _HOPS:
            return None
        if target.startswith(b"/"):
            done = []
        todo += [part for part in target.split(b"/") if part not in (b"", b".")][::-1]
    return None
