"""What is known of a backup's data on the disk: pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class VerificationState(StrEnum):
    """What the last look at the data of a backup showed. `IN_PART`: only some of its files were read."""

    NEVER = "never"
    IN_PART = "in part"
    WHOLE = "whole"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verified.json` keeps of one backup.

    `begun`: of the pass that reads each of its files once; `at`: its end, or that of the last part. `read`: files of that pass that
    could be read, `compared` those of them that were compared with an earlier checksum; `bytes` of data, without holes. `whole`:
    when a pass came to its end for the last time. `damages`: how many files are damaged; `damaged`: the first of them.
    """

    begun: datetime
    at: datetime
    read: int = 0
    compared: int = 0
    bytes: int = 0
    whole: datetime | None = None
    damaged: tuple[str, ...] = ()
    damages: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the pass came to its end: the next one is another."""
        return self.whole is not None and self.whole >= self.begun


def state_of(found: Verification | None) -> VerificationState:
    """Damaged before all else, also when that is long ago: data does not mend itself without a new look."""
    if found is None:
        return VerificationState.NEVER
    if found.damages:
        return VerificationState.DAMAGED
    return VerificationState.WHOLE if found.whole else VerificationState.IN_PART
