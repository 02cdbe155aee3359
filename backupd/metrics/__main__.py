"""`python -m backupd.metrics docs/monitoring.rst`: the list of metrics made anew."""

import sys
from pathlib import Path

from backupd.metrics.page import refreshed

if len(sys.argv) != 2:
    sys.exit("usage: python -m backupd.metrics docs/monitoring.rst")
page = Path(sys.argv[1])
page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
