"""Numbers of quota groups, and a kernel without simple quotas; tests/btrfs/test_quotas.py tests real groups."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.actions.quota import require_enableable
from btrkeep.errors import OperatorError
from btrkeep.pool import qgroups
from btrkeep.pool.marker import Pool

POOL = Pool(Path("/nowhere"), "id", "00000000-0000-4000-8000-000000000000", rehearsal=False)
places = st.tuples(st.integers(5, (1 << 20) - 1), st.integers(256, (1 << 28) - 1))


@given(single=places, other=places)
def test_no_two_folders_have_the_same_group_and_none_that_is_a_subvolumes(single: tuple[int, int], other: tuple[int, int]) -> None:
    assert (qgroups.group_number(*single) == qgroups.group_number(*other)) == (single == other)
    level, _, number = qgroups.group_name(qgroups.group_number(*single)).partition("/")
    assert level == "1"
    assert int(number) >= 5 << 28, "one that somebody numbers by hand is smaller"


@pytest.mark.parametrize("place", [(1 << 20, 256), (5, 1 << 28)])
def test_what_does_not_fit_is_refused_and_not_cut_off(place: tuple[int, int]) -> None:
    with pytest.raises(OperatorError):
        qgroups.group_number(*place)


def test_a_kernel_that_knows_no_simple_quotas_is_not_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qgroups, "SYSFS", tmp_path)
    with pytest.raises(OperatorError, match="has no simple quotas"):
        require_enableable(POOL)
    assert qgroups.live_bytes(POOL) == {}
    assert qgroups.remove_unused(POOL) == 0
