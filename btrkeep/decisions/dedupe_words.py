"""The words for what a run of `backupd dedupe` saved. Pure."""

from btrkeep.catalogue import KILLED, Dedupe
from btrkeep.units import counted, format_size


def dedupe_words(one: Dedupe, *, with_outcome: bool = True) -> str:
    """Formats it: "complete: 4.5 MiB of 12 files shared; 3 MiB less of data, 1 MiB more of metadata in use"."""
    parts = [f"{format_size(one.shared_bytes)} of {counted(one.files, 'file')} shared"]
    if one.data_saved is not None and one.metadata_added is not None:
        parts.append(f"{_more(-one.data_saved)} of data, {_more(one.metadata_added)} of metadata in use")
    if one.left_out:
        parts.append(f"{counted(one.left_out, 'backup')} left")
    said = "; ".join(parts)
    return f"{one.outcome or KILLED}: {said}" if with_outcome else said


def _more(number: int) -> str:
    return f"{format_size(abs(number))} {'more' if number > 0 else 'less'}"
