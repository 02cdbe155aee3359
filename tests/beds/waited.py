"""backupd for which an hour passes at once: `python waited.py FILE WORDS` runs `backupd WORDS`, and its clock of waiting jumps when
FILE appears. So a test of what is given up after a long silence waits for none, and a busy machine is no silence.

Only this process has that clock: programs that it starts have the kernel's.
"""

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    jump, right_monotonic = Path(sys.argv.pop(1)), time.monotonic
    time.monotonic = lambda: right_monotonic() + 3600 * jump.exists()
    from backupd.cli import main

    main()
