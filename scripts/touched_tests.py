"""Prints the test modules that CI runs beside the gate, one a line: those that a change touches, and a tenth of the others.

    .venv/bin/python -m scripts.touched_tests [BASE]

The change is the difference to the commit BASE, else to that in BTRKEEP_BASE, else to the newest commit that is a day older than
HEAD. The turn, which selects the tenth, is the number of commits up to HEAD; in a shallow clone it is HEAD's hash. With a BASE the
commits after it have their turns too, as far as there is time. If a changed module has no record, there are at least two turns. A
merge counts as one commit, and its branch as its change. A summary of the choice is printed on standard error, with the modules for
which there was no time.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import replace

from tests.beds import TOP
from tests.beds.helpers_used import helpers_used
from tests.beds.touched import TURNS, Record, chosen, is_wide, read_records, turns_wanted, without_users

DAY = 24 * 60 * 60
NOTHING = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's name of an empty tree


def git(*words: str) -> str:
    """Returns the output of git. CI's user need not be the owner of the checkout."""
    command = ("git", "-c", f"safe.directory={TOP}", "-C", str(TOP), *words)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.strip()


def is_known(base: str) -> bool:
    """Returns True if it is a commit or tree of this checkout. A shallow clone has no older commits."""
    words = ("git", "-c", f"safe.directory={TOP}", "-C", str(TOP), "cat-file", "-e", f"{base}^{{tree}}")
    return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


def default_base() -> str:
    """Returns the newest commit that is a day older than HEAD, or an empty tree if the clone has no such commit."""
    committed = int(git("log", "-1", "--format=%ct", "HEAD"))
    return git("rev-list", "--first-parent", "-1", f"--before={committed - DAY}", "HEAD") or NOTHING


def turn() -> int:
    """Returns the number of commits up to HEAD, or in a shallow clone, where that is constant, a number from HEAD's hash."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        return int(git("rev-parse", "HEAD"), 16)
    return int(git("rev-list", "--first-parent", "--count", "HEAD"))


def commits_since(base: str) -> int:
    """Returns the number of commits after `base`; 0 if it is a tree."""
    if git("cat-file", "-t", base) == "tree":
        return 0
    return int(git("rev-list", "--first-parent", "--count", f"{base}..HEAD"))


def recorded() -> dict[str, Record]:
    """Returns the records of the test modules; nothing if they cannot be read, so that no module has a record."""
    path = TOP / "tests" / "recorded.json"
    try:
        return read_records(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        words = "is not used: take an older one (`git log tests/recorded.json`), or record the tests again (CONTRIBUTING.rst)"
        print(f"{path.relative_to(TOP)} {words}: {error}", file=sys.stderr)
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default=os.environ.get("BTRKEEP_BASE"), metavar="BASE", help="a commit")
    given: str | None = parser.parse_args().base
    base = given or default_base()
    if not is_known(base):
        raise SystemExit(f"there is no commit {base} in this checkout: `git log --oneline` lists the commits")
    changed = git("diff", "--name-only", "--no-renames", base).splitlines()
    records = recorded()
    paths = {path.relative_to(TOP).as_posix(): path for path in (TOP / "tests").rglob("*.py")}
    helpers = helpers_used({name: path.read_text(encoding="utf-8") for name, path in paths.items()})
    with_helpers = {module: replace(record, uses=record.uses | helpers.get(module, set())) for module, record in records.items()}
    unused = [path for path in without_users(with_helpers, changed) if (TOP / path).is_file()]
    turns = turns_wanted(turn(), max(commits_since(given) if given else 1, 2 if unused else 1), changed)
    choice = chosen(with_helpers, helpers, changed, turns)
    report = (
        f"since {base[:12]} {len(changed)} files differ; they touch {len(choice.touched)} test modules that run, "
        f"and {len(choice.in_turn)} more have their turn: {len(turns) - len(choice.turns_left_out)} of {TURNS}"
        + (", because all tests use some of these files" if is_wide(changed) else "")
    )
    print(report, file=sys.stderr)
    if unrecorded := set(helpers).difference(records):
        print(f"without a record: {len(unrecorded)} test modules (scripts/record_tests.py)", file=sys.stderr)
    if unused:
        print(f"no record has these files, so there is a second turn: {' '.join(unused)}", file=sys.stderr)
    if choice.no_time:
        print(
            f"no time left for {len(choice.no_time)} test modules that the change may touch: {' '.join(choice.no_time)}",
            file=sys.stderr,
        )
    if choice.turns_left_out:
        numbers = ", ".join(str(number) for number in choice.turns_left_out)
        print(f"no time left for these turns of {TURNS}: {numbers}. All tests: `sudo ./test.sh --all`", file=sys.stderr)
    print("\n".join(sorted(choice.touched + choice.in_turn)))


if __name__ == "__main__":
    main()
