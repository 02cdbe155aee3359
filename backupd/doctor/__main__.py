"""`python -m backupd.doctor FILE`: the table of checks in docs/doctor.rst made anew."""

import sys
from pathlib import Path

from backupd.doctor.page import refreshed

if len(sys.argv) != 2:
    sys.exit("usage: python -m backupd.doctor docs/doctor.rst")
document = Path(sys.argv[1])
document.write_text(refreshed(document.read_text(encoding="utf-8")), encoding="utf-8")
