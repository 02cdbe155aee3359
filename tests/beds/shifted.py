"""backupd under a clock that is wrong: `python shifted.py SECONDS WORDS` runs `backupd WORDS` with that added to the time;
`python shifted.py SECONDS impatient WORDS` runs it with less patience as well (impatient.py).

Only this process has it: programs that it starts, and the files that it writes, have the machine's time.
"""

import datetime as dt
import runpy
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    shift = float(sys.argv.pop(1))
    right_datetime, right_time = dt.datetime, time.time

    class Shifted(dt.datetime):
        """The clock for all modules that are imported from now on."""

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Shifted":
            moment = right_datetime.now(tz) + dt.timedelta(seconds=shift)
            return cls.combine(moment.date(), moment.timetz())

    dt.datetime = Shifted  # type: ignore[misc]
    time.time = lambda: right_time() + shift
    if sys.argv[1] == "impatient":
        del sys.argv[1]
        runpy.run_path(str(Path(__file__).with_name("impatient.py")), run_name="__main__")
    from backupd.cli import main

    main()
