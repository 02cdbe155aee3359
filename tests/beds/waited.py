"""backupd for which time flies: `python waited.py FILE WORDS` runs `backupd WORDS`, and once FILE is there a minute of its waiting
is a second. So a test of a limit for silence does not wait for it, and a busy machine does not count as silence.

Only this process has that clock: programs that it starts have the kernel's.
"""

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    begin, right_monotonic = Path(sys.argv.pop(1)), time.monotonic

    def flying() -> float:
        """Replaces time.monotonic for all modules that are imported from now on."""
        try:
            seconds = time.time() - begin.stat().st_mtime
        except OSError:
            seconds = 0.0
        return right_monotonic() + 60 * max(0.0, seconds)

    time.monotonic = flying
    from backupd.cli import main

    main()
