"""The commands that our programs print as advice, found in string literals of their source, not in output of tests.

A command is written with {} for each part that is filled in. Strings that are no advice (locks' labels, help texts, comments of the
configuration's keys) are left out by where they stand.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from backupd.cli import COMMANDS as BACKUPD
from backupd.cli import HIDDEN
from balancer.cli import COMMANDS as BALANCER
from heatmap.cli import COMMANDS as HEATMAP
from tests.beds.cli import TOP
from web.cli import COMMANDS as WEB

COMMANDS = {"backupd": {*BACKUPD, *HIDDEN}, "btrfs-balancer": {*BALANCER}, "btrfs-heatmap": {*HEATMAP}, "btrkeep-web": {*WEB}}
OURS = ("backupd", "btrfs-balancer", "btrfs-heatmap", "btrkeep-web")
_PLACES = ("backupd", "btrkeep", "balancer", "heatmap", "web")
_NO_ADVICE = (
    "btrkeep/config/config_model.py",  # the manual's text of each key
    "btrkeep/config/settings.py",
    "btrkeep/metrics.py",
    "btrkeep/config/sample_config.py",
    "backupd/drill/boot.py",  # a script for a machine of its own
    "backupd/rehearse/",
    "btrkeep/cli/output.py",
    # tests/btrfs/test_doctor_commands.py types all of these, and fails for a rule that it does not
    *(f"backupd/doctor/rules/{module}.py" for module in ("mount", "site", "state", "storage")),
)
_FOREIGN = (
    r"apt (?:update|install)|chmod [a-z0-7+-]+ \S|chown root \{|systemctl (?:[a-z-]+)|journalctl|restic [a-z]+`|umount|wipefs"
    r"|losetup --|btrfs (?:balance|device|scrub|check|replace|qgroup|subvolume|filesystem|quota) [a-z-]+|btrfstune|ssh-keygen"
    r"|mount (?:-o|\{)|fuser -v \{|dmesg \||df (?:-|/|\{)|ls -l|ps -f|findmnt|timedatectl|mkdir -p|sysctl|ulimit|sudo \./install"
    r"|crontab|getent|mkfs|\{\} (?=setup --|host set|host test|verify \{|accept \{|delete \{|run --scheduled)"
)
_FIELD = re.compile(r"\{[^{}]*\}")
_QUOTED = re.compile(r"`([^`\n]+)`")
_PROGRAM = re.compile(rf"(?:{'|'.join(OURS)}) \S")
_BARE = re.compile(rf"(?<![\w./`\"-])((?:{'|'.join(OURS)}) (?=[a-z{{-])[^`\n;,()]*|(?:{_FOREIGN})[^`\n;,()]*)")
_HTML = re.compile(rf"<code>((?:{'|'.join(OURS)}|systemctl|journalctl) [^<]+)</code>")


@cache
def printed_commands() -> dict[str, list[str]]:
    """Returns each command with the places, file and line, that print it."""
    commands: dict[str, list[str]] = {}
    for place in _PLACES:
        for path in sorted((TOP / place).rglob("*.py")):
            name = str(path.relative_to(TOP))
            if not name.startswith(_NO_ADVICE):
                for line, command in _in_module(path):
                    commands.setdefault(command, []).append(f"{name}:{line}")
    for path in sorted((TOP / "web" / "templates").rglob("*.html")):
        text = path.read_text(encoding="utf-8").replace("{{ backupd() }}", "backupd").replace("{{ pool_option() }}", "--pool {}")
        for command in _HTML.findall(re.sub(r"\{\{[^}]*\}\}", "{}", text)):
            for line in command.splitlines():
                commands.setdefault(_normal(line), []).append(str(path.relative_to(TOP)))
    return commands


def _in_module(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = set(_no_advice(tree))
    for node in ast.walk(tree):
        if node not in left_out and (text := _text(node)):
            for command in _in_text(text):
                yield getattr(node, "lineno", 0), command


def _no_advice(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the strings that are docstrings, parts of f-strings, help texts, and names of processes in their locks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield from node.values
        elif isinstance(node, ast.Call):
            if getattr(node.func, "id", "") == "take_lock":
                yield from node.args
            yield from (keyword.value for keyword in node.keywords if keyword.arg in ("help", "short_help", "epilog"))
            if getattr(node.func, "attr", "") in ("compile", "fullmatch", "match", "search", "dry_run_option"):
                yield from node.args


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def _in_text(text: str) -> Iterator[str]:
    for quoted in _QUOTED.findall(text):
        if _PROGRAM.match(quoted) or re.match(_FOREIGN, quoted + "`"):
            yield _normal(quoted)
    for bare in _BARE.findall(_QUOTED.sub("``", text)):
        command = _normal(bare)
        if is_command(command):
            yield command


def is_command(command: str) -> bool:
    """Returns True if the second word is a command, an option or a placeholder. In "btrfs-balancer meanwhile" it is not."""
    program, _, rest = command.partition(" ")
    word = rest.partition(" ")[0]
    return program not in COMMANDS or word in COMMANDS[program] or word.startswith(("-", "{"))


def _normal(command: str) -> str:
    first_sentence = re.split(r"\. (?=[A-Z])", _FIELD.sub("{}", command))[0]
    return " ".join(first_sentence.replace("'{}'", "{}").split()).rstrip(" .:")
