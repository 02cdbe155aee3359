"""liar.py COUNTER ROOT[:HOW] ... -- rsync ...: a host that sends wrong files; it is called before rsync as `rsync_path`.

The first transfer is answered out of the first ROOT, the second out of the next, the last one for ever after: there the asked path
is looked up, not below /. HOW: `break` ends the connection when all was sent, `only=NAME` sends just that name below the path.
"""

import os
import subprocess
import sys
from pathlib import Path


def main(counter: Path, answers: list[str], command: list[str]) -> int:
    number = len(counter.read_text()) if counter.exists() else 0
    with counter.open("a") as file:
        file.write("x")
    root, _, how = answers[min(number, len(answers) - 1)].partition(":")
    path = command[-1].partition("/./")[2].rstrip("/")
    words = [*command[:-1], "./" + path]
    if how.startswith("only="):
        words = [*command[:-1], f"./{path}/{how.removeprefix('only=')}"]
    status = subprocess.run(words, cwd=root or "/", check=False).returncode
    if how == "break":
        os.kill(os.getppid(), 9)
    return status


if __name__ == "__main__":
    mark = sys.argv.index("--")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:mark], sys.argv[mark + 1 :]))
