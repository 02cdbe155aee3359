"""The limit of bytes of a stream from another server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.decisions.replication import longest_stream

GIB = 1 << 30


@pytest.mark.parametrize(
    ("claimed", "limit"),
    [(None, 100 * GIB), (0, 100 * GIB), (-1, 100 * GIB), (GIB, 100 * GIB), (50 * GIB, 200 * GIB), (1 << 90, 1600 * GIB)],
)
def test_a_stream_may_have_four_times_what_is_claimed_or_the_filesystem_s_size(claimed: int | None, limit: int) -> None:
    assert longest_stream(claimed, 100 * GIB) == limit


@given(claimed=st.one_of(st.none(), st.integers()), filesystem=st.integers(1, 1 << 60))
def test_no_claim_lifts_the_limit_and_none_lowers_it_below_the_filesystem_s_size(claimed: int | None, filesystem: int) -> None:
    assert filesystem <= longest_stream(claimed, filesystem) <= 16 * filesystem
