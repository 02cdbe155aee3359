"""backupd under a clock that is wrong: `python shifted.py SECONDS WORDS` runs `backupd WORDS` with that added to the time.

Only this process has it: programs that it starts, and the files that it writes, have the machine's time.
"""

import datetime as dt
import sys
import time

if __name__ == "__main__":
    shift = float(sys.argv.pop(1))
    right_datetime, right_time = dt.datetime, time.time

    class Shifted(dt.datetime):
        """As all modules see it that are imported from here on."""

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Shifted":
            moment = right_datetime.now(tz) + dt.timedelta(seconds=shift)
            return cls.combine(moment.date(), moment.timetz())

    dt.datetime = Shifted  # type: ignore[misc]
    time.time = lambda: right_time() + shift
    from backupd.cli import main

    main()
