"""backupd with shorter pauses and less patience, of patience.py: a process that cannot be ended is given up after one second, not
after forty, and a file that does not answer after half a second, not after ten.
"""

import runpy
from pathlib import Path

from backupd.cli import main

if __name__ == "__main__":
    waits = runpy.run_path(str(Path(__file__).with_name("patience.py")))
    waits["shorten"]((*waits["PAUSES"], *waits["PATIENCE"]), "backupd")
    main()
