"""Source paths, exclude patterns, names and addresses: values that are safe for rsync, ssh and the pool's folders."""

import re
from pathlib import Path
from typing import Any

from btrkeep.config.problems import InvalidValue, RefusedItems, quoted
from btrkeep.errors import UsageError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
_PLAIN_ADDRESS = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]", re.ASCII)
_LONGEST_NAME = 200  # bytes; filesystems allow 255, minus room for suffixes
PATTERN_PREFIXES = ("+ ", "- ", "! ")


def parse_path(value: Any) -> Path:
    """An absolute path on this machine, not the root."""
    path = normalised(value)
    if path == "/":
        raise InvalidValue("expected a path other than /, the root of the filesystem")
    return Path(path)


def parse_ssh_file(value: Any) -> Path:
    """Parses the name of a file for ssh, whose options split at spaces and quotes and expand percent signs."""
    path = parse_path(value)
    if any(char.isspace() or char in "\"'%\\" for char in str(path)):
        raise InvalidValue("ssh does not accept a path with blanks, quotes, backslashes or percent signs")
    return path


def parse_sources(value: Any) -> tuple[str, ...]:
    """Parses the source paths of one host, normalised; no two may be the same or one within the other."""
    if not isinstance(value, list) or not value:
        raise InvalidValue
    paths: dict[str, str] = {}
    wrong: list[tuple[Any, str]] = []
    for item in value:
        try:
            path = _source(item)
        except InvalidValue as refused:
            wrong.append((item, refused.reason))
            continue
        if path in paths:
            wrong.append((item, "is given twice"))
        paths[path] = item
    wrong += [(paths[inner], f"lies in {quoted(paths[outer])}; name only one of them") for inner, outer in nested(paths)]
    if wrong:
        raise RefusedItems(wrong)
    return tuple(paths)


def _source(value: Any) -> str:
    path = normalised(value)
    if "*" in path or "?" in path:
        raise InvalidValue("a source path must not contain wildcards; give the folder above, and use exclude")
    return path


def normalised(value: Any) -> str:
    """Returns an absolute path without empty or `.` components and without a slash at its end. Raises InvalidValue."""
    if not isinstance(value, str) or not value.startswith("/"):
        raise InvalidValue('expected an absolute path such as "/srv/www"')
    if _CONTROL.search(value):
        raise InvalidValue("a path must not contain control characters")
    parts = [part for part in value.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidValue('".." is not followed; write the path it leads to')
    return "/" + "/".join(parts)


def nested(paths: dict[str, str]) -> list[tuple[str, str]]:
    """Returns (inner, outer) for every path within another one: goes up from each, so the time is linear for long lists."""
    pairs = []
    for path in paths:
        outer = path
        while outer != "/":
            outer = outer.rpartition("/")[0] or "/"
            if outer in paths:
                pairs.append((path, outer))
                break
    return pairs


def parse_patterns(value: Any) -> tuple[str, ...]:
    """Parses exclude patterns: only patterns, not other filter rules of rsync."""
    if not isinstance(value, list):
        raise InvalidValue
    wrong = [(item, reason) for item in value if (reason := _pattern_fault(item))]
    if wrong:
        raise RefusedItems(wrong)
    return tuple(value)


def _pattern_fault(item: Any) -> str:
    if not isinstance(item, str) or not item:
        return 'expected a pattern such as "/var/cache/*" or "*.tmp"'
    if item.startswith(PATTERN_PREFIXES) or item == "!":
        return (
            "expected a pattern of excluded files, not a filter rule of rsync; if a file's name begins like this, write ? for "
            "its first character"
        )
    if _CONTROL.search(item):
        return "a pattern must not contain control characters; write ? for each"
    if "//" in item or any(part in (".", "..") for part in item.split("/")):
        return 'never matches: paths of files have no "//", "." or ".."'
    return ""


def literal_pattern(path: str) -> str:
    """Returns the anchored pattern that matches only `path`. rsync(1): a backslash escapes only in a pattern that has a
    wildcard.
    """
    if not any(char in path for char in "*?["):
        return path
    return re.sub(r"([\\*?\[])", r"\\\1", path)


def require_host_name(name: str) -> None:
    """Raises UsageError if no host can have that name."""
    if fault := name_fault(name):
        raise UsageError(f"{quoted(name)} cannot be a host's name: it {fault}", "choose one such as web2.example.org")


def name_fault(name: str) -> str:
    """Returns why `name` cannot be the folder of a host, a group or a pool, as text to follow the name; "" if it can.

    Letters and digits of any script, `.`, `_` and `-`; the first is a letter, a digit or `_`; at most 200 bytes of UTF-8.
    """
    if _PLAIN_NAME.fullmatch(name) and len(name) <= _LONGEST_NAME:
        return ""
    if not name:
        return "is empty"
    if name[0] in ".-":
        return f"begins with {quoted(name[0])}, which is not allowed"
    if not all(char.isalnum() or char in "._-" for char in name):
        return "contains characters other than letters, digits, . _ and -"
    if len(name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        return f"is longer than {_LONGEST_NAME} bytes"
    import unicodedata  # only needed for names beyond ASCII

    return "" if unicodedata.is_normalized("NFC", name) else "is not in Unicode's normal form NFC, so two names could look the same"


def parse_address(value: Any) -> str:
    """Parses USER@HOST, HOST or an IPv6 address in brackets: nothing that ssh or rsync would read as an option, a path
    or a module.
    """
    if not isinstance(value, str) or not value:
        raise InvalidValue
    if _PLAIN_ADDRESS.fullmatch(value):
        return value
    user, _, host = value.rpartition("@")
    if user.startswith("-") or host.startswith("-"):
        raise InvalidValue("user and host must not begin with -, because ssh would read it as an option")
    if "@" in value and not user:
        raise InvalidValue
    if any(char.isspace() or not char.isprintable() or char in "/\\'\"" for char in value):
        raise InvalidValue("has characters that are not allowed; write paths in paths")
    if not host or (set(host) & set("[]:") and not _BRACKETED.fullmatch(host)) or ":" in user:
        raise InvalidValue(
            'expected USER@HOST without a colon; a port belongs in port, an IPv6 address in brackets, "root@[fe80::1]"'
        )
    return value
