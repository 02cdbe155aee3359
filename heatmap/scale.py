"""The scale that states of several moments are drawn to, so that they can be compared. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heatmap.recorded import StateHeader
from heatmap.state import Array


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """To what all states are drawn, so that a place in the picture is the same place at all times: u64[d] each, by devid.

    Every device that ever was there has its place, as large as it ever was.
    """

    devid: Array
    total_bytes: Array


def common_scale(moments: Sequence[StateHeader]) -> Scale:
    """The scale for all of these."""
    devid = np.concatenate([moment.devid for moment in moments])
    total_bytes = np.concatenate([moment.total_bytes for moment in moments])
    found, which = np.unique(devid, return_inverse=True)
    largest = np.zeros(len(found), np.uint64)
    np.maximum.at(largest, which, total_bytes)
    return Scale(found, largest)
