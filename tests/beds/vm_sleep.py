"""Requests to the qemu of a virtual machine (QMP): whether the machine is suspended, and to wake it."""

import json
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any

_ADDRESS, _DATA = 0x70, 0x71  # ports of the clock that runs while the machine is off (mc146818)
_CONTROL, _IS_SET, _GOES = 0x0B, 0x82, 0x02  # register, and its values: 24 hours, in decimal digits
_FIELDS = ((0, "%S"), (2, "%M"), (4, "%H"), (7, "%d"), (8, "%m"), (9, "%y"))
_LOOK = 0.02


def wake(path: Path, at: str, seconds: float = 300) -> None:
    """Waits until the machine whose socket that is has been suspended to memory, and wakes it, with its clock at `at` (ISO, UTC).

    For its kernel this is a sleep until then: its own counters have stopped, the clock on the board has not. Fails if it is not
    asleep within that many seconds.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        with connection.makefile("rw", encoding="utf-8") as channel:
            channel.readline()
            end = time.monotonic() + seconds

            def ask(subject: str, **words: str) -> Any:
                channel.write(f"{json.dumps({'execute': subject, 'arguments': words})}\n")
                channel.flush()
                while "return" not in (answer := json.loads(channel.readline())):
                    assert "error" not in answer, answer
                return answer["return"]

            def set_register(number: int, value: int) -> None:
                for port, byte in ((_ADDRESS, number), (_DATA, value)):
                    ask("human-monitor-command", **{"command-line": f"o /b {port} {byte}"})

            ask("qmp_capabilities")
            while ask("query-status")["status"] != "suspended":
                assert time.monotonic() < end, "it does not fall asleep"
                time.sleep(_LOOK)
            set_register(_CONTROL, _IS_SET)
            moment = datetime.fromisoformat(at)
            for number, field in _FIELDS:
                set_register(number, int(moment.strftime(field), 16))
            set_register(_CONTROL, _GOES)
            ask("system_wakeup")
